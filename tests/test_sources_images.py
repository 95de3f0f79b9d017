"""Folders of images written by Pillow: decoded exactly, labelled by their folders, or refused by name."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.cli import main
from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.images import IMAGE_SUFFIXES
from mmapload.sources.kinds import Request, open_files
from mmapload.store import open_store
from tests.preprocessing_cases import stored
from tests.reading_cases import read_sample, same

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.sources import IndexedSource

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
RNG = np.random.default_rng(0)


def opened(path: Path, fields=None) -> IndexedSource:
    return open_files([path], None, Request(fields, (), "files"))[0]


def save(path: Path, pixels: np.ndarray, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def noise(*shape: int, dtype: str = "u1") -> np.ndarray:
    return RNG.integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


@pytest.fixture
def pets(tmp_path):
    """Five images in two folders of classes, one in a folder below."""
    images = {f"{name}.png": noise(4, 6, 3) for name in ("dog/10", "dog/9", "Cat/1", "Cat/deep/2", "dog/11")}
    for name, pixels in images.items():
        save(tmp_path / "in" / name, pixels)
    (tmp_path / "in" / ".hidden.png").write_bytes(b"")
    (tmp_path / "in" / "notes.txt").write_text("x")
    return tmp_path / "in", images


def test_the_folder_at_the_top_is_the_class_and_its_name_is_kept_in_the_store(pets, tmp_path, capsys):
    folder, images = pets
    store = preprocess(folder, tmp_path / "out", 2, fields="image,label=pet")
    names = [store.sample_name(i) for i in range(len(store))]
    assert names == ["Cat/1.png", "Cat/deep/2.png", "dog/9.png", "dog/10.png", "dog/11.png"]
    assert all(same(found, images[name]) for found, name in zip(stored(store, "image"), names, strict=True))
    assert stored(store, "pet").tolist() == [0, 0, 1, 1, 1]
    assert stored(store, "pet").dtype == np.int64
    assert open_store(tmp_path / "out").layout.source["classes"] == {"pet": ["Cat", "dog"]}
    assert main(["info", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["classes"] == {"pet": ["Cat", "dog"]}
    assert main(["info", str(tmp_path / "out")]) == 0
    assert "images, in its own order, pet is 0 for Cat, 1 for dog" in capsys.readouterr().out


def test_one_folder_without_classes_has_no_labels(tmp_path):
    save(tmp_path / "in" / "a.png", noise(2, 3))
    assert [*opened(tmp_path / "in").schema(0)] == ["image"]
    assert "classes" not in preprocess(tmp_path / "in", tmp_path / "out", 1).layout.source


def test_images_beside_the_folders_of_classes_are_refused(pets):
    folder, _ = pets
    save(folder / "stray.png", noise(4, 6, 3))
    with pytest.raises(SourceError, match=r"2 folders, one a class, and 1 images beside.*'stray\.png'"):
        opened(folder)


@pytest.mark.parametrize(
    ("suffix", "pixels"),
    [
        ("png", noise(3, 4, 3)),
        ("png", noise(3, 4, 4)),
        ("png", noise(3, 4)),
        ("png", noise(3, 4, dtype="u2")),
        ("png", noise(3, 4, 2)),
        ("png", RNG.integers(0, 2, (3, 4)).astype(bool)),
        ("bmp", noise(3, 4, 3)),
        ("ppm", noise(3, 4, 3)),
        ("pgm", noise(3, 4)),
        ("tif", noise(3, 4, 3)),
        ("tif", RNG.standard_normal((3, 4)).astype("f4")),
        ("tiff", noise(3, 4, dtype="u2")),
        ("webp", noise(3, 4, 3)),
    ],
)
def test_lossless_images_come_out_bit_by_bit(tmp_path, suffix, pixels):
    save(tmp_path / f"a.{suffix}", pixels, **({"lossless": True} if suffix == "webp" else {}))
    assert same(read_sample(opened(tmp_path), 0)["image"], pixels)


def test_jpegs_are_decoded_as_pillow_does_and_palettes_are_looked_up(tmp_path):
    save(tmp_path / "a.JPEG", noise(16, 24, 3))
    assert same(read_sample(opened(tmp_path), 0)["image"], np.asarray(Image.open(tmp_path / "a.JPEG")))
    palette = Image.fromarray(noise(3, 4, 3)).quantize(8)
    palette.save(tmp_path / "b.png")
    assert same(read_sample(opened(tmp_path), 1)["image"], np.asarray(palette.convert("RGB")))
    palette.save(tmp_path / "c.gif", transparency=1)
    assert read_sample(opened(tmp_path), 2)["image"].shape == (3, 4, 4)


def png(depth: int, color: int, row: int, side: int = 2) -> bytes:
    """A PNG file with two rows of bytes, as Pillow does not write them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, depth, color, 0, 0, 0)
    rows = zlib.compress(2 * (b"\0" + bytes(row)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_what_would_lose_bits_or_frames_is_refused_by_name(tmp_path):
    first, second = Image.fromarray(noise(3, 4, 3)), Image.fromarray(noise(3, 4, 3))
    cases = {
        "deep.png": png(16, 2, 12),
        "alpha.png": png(16, 6, 16),
        "deep.ppm": b"P6 2 2 65535\n" + bytes(24),
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=rf"{name}: has 16 bits in each channel of RGB"):
            opened(tmp_path / name).schema(0)
    for name in ("a.gif", "a.tif"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        with pytest.raises(SourceError, match=rf"{name}: holds 2 frames or pages"):
            opened(tmp_path / name).schema(0)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not an image"),
        (lambda data: b"<html>" * 99, "not an image"),
        (lambda data: data[: len(data) // 2], "cannot be read: .*(truncated|broken)"),
        (lambda data: png(8, 2, 6, 2**20), "cannot be read: DecompressionBombError"),
    ],
)
def test_a_damaged_image_is_told_by_its_path(tmp_path, damage, words):
    save(tmp_path / "a.png", noise(64, 64, 3))
    (tmp_path / "a.png").write_bytes(damage((tmp_path / "a.png").read_bytes()))
    with pytest.raises(SourceError, match=rf"a\.png: .*{words}"):
        read_sample(opened(tmp_path), 0)


def test_images_of_another_size_are_refused_with_both_sizes(tmp_path):
    save(tmp_path / "in" / "a.png", noise(4, 6, 3))
    save(tmp_path / "in" / "b.png", noise(4, 7, 3))
    with pytest.raises(
        SourceError, match=r"b\.png, member 'image': uint8 \(4, 7, 3\), expected uint8 \(4, 6, 3\)"
    ):
        preprocess(tmp_path / "in", tmp_path / "out", 1)


def test_every_suffix_is_one_that_pillow_knows():
    Image.init()
    assert set(IMAGE_SUFFIXES) <= Image.registered_extensions().keys()


def test_without_pillow_it_is_said_what_to_install(tmp_path):
    save(tmp_path / "a.png", noise(2, 2))
    script = f"""
import sys; sys.modules["PIL"] = None
from mmapload.cli import main
sys.exit(main(["preprocess", {str(tmp_path / "a.png")!r}, {str(tmp_path / "out")!r}, "--batch-size", "1"]))"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert 'pip install "mmapload[images]"' in ended.stderr
