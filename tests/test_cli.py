"""The command line: what it prints where, and its exit status."""

from __future__ import annotations

import errno
import fcntl
import inspect
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import mmapload
from mmapload.cli import main
from mmapload.cli.preprocess import _CODECS
from mmapload.codecs import CODEC_NAMES
from mmapload.errors import ChunkError
from mmapload.preprocessing import plan_preprocess, preprocess
from mmapload.sizes import format_size
from tests.warm_python import run_warm

MMAPLOAD = [sys.executable, "-m", "mmapload"]
COMMANDS = ["preprocess", "info", "verify"]


def write_npz(folder: Path, samples: int, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + samples):
        np.savez(
            folder / f"s_{number}.npz",
            image=np.full((3, 4), number, np.uint8),
            flow=np.array([number, -0.5, np.nan], np.float32),
        )


@pytest.fixture
def source(tmp_path):
    """Ten samples in two folders, one hidden file and two foreign ones."""
    write_npz(tmp_path / "src" / "a", 8)
    write_npz(tmp_path / "src" / "b", 2, first=8)
    (tmp_path / "src" / ".hidden.npz").write_bytes(b"")
    (tmp_path / "src" / "readme.txt").write_text("x")
    (tmp_path / "src" / "a" / "list.csv").write_text("x")
    return str(tmp_path / "src")


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out")


@pytest.fixture
def store(source, out, capsys):
    assert main(["preprocess", source, out, "--batch-size", "2", "--chunk-bytes", "50", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    return out


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return run_warm("-m", "mmapload", *arguments, **options)


def one_error(capsys) -> str:
    """Return the line on standard error, of which there is one, with nothing on standard output."""
    printed, told = capsys.readouterr()
    assert printed == ""
    assert told.startswith("mmapload: error: ")
    assert told.count("\n") == 1
    assert "Traceback" not in told
    return told


# help and usage


@pytest.mark.parametrize("command", [[], ["check"], *([name] for name in COMMANDS)])
def test_help_has_examples_and_exits_with_0(command, capsys):
    assert main([*command, "--help"]) == 0
    printed, told = capsys.readouterr()
    assert "examples:\n  mmapload " in printed
    assert told == ""
    assert max(len(line) for line in printed.splitlines()) <= 110


def test_help_tells_the_exit_status_of_each_outcome(capsys):
    main(["--help"])
    printed = capsys.readouterr().out
    for status in ("0 done", "1 failed", "2 wrong usage", "3 done", "130 interrupted"):
        assert status in printed


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mmapload {mmapload.__version__}\n"


def test_help_imports_nothing_that_takes_time():
    script = (
        "import sys; from mmapload.cli import main; main(['--help']); main(['preprocess', '--help'])\n"
        "heavy = {'numpy', 'torch', 'zarr', 'numcodecs', 'tqdm', 'concurrent.futures', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240, stdout=subprocess.DEVNULL)


def test_the_installed_command_and_the_module_are_one():
    command = Path(sys.executable).with_name("mmapload")
    if not command.exists():
        pytest.skip("the package is not installed beside this interpreter")
    texts = [subprocess.check_output([*each, "--version"]) for each in ([command], MMAPLOAD)]
    assert texts[0] == texts[1]


def test_the_options_offer_what_the_function_takes_with_its_defaults():
    assert _CODECS == CODEC_NAMES
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(plan_preprocess).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    from mmapload.cli import _parse

    parsed = vars(_parse(["preprocess", "src", "out", "--batch-size", "2"]))
    parsed["list_file"] = parsed.pop("list")
    parsed["chunk_bytes"] = f"{parsed['chunk_bytes'] // 2**20}MiB"
    assert {name: parsed[name] for name in defaults} == defaults


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["info"],
        ["info", "a", "b"],
        ["info", "a", "--sample", "-1"],
        ["info", "a", "--sample", "x"],
        ["verify"],
        ["verify", "a", "--quick"],
        ["preprocess", "src", "out"],
        ["preprocess", "--batch-size", "2"],
        ["preprocess", "out", "--batch-size", "2"],
        ["preprocess", "src", "out", "--batch-size", "0"],
        ["preprocess", "src", "out", "--batch-size", "-2"],
        ["preprocess", "src", "out", "--batch-size", "2.5"],
        ["preprocess", "src", "out", "--batch-size", "2", "--codec", "gzip"],
        ["preprocess", "src", "out", "--batch-size", "2", "--chunk-bytes", "64 parsecs"],
        ["preprocess", "src", "out", "--batch-size", "2", "--jobs", "0"],
        ["preprocess", "src", "out", "--batch-size", "2", "--shuffle", "x"],
        ["preprocess", "src", "out", "--batch-size", "2", "--on-error", "ignore"],
        ["preprocess", "src", "out", "--batch-size", "2", "--over"],
        ["preprocess", "src", "out", "--batch-size", "2", "--fields", ","],
        ["preprocess", "src", "out", "--batch-size", "2", "--shuffle", str(2**64)],
        ["preprocess", "src", "out", "--batch-size", "2", "--fill", "flow"],
        ["preprocess", "src", "out", "--batch-size", "2", "--fill", "depth=0"],
        ["preprocess", "src", "out", "--batch-size", "2", "--fill", "image=300"],
        ["preprocess", "src", "out", "--batch-size", "2", "--fill", "image=0:uint8:4x3"],
        ["preprocess", "src", "out", "--batch-size", "2", "--fill", "flow=0", "--fields", "image"],
    ],
)
def test_wrong_usage_exits_with_2_says_why_and_does_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "src", 1)
    assert main(arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == ""
    assert "error: " in told
    assert os.listdir(tmp_path) == ["src"]


# preprocess


def test_preprocess_writes_a_store_and_says_what_it_made(source, out, capsys):
    assert main(["preprocess", source, out, "--batch-size", "4"]) == 0
    printed, told = capsys.readouterr()
    first, *_, second = printed.splitlines()
    assert first.startswith(f"{out}: 10 samples in 1 chunk, ")
    assert second == "skipped 1 hidden and 2 foreign files of the source"
    assert "npz: 10 samples" in told, "the plan goes before"
    assert "10 of 10 samples" in told, "and the progress"
    made = mmapload.open_store(out)
    assert [made.sample_name(sample) for sample in (0, 9)] == ["a/s_0.npz", "b/s_9.npz"]
    assert made.read_chunk("image", 0)[:, 0, 0].tolist() == list(range(10))


@pytest.mark.parametrize(
    "order",
    [
        ["{src}", "{out}", "--batch-size", "4"],
        ["--batch-size", "4", "{src}", "{out}"],
        ["{src}", "--batch-size", "4", "{out}"],
        ["{src}", "--quiet", "{out}", "--batch-size=4"],
        ["--batch-size", "4", "--", "{src}", "{out}"],
    ],
)
def test_options_may_stand_anywhere(source, out, order):
    assert main(["preprocess", *(each.format(src=source, out=out) for each in order)]) == 0
    assert len(mmapload.open_store(out)) == 10


def test_several_sources_and_globs_and_a_list_are_taken_in_order(source, out, tmp_path, capsys):
    (tmp_path / "files.txt").write_text("src/b/s_8.npz\nsrc/a/s_3.npz\n")
    assert main(["preprocess", "--list", f"{tmp_path}/files.txt", out, "--batch-size", "2", "--quiet"]) == 0
    made = mmapload.open_store(out)
    assert made.read_chunk("image", 0)[:, 0, 0].tolist() == [8, 3]
    second = out + "2"
    glob = f"{source}/a/s_[12].npz"
    assert main(["preprocess", f"{source}/b", glob, second, "--batch-size", "4", "--quiet"]) == 0
    assert mmapload.open_store(second).read_chunk("image", 0)[:, 0, 0].tolist() == [8, 9, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_every_option_reaches_the_store(source, out):
    options = "--batch-size 2 --codec zstd --chunk-bytes 48 --jobs 2 --fields image,flow=motion --shuffle 7"
    assert main(["preprocess", source, out, *options.split(), "--quiet"]) == 0
    made = mmapload.open_store(out)
    assert made.fields == ("image", "motion")
    assert made.layout.chunk_length == 4
    assert made.layout.source["shuffle"] == 7
    assert {field.codec.name for field in made.layout.fields} == {"zstd"}
    images = np.concatenate([made.read_chunk("image", chunk)[:, 0, 0] for chunk in range(3)])
    assert sorted(images) == list(range(10))
    assert images.tolist() != list(range(10))


def test_dry_run_shows_the_plan_and_writes_nothing(source, out, tmp_path, capsys):
    before = sorted(os.listdir(tmp_path))
    assert main(["preprocess", source, out, "--batch-size", "4", "--dry-run"]) == 0
    printed, told = capsys.readouterr()
    assert told == ""
    for part in ("10 samples", "1 hidden and 2 foreign", "uint8 (3, 4)", "x batch 4", "memory", "free", out):
        assert part in printed
    assert sorted(os.listdir(tmp_path)) == before


def test_a_bad_sample_stops_the_run_and_is_named(source, out, capsys):
    bad = os.path.join(source, "a", "s_5.npz")
    os.truncate(bad, 100)
    assert main(["preprocess", source, out, "--batch-size", "2", "--quiet"]) == 1
    assert bad in one_error(capsys)
    assert not os.path.exists(out)


def test_skipped_samples_are_listed_and_the_status_is_3(source, out, capsys):
    os.truncate(os.path.join(source, "a", "s_5.npz"), 100)
    assert main(["preprocess", source, out, "--batch-size", "2", "--on-error", "skip"]) == 3
    printed, _ = capsys.readouterr()
    assert f"left out 1 bad of 10 samples, listed in {out}.skipped.jsonl" in printed
    (line,) = Path(f"{out}.skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["file"].endswith("a/s_5.npz")
    assert len(mmapload.open_store(out)) == 9
    main(["info", out])
    assert "1 bad samples left out" in capsys.readouterr().out


def test_a_finished_store_stays_unless_it_is_to_be_overwritten(source, store, capsys):
    before = mmapload.open_store(store).fingerprint
    assert main(["preprocess", source, store, "--batch-size", "5"]) == 1
    assert "--overwrite" in one_error(capsys)
    assert mmapload.open_store(store).fingerprint == before
    assert main(["preprocess", source, store, "--batch-size", "5", "--overwrite", "--quiet"]) == 0
    assert mmapload.open_store(store).layout.batch_size == 5


def test_a_source_that_is_not_there_is_an_error(tmp_path, out, capsys):
    assert main(["preprocess", f"{tmp_path}/none", out, "--batch-size", "5"]) == 1
    assert "none" in one_error(capsys)


def test_what_the_system_refuses_is_told_in_one_line(source, tmp_path, capsys):
    out = str(tmp_path / ("x" * 300) / "out")
    assert main(["preprocess", source, out, "--batch-size", "2", "--quiet"]) == 1
    assert os.strerror(errno.ENAMETOOLONG) in one_error(capsys)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_without_standard_output_or_error_does_its_work(command, closed, source, out, tmp_path):
    preprocess(source, tmp_path / "store", 2)
    arguments = [source, out, "--batch-size", "2"] if command == "preprocess" else [str(tmp_path / "store")]
    line = shlex.join([sys.executable, "-m", "mmapload", command, *arguments])
    assert os.system(f"{line} {closed}") == 0
    assert os.path.exists(out) == (command == "preprocess")


def test_what_stands_in_is_planned_counted_and_kept(source, out, capsys):
    for number in (0, 3):
        np.savez(Path(source, "a", f"s_{number}.npz"), image=np.full((3, 4), number, np.uint8))
    options = ["--batch-size", "4", "--fill", "flow=-0.0", "--fill", "label=-1:int64:"]
    assert main(["preprocess", source, out, *options, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "flow   float32 (3,), 12 B a sample, -0.0 where missing\n" in planned
    assert "label  int64 (), 8 B a sample, -1 where missing\n" in planned
    assert main(["preprocess", source, out, *options]) == 0
    printed = capsys.readouterr().out
    assert "\nfilled: flow in 2 of 10 samples\nfilled: label in 10 of 10 samples\n" in printed
    made = mmapload.open_store(out)
    assert np.signbit(made.read_chunk("flow", 0)[:, 0]).tolist() == [n in {0, 3} for n in range(10)]
    assert made.layout.source["fill"] == {"flow": -0.0, "label": -1}
    assert main(["info", out]) == 0
    shown = capsys.readouterr().out
    assert "flow filled with -0.0 where it was missing, label filled with -1 where it was missing" in shown


def test_an_array_that_no_sample_has_is_an_error_whose_advice_works(source, out, capsys):
    command = ["preprocess", source, out, "--batch-size", "4", "--quiet", "--fill"]
    assert main([*command, "my depth=nan"]) == 2
    told = one_error(capsys)
    typed = shlex.split(told[told.index("--fill") :])[1]
    assert typed == "my depth=nan:float32:4x256x448"
    assert main([*command, typed]) == 0
    assert np.isnan(mmapload.open_store(out).read_chunk("my depth", 0)).all()


def test_a_file_that_lacks_an_array_is_an_error_whose_advice_works(source, out, capsys):
    np.savez(Path(source, "a", "s_3.npz"), image=np.full((3, 4), 3, np.uint8))
    command = ["preprocess", source, out, "--batch-size", "4", "--quiet", "--overwrite"]
    assert main(command) == 1
    told = one_error(capsys)
    assert "s_3.npz" in told
    option, value = told[told.index("--fill") :].split()[:2]
    assert main([*command, option, value]) == 0
    assert mmapload.open_store(out).read_chunk("flow", 0)[3].tolist() == [0, 0, 0]


def test_quiet_prints_nothing_but_errors(source, out):
    done = run("preprocess", source, out, "--batch-size", "2", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interrupt_says_that_the_same_command_continues_and_it_does(tmp_path):
    first = tmp_path / "src" / "s_000.npz"
    first.parent.mkdir()
    np.savez(first, x=np.random.default_rng(0).integers(0, 256, 2**18, np.uint8))
    for number in range(1, 300):
        os.link(first, first.with_name(f"s_{number:03}.npz"))
    command = [
        *MMAPLOAD,
        "preprocess",
        str(first.parent),
        str(tmp_path / "out"),
        "--batch-size=1",
        "--jobs=1",
    ]
    command += ["--chunk-bytes=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        chunks = tmp_path / ".out.partial" / "store" / "x"
        while process.poll() is None and not (chunks.is_dir() and len(os.listdir(chunks)) > 3):
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=240)
    assert process.returncode == 130, told
    assert printed == ""
    *_, last, again = told.splitlines()
    assert "the same command continues" in last
    assert shlex.split(again) == ["mmapload", *command[3:]]
    assert "Ctrl-C again stops at once" in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "samples were there already" in again.stdout
    assert len(mmapload.open_store(tmp_path / "out")) == 300
    assert not (tmp_path / ".out.partial").exists()


HANGING = """
import sys, time
from pathlib import Path
from mmapload.cli import main
from mmapload.sources.npz import NpzSource

read = NpzSource.read
def hanging(self, index, into):
    while index >= 4:
        Path(sys.argv[1]).touch()
        time.sleep(0.05)
    return read(self, index, into)
NpzSource.read = hanging
sys.exit(main(sys.argv[2:]))
"""


def test_a_second_interrupt_ends_a_run_that_hangs_and_what_is_written_is_kept(source, out, tmp_path):
    """As where a disk on the network does not answer."""
    command = ["preprocess", source, out, "--batch-size", "1", "--chunk-bytes", "1", "--jobs", "1"]
    begun = tmp_path / "begun"
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(begun), *command],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    while not begun.exists():
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-2:] == [
        "mmapload: stopped at once",
        f"to go on: {shlex.join(['mmapload', *command])}",
    ]
    assert not os.path.exists(out)
    again = run(*command)
    assert "samples were there already" in again.stdout
    assert len(mmapload.open_store(out)) == 10


def test_the_summary_tells_bytes_ratio_and_where_the_time_went(source, out, capsys):
    Path(source, "a", "s_3.npz").write_bytes(b"")
    Path(source, "a", "s_4.npz").write_bytes(b"")
    Path(source, "b", "s_8.npz").write_text("<html>")
    assert main(["preprocess", source, out, "--batch-size", "2", "--on-error", "skip"]) == 3
    lines = capsys.readouterr().out.splitlines()
    size = sum(path.stat().st_size for path in Path(source).rglob("s_*.npz"))
    assert lines[1].startswith(f"read: files of {format_size(size)}; the store takes 0.")
    assert re.fullmatch(
        r"spent: (reading|encoding) \d+ %, .*waiting \d+ % of the time of \d+ threads?", lines[2]
    )
    assert lines[-3] == f"left out 3 bad of 10 samples, listed in {out}.skipped.jsonl"
    assert lines[-2] == "  s_3.npz and 1 more: the file is empty (0 bytes): fetch or write it again"
    assert lines[-1].startswith("  s_8.npz: not a zip file (6 bytes) but an HTML")


# info


def test_info_tells_samples_batches_chunks_sizes_and_origin(store, capsys):
    assert main(["info", store]) == 0
    printed, told = capsys.readouterr()
    assert told == ""
    text = " ".join(printed.split())
    for part in (
        store,
        "10, 24 B each",
        "batches 5 of 2 samples",
        "chunks 3 of 4 samples (2 x batch size), the last one of 2",
        "npz, in its own order, names of samples kept",
        "image uint8 (3, 4) raw 12 B 48 B 120 B 156 B",
        "flow float32 (3,) raw 12 B 48 B 120 B 156 B",
        "total 24 B 96 B 240 B 312 B",
    ):
        assert part in text


def test_info_as_json_has_the_same_as_numbers(store, capsys):
    assert main(["info", store, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    opened = mmapload.open_store(store)
    assert told["samples"] == 10
    assert told["batches"] == 5
    assert (told["chunks"], told["chunk_length"], told["last_chunk_samples"]) == (3, 4, 2)
    assert (told["decoded_bytes"], told["disk_bytes"]) == (240, 312)
    assert told["fingerprint"] == opened.fingerprint
    assert len(told["source"].pop("contents")) == 16
    assert told["source"] == {"kind": "npz", "skipped": 0, "shuffle": None}
    assert [field["name"] for field in told["fields"]] == ["image", "flow"]
    on_disk = sum(path.stat().st_size for name in opened.fields for path in Path(store, name).glob("c.*"))
    assert told["disk_bytes"] == on_disk


def test_info_of_a_sample_says_its_file_its_place_and_its_values(store, capsys):
    assert main(["info", store, "--sample", "9"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "name b/s_9.npz",
        "chunk 2, row 1",
        "image uint8 (3, 4) 9 9 0",
        "flow float32 (3,) -0.5 9 1",
    ):
        assert part in text
    assert main(["info", store, "--sample", "9", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["sample"]
    assert (told["name"], told["chunk"], told["row"]) == ("b/s_9.npz", 2, 1)
    assert told["fields"][1] == {
        "name": "flow",
        "dtype": "float32",
        "shape": [3],
        "min": -0.5,
        "max": 9.0,
        "nan": 1,
    }


def test_info_of_a_sample_that_is_not_there_says_how_many_there_are(store, capsys):
    assert main(["info", store, "--sample", "10"]) == 2
    assert "has 10, from 0 on" in one_error(capsys)


@pytest.mark.parametrize("as_json", [False, True])
def test_info_of_a_sample_copes_with_every_kind_of_value(tmp_path, capsys, as_json):
    values = {
        "nan": np.full(3, np.nan, "f2"),
        "inf": np.array([-np.inf, np.inf]),
        "complex": np.array([1j, np.nan]),
        "empty": np.zeros((0, 2), "i4"),
        "bool": np.array([True, False]),
        "scalar": np.uint64(2**64 - 1),
    }
    preprocess([values], tmp_path / "out", batch_size=1)
    assert main(["info", f"{tmp_path}/out", "--sample", "0", *["--json"] * as_json]) == 0
    printed, told = capsys.readouterr()
    assert told == ""
    for part in ("inf", "-inf", "18446744073709551615", "True" if not as_json else "true"):
        assert part in printed
    if as_json:
        assert json.loads(printed, parse_constant=pytest.fail)["sample"]["name"] is None
    else:
        assert "not kept" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "raw", "\x1b[31mevil"],
        ["\x1b[31mevil"],
        ["verify", "a", "--\x1b[31mevil"],
        ["bench", "a", "--rounds", "\x1b[31mevil"],
    ],
)
def test_arguments_that_would_command_a_terminal_are_shown_escaped(arguments, capsys):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert r"\x1b[31mevil" in told


def test_names_that_would_garble_a_terminal_are_shown_escaped(tmp_path, out, capsys):
    write_npz(tmp_path / "src", 1)
    (tmp_path / "src" / "s_0.npz").rename(tmp_path / "src" / "größe\n\x1b[31m.npz")
    main(["preprocess", f"{tmp_path}/src", out, "--batch-size", "1", "--quiet"])
    assert main(["info", out, "--sample", "0"]) == 0
    assert r"größe\n\x1b[31m.npz" in capsys.readouterr().out


NASTY = "a\x1b[2J\n\x9b31m\x7f\u202e"


def test_no_name_reaches_the_terminal_raw(tmp_path):
    """Of a folder, good and bad samples, arrays, stores and strange files in a store."""
    folder = tmp_path / NASTY
    write_npz(folder / "src", 3)
    (folder / "src" / "s_0.npz").rename(folder / "src" / f"{NASTY}.npz")
    (folder / "src" / f"bad{NASTY}.npz").write_bytes(b"no zip")
    np.savez(folder / "key.npz", **{NASTY: np.zeros(3)})
    store = str(folder / f"out{NASTY}")
    runs = [
        (["preprocess", f"{folder}/src", store, "--batch-size", "1"], 1),
        (["preprocess", f"{folder}/src", store, "--batch-size", "1", "--on-error", "skip"], 3),
        (["preprocess", f"{folder}/src", store, "--batch-size", "1"], 1),
        (["preprocess", f"{folder}/src", f"{store}2", "--batch-size", "1", "--dry-run", "--fields", "x"], 1),
        (["preprocess", f"{folder}/key.npz", f"{store}3", "--batch-size", "1"], 2),
        (["preprocess", f"{folder}/none", f"{store}4", "--batch-size", "1"], 1),
        (["info", store, "--sample", "0"], 0),
        (["info", store, "--sample", "9"], 2),
        (["info", store, "--sample", "0", "--json"], 0),
        (["info", f"{store}/none"], 1),
        (["verify", store], 1),
    ]
    for number, (arguments, status) in enumerate(runs):
        if arguments[0] == "verify":
            Path(store, NASTY).write_bytes(b"")
            Path(store, "image", "c.0.0.0").write_bytes(b"short")
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == status, (number, done.stderr)
        for line in (done.stdout + done.stderr).split("\n"):
            assert line.isprintable(), (number, line)
        assert r"\x1b[2J" in done.stdout + done.stderr or "--json" in arguments, number
    listed = Path(f"{store}.skipped.jsonl").read_text(encoding="utf-8")
    assert all(line.isprintable() for line in listed.split("\n"))
    assert json.loads(listed)["file"] == str(folder / "src" / f"bad{NASTY}.npz")


def test_info_counts_missing_chunk_files(store, capsys):
    os.remove(f"{store}/image/c.1.0.0")
    assert main(["info", store]) == 0
    assert "1 chunk file; `mmapload verify` names it" in capsys.readouterr().out
    os.remove(f"{store}/image/c.0.0.0")
    assert main(["info", store]) == 0
    assert "2 chunk files; `mmapload verify` names them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["info", "a", "--sample", "-1"], "--sample: expected a whole number from 0 on, found '-1'"),
        (["preprocess", "a", "b", "--batch-size", "0"], "--batch-size: expected a whole number from 1 on"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_those_that_can(options, words, capsys):
    assert main(options) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "verify"])
def test_what_is_no_store_is_an_error(command, tmp_path, capsys):
    assert main([command, f"{tmp_path}/none"]) == 1
    assert "there is no store at" in one_error(capsys)
    (tmp_path / "zarr.json").write_text('{"zarr_format": 2}')
    assert main([command, str(tmp_path)]) == 1
    printed, told = capsys.readouterr()
    assert printed == ""
    assert "zarr_format: expected 3, found 2" in told


def test_a_reader_that_goes_away_ends_the_command_without_a_word(store):
    for command in ("info", "verify"):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*MMAPLOAD, command, store], stdout=write, stderr=subprocess.PIPE, timeout=240, check=False
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (141, b"")


# verify


def test_verify_of_a_whole_store_counts_its_files(store, capsys):
    assert main(["verify", store]) == 0
    assert capsys.readouterr() == (f"{store}: 9 files are whole\n", "")


def test_verify_names_field_chunk_and_file_of_each_fault(store, capsys):
    with open(f"{store}/image/c.1.0.0", "r+b") as file:
        file.write(b"\xff")
    os.truncate(f"{store}/flow/c.2.0", 7)
    os.remove(f"{store}/flow/c.0.0")
    assert main(["verify", store]) == 1
    printed, told = capsys.readouterr()
    assert told == ""
    *lines, last = printed.splitlines()
    expected = [
        ("image", 1, "image/c.1.0.0", "samples 4 to 7 ('a/s_4.npz', 'a/s_5.npz', 'a/s_6.npz' and 1 more)"),
        ("flow", 0, "flow/c.0.0", "samples 0 to 3 ('a/s_0.npz', 'a/s_1.npz', 'a/s_2.npz' and 1 more)"),
        ("flow", 2, "flow/c.2.0", "samples 8 to 9 ('b/s_8.npz', 'b/s_9.npz')"),
    ]
    assert len(lines) == len(expected)
    for line, (field, chunk, path, samples) in zip(lines, expected, strict=True):
        assert line.startswith(f"fault: chunk {chunk} of field '{field}', {samples}: expected ")
        assert os.path.join(store, path) in line
    assert last == f"{store}: 3 of 9 files are not as they were written"


def test_every_flipped_byte_of_a_chunk_file_fails_the_command(store, capsys):
    path = Path(store, "flow", "c.2.0")
    whole = path.read_bytes()
    for position in range(0, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert main(["verify", store]) == 1
    path.write_bytes(whole)
    assert main(["verify", store]) == 0
    capsys.readouterr()


def test_verify_mentions_what_does_not_belong_to_the_store(store, capsys):
    strange = ["x.txt", "image/c.3.0.0", "image/c.01.0.0", "flow/c.0.0.tmp", "__mmapload__/other", "sub/"]
    for name in strange:
        if name.endswith("/"):
            os.mkdir(f"{store}/{name}")
        else:
            Path(store, name).write_bytes(b"")
    assert main(["verify", store]) == 0
    printed, _ = capsys.readouterr()
    notes = [line for line in printed.splitlines() if line.startswith("note: ")]
    assert sorted(notes) == sorted(
        f"note: {store}/{name.rstrip('/')} is no part of the store" for name in strange
    )


def test_many_strange_files_are_counted_and_not_all_listed(store, capsys):
    for number in range(33):
        Path(store, "flow", f"{number}.bak").write_bytes(b"")
    assert main(["verify", store]) == 0
    printed, _ = capsys.readouterr()
    assert printed.count("note: ") == 21
    assert "note: nor are 13 more" in printed


@pytest.mark.parametrize("command", ["verify", "preprocess"])
def test_progress_is_drawn_on_a_terminal_and_results_stay_on_standard_output(store, source, out, command):
    arguments = [store] if command == "verify" else [source, out + "2", "--batch-size", "2"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    try:
        done = subprocess.run(
            [*MMAPLOAD, command, *arguments], stdout=subprocess.PIPE, stderr=theirs, timeout=240, check=True
        )
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 4096):
                drawn += part
        except OSError:  # what Linux says when the other side is closed
            pass
    finally:
        os.close(ours)
    assert b"100%" in drawn
    assert b"100%" not in done.stdout
    assert done.stdout.count(b"\n") >= 1


def test_a_damaged_chunk_is_an_error_where_a_sample_is_shown(store, capsys):
    os.truncate(f"{store}/image/c.1.0.0", 7)
    assert main(["info", store, "--sample", "5"]) == 1
    assert "chunk 1 of field 'image'" in one_error(capsys)
    with pytest.raises(ChunkError):
        mmapload.open_store(store).read_chunk("image", 1)


@pytest.mark.parametrize("command", [["verify"], ["info", "--sample", "0"]])
def test_a_store_that_claims_more_than_any_memory_is_an_error(store, capsys, command):
    path = Path(store, "image", "zarr.json")
    document = json.loads(path.read_text())
    document["shape"][1] = document["chunk_grid"]["configuration"]["chunk_shape"][1] = 2**45
    path.write_text(json.dumps(document))
    assert main([*command, store]) == 1
    printed, told = capsys.readouterr()
    assert "Traceback" not in told
    assert printed + told


def test_a_store_that_is_not_named_last_is_told_of(source, out, capsys):
    assert main(["preprocess", source, out, source, "--batch-size", "2"]) == 1
    assert f"the last path is OUT, where the store goes; to make it at {out}, name that last" in one_error(
        capsys
    )
    assert main(["preprocess", f"{source}/no.npz", out, "--batch-size", "2"]) == 1
    assert "OUT" not in one_error(capsys)


def test_rows_that_were_taken_for_one_sample_are_told_of_at_the_end(tmp_path, out, capsys):
    np.savez(tmp_path / "rows.npz", x=np.zeros((100, 3)), y=np.zeros(100))
    assert main(["preprocess", f"{tmp_path}/rows.npz", out, "--batch-size", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "WARNING: each file was taken for one sample; all arrays of the first file have 100 "
    )
    assert "--samples rows" in last


def test_what_an_unfinished_store_was_begun_with_is_said_before_a_plan_that_is_refused(source, out, capsys):
    with open(f"{source}/z.npz", "wb") as file:
        file.write(b"PK")
    assert main(["preprocess", source, out, "--batch-size", "2", "--chunk-bytes", "1", "--quiet"]) == 1
    capsys.readouterr()
    again = ["preprocess", source, out, "--chunk-bytes", "1"]
    for options in ([], ["--dry-run"]):
        assert main([*again, "--batch-size", "4", *options]) == 1
        assert "was begun with another batch size" in one_error(capsys)
    assert main([*again, "--batch-size", "2", "--dry-run"]) == 0
    assert main([*again, "--batch-size", "4", "--overwrite", "--dry-run"]) == 0


def test_info_and_verify_know_ragged_fields(tmp_path):
    from tests.ragged_cases import write

    store = write(tmp_path / "store")
    out = run("info", store.path, "--sample", "3").stdout
    assert re.search(r"words +float32 +\(\*,\)", out)
    assert re.search(r"words +float32 +\(40,\)", out)
    told = json.loads(run("info", store.path, "--json").stdout)
    assert told["missing_chunk_files"] == 0
    assert told["fields"][0]["decoded_bytes"] == 4 * int(store.values(store.field("words")).sum())
    done = run("verify", store.path)
    assert "is no part" not in done.stdout
    assert done.returncode == 0
