"""Every kind of bad file is told for what it is, whoever reads it: preprocess, skipping or not, and check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmapload
from mmapload.checking import check
from mmapload.cli import main
from mmapload.errors import SourceError
from mmapload.sources.kinds import Request, open_files
from tests.bad_files import BAD_FILES, SOUND, write_special
from tests.npz_files import npz_bytes
from tests.preprocessing_cases import stored, tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every bad file between sound ones."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.npz").write_bytes(SOUND)
        (folder / f"z{number}.npz").write_bytes(SOUND)
    for name, (data, _) in BAD_FILES.items():
        (folder / f"{name}.npz").write_bytes(data)
    return folder


def test_check_and_skipping_tell_each_for_what_it_is_and_keep_the_sound_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {name: words for name, (_, words) in BAD_FILES.items()} | write_special(folder)
    found = {Path(fault.file).stem: str(fault) for fault in check(folder).faults}
    assert found.keys() == said.keys()
    for name, words in said.items():
        assert words in found[name], name
        assert "allow_pickle" not in found[name]
    out = folder.parent / "out"
    assert main(["preprocess", str(folder), str(out), "--batch-size", "2", "--on-error", "skip"]) == 3
    printed, _ = capsys.readouterr()
    assert f"left out {len(said)} bad of {len(said) + 6} samples" in printed
    lines = Path(f"{out}.skipped.jsonl").read_text().splitlines()
    skipped = {Path(line["file"]).stem: line for line in map(json.loads, lines)}
    assert skipped.keys() == said.keys()
    for name in said.keys() - {"dict"}:  # its keys are missed first
        where = f"member {skipped[name]['member']!r}: " if skipped[name]["member"] else ""
        assert said[name] in where + skipped[name]["cause"], name
    assert len(stored(mmapload.open_store(out), "label")) == 6
    assert main(["check", str(folder), "--quiet"]) == 1


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_run_that_leaves_nothing_out_stops_for_it_and_writes_nothing(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = BAD_FILES[name]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "s0.npz").write_bytes(data)  # alone: the first sample says what all are
    assert main(["preprocess", str(folder), str(tmp_path / "out"), "--batch-size", "2"]) == 1
    told = capsys.readouterr().err
    assert f"{folder}/s0.npz" in told
    assert said in told
    assert os.listdir(tmp_path) == ["in"]
    assert main(["check", str(folder), "--quiet"]) == 1
    assert said in capsys.readouterr().out


READING = """
import contextlib, io, os, sys
from mmapload.cli import main
with contextlib.redirect_stdout(io.StringIO()):  # while all that it imports can be read
    main(["check", sys.argv[1], "--quiet"])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["check", sys.argv[1], "--quiet"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_file_that_one_may_not_read_is_said_to_be_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.npz").write_bytes(SOUND)
    (folder / "b.npz").write_bytes(SOUND)
    (folder / "b.npz").chmod(0)
    for above in (tmp_path, *tmp_path.parents[:-2]):  # which pytest has made for its own user alone
        above.chmod(0o755)
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", READING, str(folder)], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "b.npz: cannot be opened: Permission denied: check who may read it" in done.stdout
    assert "2 samples: 1 that cannot be read" in done.stdout


@pytest.mark.parametrize("suffix", ["npz", "npy", "h5", "tar", "png", "pt", "safetensors", "mat"])
@pytest.mark.parametrize("special", ["pipe", "loop", "gone"])
def test_what_is_no_file_is_told_at_once_by_every_kind_of_source(
    tmp_path: Path, suffix: str, special: str
) -> None:
    """None waits for whoever might write into a pipe."""
    pytest.importorskip({"h5": "h5py", "png": "PIL", "pt": "torch", "mat": "scipy"}.get(suffix, "numpy"))
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        if special == "pipe":
            os.mkfifo(path)
        else:
            os.symlink(path.name if special == "loop" else "nowhere", path)
    with pytest.raises(SourceError) as caught:  # noqa: PT012 - some look at files when they are opened
        source, _ = open_files([tmp_path], None, Request(None, (), "files"))
        source.schema(0)
    said = {"pipe": "a named pipe", "loop": "leads to itself", "gone": "a link to 'nowhere'"}
    assert said[special] in caught.value.cause
    assert caught.value.file == str(paths[0])


def test_a_folder_with_the_name_of_a_file_is_noted_and_looked_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in" / "b.npz").mkdir(parents=True)
    for name in ("a.npz", "b.npz/c.npz"):
        (tmp_path / "in" / name).write_bytes(SOUND)
    said = "b.npz: a folder, though its name is a file's"
    assert check(tmp_path / "in").notes == (said,)
    command = ["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), "--batch-size", "2", "--dry-run"]
    assert main(command) == 0
    assert said in capsys.readouterr().out


def test_a_bomb_among_samples_is_told_and_never_inflated(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    zeros = np.zeros((80, 1 << 20), "u1")
    for number in range(6):
        (folder / f"s{number}.npz").write_bytes(SOUND)
    (folder / "a.npz").write_bytes(npz_bytes({"x": zeros, "label": 1}, deflate=True))
    before = tree(folder)
    report = check(folder)
    (fault,) = report.faults
    assert fault.file == str(folder / "a.npz")
    assert "80 MiB" in fault.cause
    assert "a decompression bomb" in fault.cause
    assert report.nbytes == 6 * (6 * 4 + 8)
    assert tree(folder) == before
    out = tmp_path / "out"
    store = mmapload.preprocess(folder, out, 2, on_error="skip")
    assert len(store) == 6
    (line,) = Path(f"{out}.skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == str(folder / "a.npz")
