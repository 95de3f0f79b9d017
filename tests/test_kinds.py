"""Fields of every kind: from a sample to a store, to numpy, and to a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader

import mmapload
from mmapload.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 9
TEXTS = ["a", "", "ü\U0001f600", "a longer one", "x\x00y", "b", "c", "d", "trailing\x00"]


def sample(number: int) -> dict[str, Any]:
    """Return one sample with an array of each kind that torch has no type for, and of some that it has."""
    return {
        "name": TEXTS[number],
        "code": TEXTS[number].encode(),
        "pair": np.array([TEXTS[number], "p"]),
        "when": np.datetime64(number * 86_400_000 - 7, "ms"),
        "spans": np.array([number, np.iinfo("i8").min], "m8[25s]"),
        "half": torch.tensor([number / 4, float("nan")]).to(torch.bfloat16),
        "id": np.uint64(2**64 - 1 - number),
        "rgb": np.full((2, 3), number, np.uint16),
        "none": np.zeros((0, 2), "M8[D]"),
        "flag": np.bool_(number % 2),
        "phase": np.complex128(number - 1j),
    }


@pytest.fixture(scope="module", params=["raw", "zstd", "blosc-lz4", "blosc-zstd"])
def store(request, tmp_path_factory) -> mmapload.Store:
    samples = [sample(number) for number in range(SAMPLES)]
    path = tmp_path_factory.mktemp("kinds") / "store"
    return mmapload.preprocess(samples, path, 2, codec=request.param, chunk_bytes=1)


def stored(store: mmapload.Store, field: str) -> np.ndarray:
    return np.concatenate([store.read_chunk(field, chunk) for chunk in range(store.layout.chunks)])


def test_numpy_gets_its_own_dtypes_back_bit_by_bit(store):
    dtypes = {field: str(stored(store, field).dtype) for field in store.fields}
    assert dtypes == {
        "name": "<U12",
        "code": "|S12",
        "pair": "<U12",
        "when": "datetime64[ms]",
        "spans": "timedelta64[25s]",
        "half": "uint16",
        "id": "uint64",
        "rgb": "uint16",
        "none": "datetime64[D]",
        "flag": "bool",
        "phase": "complex128",
    }
    for field in ("name", "code", "pair", "when", "spans", "id", "rgb", "none", "flag", "phase"):
        found = stored(store, field)
        expected = np.array([sample(number)[field] for number in range(SAMPLES)], found.dtype)
        assert (found.shape, found.tobytes()) == (expected.shape, expected.tobytes()), field
    bits = torch.stack([sample(number)["half"] for number in range(SAMPLES)]).view(torch.uint16)
    assert stored(store, "half").tolist() == bits.tolist()


def expect_served(batch: dict[str, Any], numbers: list[int]) -> None:
    """Compare a batch with what was stored, types included."""
    assert batch["name"] == [TEXTS[number].rstrip("\x00") for number in numbers]
    assert batch["code"] == [TEXTS[number].encode().rstrip(b"\x00") for number in numbers]
    assert type(batch["name"]) is type(batch["code"]) is list
    for field, dtype in {"pair": "<U12", "when": "M8[ms]", "spans": "m8[25s]", "none": "M8[D]"}.items():
        expected = np.array([sample(number)[field] for number in numbers], dtype)
        assert type(batch[field]) is np.ndarray
        assert (batch[field].dtype, batch[field].shape) == (expected.dtype, expected.shape)
        assert batch[field].tobytes() == expected.tobytes()
    halves = torch.stack([sample(number)["half"] for number in numbers])
    assert batch["half"].dtype == torch.bfloat16
    assert torch.equal(batch["half"].view(torch.int16), halves.view(torch.int16))
    assert batch["id"].dtype == torch.uint64
    assert batch["id"].tolist() == [2**64 - 1 - number for number in numbers]
    assert (batch["rgb"].dtype, batch["rgb"].shape) == (torch.uint16, (len(numbers), 2, 3))
    assert (batch["flag"].dtype, batch["phase"].dtype) == (torch.bool, torch.complex128)
    assert batch["phase"].tolist() == [number - 1j for number in numbers]


def test_a_sample_has_what_torch_has_no_type_for_as_text_and_as_numpy_arrays(store):
    ds = mmapload.ChunkDataset(store.path)
    found = ds[3]
    assert (found["name"], found["code"]) == ("a longer one", b"a longer one")
    assert found["pair"].tolist() == ["a longer one", "p"]
    assert (found["when"].shape, found["when"].dtype) == ((), "M8[ms]")
    assert found["when"] == np.datetime64(3 * 86_400_000 - 7, "ms")
    assert np.isnat(found["spans"]).tolist() == [False, True]
    assert (found["half"].dtype, found["id"].shape) == (torch.bfloat16, ())
    found["when"][...] = np.datetime64("2000-01-01")  # a copy, as of all fields
    assert ds[3]["when"] == np.datetime64(3 * 86_400_000 - 7, "ms")


def test_plain_loaders_of_torch_deliver_them(store):
    ds = mmapload.ChunkDataset(store.path)
    for workers in (0, 1):
        batches = list(DataLoader(ds, batch_size=4, num_workers=workers))
        expect_served(batches[0], [0, 1, 2, 3])
        expect_served(batches[2], [8])


def _as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.mark.parametrize("transform", [None, _as_it_is], ids=["ready", "transformed"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_deliver_them_in_any_order_from_threads_and_from_workers(store, workers, transform):
    ds = mmapload.ChunkDataset(store.path, transform=transform, with_index=True)
    for shuffle in (False, True):
        loader = mmapload.ChunkDataLoader(ds, batch_size=4, shuffle=shuffle, num_workers=workers)
        seen = []
        for batch in loader:
            numbers = batch["index"].tolist()
            expect_served(batch, numbers)
            seen += numbers
        assert sorted(seen) == list(range(SAMPLES))


def test_a_mix_of_stores_delivers_them(store):
    mixed = mmapload.MixedDataset([mmapload.ChunkDataset(store.path), mmapload.ChunkDataset(store.path)])
    batch = mixed.read([12, 1, 10, 2])
    expect_served(batch.tensors, [3, 1, 1, 2])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(2, [("x", "f4"), ("y", "f4")]), "structured dtype: give each of its fields \\('x', 'y'\\)"),
        (np.array([1, "a"], object), "Python objects"),
        (["a", b"b"], "both"),
        (["a", 1], "both str and int"),
        (np.zeros(2, "V3"), "uint8"),
        (torch.zeros(2, dtype=torch.float8_e5m2), "torch.float8_e5m2: give its bits as tensor.view"),
        pytest.param(
            np.longdouble(1),
            "differs from machine to machine",
            marks=pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="long double is float64 here"),
        ),
    ],
)
def test_everything_else_is_refused_by_name_before_anything_is_written(tmp_path: Path, value, words):
    with pytest.raises(SourceError, match=f"sample 0, member 'x': .*{words}"):
        mmapload.preprocess([{"x": value}], tmp_path / "out", 2)
    assert not list(tmp_path.iterdir())


def test_text_in_one_sample_and_bytes_in_another_are_named(tmp_path: Path):
    for number, array in enumerate([np.array("a"), np.array("bb"), np.array(b"c")]):
        np.savez(tmp_path / f"{number}.npz", gender=array)
    words = r"2\.npz, member 'gender': \|S1 \(\), expected <U1 \(\), or longer, as in .*0\.npz; one is text"
    with pytest.raises(SourceError, match=words):
        mmapload.preprocess(tmp_path, tmp_path / "out", 2)


def test_the_longest_text_of_all_files_survives_whole(tmp_path: Path):
    texts = ["ab", "a", "ü\x00longest of all", "abc"]
    for number, text in enumerate(texts):
        arrays = {"u": np.array(text), "big": np.array([text, "x"], ">U20"), "s": np.array(text.encode())}
        np.savez(tmp_path / f"{number}.npz", **arrays)
    store = mmapload.preprocess(tmp_path, tmp_path / "out", 2)
    assert stored(store, "u").tolist() == texts
    assert stored(store, "big").tolist() == [[text, "x"] for text in texts]
    assert stored(store, "s").tolist() == [text.encode() for text in texts]
    assert [str(store.field(name).meaning) for name in store.fields] == ["<U16", "<U20", "|S17"]


def test_an_iterable_says_in_its_first_sample_how_long_text_may_be(tmp_path: Path):
    with pytest.raises(
        SourceError, match=r"sample 1, member 'x': <U3 .*expected <U1 .*numpy.array\(text, '<U64'\)"
    ):
        mmapload.preprocess(iter([{"x": "a"}, {"x": "abc"}]), tmp_path / "out", 2)
    samples = iter([{"x": np.array("a", "<U4")}, {"x": "abc"}])
    store = mmapload.preprocess(samples, tmp_path / "out", 2)
    assert stored(store, "x").tolist() == ["a", "abc"]


NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
WIDE = [*NUMBERS, "M8[D]", "m8[7us]", "M8"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from([*WIDE, *(f">{each}" for each in WIDE[2:]), "<U3", ">U2", "S4", "S1"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    count=st.integers(1, 5),
    codec=st.sampled_from(["raw", "zstd", "blosc-lz4"]),
    in_files=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_any_array_comes_back_with_every_bit(tmp_path_factory, dtype, shape, count, codec, in_files, seed):
    folder = tmp_path_factory.mktemp("any")
    kind = np.dtype(dtype)
    noise = [seed.randbytes(kind.itemsize * int(np.prod(shape))) for _ in range(count)]
    if kind.kind == "b":
        noise = [bytes(byte & 1 for byte in each) for each in noise]
    if kind.kind == "U":  # no text has characters beyond the last
        noise = [
            (np.frombuffer(each, kind.byteorder + "u4") % 0x110000).astype(f"{kind.byteorder}u4").tobytes()
            for each in noise
        ]
    arrays = [np.frombuffer(each, kind).reshape(shape) for each in noise]
    source: Any = [{"x": array} for array in arrays]
    if in_files:
        (folder / "in").mkdir()
        for number, array in enumerate(arrays):
            np.savez(folder / "in" / f"{number}.npz", x=np.asfortranarray(array) if array.ndim > 1 else array)
        source = folder / "in"
    store = mmapload.preprocess(source, folder / "out", 2, codec=codec, chunk_bytes=1)
    found = stored(store, "x")
    # numpy takes no other byte order for times without a unit, so that bytes are swapped here.
    native = [each if kind.isnative else each.byteswap().view(kind.newbyteorder("<")) for each in arrays]
    assert (found.dtype, found.shape) == (native[0].dtype, (count, *shape))
    assert found.tobytes() == b"".join(each.tobytes() for each in native)
