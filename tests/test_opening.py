"""Opening: whatever lies in a store's folder, it is read or named, and nothing else is opened."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shlex
import socket
import stat
from typing import TYPE_CHECKING, Any

import pytest

from mmapload.errors import LayoutError, StoreNotFoundError
from mmapload.opening import read_layout
from mmapload.store import open_store
from tests.test_metadata import ARRAY, ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of a store with the fields image and flow; there are no chunk files."""
    store = tmp_path / "store"
    write(store / "zarr.json", ROOT)
    write(store / "image" / "zarr.json", ARRAY)
    write(store / "flow" / "zarr.json", ARRAY)
    return store


def write(path: Path, document: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def root(**notes: Any) -> dict[str, Any]:
    document = copy.deepcopy(ROOT)
    document["attributes"]["mmapload"] |= notes
    return document


def problems(folder: Path) -> list[str]:
    with pytest.raises(LayoutError) as caught:
        read_layout(str(folder))
    return list(caught.value.problems)


def test_a_layout_is_read_with_its_fields_in_the_order_of_the_root(folder):
    layout = read_layout(str(folder))
    assert [field.name for field in layout.fields] == ["image", "flow"]
    assert (layout.samples, layout.batch_size, layout.chunk_length) == (10, 2, 4)


def test_what_the_root_does_not_name_does_not_matter(folder):
    write(folder / "other" / "zarr.json", "{")
    write(folder / "notes.txt", "x")
    os.mkfifo(folder / "pipe")
    assert len(read_layout(str(folder)).fields) == 2


def test_problems_of_the_root_hide_none_of_the_fields(folder):
    write(folder / "zarr.json", root(samples=-1, fields={"image": {}, "../flow": {}, "flow": {}, "gone": {}}))
    write(folder / "image" / "zarr.json", "{")
    write(folder / "flow" / "zarr.json", ARRAY | {"data_type": "string"})
    assert [problem.partition(": ")[::2] for problem in problems(folder)] == [
        ("zarr.json", "samples: expected an integer from 1 to 9007199254740992, found -1"),
        ("zarr.json", "the field name '../flow' has a part that consists of dots"),
        (
            "image/zarr.json",
            "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        ),
        ("flow/zarr.json", "data_type: expected a core Zarr type, found 'string'"),
        ("gone/zarr.json", "missing; the root says that there is a field 'gone'"),
    ]


def test_what_is_known_of_a_broken_root_is_held_against_the_fields(folder):
    write(folder / "zarr.json", root(batch_size=None, samples=11))
    assert [problem.partition(":")[0] for problem in problems(folder)] == [
        "zarr.json",
        "image/zarr.json",
        "flow/zarr.json",
    ]


def test_a_key_that_is_there_twice_hides_nothing(folder):
    write(folder / "zarr.json", json.dumps(ROOT).replace('"names": false', '"names": 0, "names": false'))
    write(folder / "flow" / "zarr.json", json.dumps(ARRAY)[:-1] + ', "zarr_format": 2}')
    assert problems(folder) == [
        "zarr.json: the key 'names' is there twice",
        "flow/zarr.json: the key 'zarr_format' is there twice",
        "flow/zarr.json: zarr_format: expected 3, found 2",
    ]


def test_a_message_lists_fifty_problems_and_counts_the_rest(folder):
    write(folder / "zarr.json", root(fields={f"field{number}": {} for number in range(1284)}))
    with pytest.raises(LayoutError) as caught:
        read_layout(str(folder))
    error = caught.value
    assert len(error.problems) == 1284
    assert str(error).count("\n") == 51
    assert str(error).endswith("\n  - and 1,234 more")
    again = pickle.loads(pickle.dumps(error))
    assert (again.problems, str(again)) == (error.problems, str(error))


def test_a_hundred_thousand_fields_are_refused_as_fast_as_their_absence_is_seen(folder):
    write(folder / "zarr.json", root(fields={f"field{number}": {} for number in range(100_000)}))
    assert len(problems(folder)) == 100_000


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../outside",
        "/etc",
        "a//b",
        "a/../b",
        "image/a",
        "a\\b",
        "a\0",
        "\x1b[2J",
        "a\u202eb",
        "\ud800",
        "",
        "zarr.json",
        "__mmapload__",
        "x" * 10**6,
        "IMAGE",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_unseen_and_told_in_plain_characters(folder, name):
    outside = folder.parent / "outside"
    write(outside / "zarr.json", "{")
    write(folder / "zarr.json", root(fields={"image": {}, name: {}}))
    (problem,) = problems(folder)
    assert problem.startswith("zarr.json: the field name ")
    assert len(problem) < 300
    with pytest.raises(LayoutError) as caught:
        open_store(folder)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


@pytest.mark.parametrize("name", ["zarr.json", "image", "image/zarr.json"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_in_a_store_is_refused_with_the_way_to_copy_it(folder, name, dangling):
    there = folder.parent / "there"
    os.rename(folder / name, there)
    os.symlink(folder / "nowhere" if dangling else there, folder / name)
    (problem,) = problems(folder)
    assert problem.startswith(f"{name}: a symbolic link to '")
    assert problem.endswith("a store holds its own files: copy it with links followed (cp -rL)")


@pytest.mark.parametrize("name", ["", "/names", "/ends", "/checksums"])
def test_a_link_to_reserved_arrays_is_refused(folder, name):
    name = f"__mmapload__{name}"
    write(folder / "zarr.json", root(names=True, checksums=True))
    for array in ("names", "ends", "checksums"):
        os.makedirs(folder / "__mmapload__" / array)
    assert read_layout(str(folder)).has_names
    os.rename(folder / name, folder.parent / "there")
    os.symlink(folder.parent / "there", folder / name)
    (problem,) = problems(folder)
    assert problem.startswith(f"{name}: a symbolic link to ")


def test_a_store_behind_a_link_is_opened(folder, tmp_path):
    os.symlink(folder, tmp_path / "link")
    os.symlink(tmp_path / "link", tmp_path / "link to link")
    assert len(read_layout(str(tmp_path / "link to link")).fields) == 2


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        server.bind(path.name)
        os.chdir(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        pytest.skip("making a device takes root")


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkdir, "a folder"), (os.mkfifo, "a pipe"), (make_socket, "a socket"), (make_device, "a device")],
)
@pytest.mark.parametrize("name", ["zarr.json", "image/zarr.json"])
def test_what_is_no_file_is_not_opened(folder, make, kind, name):
    os.remove(folder / name)
    make(folder / name)
    assert problems(folder) == [f"{name}: expected a file, found {kind}"]


def test_a_file_in_place_of_a_fields_folder_is_named(folder):
    os.rename(folder / "image", folder.parent / "image")
    write(folder / "image", "x")
    assert problems(folder) == ["image: expected a folder, found a file"]


def test_documents_that_may_not_be_read_are_named_each(folder):
    os.chmod(folder / "image" / "zarr.json", 0)
    os.chmod(folder / "flow", 0)
    user = os.geteuid()
    for parent in folder.parents[:-1]:  # other users may not enter the folders that pytest makes
        os.chmod(parent, parent.stat().st_mode | 0o011)
    try:
        os.seteuid(user or 65534)
        found = problems(folder)
    finally:
        os.seteuid(user)
        os.chmod(folder / "flow", 0o700)
    assert found == [f"{name}/zarr.json: cannot be read (Permission denied)" for name in ("image", "flow")]


def test_a_document_that_is_too_large_is_refused_without_being_read_whole(folder):
    for name in ("image", "flow"):
        with open(folder / name / "zarr.json", "r+b") as file:
            file.truncate(2**40 if name == "image" else 4 * 2**20 + 1)
    assert problems(folder) == [
        f"{name}/zarr.json: more than the 4,194,304 bytes that metadata may have"
        for name in ("image", "flow")
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(".zgroup", "a Zarr v2 group"), (".zarray", "a Zarr v2 array"), ("attributes.json", "N5 data")],
)
def test_other_formats_are_named(folder, name, kind):
    os.rename(folder / "zarr.json", folder / name)
    with pytest.raises(StoreNotFoundError, match=f"is {kind}, not a store; give the folder that"):
        read_layout(str(folder))
    os.rename(folder / name, folder / "zarr.json")
    os.rename(folder / "flow" / "zarr.json", folder / "flow" / name)
    assert problems(folder) == [f"flow/zarr.json: missing; there is {kind}"]


def test_a_store_with_consolidated_metadata_is_read_from_the_documents_themselves(folder):
    stale = {"kind": "inline", "must_understand": False, "metadata": {"image": ARRAY | {"shape": [5, 3, 5]}}}
    write(folder / "zarr.json", ROOT | {"consolidated_metadata": stale})
    assert len(read_layout(str(folder)).fields) == 2


@pytest.mark.parametrize("path", ["a\0b", "x" * 10**5, "/dev/null/store", "loop/store"])
def test_a_path_that_cannot_be_is_no_store(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    with pytest.raises(StoreNotFoundError, match="there is no store at"):
        open_store(path)


def test_a_link_to_nothing_is_named(tmp_path):
    os.symlink("gone", tmp_path / "link")
    with pytest.raises(StoreNotFoundError, match="a symbolic link to gone, where there is nothing"):
        open_store(tmp_path / "link")


def test_where_nothing_is_the_command_that_makes_a_store_has_the_path_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, typed in (
        ("v v.mml", "'v v.mml'"),
        ("../a/b.mml", "../a/b.mml"),
        (tmp_path / "c'", None),
    ):
        with pytest.raises(StoreNotFoundError, match="there is no store at /") as raised:
            open_store(path)
        (command,) = re.findall("`(.*)`", str(raised.value))
        assert typed is None or typed in command
        words = ["mmapload", "preprocess", "SOURCE", os.fspath(path), "--batch-size", "B"]
        assert shlex.split(command) == words
