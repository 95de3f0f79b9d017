"""WebDataset tar files written by that library and by tarfile: members of one name are one sample."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import webdataset

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.kinds import Request, open_files
from tests.npz_files import count_reads, npy_bytes, npz_bytes, open_descriptors
from tests.preprocessing_cases import stored
from tests.reading_cases import awkward, read_sample, same

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.sources import IndexedSource


def opened(path: Any, fields=None, optional=()) -> IndexedSource:
    return open_files([path], None, Request(fields, optional, "files"))[0]


def write_tar(path: Path, members: list[tuple[str, bytes]], **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_samples_that_the_library_wrote_are_read_bit_by_bit(tmp_path):
    arrays = awkward(7)
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i in range(7):
            writer.write({
                "__key__": f"train/{i:04d}",
                "cls": i - 3,
                "f4.npy": arrays["f4"][i],
                "npz": {name: arrays[name][i] for name in ("u1", "big", "empty", "c16")},
                "meta.json": {"scale": i / 2, "box": [1, 2, i]},
            })  # fmt: skip
    source = opened(tmp_path / "a.tar")
    assert (len(source), source.kind, source.name(3)) == (7, "webdataset", "a.tar/train/0003")
    for i in (3, 0, 6):
        found = read_sample(source, i)
        assert same(found["cls"], np.int64(i - 3))
        assert same(found["f4.npy"], arrays["f4"][i])
        assert all(same(found[name], arrays[name][i]) for name in ("u1", "big", "empty", "c16"))
        assert same(found["meta.scale"], np.float64(i / 2))
        assert same(found["meta.box"], np.array([1, 2, i]))


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_foreign_members_are_no_obstacle(tmp_path, format_):
    long = "d" * 90 + "/" + "é" * 40 if format_ != tarfile.USTAR_FORMAT else "d" * 90 + "/" + "e" * 60
    members = [
        ("README", b"no dot"),
        ("._0.cls", b"\0\5\26\7"),
        (f"{long}.cls", b"1"),
        ("x.y/0.CLS", b" 2\n"),
    ]
    write_tar(tmp_path / "a.tar", members, format=format_)
    source = opened(tmp_path / "a.tar")
    assert [source.name(i) for i in range(len(source))] == [f"a.tar/{long}", "a.tar/x.y/0"]
    assert [int(read_sample(source, i)["cls"]) for i in range(2)] == [1, 2]


def test_fortran_order_and_zero_axes_of_npy_members_survive(tmp_path):
    values = [
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.float32(-0.0),
        np.zeros((0, 3)),
        np.arange(3, dtype=">i2"),
    ]
    write_tar(tmp_path / "a.tar", [(f"s.{i}.npy", npy_bytes(value)) for i, value in enumerate(values)])
    found = read_sample(opened(tmp_path / "a.tar"), 0)
    assert all(same(found[f"{i}.npy"], value) for i, value in enumerate(values))


def test_only_the_members_that_are_taken_are_read(tmp_path, monkeypatch):
    members = [(f"{i}.{name}.npy", npy_bytes(np.full(1000, i))) for i in range(5) for name in "ab"]
    source = opened(write_tar(tmp_path / "a.tar", members), {"b.npy": "b"})
    calls = count_reads(monkeypatch)
    into = {"b": np.empty(1000, "i8")}
    before = open_descriptors()
    for index in range(5):
        source.fingerprint(index)
        source.read(index, into)
        assert (into["b"] == index).all()
    assert len(calls) == 5
    assert open_descriptors() == before


def test_images_are_decoded_where_they_are_named(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i in range(2):
            file = io.BytesIO()
            image.fromarray(pixels[i]).save(file, "PNG")
            writer.write({"__key__": str(i), "png": file.getvalue(), "cls": i})
    store = preprocess(tmp_path / "a.tar", tmp_path / "out", 1, fields="png=image,cls=label")
    assert (stored(store, "image") == pixels).all()
    assert [*opened(tmp_path / "a.tar", {"cls": "cls"}).schema(0)] == ["cls"]
    with pytest.raises(SourceError, match=r"a\.tar, member '0\.png': an image, .*--fields png=image"):
        opened(tmp_path / "a.tar").schema(0)


@pytest.mark.parametrize(
    ("extension", "data", "words"),
    [
        ("pyd", b"\x80\x04N.", "of a kind that is not read .*leave it out by naming the others"),
        ("mp4", b"", "of a kind that is not read"),
        ("npy", b"\x80\x04N.", "not a .npy array but a Python pickle"),
        ("npy", npy_bytes(np.zeros(4))[:-1], "takes 32 bytes, and 31 are there"),
        ("npy", npy_bytes(np.array([None])), "Python objects"),
        ("npz", b"<html>", "not a zip file"),
        ("npz", npz_bytes({"x": np.array([None])}), "member 's.npz, member x.npy'|Python objects"),
        ("cls", b"cat", "should hold a whole number, and holds 'cat'"),
        ("cls", b"\xff\xfe", "should hold text in UTF-8"),
        ("json", b"{", "should hold JSON, and does not"),
        ("json", b'{"a": 1, "a": 2}', "a key is there twice"),
        ("json", b'{"a": [1, [2]]}', "inhomogeneous"),
    ],
)
def test_a_member_that_is_damaged_or_of_another_kind_is_told_by_name(tmp_path, extension, data, words):
    source = opened(write_tar(tmp_path / "a.tar", [(f"s.{extension}", data)]))
    with pytest.raises(SourceError, match=rf"a\.tar.*{words}"):
        read_sample(source, 0)


def test_a_pickle_is_never_unpickled(tmp_path):
    class Armed:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    import pickle

    for extension in ("npy", "pth", "pyd", "pickle", "json", "cls", "txt"):
        source = opened(write_tar(tmp_path / "a.tar", [(f"s.{extension}", pickle.dumps(Armed()))]))
        with pytest.raises(SourceError):
            read_sample(source, 0)
    assert not (tmp_path / "ran").exists()


def whole(tmp_path: Path) -> bytes:
    members = [(f"{i}.cls", str(i).encode()) for i in range(3)]
    return write_tar(tmp_path / "whole.tar", members, format=tarfile.USTAR_FORMAT).read_bytes()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not a tar archive but nothing"),
        (lambda data: b"<html>" * 200, "not a tar archive but an HTML"),
        (lambda data: data[:700], "cut short|damaged"),
        (lambda data: data[:1024], "ends at byte 1024 without the zeros that end an archive"),
        (lambda data: data[:2000], "damaged tar archive|cut short"),
        (lambda data: data[:3072], "ends at byte 3072 without the zeros"),
        (lambda data: data[:1024] + b"x" * 512 + data[1536:], "goes on at byte 1024, behind its last member"),
        (lambda data: data + data, "goes on at byte 10240, behind its last member: .*two archives in one"),
    ],
)
def test_an_archive_from_which_samples_were_lost_is_refused(tmp_path, damage, words):
    (tmp_path / "a.tar").write_bytes(damage(whole(tmp_path)))
    with pytest.raises(SourceError, match=rf"a\.tar: .*({words})"):
        opened(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("0.cls", b"1"), ("0.cls", b"2")], r"member '0\.cls': is there twice"),
        ([("0.cls", b"1"), ("0.CLS", b"2")], r"member '0\.CLS': is there twice"),
        ([("0.a.npy", b""), ("1.cls", b"1"), ("0.cls", b"1")], "member '0.cls': lies apart"),
        ([("README", b"")], "holds no sample"),
    ],
)
def test_members_that_fit_no_sample_are_refused(tmp_path, members, words):
    with pytest.raises(SourceError, match=words):
        opened(write_tar(tmp_path / "a.tar", members))


def test_links_and_a_name_that_is_there_twice_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("0.cls")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(SourceError, match=r"member '0\.cls': a link, device or sparse file"):
        opened(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", [("0.npz", npz_bytes({"x": 1})), ("0.json", json.dumps({"x": 2}).encode())])
    with pytest.raises(SourceError, match="'x' is there twice in 0"):
        opened(tmp_path / "a.tar").schema(0)


def test_an_archive_that_changes_after_it_was_listed_is_an_error(tmp_path):
    source = opened(write_tar(tmp_path / "a.tar", [("0.cls", b"1")]))
    write_tar(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"22")])
    os.utime(tmp_path / "a.tar", ns=(1, 1))
    with pytest.raises(SourceError, match="changed since it was listed"):
        source.schema(0)


def test_one_bad_member_is_left_out_with_its_sample(tmp_path):
    members = [(f"{i}.cls", b"bad" if i == 2 else str(i).encode()) for i in range(5)]
    write_tar(tmp_path / "a.tar", members)
    store = preprocess(tmp_path, tmp_path / "out", 1, on_error="skip", jobs=2)
    assert stored(store, "cls").tolist() == [0, 1, 3, 4]


def test_shards_follow_one_another(tmp_path):
    for shard in (10, 9):
        write_tar(tmp_path / f"{shard}.tar", [(f"{i}.cls", str(100 * shard + i).encode()) for i in range(2)])
    store = preprocess(tmp_path, tmp_path / "out", 1)
    assert stored(store, "cls").tolist() == [900, 901, 1000, 1001]
    assert store.sample_name(2) == "10.tar/0"
