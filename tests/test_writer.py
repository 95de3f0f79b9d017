"""The writer's parts: files that are whole or absent, journal, locked work folder, documents, names."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.codecs import CODEC_NAMES, codec_named
from mmapload.errors import ChunkError, MmaploadError
from mmapload.layout import CORE_DTYPES, RESERVED_GROUP, FieldLayout, StoreLayout
from mmapload.metadata import parse_field, parse_root
from mmapload.preprocessing import preprocess
from mmapload.reserved import read_elements, reserved_path
from mmapload.store import Store
from mmapload.strictjson import parse_document
from mmapload.writer import workfolder
from mmapload.writer.checksums import checksums_nbytes, write_checksums
from mmapload.writer.chunks import ChunkFile, is_intact, write_field_chunk
from mmapload.writer.documents import field_document, group_document
from mmapload.writer.durable import explain, write_durably
from mmapload.writer.journal import Journal, read_journal
from mmapload.writer.names import name_nbytes, names_nbytes, write_names
from mmapload.writer.reserved import ReservedArray
from mmapload.writer.workfolder import WorkFolder, is_store
from tests.preprocessing_cases import samples, tree


@given(parts=st.lists(st.binary(max_size=40), max_size=6))
def test_a_file_holds_its_parts_and_nothing_else_is_left(
    parts: list[bytes], tmp_path_factory: object
) -> None:
    folder = tmp_path_factory.mktemp("durable")
    write_durably(str(folder / "file"), parts)
    assert (folder / "file").read_bytes() == b"".join(parts)
    assert os.listdir(folder) == ["file"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    write_durably(str(tmp_path / "file"), [b"old"])
    (tmp_path / "folder" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_durably(str(tmp_path / "folder"), [b"new"])
    with pytest.raises(TypeError):
        write_durably(str(tmp_path / "file"), [b"new", None])
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_is_explained_with_both_numbers(tmp_path: Path) -> None:
    text = explain(OSError(errno.EDQUOT, "Disk quota exceeded"), str(tmp_path / "file"), 2**20)
    assert text.startswith("Disk quota exceeded; 1 MiB to write, ")
    assert "make room, and run the same command again to continue" in text
    assert "to write" not in explain(OSError(errno.EIO, "I/O error"), str(tmp_path / "file"), 2**20)


def test_a_chunk_file_that_differs_in_any_way_is_not_intact(tmp_path: Path) -> None:
    layout = FieldLayout("x", np.dtype("u1"), (5,), 3, codec_named("raw", 1))
    rows = np.arange(15, dtype="u1").reshape(3, 5)
    written = write_field_chunk(str(tmp_path), layout, 0, rows)
    path = tmp_path / "c.0.0"
    data = path.read_bytes()
    assert written.nbytes == len(data) == 19
    assert is_intact(str(path), written)
    for at in range(19):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert not is_intact(str(path), written)
    for other in (data[:-1], data + b"x", b""):
        path.write_bytes(other)
        assert not is_intact(str(path), written)
    path.unlink()
    assert not is_intact(str(path), written)
    assert not is_intact(str(path), ChunkFile(0, ""))


@given(cut=st.integers(0, 200))
def test_a_journal_reads_as_far_as_it_is_whole(cut: int, tmp_path_factory: object) -> None:
    path = str(tmp_path_factory.mktemp("journal") / "journal")
    entries = [{"number": number, "text": "x" * number} for number in range(6)]
    with Journal(path) as journal:
        journal.append(entries[:2])
        journal.append(entries[2:])
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:cut])
    found, whole = read_journal(path)
    assert found == entries[: len(found)]
    assert whole == sum(len(line) for line in data.splitlines(keepends=True)[: len(found)]) <= max(cut, 0)
    with Journal(path, whole) as journal:
        journal.append([{"more": 1}])
    assert read_journal(path)[0] == [*found, {"more": 1}]


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(str(tmp_path / "journal")) == ([], 0)


def test_one_of_many_threads_gets_the_lock_while_folders_come_and_go(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    inside, most, errors = [0], [0], []

    def contend() -> None:
        for _ in range(200):
            try:
                with WorkFolder(out) as work:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    Path(work.journal).touch()
                    inside[0] -= 1
                    work.discard()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in errors if "is writing" not in str(error)] == []
    assert len(errors) < 800
    assert most == [1]
    assert os.listdir(tmp_path) == []


def test_the_work_folder_s_name_taken_by_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").touch()
    with pytest.raises(MmaploadError, match="move it away"):
        WorkFolder(str(tmp_path / "out"))


def test_a_link_in_the_place_of_the_work_folder_is_refused_and_what_it_leads_to_is_kept(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "precious").write_text("mine")
    (tmp_path / ".out.partial").symlink_to(victim)
    with pytest.raises(MmaploadError, match=r"\.out\.partial is a symbolic link, no folder.*move it away"):
        preprocess(samples(2), tmp_path / "out", 1)
    assert sorted(os.listdir(victim)) == ["precious", "sub"]
    assert (victim / "precious").read_text() == "mine"


@pytest.mark.parametrize("entry", ["lock", "journal", "names", "store", "replaced"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_nothing_in_a_work_folder_is_written_through_a_link_or_into_a_pipe(
    tmp_path: Path, entry: str, kind: str
) -> None:
    victim = tmp_path / "victim"
    (tmp_path / ".out.partial").mkdir()
    if entry in {"store", "replaced"}:
        (victim / "x").mkdir(parents=True)
        (victim / "x" / "precious").touch()
    elif kind == "link":
        victim.write_text("mine")
    before = tree(tmp_path)
    place = tmp_path / ".out.partial" / entry
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "nothing" if kind == "dangling" else victim)
    with pytest.raises(MmaploadError, match=f"{entry} is .*no (file|folder).*move it away"):
        preprocess(samples(2), tmp_path / "out", 1)
    place.unlink()
    (tmp_path / ".out.partial" / "lock").unlink(missing_ok=True)
    assert tree(tmp_path) == before


def test_a_link_in_the_place_of_a_field_s_folder_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").touch()
    with WorkFolder(str(tmp_path / "out")) as work:
        work.keep_only({"x": set()})
        os.rmdir(os.path.join(work.store, "x"))
        os.symlink(tmp_path / "victim", os.path.join(work.store, "x"))
        with pytest.raises(MmaploadError, match="x is a symbolic link, no folder"):
            work.keep_only({"x": set()})
    assert os.listdir(tmp_path / "victim") == ["precious"]


def test_a_link_that_leads_nowhere_above_the_work_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        WorkFolder(str(tmp_path / "link" / "out"))


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    with WorkFolder(str(tmp_path / "out")):
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with WorkFolder(str(tmp_path / "out")) as work:
            work.discard()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_journal_goes_first_when_a_work_folder_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that is killed meanwhile must not leave a journal that speaks of files which are gone.
    gone: list[str] = []
    remove = workfolder._remove
    monkeypatch.setattr(workfolder, "_remove", lambda path: gone.append(path) or remove(path))
    with WorkFolder(str(tmp_path / "out")) as work:
        for path in (work.journal, *(os.path.join(work.path, str(number)) for number in range(30))):
            Path(path).touch()
        work.discard()
    assert gone[0].endswith("/journal")
    assert len(gone) == 31
    assert os.listdir(tmp_path) == []


def test_only_a_store_alone_is_taken_for_one(tmp_path: Path) -> None:
    preprocess(samples(2), tmp_path / "out", 1)
    assert is_store(str(tmp_path / "out"))
    (tmp_path / "out" / "x" / "c.0.0.0").unlink()
    assert is_store(str(tmp_path / "out"))  # a damaged one is one
    (tmp_path / "out" / "mine").touch()
    assert not is_store(str(tmp_path / "out"))
    for text in ("", "[]", "{}", '{"attributes": {"mmapload": 1}}', '{"attributes": 3}'):
        (tmp_path / "zarr.json").write_text(text)
        assert not is_store(str(tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "deep", "endless", "link", "folder"])
def test_whatever_lies_where_the_store_is_to_be_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    preprocess(samples(2), tmp_path / "other", 1)
    place = tmp_path / "out" / "zarr.json"
    place.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "deep":
        place.write_text("[" * 200_000)
    elif kind == "endless":
        place.touch()
        os.truncate(place, 6 * 2**30)
    elif kind == "link":
        place.symlink_to(tmp_path / "other" / "zarr.json")
    else:
        place.mkdir()
    for overwrite in (False, True):
        with pytest.raises(MmaploadError, match="a folder with other things in it, not a store alone"):
            preprocess(samples(2), tmp_path / "out", 1, overwrite=overwrite)
    assert os.path.lexists(place)


def test_where_exchanging_is_not_possible_the_old_store_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workfolder, "_exchange", lambda *_: False)
    preprocess(samples(2), tmp_path / "out", 1)
    preprocess(samples(3), tmp_path / "wanted", 1)
    preprocess(samples(3), tmp_path / "out", 1, overwrite=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")
    # Killed between the two renames, the old one comes back with the next run.
    with WorkFolder(str(tmp_path / "out")) as work:
        os.rename(work.out, os.path.join(work.path, "replaced"))
    with WorkFolder(str(tmp_path / "out")) as work:
        assert is_store(work.out)
        work.discard()
    assert sorted(os.listdir(tmp_path)) == ["out", "wanted"]


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4)])
def test_documents_of_every_type_read_back_and_have_one_form(codec: str, shape: tuple[int, ...]) -> None:
    for name, dtype in CORE_DTYPES.items():
        field = FieldLayout("x", dtype, shape, 8, codec_named(codec, dtype.itemsize))
        text = field_document(field, 21)
        document, problems = parse_document(text, "x")
        assert problems == []
        assert parse_field("x", document, 21, 4, "x") == (field, [])
        assert list(document) == [
            "zarr_format",
            "node_type",
            "shape",
            "data_type",
            "chunk_grid",
            "chunk_key_encoding",
            "fill_value",
            "codecs",
            "attributes",
            "storage_transformers",
        ]
        assert document["data_type"] == name
        assert document["shape"] == [21, *shape]


def test_the_root_document_reads_back_with_its_fields_in_order() -> None:
    fields = tuple(
        FieldLayout(name, np.dtype("u1"), (), 4, codec_named("raw", 1)) for name in ("b", "a", "é")
    )
    layout = StoreLayout(7, 4, 4, fields, True, {"kind": "npz", "skipped": 0, "shuffle": None})
    text = group_document(layout.root_attributes())
    document, problems = parse_document(text, "x")
    root, names, found = parse_root(document, "x")
    assert (problems, found, names) == ([], [], ["b", "a", "é"])
    assert root is not None
    assert (root.samples, root.batch_size, root.has_names, root.source) == (7, 4, True, layout.source)
    assert text == json.dumps(document, indent=2).encode() + b"\n"


def test_names_of_any_length_and_number_come_back(tmp_path: Path) -> None:
    lengths = [*range(700), *(number % 16 for number in range(700, 2**17 + 3))]
    names = [f"{number}/{'é' * length}\udcff.npz" for number, length in enumerate(lengths)]
    names[5] = ""
    write_names(str(tmp_path), iter(names))
    for group in (tmp_path, tmp_path / RESERVED_GROUP):
        (group / "zarr.json").write_bytes(group_document({}))
    store = Store(str(tmp_path), StoreLayout(len(names), 1, 1, (), has_names=True))
    for number in (0, 4, 5, 6, 699, 2**17 - 1, 2**17, 2**17 + 2):
        assert store.sample_name(number) == names[number]
    assert [fault for fault in store.verify() if fault] == []
    total = sum(name_nbytes(name) for name in names)
    sizes = [len(data) for name, data in tree(tmp_path).items() if "c." in name]
    assert sum(sizes) == names_nbytes(len(names), total)
    assert len(sizes) > 50


@given(pieces=st.lists(st.integers(0, 9), max_size=9), shape=st.sampled_from([(), (3,)]))
def test_a_reserved_array_holds_what_was_appended_however_it_came(
    pieces: list[int], shape: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    array = FieldLayout("x", np.dtype("<u4"), shape, 4, codec_named("raw", 4))
    store = str(tmp_path_factory.mktemp("reserved"))
    rows = np.arange(sum(pieces) * array.sample_nbytes // 4, dtype="<u4").reshape(-1, *shape)
    growing = ReservedArray(store, array)
    for start, count in zip(np.cumsum([0, *pieces]).tolist(), pieces, strict=False):
        growing.extend(rows[start : start + count])
    growing.close()
    assert read_elements(store, array, 0, len(rows)).tobytes() == rows.tobytes()
    files = sorted(os.listdir(os.path.dirname(reserved_path(store, array, 0))))
    assert files == sorted([*(array.chunk_key(chunk) for chunk in range(-(-len(rows) // 4))), "zarr.json"])


def test_the_list_of_checksums_needs_every_chunk_file_in_its_place(tmp_path: Path) -> None:
    store = preprocess(samples(5), tmp_path / "out", 2, chunk_bytes=1)
    before = tree(tmp_path / "out")
    write_checksums(store.path, store.layout)
    assert tree(tmp_path / "out") == before
    sizes = [len(data) for name, data in before.items() if "checksums/c." in name]
    assert sum(sizes) == checksums_nbytes(store.layout.chunks, len(store.fields))
    path = store.chunk_path(store.layout.fields[0], 1)
    os.truncate(path, 3)
    with pytest.raises(ChunkError, match="found 3 bytes"):
        write_checksums(store.path, store.layout)
    os.unlink(path)
    with pytest.raises(ChunkError, match="no such file"):
        write_checksums(store.path, store.layout)
