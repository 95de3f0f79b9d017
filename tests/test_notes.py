"""Notes on fields: a closed table, read strictly."""

from __future__ import annotations

import numpy as np
import pytest

from mmapload.notes import BFLOAT16, DtypeNote, FieldNote, note_of, parse_note

KNOWN = [
    "bfloat16",
    "datetime64",
    "datetime64[ns]",
    "datetime64[25s]",
    "timedelta64[D]",
    "timedelta64",
    "<U1",
    "<U7",
    "|S1",
    "|S2147483647",
]


@pytest.mark.parametrize("dtype", KNOWN)
@pytest.mark.parametrize("ragged", [0, 2])
def test_a_note_reads_as_it_was_written(dtype, ragged):
    note = FieldNote(ragged, DtypeNote(dtype))
    known = not (ragged and note.dtype.is_text)  # there are no ragged arrays of text
    assert parse_note(note.to_json()) == (note if known else None)


def test_an_empty_note_says_nothing():
    assert parse_note({}) == FieldNote()
    assert FieldNote().to_json() == {}


@pytest.mark.parametrize(
    "note",
    [
        None,
        [],
        "bfloat16",
        {"mask": 1},
        {"dtype": None},
        {"dtype": "float32"},
        {"dtype": "float8_e4m3fn"},
        {"dtype": "object"},
        {"dtype": "<U0"},
        {"dtype": "<U07"},
        {"dtype": "<U536870912"},
        {"dtype": "|S2147483648"},
        {"dtype": ">U7"},
        {"dtype": "U7"},
        {"dtype": "<U7,<U7"},
        {"dtype": "|S"},
        {"dtype": "|V2"},
        {"dtype": "datetime64[]"},
        {"dtype": "datetime64[1s]"},
        {"dtype": "datetime64[0s]"},
        {"dtype": "datetime64[parsec]"},
        {"dtype": "datetime64[99999999999s]"},
        {"dtype": "datetime64[xx]"},
        {"dtype": "M8[s]"},
        {"dtype": "<M8[s]"},
        {"ragged": True},
        {"ragged": 0},
        {"ragged": 32},
        {"ragged": 1.0},
        {"ragged": 1, "mask": {}},
        {"ragged": 1, "dtype": "object"},
    ],
)
def test_anything_else_is_of_a_later_version(note):
    assert parse_note(note) is None


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "c16", "V2", "O", [("a", "f4")]])
def test_other_dtypes_have_no_note(dtype):
    assert note_of(np.dtype(dtype)) is None


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bcd", "ä\x00é"]),
        np.array([[b"a\x00", b""], [b"\x00b", b"xyz"]]),
        np.array(["NaT", "2020-02-30"[:7], "1969-12"], "M8[M]"),
        np.array([-(2**63), 2**63 - 1], "m8[as]"),
        np.array("alone"),
        np.zeros((2, 0), "U3"),
        np.arange(6, dtype="u2").view(BFLOAT16).reshape(2, 3),
    ],
    ids=lambda array: str(array.dtype),
)
def test_a_view_of_what_is_stored_has_every_bit(array):
    note = note_of(array.dtype)
    assert note is not None
    stored = np.frombuffer(array.tobytes(), note.stored).reshape(*array.shape, *note.axes)
    seen = note.view(stored, carrier=True)
    assert (seen.dtype, seen.shape, seen.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert np.shares_memory(seen, stored) or not array.size
