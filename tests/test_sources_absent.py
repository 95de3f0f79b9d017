"""Which fields a sample may lack, and what is said of the others."""

from __future__ import annotations

import pytest

from mmapload.sources.absent import absent_fields, fill_advice


@pytest.mark.parametrize(
    ("found", "optional", "absent"),
    [
        ("ab", "", ()),
        ("ab", "ab", ()),
        ("ba", "", ()),
        ("a", "b", ("b",)),
        ("", "ab", ("a", "b")),
        ("a", "", None),
        ("a", "a", None),
        ("abc", "", None),
        ("abc", "c", None),
        ("ac", "b", None),
        ("ac", "", None),
        ("", "a", None),
    ],
)
def test_optional_fields_alone_may_be_absent_and_none_may_be_added(found, optional, absent):
    assert absent_fields(found, "ab", set(optional)) == absent


def test_the_advice_can_be_typed_as_it_is():
    assert fill_advice(["a b", "c"]) == (
        "where an array is missing, a value can stand in: --fill 'a b=0' --fill c=0 (fill={'a b': 0, 'c': 0})"
    )
