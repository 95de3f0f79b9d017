import contextlib
import io
import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources import npy
from mmapload.sources.npy import MAGIC, header_length, parse_header
from tests.npz_files import REAL, npy_bytes

PLAIN = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def parse(data):
    length = header_length(data[:12], "a.npz", "x.npy")
    return length, parse_header(data[:length], "a.npz", "x.npy")


def raw_header(text, version=1):
    text = text.encode("utf-8" if version == 3 else "latin-1")
    return MAGIC + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


def refusal(data):
    with pytest.raises(SourceError) as caught:
        parse(data)
    assert "allow_pickle" not in str(caught.value)
    assert (caught.value.file, caught.value.member) == ("a.npz", "x.npy")
    return caught.value.cause


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(PLAIN),
    st.sampled_from("<>"),
    st.lists(st.integers(0, 5), max_size=5).map(tuple),
    st.sampled_from("CF"),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_headers_say_what_numpy_wrote(code, endian, shape, order, version):
    array = np.zeros(shape, np.dtype(code).newbyteorder(endian), order=order)
    data = npy_bytes(array, version)
    length, header = parse(data)
    assert data[length:] == bytes(array.nbytes)
    assert header.spec.dtype == np.dtype(code)
    assert header.spec.dtype.isnative
    assert header.spec.shape == shape
    assert header.swapped == (not array.dtype.isnative)
    assert header.fortran == (not array.flags.c_contiguous)


def test_python_2_long_shapes_are_read():
    _, header = parse(raw_header("{'descr': '<i4', 'fortran_order': False, 'shape': (3L, 12L), }   \n"))
    assert str(header.spec) == "int32 (3, 12)"
    _, header = parse(raw_header("{'descr': '<i4', 'fortran_order': False, 'shape': (3L,), }\n"))
    assert header.spec.shape == (3,)
    assert "damaged" in refusal(raw_header("{'descr': '<i4', 'fortran_order': False, 'shape': (3L,), }", 3))


@pytest.mark.parametrize(
    ("array", "said", "advice"),
    [
        (np.array([None]), "Python objects", "plain arrays of numbers"),
        (np.array({"a": 1}), "Python objects", "np.savez(path, **dict)"),
        (np.zeros(2, [("x", "u2"), ("t", "i8")]), "structured", "each of its fields"),
        (np.zeros(2, [("größe", "f4")]), "structured", "each of its fields"),
        (
            np.zeros(2, np.dtype([("k", "i1"), ("v", "f4", (3,))], align=True)),
            "structured",
            "each of its fields",
        ),
        (np.zeros(2, "V5"), "raw bytes", "uint8"),
        (np.zeros(2, "V2"), "raw bytes", "bfloat16"),  # as numpy writes arrays of the package ml_dtypes
    ],
)
def test_dtypes_that_a_store_cannot_hold_are_refused_by_name(array, said, advice):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy says that version 3 is needed for these names
        data = npy_bytes(array)
    cause = refusal(data)
    assert said in cause
    assert advice in cause
    assert "--fields" in cause


@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="long double is float64 on this machine")
@pytest.mark.parametrize("code", ["g", "G"])
def test_long_double_is_refused_by_name(code):
    cause = refusal(npy_bytes(np.zeros(2, code)))
    assert np.dtype(code).name in cause
    assert "float64" in cause


def test_a_header_beyond_the_limit_is_refused_with_the_limit():
    wide = np.zeros(1, [(f"feature_with_a_long_name_{k:04}", "f4") for k in range(400)])
    assert "beyond the limit of 10000" in refusal(npy_bytes(wide))
    text = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }"
    for version in (1, 2, 3):
        assert parse(raw_header(text.ljust(10_000), version))[1].spec.shape == (3,)
        assert "10001 characters" in refusal(raw_header(text.ljust(10_001), version))
    assert "4294967295 characters" in refusal(MAGIC + b"\2\0" + b"\xff" * 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "damaged"),
        ("{'descr': '<i4', 'fortran_order': False}", "damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'more': 1}", "damaged"),
        ("[1, 2]", "damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,)", "damaged"),
        ("\0", "damaged"),
        ("(" * 5000, "damaged"),
        ("-" * 9000 + "1", "damaged"),
        ("__import__('os').getpid()", "damaged"),
        ("{'descr': '<i4', 'fortran_order': 0, 'shape': (3,)}", "fortran_order 0"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': 3}", "shape 3"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}", "shape (-1,)"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (True,)}", "shape (True,)"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (2.0,)}", "damaged"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807,)}", "more than an array"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (0, 9223372036854775807)}", "more than an array"),
        (f"{{'descr': '<i4', 'fortran_order': False, 'shape': {(1,) * 40}}}", "more than an array"),
        ("{'descr': 'q9', 'fortran_order': False, 'shape': (3,)}", "unknown"),
        ("{'descr': 7, 'fortran_order': False, 'shape': (3,)}", "unknown"),
        ("{'descr': ('<i4', (2,)), 'fortran_order': False, 'shape': (3,)}", "unknown"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (3,)}", "text of another kind (dtype <U0)"),
        ("{'descr': 'T', 'fortran_order': False, 'shape': (3,)}", "text"),
        ("{'descr': '1f4', 'fortran_order': False, 'shape': (3,)}", "structured"),
        ("{'descr': 'i4,f4', 'fortran_order': False, 'shape': (3,)}", "structured"),
        ("{'descr': '(2,)i4', 'fortran_order': False, 'shape': (3,)}", "structured"),
    ],
)
def test_damaged_headers_are_refused(text, said):
    assert said in refusal(raw_header(text))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a .npy array"),
        (b"hello", "not a .npy array"),
        (MAGIC, "cut short"),
        (MAGIC + b"\1", "cut short"),
        (MAGIC + b"\1\0\x10", "cut short"),
        (MAGIC + b"\2\0\x10\0\0", "cut short"),
        (MAGIC + b"\4\0\x10\0\0\0", "version 4.0"),
        (MAGIC + b"\1\1\x10\0\0\0", "version 1.1"),
    ],
)
def test_what_is_no_header_is_refused(data, said):
    assert said in refusal(data)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=120), st.sampled_from([1, 2, 3]), st.lists(st.tuples(st.integers(0, 57), st.binary()))
)
def test_no_text_makes_the_parser_fail_otherwise(noise, version, changes):
    text = bytearray(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }")
    for at, block in changes:
        text[at : at + len(block)] = block
    for body in (noise, bytes(text)[:9000]):
        data = MAGIC + bytes([version, 0]) + len(body).to_bytes(2 if version == 1 else 4, "little") + body
        with warnings.catch_warnings(), contextlib.suppress(SourceError):
            warnings.simplefilter("error", SyntaxWarning)  # Python's own parser would warn of odd literals
            parse(data)


def test_samples_that_share_a_header_share_its_parsing():
    npy._parse.cache_clear()
    for k in range(50):
        parse(npy_bytes(np.full((3, 4), k)))
    assert npy._parse.cache_info().misses == 1
    assert npy._parse.cache_info().maxsize is not None


@pytest.mark.skipif(not os.path.isdir(REAL), reason="the real files are not on this machine")
@pytest.mark.parametrize(
    "name",
    [
        "ibl_pcqs_session_0.npy",
        "ibl_pcqs_session_1.npy",
        "ibl_pcqs_session_10.npy",
        "libnpy_int32_big.npy",
        "libnpy_uint8_fortran.npy",
        "npzjl_linspace_v2.npy",
    ],
)
def test_headers_of_real_files_say_what_numpy_reads(name):
    with open(os.path.join(REAL, name), "rb") as file:
        data = file.read()
    array = np.load(io.BytesIO(data))
    length, header = parse(data)
    assert len(data) - length == array.nbytes
    assert header.spec.dtype == array.dtype.newbyteorder("=")
    assert header.spec.shape == array.shape
    assert header.fortran == (not array.flags.c_contiguous)
    assert header.swapped == (not array.dtype.isnative)


@pytest.mark.skipif(not os.path.isdir(REAL), reason="the real files are not on this machine")
def test_the_header_of_a_real_file_of_text_is_read():
    with open(os.path.join(REAL, "numcodecs_U4_fortran.npy"), "rb") as file:
        header = parse(file.read())[1]
    assert (str(header.spec), header.fortran) == ("<U4 (100, 10)", True)
