"""Values of samples from Python: taken bit by bit, in whatever order their bytes and axes stand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmapload.layout import CORE_DTYPES
from mmapload.sources.values import spec_of, specs_of, store_sample


@given(
    array=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4).flatmap(
        lambda shape: st.sampled_from(sorted(CORE_DTYPES)).flatmap(
            lambda name: hnp.arrays(CORE_DTYPES[name], shape)
        )
    ),
    swapped=st.booleans(),
    fortran=st.booleans(),
)
def test_every_byte_order_and_memory_order_is_stored_bit_by_bit(
    array: np.ndarray, swapped: bool, fortran: bool
) -> None:
    given_array = array.astype(array.dtype.newbyteorder(">")) if swapped else array
    given_array = np.asfortranarray(given_array) if fortran else given_array
    spec = spec_of(given_array)
    assert (spec.dtype, spec.shape) == (array.dtype, given_array.shape)
    place = np.full(spec.shape, 1, spec.dtype)
    store_sample({"x": given_array}, {"x": place}, "sample 0")
    assert place.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "int64 ()"),
        (0.5, "float64 ()"),
        (True, "bool ()"),
        (1j, "complex128 ()"),
        (np.float16(1), "float16 ()"),
        ([[1, 2, 3]], "int64 (1, 3)"),
        (np.zeros((2, 0), ">i2"), "int16 (2, 0)"),
    ],
)
def test_numbers_lists_and_arrays_become_what_numpy_takes_them_for(value: object, text: str) -> None:
    assert {name: str(spec) for name, spec in specs_of({"x": value}, "sample 0").items()} == {"x": text}


def test_negative_zero_and_nan_payloads_stay() -> None:
    bits = np.array([0x80000000, 0x7FC00001, 0xFFC12345], np.uint32)
    place = np.empty(3, "f4")
    store_sample({"x": bits.view("f4")}, {"x": place}, "sample 0")
    assert place.tobytes() == bits.tobytes()
