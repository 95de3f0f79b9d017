"""Which fields a sample may lack, and what is said of the others."""

from __future__ import annotations

import pytest

from mmapload.sources.absent import absent_fields, fill_advice, selection_advice


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


def test_swapped_names_are_turned_and_only_other_fields_are_filled():
    assert selection_advice({"frames": "images", "a": "b"}, {"images", "b"}) == (
        "fields are given as old=new: did you mean images=frames,b=a?"
    )
    told = selection_advice({"frames": "images", "old": "my new"}, {"images"})
    assert told.startswith(
        "fields are given as old=new: did you mean images=frames?; where an array is missing"
    )
    assert "--fill 'my new=0' (fill={'my new': 0})" in told
    assert told.endswith("--fill 'my new=0:float32:4x256x448'")
    assert "images=0" not in told
