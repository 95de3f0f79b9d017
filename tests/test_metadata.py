"""Metadata: what the format allows is read, anything else is refused, and all of it is told at once."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.chains import codec_chain
from mmapload.codecs import RawCodec, ZstdCodec, codec_named
from mmapload.layout import CORE_DTYPES, FieldLayout
from mmapload.metadata import parse_field, parse_ragged, parse_root
from mmapload.notes import DtypeNote, FieldNote
from mmapload.strictjson import parse_document

if TYPE_CHECKING:
    from collections.abc import Sequence

HUGE = 10**40

ROOT: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "group",
    "attributes": {
        "mmapload": {
            "format_version": 1,
            "samples": 10,
            "batch_size": 2,
            "fields": {"image": {}, "flow": {}},
            "names": False,
            "source": {"kind": "npz"},
        }
    },
}

ARRAY: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10, 3, 5],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3, 5]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    "fill_value": 0.0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    "attributes": {},
    "storage_transformers": [],
}


def changed(document: dict[str, Any], path: Sequence[str | int], value: Any) -> dict[str, Any]:
    again = copy.deepcopy(document)
    place: Any = again
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return again


def without(document: dict[str, Any], path: Sequence[str | int]) -> dict[str, Any]:
    again = copy.deepcopy(document)
    place: Any = again
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return again


def root_problems(document: dict[str, Any]) -> list[str]:
    return parse_root(document, "zarr.json")[2]


def field_problems(document: dict[str, Any]) -> list[str]:
    layout, problems = parse_field("image", document, 10, 2, "image/zarr.json")
    assert (layout is None) == bool(problems)
    return problems


def test_a_root_is_read():
    layout, names, problems = parse_root(ROOT, "zarr.json")
    assert problems == []
    assert names == ["image", "flow"]
    assert layout is not None
    assert (layout.samples, layout.batch_size, layout.has_names) == (10, 2, False)
    assert layout.source == {"kind": "npz"}


def test_an_array_is_read():
    layout, problems = parse_field("image", ARRAY, 10, 2, "image/zarr.json")
    assert problems == []
    assert layout is not None
    assert (layout.name, layout.shape, layout.chunk_length) == ("image", (3, 5), 4)
    assert layout.dtype.str == "<f4"
    assert layout.codec == RawCodec()


@pytest.mark.parametrize("name", sorted(CORE_DTYPES))
def test_every_core_type_is_read_little_endian(name):
    document = changed(ARRAY, ["data_type"], name)
    document["codecs"] = codec_chain(ZstdCodec(), CORE_DTYPES[name].itemsize)
    layout, problems = parse_field("image", document, 10, 2, "")
    assert problems == []
    assert layout is not None
    assert layout.dtype == CORE_DTYPES[name]
    assert layout.dtype.byteorder in "<|="


def test_an_array_longer_than_the_samples_is_read_for_an_append_may_be_under_way():
    assert field_problems(changed(ARRAY, ["shape"], [12, 3, 5])) == []


def test_keys_that_other_tools_add_are_left_alone():
    document = ARRAY | {"dimension_names": ["n", None, None], "attributes": {"units": "px"}}
    assert field_problems(without(document, ["storage_transformers"])) == []
    assert root_problems(ROOT | {"consolidated_metadata": None}) == []
    harmless = {"must_understand": False, "x": [1]}
    assert field_problems(ARRAY | {"extension": harmless}) == []
    assert root_problems(ROOT | {"extension": harmless}) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["zarr_format"], 2, "zarr_format: expected 3, found 2"),
        (["node_type"], "array", "node_type: expected 'group', found 'array'"),
        (["zarr_format"], 3.0, "zarr_format: expected 3, found 3.0"),
        (["extension"], {"must_understand": True}, "the key 'extension' is none of this format's"),
        (["attributes"], None, "no attribute 'mmapload'"),
        (["attributes"], [], "no attribute 'mmapload'"),
        (["attributes", "mmapload"], "1", "no attribute 'mmapload'"),
        (["attributes", "mmapload", "format_version"], 2, "install a newer mmapload"),
        (["attributes", "mmapload", "format_version"], 0, "preprocess again"),
        (["attributes", "mmapload", "format_version"], "1", "found '1'"),
        (["attributes", "mmapload", "format_version"], True, "found True"),
        (["attributes", "mmapload", "format_version"], 1.0, "found 1.0"),
        (
            ["attributes", "mmapload", "samples"],
            0,
            "samples: expected an integer from 1 to 9007199254740992, found 0",
        ),
        (["attributes", "mmapload", "samples"], -1, "found -1"),
        (["attributes", "mmapload", "samples"], 10.0, "found 10.0"),
        (["attributes", "mmapload", "samples"], True, "found True"),
        (["attributes", "mmapload", "samples"], "10", "found '10'"),
        (["attributes", "mmapload", "samples"], HUGE, "samples: expected"),
        (["attributes", "mmapload", "batch_size"], 0, "batch_size: expected an integer from 1 to"),
        (["attributes", "mmapload", "batch_size"], None, "found None"),
        (["attributes", "mmapload", "batch_size"], HUGE, "batch_size: expected"),
        (["attributes", "mmapload", "fields"], ["image"], "fields: expected dict, found ['image']"),
        (["attributes", "mmapload", "fields"], {}, "fields: expected at least one"),
        (["attributes", "mmapload", "fields"], {"a/../b": {}}, "'a/../b' has a part that consists of dots"),
        (["attributes", "mmapload", "fields"], {"..": {}}, "'..' consists of dots"),
        (["attributes", "mmapload", "fields"], {"__mmapload__": {}}, "reserved"),
        (["attributes", "mmapload", "fields"], {"a": {}, "A": {}}, "only by case"),
        (["attributes", "mmapload", "fields", "flow"], {"dtype": "float8"}, "of a later version"),
        (["attributes", "mmapload", "fields", "flow"], None, "the note None of field 'flow'"),
        (["attributes", "mmapload", "names"], 1, "names: expected bool, found 1"),
        (["attributes", "mmapload", "source"], "npz", "source: expected dict, found 'npz'"),
        (["attributes", "mmapload", "checksums"], 1, "checksums: expected bool, found 1"),
        (["attributes", "mmapload", "checksums"], None, "checksums: expected bool, found None"),
    ],
)
def test_each_fault_of_a_root_is_named(path, value, told):
    problems = root_problems(changed(ROOT, path, value))
    assert len(problems) == 1, problems
    assert told in problems[0]
    assert problems[0].startswith("zarr.json: ")


@pytest.mark.parametrize("path", [["zarr_format"], ["node_type"], ["attributes"]])
def test_no_key_of_a_root_may_be_missing(path):
    assert len(root_problems(without(ROOT, path))) == 1


@pytest.mark.parametrize("key", sorted(ROOT["attributes"]["mmapload"]))
def test_no_note_of_a_root_may_be_missing(key):
    (problem,) = root_problems(without(ROOT, ["attributes", "mmapload", key]))
    assert f"{key}: expected" in problem
    assert "found None" in problem


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["zarr_format"], 2, "zarr_format: expected 3, found 2"),
        (["node_type"], "group", "node_type: expected 'array', found 'group'"),
        (["shape"], [9, 3, 5], "expected at least 10 samples, found 9"),
        (["shape"], [10, 3, 6], "chunk_shape: expected to cover the axes (3, 6) whole"),
        (["shape"], [10, 3, HUGE], "shape: expected 1 to 32 integers from 0 to 9007199254740992"),
        (["shape"], [10, 3, -5], "shape: expected 1 to 32 integers from 0 to 9007199254740992"),
        (["shape"], [10, 3, True], "shape: expected 1 to 32 integers"),
        (["shape"], [10, 3, "5"], "shape: expected 1 to 32 integers"),
        (["shape"], [10, 3, None], "shape: expected 1 to 32 integers"),
        (["shape"], [10, 3, [5]], "shape: expected 1 to 32 integers"),
        (["shape"], "10", "shape: expected 1 to 32 integers"),
        (["shape"], {"10": 10}, "shape: expected 1 to 32 integers"),
        (["shape"], [], "shape: expected 1 to 32 integers"),
        (["shape"], [10] + [1] * 32, "shape: expected 1 to 32 integers"),
        (["shape"], [10, 3, 5.0], "shape: expected 1 to 32 integers from 0 to 9007199254740992"),
        (["data_type"], "string", "expected a core Zarr type, found 'string'"),
        (["data_type"], "bfloat16", "found 'bfloat16'"),
        (["data_type"], "r32", "found 'r32'"),
        (["data_type"], ">f4", "found '>f4'"),
        (["data_type"], "object", "found 'object'"),
        (["data_type"], {"name": "numpy.datetime64", "configuration": {"unit": "s"}}, "numpy.datetime64"),
        (["data_type"], None, "found None"),
        (["chunk_grid"], {"name": "rectilinear", "configuration": {}}, "rectilinear"),
        (["chunk_grid", "evil"], 1, "expected a regular grid"),
        (["chunk_grid"], "regular", "as shape has, found 'regular'"),
        (["chunk_grid", "configuration"], None, "expected a regular grid"),
        (["chunk_grid", "configuration", "offset"], [1, 0, 0], "expected a regular grid"),
        (["chunk_grid", "name"], ["regular"], "expected a regular grid"),
        (["chunk_grid", "configuration", "chunk_shape"], [4, 3, 4], "whole, found (4, 3, 4)"),
        (["chunk_grid", "configuration", "chunk_shape"], [4, 15], "whole, found (4, 15)"),
        (["chunk_grid", "configuration", "chunk_shape"], [3, 3, 5], "multiple of batch size 2, found 3"),
        (["chunk_grid", "configuration", "chunk_shape"], [0, 3, 5], "multiple of batch size 2, found 0"),
        (["chunk_grid", "configuration", "chunk_shape"], [-4, 3, 5], "expected a regular grid"),
        (["chunk_grid", "configuration", "chunk_shape"], [HUGE, 3, 5], "expected a regular grid"),
        (["chunk_grid", "configuration", "chunk_shape"], [2**52, 3, 5], "a chunk of"),
        (["chunk_key_encoding"], {"name": "default", "configuration": {"separator": "/"}}, "'/'"),
        (["chunk_key_encoding"], {"name": "default"}, "chunk_key_encoding: expected"),
        (["chunk_key_encoding"], {"name": "v2", "configuration": {"separator": "."}}, "'v2'"),
        (["storage_transformers"], [{"name": "x"}], "storage_transformers: expected none"),
        (["storage_transformers"], None, "storage_transformers: expected none"),
        (["zarr_format"], 3.0, "zarr_format: expected 3, found 3.0"),
        (["zarr_format"], "3", "zarr_format: expected 3, found '3'"),
        (["data_type"], ["float32"], "found ['float32']"),
        (["extension"], {"must_understand": True}, "the key 'extension' is none of this format's"),
        (["extension"], {"must_understand": 0}, "the key 'extension' is none of this format's"),
        (["extension"], None, "the key 'extension' is none of this format's"),
        (["codecs"], None, "codecs must be a list"),
        (["codecs", 0, "configuration", "endian"], "big", "only little-endian bytes"),
        (["codecs", 1, "name"], "adler32", "adler32"),
        (["codecs", 0, "configuration", "endian"], None, "only little-endian bytes"),
        (["codecs", 0, "configuration", "swapped"], True, "'swapped' is no setting of bytes"),
        (["codecs", 1, "configuration"], {"location": "start"}, "'location' is no setting of crc32c"),
        (["codecs", 1, "configuration"], [], "configuration of crc32c must be an object"),
        (["codecs"], [{"name": "sharding_indexed", "configuration": {}}], "sharding_indexed"),
        (
            ["codecs"],
            [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}, *ARRAY["codecs"]],
            "found ['transpose', 'bytes', 'crc32c']",
        ),
        (["codecs"], [ARRAY["codecs"][0], {"name": ["zstd"]}, ARRAY["codecs"][1]], "codec ['zstd'] is none"),
        (["codecs"], [ARRAY["codecs"][0], {"name": "gzip"}, ARRAY["codecs"][1]], "codec 'gzip' is none"),
        (["codecs"], ["bytes", "crc32c"], "codecs must be a list of objects"),
    ],
)
def test_each_fault_of_an_array_is_named(path, value, told):
    problems = field_problems(changed(ARRAY, path, value))
    assert len([problem for problem in problems if told in problem]) == 1, problems
    assert all(problem.startswith("image/zarr.json: ") for problem in problems)


@pytest.mark.parametrize("key", sorted({*ARRAY} - {"attributes", "fill_value", "storage_transformers"}))
def test_no_key_that_a_reader_needs_may_be_missing_from_an_array(key):
    problems = field_problems(without(ARRAY, [key]))
    assert problems
    assert any(key in problem for problem in problems)


def test_all_problems_of_a_document_are_told_at_once():
    document = ARRAY | {"zarr_format": 2, "data_type": "string", "shape": [3, 3, 5], "codecs": []}
    assert len(field_problems(document)) == 4
    notes = {"format_version": "1", "samples": -1, "batch_size": 0, "fields": [], "names": 0, "source": None}
    assert len(root_problems({"zarr_format": 2, "attributes": {"mmapload": notes}})) == 8


def test_a_root_with_faults_still_says_which_fields_there_are_and_what_else_is_known():
    broken = changed(ROOT, ["attributes", "mmapload", "samples"], 10.0)
    broken["attributes"]["mmapload"]["fields"] = {"..": {}, "image": {}, "Image": {}, "flow": {"later": 1}}
    layout, names, problems = parse_root(broken, "zarr.json")
    assert len(problems) == 4
    assert names == ["image", "flow"]
    assert layout is not None
    assert (layout.samples, layout.batch_size) == (1, 2), "an unknown number counts as the least there is"
    assert parse_field("image", ARRAY, layout.samples, layout.batch_size, "")[1] == []


def test_a_root_of_another_version_is_not_read_as_one_of_this():
    layout, names, problems = parse_root(changed(ROOT, ["attributes", "mmapload", "format_version"], 2), "")
    assert (layout, names, len(problems)) == (None, [], 1)


def test_one_array_in_place_of_the_root_is_named_as_such():
    assert "if it is a field of a store, give the folder that it is in" in root_problems(ARRAY)[-1]


@pytest.mark.parametrize("shape", [[10, 2**53, 2**53, 0], [10, 2**27, 2**27], [10, *[2**53] * 31]])
def test_a_shape_that_no_array_can_have_is_refused(shape):
    document = changed(ARRAY, ["shape"], shape)
    document["chunk_grid"]["configuration"]["chunk_shape"] = [4, *(max(1, length) for length in shape[1:])]
    (problem,) = field_problems(document)
    assert "chunk_shape: a chunk of" in problem


def test_a_chunk_larger_than_a_blosc_frame_can_be_is_refused():
    document = changed(ARRAY, ["shape"], [10, 2**27])
    document["chunk_grid"]["configuration"]["chunk_shape"] = [4, 2**27]
    assert field_problems(document) == []
    document["codecs"] = codec_chain(codec_named("blosc-lz4", 4), 4)
    (problem,) = field_problems(document)
    assert "more than the 2147483631 possible" in problem


def test_a_group_that_somebody_else_wrote_is_named_as_such():
    assert "was not written by mmapload" in root_problems({"zarr_format": 3, "node_type": "group"})[0]


def test_a_message_stays_readable_whatever_was_found():
    for path in (["data_type"], ["codecs"], ["chunk_grid"], ["zarr_format"], ["chunk_key_encoding"]):
        for value in ("x" * 10**5, list(range(10**5)), {str(key): key for key in range(10**5)}):
            assert all(len(problem) < 600 for problem in field_problems(changed(ARRAY, path, value)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            found += places(value, (*path, key))
    return found


@given(place=st.sampled_from(places(ARRAY)), value=json_values)
def test_any_value_in_any_place_of_an_array_is_read_or_refused(place, value):
    document, problems = parse_document(json.dumps(changed(ARRAY, place, value)).encode(), "")
    if not problems:
        field_problems(document)


@given(place=st.sampled_from(places(ROOT)), value=json_values)
def test_any_value_in_any_place_of_a_root_is_read_or_refused(place, value):
    document, problems = parse_document(json.dumps(changed(ROOT, place, value)).encode(), "")
    if not problems:
        root_problems(document)


def ragged_document(**changes):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3, 50],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 20]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "attributes": {},
    }
    return document | changes


def test_the_array_of_a_ragged_field_says_how_long_its_pieces_are():
    field, problems = parse_ragged(
        "x", FieldNote(2), ragged_document(), chunks=3, chunk_length=8, where="x/zarr.json"
    )
    assert problems == []
    assert field == FieldLayout("x", np.dtype("<f4"), (-1, -1), 8, RawCodec(), 20)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shape": [2, 50]}, "shape: expected at least 3 chunks, and their values"),
        ({"shape": [3]}, "shape: expected at least 3 chunks, and their values"),
        ({"shape": [3, 50, 1]}, "shape: expected at least 3 chunks, and their values"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 20]}}}, "chunk_grid"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 0]}}}, "chunk_grid"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}}, "chunk_grid"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2**53]}}}, "bytes, more"),
        ({"data_type": "string"}, "data_type: expected a core Zarr type"),
        ({"codecs": [{"name": "bytes"}, {"name": "gzip"}, {"name": "crc32c"}]}, "little-endian"),
    ],
)
def test_a_ragged_array_of_another_form_is_refused_by_name(changes, problem):
    field, problems = parse_ragged("x", FieldNote(1), ragged_document(**changes), 3, 8, "x/zarr.json")
    assert field is None
    assert [each for each in problems if problem in each and each.startswith("x/zarr.json")]


@pytest.mark.parametrize(
    ("meaning", "dtype", "shape", "expected"),
    [
        ("bfloat16", "float16", [64, 2], "expected uint16, to hold bfloat16, found float16"),
        ("datetime64[s]", "uint64", [64], "expected int64, to hold datetime64[s], found uint64"),
        ("<U2", "uint8", [64, 7], "expected uint8 with 8 along the last axis, to hold <U2, found uint8 (7,)"),
        ("<U2", "uint8", [64], "expected uint8 with 8 along the last axis, to hold <U2, found uint8 ()"),
        ("|S8", "int8", [64, 8], "to hold |S8, found int8 (8,)"),
    ],
)
def test_an_array_that_cannot_hold_what_is_noted_on_it_is_refused(meaning, dtype, shape, expected):
    document = ARRAY | {"shape": [100, *shape[1:]], "data_type": dtype}
    document = changed(document, ["chunk_grid", "configuration", "chunk_shape"], shape)
    document["codecs"] = codec_chain(RawCodec(), np.dtype(dtype).itemsize)
    field, problems = parse_field("x", document, 100, 32, "x/zarr.json", DtypeNote(meaning))
    assert field is None
    assert len(problems) == 1
    assert expected in problems[0]
