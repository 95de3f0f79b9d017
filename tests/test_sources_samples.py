"""Samples from Python: taken exactly as they are, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.samples import IterableSource, SequenceSource
from mmapload.sources.values import store_sample


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"x": 0.5}, r"sample 1, member 'x': float64 \(\), expected int64 \(\)"),
        ({"x": [1, 2]}, r"sample 1, member 'x': int64 \(2,\), expected int64 \(\)"),
        ({"y": 1}, r"sample 1: its fields are 'y', expected 'x'"),
        ({"x": 1, "y": 1}, r"sample 1: its fields are 'x', 'y', expected 'x'"),
        ({}, r"sample 1: its fields are none, expected 'x'"),
        ({"x": None}, r"member 'x': a store cannot hold Python objects"),
        ({"x": [[1], [2, 3]]}, r"member 'x': .*inhomogeneous"),
        (5, r"sample 1: expected a mapping .* found int"),
        ((1, 2), r"sample 1: its fields are '0', '1', expected 'x'"),
        ([1, 2], r"sample 1: expected a mapping .* found list"),
    ],
)
def test_a_sample_unlike_the_first_is_refused_with_both_sides(second: Any, words: str) -> None:
    source = SequenceSource([{"x": 1}, second])
    with pytest.raises(SourceError, match=words):
        source.read(1, {"x": np.empty((), np.int64)})


def test_an_error_of_the_sequence_names_the_sample() -> None:
    class Failing:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            raise OSError(f"no file {index}")

    with pytest.raises(SourceError, match="sample 7: the sequence raised OSError: no file 7") as caught:
        SequenceSource(Failing()).schema(7)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("fields", [None, {"x": "x", "y": "y"}])
def test_optional_fields_may_be_missing_and_what_is_not_there_is_left_alone(
    fields: dict[str, str] | None,
) -> None:
    source = SequenceSource([{"x": 1}, {"x": 2, "y": 3}, {"y": 4}, {}], fields, ["y"])
    into = {"x": np.zeros((), np.int64), "y": np.full((), 7)}
    assert [*source.schema(0)] == ["x"]
    assert source.read(0, into) == ("y",)
    assert (into["x"].item(), into["y"].item()) == (1, 7)
    assert source.read(1, into) == ()
    assert (into["x"].item(), into["y"].item()) == (2, 3)
    for index in (2, 3):
        with pytest.raises(SourceError, match=r"sample [23]: .*--fill x=0 \(fill=\{'x': 0\}\)"):
            source.read(index, into)
    stream = IterableSource(iter([{"x": 1}, {"y": 2}]), fields, ["y"])
    assert [*stream.schema()] == ["x"]
    assert [*stream] == [{"x": 1}, {"y": 2}]


def test_a_sample_without_arrays_is_refused_where_none_is_optional() -> None:
    with pytest.raises(SourceError, match="a sample without arrays"):
        SequenceSource([{}]).schema(0)
    assert SequenceSource([{}], None, ["y"]).schema(0) == {}


@pytest.mark.parametrize("fields", [None, {"x": "x"}])
def test_a_sample_that_loads_its_arrays_late_may_raise_what_it_likes(fields: dict[str, str] | None) -> None:
    class Late(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise OSError(f"no file for {name}")

    source = SequenceSource([Late(x=1)], fields)
    with pytest.raises(SourceError, match=r"sample 0.*: no file for x"):
        source.schema(0)
    with pytest.raises(SourceError, match=r"sample 0.*: no file for x") as caught:
        source.read(0, {"x": np.empty((), np.int64)})
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("mask", [[False, True], False])
def test_a_masked_array_is_refused_and_not_stored_without_its_mask(mask: object) -> None:
    masked = np.ma.masked_array([1, 2], mask=mask)
    with pytest.raises(SourceError, match=r"sample 0, member 'x': a store cannot hold a mask.*filled"):
        SequenceSource([{"x": masked}]).schema(0)
    with pytest.raises(SourceError, match="cannot hold a mask"):
        store_sample({"x": masked}, {"x": np.empty(2, np.int64)}, "sample 1")


def test_a_fingerprint_tells_contents_apart_and_makes_no_sample_twice() -> None:
    class Counted(list[dict[str, Any]]):
        taken = 0

        def __getitem__(self, index: Any) -> Any:
            self.taken += 1
            return super().__getitem__(index)

    values = Counted({"x": np.float32(i)} for i in range(33))
    source = SequenceSource(values)
    place = np.empty((), "f4")
    prints = []
    for index in range(33):
        prints.append(source.fingerprint(index))
        source.read(index, {"x": place})
    assert values.taken == 33
    assert len(set(prints)) == 4  # of samples 0, 16 and 32, and nothing of the others
    assert SequenceSource([{"x": np.float64(0)}]).fingerprint(0) != prints[0]
    assert SequenceSource([{"x": np.float32(0)}]).fingerprint(0) == prints[0]


def test_torch_tensors_are_taken_and_types_that_numpy_lacks_are_refused() -> None:
    torch = pytest.importorskip("torch")
    source = SequenceSource([{"x": torch.arange(6, dtype=torch.int16).reshape(2, 3).T}])
    place = np.empty((3, 2), np.int16)
    source.read(0, {"x": place})
    assert place.tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(SourceError, match=r"member 'x': "):
        SequenceSource([{"x": torch.zeros(2, dtype=torch.float8_e5m2)}]).schema(0)


def test_an_iterable_keeps_the_samples_that_were_looked_at() -> None:
    source = IterableSource(iter([{"x": 1}, {"x": 2}]))
    assert str(source.schema()["x"]) == "int64 ()"
    assert [sample["x"] for sample in source] == [1, 2]
    assert list(source) == []


def test_an_iterable_without_a_sound_sample_is_refused() -> None:
    with pytest.raises(SourceError, match="no sample"):
        IterableSource([]).schema()
    with pytest.raises(SourceError, match=r"cannot hold.*no other sample is sound"):
        IterableSource([{"x": None}, {"x": [None]}]).schema(skip=True)
    source = IterableSource([{"x": None}, {"x": 1}])
    assert str(source.schema(skip=True)["x"]) == "int64 ()"
    assert len(list(source)) == 2


def test_a_selection_names_what_is_missing() -> None:
    for source in (SequenceSource([{"x": 1}], {"z": "z"}), IterableSource([{"x": 1}], {"z": "z"})):
        with pytest.raises(SourceError, match="has no array 'z'; it has 'x'"):
            source.schema(0) if isinstance(source, SequenceSource) else source.schema()


def test_neither_torch_nor_zarr_is_imported() -> None:
    code = (
        "import sys, mmapload.sources.samples; "
        "sys.exit(bool({'torch', 'zarr', 'numcodecs'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Lazy(dict[str, Any]):
    """A sample that raises at one of the questions that a mapping answers."""

    def __init__(self, fails: str) -> None:
        super().__init__(x=1)
        self.fails = fails

    def _ask(self, question: str) -> None:
        if self.fails == question:
            raise KeyError("the disk is gone")

    def __iter__(self) -> Any:
        self._ask("iter")
        return super().__iter__()

    def __len__(self) -> int:
        self._ask("len")
        return super().__len__()

    def __contains__(self, name: object) -> bool:
        self._ask("contains")
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self._ask("getitem")
        return super().__getitem__(name)


@pytest.mark.parametrize("fails", ["iter", "len", "contains", "getitem"])
@pytest.mark.parametrize("fields", [None, "x"])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_mapping_that_raises_is_an_error_with_the_number_of_its_sample(
    tmp_path, fails, fields, indexed, first
):
    good: list[Any] = [] if first else [{"x": 1}] * 16
    bad = Lazy(fails)
    values = [*good, bad, *good]
    caught = None
    try:
        preprocess(values if indexed else iter(values), tmp_path / "out", 2, fields=fields)
    except SourceError as error:
        caught = error
    if caught is not None:
        assert caught.file == f"sample {len(good)}"
        assert "the disk is gone" in caught.cause
    else:  # it was not asked, where fields are chosen or known
        assert (
            fails == "len" or (fails == "iter" and (fields or good)) or (fails == "contains" and not fields)
        )


@pytest.mark.parametrize(
    "value",
    [[np.ma.masked, 1], [[1.0, 2.0], [3.0, np.ma.masked]], (np.ma.array([1, 2], mask=[0, 1]), [3, 4])],
)
def test_masks_in_lists_are_refused_as_masked_arrays_are(value):
    with pytest.raises(SourceError, match="sample 0, member 'x': a store cannot hold a mask"):
        SequenceSource([{"x": value}]).schema(0)
