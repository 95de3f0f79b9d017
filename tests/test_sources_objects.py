"""Arrays of objects, from files whose reader trusts them: regular ones are read, and nothing is run."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import fractions
import io
import os
import pickle
import pickletools
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources.listing import list_files
from mmapload.sources.npz import NpzSource
from mmapload.sources.objects import ObjectNpzSource
from mmapload.sources.unpickling import read_pickle
from tests.npz_files import npz_bytes, zip_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def objects(values: Sequence[Any], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of objects, whatever numpy would make of them."""
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    return array.reshape((len(values),) if shape is None else shape)


def zero_d(value: Any) -> np.ndarray:
    array = np.empty((), object)
    array[()] = value
    return array


def source_of(folder: Path, fields: dict[str, str] | None = None, **arrays: Any) -> ObjectNpzSource:
    (folder / "s.npz").write_bytes(npz_bytes(arrays))
    return ObjectNpzSource(list_files([folder]), fields)


def read(source: ObjectNpzSource) -> dict[str, np.ndarray]:
    into = {field: np.zeros(spec.shape, spec.dtype) for field, spec in source.schema(0).items()}
    source.read(0, into)
    return into


def refusal(source: ObjectNpzSource) -> str:
    messages = set()
    for use in (source.schema, lambda index: source.read(index, {"x": np.zeros(3)})):
        with pytest.raises(SourceError) as caught:
            use(0)
        messages.add(str(caught.value))
    (message,) = messages
    return message


class Running:
    """Its pickle runs a command when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wrap", [zero_d, lambda x: objects([x]), lambda x: zero_d({"a": [x]})])
def test_a_pickle_that_would_run_something_is_refused_by_its_name_and_runs_nothing(
    tmp_path: Path, protocol: int, wrap: Any
) -> None:
    trap = tmp_path / "sprung"
    array = wrap(Running(trap))
    member = npz_bytes({"x": array})
    assert "posix.system" in refusal(source_of(tmp_path, x=array))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|O", "fortran_order": False, "shape": array.shape}
    )
    data = zip_bytes([("x.npy", header.getvalue() + pickle.dumps(array, protocol=protocol))])
    (tmp_path / "s.npz").write_bytes(data)
    assert "holds posix.system, and only arrays and plain values" in refusal(
        ObjectNpzSource(list_files([tmp_path]))
    )
    assert not trap.exists()
    assert member


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (fractions.Fraction(1, 2), "fractions.Fraction"),
        (dt.date(2020, 1, 1), "datetime.date"),
        (np.ma.masked_array([1], [True]), "numpy.ma"),
        (np.recarray(1, [("a", "f4")]), "numpy.rec"),
        (np.random.default_rng(0), "numpy.random"),
        (eval, "builtins.eval"),
        (collections.Counter("a"), "collections.Counter"),
        (np.dtype("f4"), "a _Dtype in place of a value"),
        (np.float32, "numpy.float32"),
        (np.array(["2020-01-01"], "M8[D]"), "dtype 'M8'"),
        (np.zeros(2, [("a", "f4")]), "dtype 'V4'"),
    ],
)
def test_what_is_no_plain_value_is_refused_by_the_name_of_its_class(
    tmp_path: Path, value: Any, named: str
) -> None:
    assert named in refusal(source_of(tmp_path, x=objects([value])))


VALUES: list[tuple[list[Any], str]] = [
    ([np.arange(6, dtype=">i2").reshape(2, 3), np.ones((2, 3), "i2")], ""),
    ([np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.ones((2, 3))], ""),
    ([np.zeros((0, 3), "f2"), np.zeros((0, 3), "f2")], ""),
    ([np.float32(1.5), np.float32("nan")], "f4"),
    ([np.bool_(True), np.bool_(False)], "?"),
    ([1, -(2**63)], "i8"),
    ([1.5, float("-inf")], "f8"),
    ([True, False], "?"),
    ([1j, 2.0 + 0j], "c16"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("values", "dtype"), VALUES)
def test_regular_arrays_become_fields_bit_by_bit(
    tmp_path: Path, values: list[Any], dtype: str, protocol: int
) -> None:
    array = objects(values * 2, (2, 2))
    found = read_pickle(pickle.dumps(array, protocol=protocol))
    assert found.shape == (2, 2)
    sample = read(source_of(tmp_path, x=array, y=np.int64(3)))
    expected = np.stack([np.asarray(value) for value in values * 2])
    expected = expected.reshape((2, 2, *expected.shape[1:]))
    expected = expected.astype(dtype or expected.dtype.newbyteorder("="))
    assert (sample["x"].dtype, sample["x"].shape) == (expected.dtype, expected.shape)
    assert sample["x"].tobytes() == expected.tobytes()
    assert sample["y"] == 3


def test_a_dict_without_axes_becomes_its_keys(tmp_path: Path) -> None:
    saved = zero_d({"emb": np.arange(6, dtype="f4"), "n": 3, "lr": np.float64(0.5), "ok": True})
    sample = read(source_of(tmp_path, arr_0=saved, other=np.zeros(2)))
    assert {key: str(value.dtype) for key, value in sample.items()} == {
        "emb": "float32",
        "n": "int64",
        "lr": "float64",
        "ok": "bool",
        "other": "float64",
    }
    assert sample["emb"].tolist() == list(range(6))
    fields = {"emb": "x"}
    assert list(read(source_of(tmp_path, fields, arr_0=saved, y=objects([object])))) == ["x"]
    assert "another array of the file has" in refusal(source_of(tmp_path, arr_0=saved, emb=np.zeros(2)))
    assert "fields are named by text" in refusal(source_of(tmp_path, arr_0=zero_d({1: 2})))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [np.zeros((2, 3)), np.zeros((4, 3))],
            "shapes (2, 3) and (4, 3), a ragged array: name the field by --ragged",
        ),
        ([np.zeros(2), np.zeros(2, "f4")], "float64 and float32"),
        ([1, 2.0], "float, int"),
        ([1, None], "NoneType, int"),
        ([True, 1], "bool, int"),
        ([[1, 2], [3, 4]], "list"),
        ([{"a": 1}], "dict"),
        ([2**63], "beyond 64 bits"),
        ([], "there is none"),
        ([objects([1])], "objects again"),
    ],
)
def test_what_is_irregular_is_refused_with_advice(tmp_path: Path, values: list[Any], said: str) -> None:
    message = refusal(source_of(tmp_path, x=objects(values)))
    assert "member 'x.npy': holds Python objects, of which" in message
    assert said in message


def test_files_without_objects_are_read_as_ever_and_others_stay_closed_by_default(tmp_path: Path) -> None:
    source = source_of(tmp_path, x=np.arange(3))
    assert read(source)["x"].tolist() == [0, 1, 2]
    assert source.fingerprint(0) == NpzSource(list_files([tmp_path])).fingerprint(0)
    source_of(tmp_path, x=objects([1, 2]))
    with pytest.raises(SourceError, match="dtype object"):
        NpzSource(list_files([tmp_path])).schema(0)


def test_the_same_array_again_and_again_is_no_bomb(tmp_path: Path) -> None:
    large = np.zeros(1 << 20, "u1")
    data = pickle.dumps(objects([large] * 100_000), protocol=4)
    assert len(data) < 2 << 20
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (100_000,)})
    (tmp_path / "s.npz").write_bytes(zip_bytes([("x.npy", header.getvalue() + data)]))
    assert "again and again" in refusal(ObjectNpzSource(list_files([tmp_path])))


def test_numbers_of_values_that_cannot_be_take_no_memory() -> None:
    for opcode in (pickle.LONG_BINPUT + struct.pack("<I", 2**31), b"p4000000000\n"):
        with pytest.raises(ValueError, match="numbers a value"):
            read_pickle(pickle.NONE + opcode + pickle.STOP)


def test_functions_of_numpy_cannot_be_changed_or_called_otherwise() -> None:
    call = b"cnumpy.core.multiarray\n_reconstruct\n"
    for rest in (b"}X\x01\0\0\0aK\x01sb.", b"N}X\x09\0\0\0_functionK\x01s\x86b.", b"."):
        with pytest.raises(ValueError, match=r"would change|in place of a value|damaged"):
            read_pickle(call + rest)
    with pytest.raises(ValueError, match="a kind of its own"):
        read_pickle(call + b"K\x01K\x01K\x01\x87R.")
    for name in (
        "numpy.core.multiarray\nfromfile",
        "numpy\nload",
        "builtins\ngetattr",
        "numpy\nndarray.tofile",
    ):
        with pytest.raises(ValueError, match="only arrays and plain values"):
            read_pickle(f"c{name}\n.".encode())


SEEDS = [pickle.dumps(objects(values, (len(values),)), protocol=p) for values, _ in VALUES for p in (2, 4, 5)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_refused_or_read(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        read_pickle(bytes(damaged))


def test_the_opcodes_of_pickles_are_those_known_here() -> None:
    """A new one that numbers values would have to be looked at."""
    assert {code.name for code in pickletools.opcodes if "PUT" in code.name} == {
        "PUT",
        "BINPUT",
        "LONG_BINPUT",
    }


def laughing(levels: int = 60) -> bytes:
    """A tuple of two tuples of two tuples ..., each named twice; the last is on the stack and in the memo."""
    named = [b"h%ch%c\x86\x94" % (number, number) for number in range(levels)]
    return b"\x80\x04)\x94" + b"".join(named)


ENDLESS = {
    "a key of a dict": laughing() + b"0}h\x3cK\x01s.",
    "a key of many": laughing() + b"0}(h\x3cK\x01K\x02K\x03u.",
    "a key after BUILD": laughing(5) + b"Nb\x94" + laughing()[4:] + b"0}h\x3cK\x01s.",
    "an element of a set": laughing() + b"0\x8f(h\x3c\x90.",
    "an element of a frozen set": laughing()[:2] + b"(" + laughing()[2:] + b"\x91.",
    "a shape": laughing() + b"0cnumpy.core.numeric\n_frombuffer\n(C\x00Nh\x3cC\x01CtR.",
    "a dtype": laughing() + b"0cnumpy\ndtype\nh\x3c\x85R.",
    "a reference outside": laughing() + b"0h\x3cQ.",
    "one long key again and again": b"\x80\x04(" + b"N" * 9000 + b"t\x940}" + b"h\0Ns" * 9000 + b".",
    "one long text again and again": b"\x80\x04X\x10\x27\0\0" + b"a" * 10_000 + b"\x940X\x06\0\0\0latin1\x940"
    b"c_codecs\nencode\n\x940(" + b"h\2h\0h\1\x86R" * 9000 + b"l.",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_named_again_and_again_takes_neither_time_nor_memory(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="again and again"):
            read_pickle(ENDLESS[what])
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_one_buffer_under_many_arrays_is_not_copied_for_each(tmp_path: Path) -> None:
    class Shared:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def __reduce__(self) -> Any:
            begin, arguments, _ = np.zeros(1).__reduce__()
            return begin, arguments, (1, (1 << 17,), np.dtype(">f8"), False, self.data)

    data = bytes(8 << 17)
    (found,) = read_pickle(pickle.dumps([Shared(data)], 4))
    assert found.nbytes == 8 << 17
    with pytest.raises(ValueError, match="again and again"):
        read_pickle(pickle.dumps([Shared(data) for _ in range(1000)], 4))


def test_one_long_text_among_many_short_ones_is_refused_before_all_are_made_as_long(tmp_path: Path) -> None:
    texts = objects(["a" * 1_000_000, *["b"] * 100_000])
    assert "again and again" in refusal(source_of(tmp_path, x=texts))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"a.", "damaged"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b"a.", "damaged"),
        (b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"a.", "damaged"),
        (b"I" + b"9" * 1_000_000 + b"\n.", "damaged"),
        (b"\x80\x04" + b"]" * 9_000 + b"a" * 8_999 + b".", "nests too deep"),
        (b"\x80\x04)" + b"\x85" * 9_000 + b".", "nests too deep"),
        (b"\x80\x04]\x94h\0a.", "nests too deep"),
        (b"\x80\x04}\x94K\x01h\0s.", "nests too deep"),
        (pickle.dumps(objects([None] * 3), 2).replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"), "damaged"),
        (b"(ios\nsystem\n.", "holds os.system"),
        (b"(cos\nsystem\no.", "holds os.system"),
        (b"\x80\x04cbuiltins\ngetattr\n(cnumpy\nload\nX\6\0\0\0systemtR.", "holds builtins.getattr"),
        (b"\x80\x02c_codecs\nencode\nX\1\0\0\0aX\4\0\0\0zlib\x86R.", "would encode text in 'zlib'"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "damaged"),
        (b"\x80\x02cnumpy\nndarray\n}X\x09\0\0\0__class__K\x01sb.", "damaged"),
        (b"\x82\x01.", "damaged"),
        (b"Pabc\n.", "outside of it"),
        (b"", "damaged"),
        (b".", "damaged"),
    ],
)
def test_attacks_are_refused_in_little_memory(data: bytes, said: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=said):
            read_pickle(data)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
