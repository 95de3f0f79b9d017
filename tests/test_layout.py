"""Layout: the arithmetic of chunks, and which names a field may have."""

from __future__ import annotations

import ast
import math
import shlex
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmapload.codecs import CODEC_NAMES, RawCodec, ZstdCodec, codec_named
from mmapload.fieldnames import check_field_names
from mmapload.layout import (
    CORE_DTYPES,
    FORMAT_VERSION,
    FieldLayout,
    StoreLayout,
    chunk_length_for,
)

sizes = st.integers(1, 10**6)


@given(samples=sizes, batch=st.integers(1, 4096), sample_nbytes=st.integers(0, 2**30), target=sizes)
@example(samples=1, batch=1, sample_nbytes=0, target=1)
@example(samples=31, batch=32, sample_nbytes=100, target=10**6)
@example(samples=32, batch=32, sample_nbytes=100, target=10**6)
@example(samples=33, batch=32, sample_nbytes=100, target=10**6)
def test_a_chunk_is_the_largest_whole_number_of_batches_within_the_target(
    samples, batch, sample_nbytes, target
):
    length = chunk_length_for(samples, batch, sample_nbytes, target)
    enough = math.ceil(samples / batch) * batch
    assert length % batch == 0
    assert batch <= length <= enough
    assert length == batch or length * sample_nbytes <= target
    assert length == enough or (length + batch) * max(1, sample_nbytes) > target, (
        "one more batch would have fitted"
    )


@given(batch=st.integers(1, 4096), sample_nbytes=st.integers(1, 2**30), target=sizes)
def test_without_a_known_number_of_samples_only_the_target_decides(batch, sample_nbytes, target):
    assert chunk_length_for(None, batch, sample_nbytes, target) == chunk_length_for(
        10**12, batch, sample_nbytes, target
    )


def layout(samples: int, chunk_length: int, batch_size: int = 1) -> StoreLayout:
    fields = (
        FieldLayout("image", np.dtype("u1"), (3, 5), chunk_length, RawCodec()),
        FieldLayout("flow", np.dtype("<f4"), (2,), chunk_length, ZstdCodec()),
        FieldLayout("label", np.dtype("<i8"), (), chunk_length, RawCodec()),
    )
    return StoreLayout(samples, batch_size, chunk_length, fields)


@given(samples=sizes, chunk_length=st.integers(1, 5000))
def test_the_chunks_hold_every_sample_once(samples, chunk_length):
    store = layout(samples, chunk_length)
    assert (store.chunks - 1) * chunk_length < samples <= store.chunks * chunk_length
    assert store.chunk_samples(0) == min(samples, chunk_length)
    last = store.chunk_samples(store.chunks - 1)
    assert 1 <= last <= chunk_length
    assert (store.chunks - 1) * chunk_length + last == samples


@pytest.mark.parametrize(
    ("samples", "chunks", "last"), [(1, 1, 1), (7, 1, 7), (8, 1, 8), (9, 2, 1), (16, 2, 8), (17, 3, 1)]
)
def test_ragged_ends_around_a_chunk_of_eight(samples, chunks, last):
    store = layout(samples, 8)
    assert store.chunks == chunks
    assert store.chunk_samples(chunks - 1) == last


def test_bytes_add_up_over_the_fields():
    store = layout(100, 10)
    assert [each.sample_nbytes for each in store.fields] == [15, 8, 8]
    assert store.sample_nbytes == 31
    assert store.chunk_nbytes == 310
    assert [each.raw_file_nbytes for each in store.fields] == [154, None, 84]


@pytest.mark.parametrize(
    ("shape", "key", "chunk_shape"),
    [
        ((), "c.12", (4,)),
        ((7,), "c.12.0", (4, 7)),
        ((3, 5, 2), "c.12.0.0.0", (4, 3, 5, 2)),
        ((0,), "c.12.0", (4, 1)),
        ((3, 0, 2), "c.12.0.0.0", (4, 3, 1, 2)),
    ],
)
def test_a_chunk_covers_the_other_axes_whole(shape, key, chunk_shape):
    field = FieldLayout("x", np.dtype("<i2"), shape, 4, RawCodec())
    assert field.chunk_key(12) == key
    assert field.zarr_chunk_shape == chunk_shape


@given(
    shape=st.lists(st.integers(0, 50), max_size=4).map(tuple),
    dtype=st.sampled_from(sorted(CORE_DTYPES)),
    length=st.integers(1, 1000),
    codec=st.sampled_from(CODEC_NAMES),
)
def test_the_bytes_of_a_chunk_are_those_of_its_array(shape, dtype, length, codec):
    kind = CORE_DTYPES[dtype]
    field = FieldLayout("x", kind, shape, length, codec_named(codec, kind.itemsize))
    assert field.chunk_nbytes == math.prod((length, *shape)) * kind.itemsize
    assert (field.raw_file_nbytes is None) == (codec != "raw")


def test_the_core_types_are_those_of_zarr_v3():
    real = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    assert set(CORE_DTYPES) == {"bool", "float16", "float32", "float64", "complex64", "complex128"} | real
    assert all(dtype.name == name for name, dtype in CORE_DTYPES.items())


def test_the_root_says_what_readers_need_and_nothing_of_time_place_or_host():
    store = StoreLayout(9, 2, 4, layout(9, 4).fields, has_names=True, source={"kind": "npz", "skipped": 0})
    assert store.root_attributes() == {
        "mmapload": {
            "format_version": FORMAT_VERSION,
            "samples": 9,
            "batch_size": 2,
            "fields": {"image": {}, "flow": {}, "label": {}},
            "names": True,
            "source": {"kind": "npz", "skipped": 0},
        }
    }


@pytest.mark.parametrize(
    "name",
    [
        "i0i1gt",
        "Image",
        "Größe",
        "画像",
        "a b",
        "a.b",
        "c.0.0",
        "-x",
        "_x",
        "x__",
        "zarr",
        "x" * 239,
        ".x",
        "a=b",
    ],
)
def test_these_names_are_allowed(name):
    assert check_field_names([name]) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a//b", "empty part"),
        ("/", "empty part"),
        ("/etc", "empty part"),
        ("a/zarr.json", "has a part that is that of a file of the store"),
        ("a/__x", "reserved"),
        ("/".join("a" * 17), "too long"),
        ("a\\b", "contains"),
        ("..", "dots"),
        (".", "dots"),
        ("__x", "'__'"),
        ("__mmapload__", "'__'"),
        ("zarr.json", "file of the store"),
        ("../../x", "dots"),
        ("C:\\x", "contains"),
        ("$(touch x)/../y", "dots"),
        ("it's//y", "empty part"),
        ("x" * 240, "too long"),
        ("画" * 80, "too long"),
    ],
)
def test_these_names_are_refused_with_the_renaming_to_type(name, reason):
    (problem,) = check_field_names([name])
    assert reason in problem
    option, typed = shlex.split(problem.partition("for instance ")[2])
    old, _, new = typed.partition("=")
    assert (option, old) == ("--fields", name)
    assert check_field_names([new]) == [], "what is proposed must be allowed"


@pytest.mark.parametrize(
    "name",
    [
        "a\nb",
        "a\0",
        "a\x1b[2J",
        "a\x7f",
        "a\x9b31m",
        "a\u202eb",
        "a\u2028",
        "a\udc80",
        "a//b,c",
        "a//b=c",
        "a// ",
    ],
)
def test_names_that_cannot_be_typed_are_refused_with_the_renaming_to_call(name):
    (problem,) = check_field_names([name])
    assert problem.isprintable()
    assert "empty part" in problem or "control character" in problem
    call = problem.partition("for instance in Python by preprocess(..., fields=")[2].removesuffix(")")
    (old, new), *others = ast.literal_eval(call).items()
    assert (old, others) == (name, [])
    assert check_field_names([new]) == []


def test_an_empty_name_is_refused_with_a_way_out():
    (problem,) = check_field_names([""])
    assert "is empty: rename it where it is written, or leave it out" in problem


def test_names_that_differ_by_case_or_not_at_all_are_refused_each():
    problems = check_field_names(iter(["Flow", "flow", "image", "image", "FLOW"]))
    assert [problem.partition(" rename")[0] for problem in problems] == [
        "the field name 'flow' differs from 'Flow' only by case:",
        "the field name 'image' is there twice:",
        "the field name 'FLOW' differs from 'Flow' only by case:",
    ]


def test_names_that_a_file_system_takes_for_equal_are_refused():
    decomposed, other_case = normalize("NFD", "größe"), normalize("NFD", "GRÖSSE")
    problems = check_field_names(["größe", decomposed, other_case, "groesse"])
    assert [problem.partition(":")[0].rpartition("only by ")[2] for problem in problems] == [
        "how its accents are encoded",
        "how its accents are encoded",
    ]


@pytest.mark.parametrize("name", ["x" * 10**6, "a/" * 10**6, "\0" * 10**6, "größe" * 10**5])
def test_a_name_of_any_length_makes_a_short_message(name):
    (problem,) = check_field_names([name])
    assert len(problem) < 600


def test_a_hundred_thousand_names_are_checked_at_once():
    assert check_field_names(f"field{number}" for number in range(100_000)) == []
