"""Which fields a sample may lack, and what is said of the others."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mmapload
from mmapload.cli import main
from mmapload.sources.absent import absent_fields, difference_advice, fill_advice, selection_advice
from tests.preprocessing_cases import stored, write_npz


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
        "fields are given as old=new: did you mean images=frames?; keep what some lack, with a mask: "
    )
    assert "--fill 'my new=0' (fill={'my new': 0})" in told
    assert told.endswith("--fill 'my new=0:float32:4x256x448'")
    assert "images=0" not in told


def test_of_fields_that_differ_by_name_the_advice_is_no_stand_in():
    told = difference_advice(["latents", "id"], ["arr_0"], ["x"])
    assert "--fields arr_0=latents,x, and the others with --append" in told
    assert "--fields x (fields=['x'])" in told
    assert "--optional latents,id,arr_0 (optional=['latents', 'id', 'arr_0'])" in told
    assert "--fill" not in told
    assert "give it one name in all samples" in difference_advice(["a"], ["b"], [], files=False)
    assert "--fields a,..." not in difference_advice(["a"], [], list("bcdefghij"))
    assert "--fields b,c,d,e,f,g,h,i,... (fields=" in difference_advice(["a"], [], list("bcdefghij"))
    told = selection_advice({"latents": "z"}, ["arr_0", "id"], ["latents", "id"])
    assert told.startswith("if 'arr_0' is 'z' by another name, preprocess such files by themselves with ")


def test_what_the_advice_says_of_files_with_an_older_name_can_be_done(tmp_path, capsys):
    older, newer = tmp_path / "in" / "older", tmp_path / "in" / "newer"
    write_npz(newer, [{"latents": np.full(3, i), "id": i} for i in range(3)])
    write_npz(older, [{"arr_0": np.full(3, i), "id": i} for i in range(3, 5)])
    assert (
        main(["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), "--batch-size", "2", "--quiet"]) == 1
    )
    said = capsys.readouterr().err
    typed = re.search("by themselves with (--fields) ([^ ]+), and the others with (--append)", said)
    assert typed
    rest = ["--batch-size", "2", "--quiet"]
    assert main(["preprocess", str(older), str(tmp_path / "out"), *rest, typed[1], typed[2]]) == 0
    assert main(["preprocess", str(newer), str(tmp_path / "out"), *rest, typed[3]]) == 0
    assert stored(mmapload.open_store(tmp_path / "out"), "id").tolist() == [3, 4, 0, 1, 2]
    marked = re.search(r"(--optional) ([^ ]+) \(optional=", said)
    assert marked
    assert main(["preprocess", str(tmp_path / "in"), str(tmp_path / "all"), *rest, marked[1], marked[2]]) == 0
    assert stored(mmapload.open_store(tmp_path / "all"), "latents_present").tolist() == [1, 1, 1, 0, 0]
