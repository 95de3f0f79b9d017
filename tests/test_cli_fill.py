"""What stands in for which field, as it is typed."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

from mmapload.cli.fill import parse_fill


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        (str(2**64 - 1), 2**64 - 1),
        ("0.5", 0.5),
        ("-0.0", -0.0),
        ("1e-3", 0.001),
        ("0e999", 0.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("true", True),
        ("False", False),
        ("1+2j", 1 + 2j),
    ],
)
def test_numbers_are_read_as_they_are_written(text, value):
    found = parse_fill([f"x={text}"])["x"]
    assert repr(found) == repr(value)


def test_nan_is_a_number():
    assert math.isnan(parse_fill(["x=nan"])["x"])
    assert cmath.isnan(parse_fill(["x=nan+0j"])["x"])


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("0:float32:4x256x448", "f4", (4, 256, 448)),
        ("-1:int64:", "i8", ()),
        ("true:bool:3", "?", (3,)),
        ("0:uint8:0x3", "u1", (0, 3)),
        ("nan:float16:2", "f2", (2,)),
        ("1j:complex64:2", "c8", (2,)),
        ("0:float32:100000x100000x100000", "f4", (100_000,) * 3),
    ],
)
def test_dtype_and_shape_make_an_array_that_takes_the_room_of_one_element(text, dtype, shape):
    array = parse_fill([f"x={text}"])["x"]
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
    assert not any(array.strides)


def test_the_last_equals_sign_ends_the_name_so_that_any_name_can_be_given():
    assert parse_fill(["a=b=0", "c:d=1", "x=2"]) == {"a=b": 0, "c:d": 1, "x": 2}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["x"], "expected FIELD=VALUE.*found 'x'"),
        (["=0"], "expected FIELD=VALUE"),
        (["x="], "expected FIELD=VALUE"),
        (["x=zero"], "in 'x=zero' the value 'zero' is no number.*expected for example 0, "),
        (["x=1e999"], "the value '1e999' is no number"),
        (["x=1e400j:complex128:1"], "the value '1e400j' is no number"),
        (["x=1-1e400j:complex128:1"], "the value '1-1e400j' is no number"),
        (["x=1e-999j:complex128:1"], "the value '1e-999j' is no number"),
        (["x=1e99999999999999999999:complex64:1"], "the value '1e99999999999999999999' is no number"),
        (["x=1e300:complex64:1"], "complex64, which cannot hold 1e.300: it holds complex numbers up to 3.4"),
        (["x=1e-999"], "the value '1e-999' is no number"),
        (["x=y:float32:4x64x112"], "in 'x=y:float32:4x64x112' the value 'y' is no number"),
        (["x=:float32:2"], "the value '' is no number"),
        (
            ["x=0:float32"],
            "no shape follows the dtype 'float32'; .* x=0:float32:4x256x448, or x=0:float32: for",
        ),
        (["x=0:float32:2:3"], "'3' follows the shape '2'; .* x=0:float32:4x256x448"),
        (["x=0:float33:2"], "'float33' is no dtype of a store, which holds bool, int8"),
        (["x=0::2"], "'' is no dtype"),
        (["x=0:object:2"], "'object' is no dtype"),
        (
            ["x=0:float32:4,64,112"],
            "the shape '4,64,112' has '4,64,112' for a length; .*4x256x448, whole num",
        ),
        (["x=0:float32:4x-64x112"], "the shape '4x-64x112' has '-64' for a length"),
        (["x=0:float32:2x"], "the shape '2x' has '' for a length"),
        (["x=0:float32:2.5"], "the shape '2.5' has '2.5' for a length"),
        (
            ["x=0:float32:99999999999x99999999999"],
            "the shape '99999999999x99999999999' is more than an array",
        ),
        (["x=0:float32:99999999999999999999"], "is more than an array can have"),
        (["x=0:float32:" + "9" * 5000], "is more than an array can have"),
        (["x=0:float32:" + "1x" * 70 + "1"], "is more than an array can have"),
        (["x=300:uint8:2"], "'x' is uint8, which cannot hold 300: it holds whole numbers from 0 to 255"),
        (["x=0", "y=0", "x=1"], "'x' is there twice"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right_and_without_words_of_python(texts, words):
    with pytest.raises(ValueError, match=f"^fill: .*{words}") as raised:
        parse_fill(texts)
    assert "literal" not in str(raised.value)
    assert "broadcast" not in str(raised.value)
