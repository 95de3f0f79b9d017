"""`docs/format.md`: its examples are what is written, and its reader reads."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmapload.codecs import CODEC_NAMES, RawCodec, ZstdCodec, codec_named
from mmapload.frames import EXPANSION
from mmapload.layout import CORE_DTYPES, FORMAT_VERSION, RESERVED_GROUP, FieldLayout, StoreLayout
from mmapload.metadata import parse_field, parse_root
from mmapload.reserved import NAME_ARRAYS, checksums_array
from mmapload.strictjson import MAX_DEPTH, MAX_DOCUMENT_BYTES, parse_document
from mmapload.writer.documents import field_document, group_document
from tests.golden.make import GOLDEN, LISTED, expected
from tests.loading_cases import swap

PAGE = Path(__file__).parents[1] / "docs" / "format.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def layout() -> StoreLayout:
    fields = (
        FieldLayout("image", np.dtype("u1"), (9, 256, 448), 64, RawCodec()),
        FieldLayout("flow", np.dtype("<f4"), (2, 256, 448), 64, ZstdCodec()),
    )
    source = {"kind": "npz", "skipped": 0, "shuffle": None}
    return StoreLayout(100, 32, 64, fields, has_names=True, source=source, has_checksums=True)


def test_the_root_of_the_example_is_read_and_is_what_is_written(page):
    text = blocks(page, "json")[0]
    document, problems = parse_document(text.encode(), "zarr.json")
    parsed, names, found = parse_root(document, "zarr.json")
    assert problems + found == []
    assert parsed is not None
    assert (names, parsed.samples) == (["image", "flow"], 100)
    assert group_document(layout().root_attributes()).decode() == text


def test_the_field_of_the_example_is_read_and_is_what_is_written(page):
    document = json.loads(blocks(page, "json")[1])
    field = layout().fields[1]
    assert parse_field("flow", document, 100, 32, "") == (field, [])
    written = json.loads(field_document(field, 100))
    assert written == document
    assert list(written) == list(document)


def test_the_blosc_configuration_of_the_example_is_what_is_written(page):
    entry: dict[str, Any] | None = codec_named("blosc-lz4", 4).configuration
    assert entry is not None
    assert json.loads(blocks(page, "json")[2]) == entry["configuration"]


def test_the_chunk_file_of_the_example_is_one_of_the_golden_store(page):
    content = (GOLDEN / "raw" / "image" / "c.0.0.0").read_bytes()
    assert content.hex(" ", 4) in page


def test_the_reader_of_the_page_reads_every_field_of_a_golden_store(page, tmp_path):
    *_, code = blocks(page, "python")
    reader: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), reader)
    assert reader["crc32c"](b"123456789") == 0xE3069283
    for form in (GOLDEN, LISTED):
        for name, array in expected().items():
            read = reader["read_field"](form / "raw", name)
            assert read.dtype == array.dtype
            assert read.shape == array.shape
            assert read.tobytes() == array.tobytes()
    shutil.copytree(LISTED / "raw", tmp_path / "store")
    swap(tmp_path / "store" / "image" / "c.0.0.0", tmp_path / "store" / "image" / "c.1.0.0")
    with pytest.raises(ValueError, match="sample 0 is that of another"):
        reader["read_field"](tmp_path / "store", "image")
    assert reader["read_field"](tmp_path / "store", "flow").shape == (5, 2, 4)
    with pytest.raises(ValueError, match="compressed"):
        reader["read_field"](GOLDEN / "zstd", "image")
    with pytest.raises(ValueError, match="no such field"):
        reader["read_field"](GOLDEN / "raw", "flux")


def test_the_page_has_every_type_codec_and_number(page):
    for name in (*CORE_DTYPES, *CODEC_NAMES, RESERVED_GROUP, *NAME_ARRAYS, checksums_array(1).name):
        assert f"`{name}`" in page
    assert f"**format version {FORMAT_VERSION}**" in page
    assert f"at most {MAX_DOCUMENT_BYTES // 2**20} MiB, nested at most {MAX_DEPTH} levels" in page
    for field in NAME_ARRAYS.values():
        assert f"| {field.chunk_length:,} |" in page
    assert f"⌊{checksums_array(1).chunk_length:,} / fields⌋" in page
    for name, most in EXPANSION.items():
        assert name == "raw" or f"⌈chunk / {most:,}⌉ + 4" in page
    assert len(CORE_DTYPES) == 14
