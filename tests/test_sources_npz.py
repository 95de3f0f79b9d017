import functools
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources import ArraySpec, archives
from mmapload.sources.listing import Listing, list_files
from mmapload.sources.npyfiles import NpySource
from mmapload.sources.npz import NpzSource
from tests.npz_files import (
    REAL,
    count_reads,
    full_zip64_bytes,
    npy_bytes,
    npz_bytes,
    open_descriptors,
    put,
    zip_bytes,
)

PLAIN = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("npz"))


def source_of(folder, data, fields=None, name="s.npz", optional=()):
    put(os.path.join(folder, name), data)
    return NpzSource(Listing(folder, (name,), 0, 0), fields, optional)


def read(source, index=0):
    """Read a sample between guards of other samples, as in a chunk buffer."""
    buffers = {}
    for field, spec in source.schema(index).items():
        assert spec.nbytes < 1 << 24
        buffers[field] = np.full((3, *spec.shape), 1, spec.dtype)
    source.read(index, {field: buffer[1, ...] for field, buffer in buffers.items()})
    for buffer in buffers.values():
        assert (buffer[[0, 2]] == 1).all()
    return {field: buffer[1, ...] for field, buffer in buffers.items()}


def bits(array):
    """Bytes in C order and native byte order, without a conversion that could change a NaN."""
    array = np.array(array, order="C", copy=True)
    return (array if array.dtype.isnative else array.byteswap()).tobytes()


def assert_equal_to_numpy(sample, data):
    with np.load(io.BytesIO(data)) as expected:
        assert list(sample) == expected.files
        for key in expected.files:
            array = expected[key]
            assert sample[key].dtype == array.dtype.newbyteorder("=")
            assert sample[key].shape == array.shape
            assert bits(sample[key]) == bits(array)


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(PLAIN))).newbyteorder(draw(st.sampled_from("<>")))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 13]), max_size=4)))
    nbytes = ArraySpec(dtype, shape).nbytes
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    # Any bits: among the floats are -0.0 and NaNs of every kind.
    raw = rng.integers(0, 2 if dtype.kind == "b" else 256, nbytes, np.uint8).tobytes()
    array = np.frombuffer(raw, dtype).reshape(shape)
    return array.copy(order=draw(st.sampled_from("CF")))


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.tuples(arrays(), st.sampled_from([(1, 0), (2, 0), (3, 0)])), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_samples_equal_what_numpy_loads_bit_by_bit(folder, content, deflate, zip64, stream):
    members = [(f"k{at}.npy", npy_bytes(array, version)) for at, (array, version) in enumerate(content)]
    data = zip_bytes(members, deflate=deflate, zip64=zip64, stream=stream)
    assert_equal_to_numpy(read(source_of(folder, data)), data)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_big_arrays_equal_what_numpy_loads(folder, save):
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    save(
        buffer,
        noise=rng.integers(0, 256, (9, 256, 448), np.uint8),
        ramp=np.arange(300_001, dtype=">f8"),
        turned=np.asfortranarray(rng.normal(size=(301, 499)).astype(">f4")),
        zeros=np.zeros((1000, 1000)),
    )
    assert_equal_to_numpy(read(source_of(folder, buffer.getvalue())), buffer.getvalue())


def test_negative_zeros_and_nan_payloads_are_kept(folder):
    patterns = np.frombuffer(struct.pack("<4I", 0x7FC00001, 0x7F800001, 0x80000000, 0xFFC12345), "<f4")
    for array in (patterns, patterns.byteswap().view(">f4"), np.asfortranarray(patterns.reshape(2, 2))):
        sample = read(source_of(folder, npz_bytes({"x": array})))
        assert bits(sample["x"]) == patterns.tobytes() or sample["x"].ndim == 2
        assert bits(sample["x"]) == bits(array)


def test_zip64_figures_in_a_small_file_are_read(folder):
    data = full_zip64_bytes([("x.npy", npy_bytes(np.arange(32.0))), ("id.npy", npy_bytes(np.int64(3)))])
    assert_equal_to_numpy(read(source_of(folder, data)), data)


def test_keys_are_member_names_without_one_suffix(folder):
    keys = [
        "enc/conv1/W",
        "enc/conv1",
        "/abs/path",
        "../../escape",
        "win\\back",
        "a.npy",
        "größe",
        "",
        "zarr.json",
    ]
    data = npz_bytes({key: np.arange(at) for at, key in enumerate(keys)})
    source = source_of(folder, data)
    assert list(source.schema(0)) == keys
    for at, (key, array) in enumerate(read(source).items()):
        assert array.shape == (at,), key


def test_members_without_the_suffix_go_by_their_whole_name(folder):
    data = zip_bytes([("x", npy_bytes(np.arange(3))), ("sub/", b"")])
    assert list(source_of(folder, data).schema(0)) == ["x"]


def test_two_members_of_one_key_are_refused(folder):
    data = zip_bytes([("x", npy_bytes(np.arange(3))), ("x.npy", npy_bytes(np.arange(3)))])
    with pytest.raises(SourceError, match="two members have the key 'x'"):
        source_of(folder, data).schema(0)
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zip_bytes([("x.npy", npy_bytes(np.arange(3)))] * 2)
    with pytest.raises(SourceError, match=r"'x\.npy': occurs more than once"):
        source_of(folder, data).schema(0)


def test_fields_select_and_rename(folder):
    data = npz_bytes({"a": np.arange(3), "b": np.arange(4.0), "c": np.array([None])})
    source = source_of(folder, data, {"b": "x", "a": "b"})
    assert {field: str(spec) for field, spec in source.schema(0).items()} == {
        "x": "float64 (4,)",
        "b": "int64 (3,)",
    }
    sample = read(source)
    assert sample["x"].tolist() == [0, 1, 2, 3]
    assert sample["b"].tolist() == [0, 1, 2]
    with pytest.raises(SourceError, match="has no array 'd', 'e'; it has 'a', 'b', 'c'"):
        source_of(folder, data, {"a": "a", "d": "d", "e": "e"}).schema(0)
    with pytest.raises(ValueError, match="two keys"):
        source_of(folder, data, {"a": "x", "b": "x"})


def test_optional_fields_may_be_missing_and_what_is_not_there_is_left_alone(folder):
    data = npz_bytes({"a": np.arange(3), "b": np.arange(4.0)})
    for fields in (None, {"c": "c", "b": "b", "a": "a"}):
        source = source_of(folder, data, fields, optional=["b", "c"])
        assert {*source.schema(0)} == {"a", "b"}
        into = {"a": np.zeros(3, "i8"), "c": np.full(2, 7, "u1"), "b": np.zeros(4)}
        assert source.read(0, into) == ("c",)
        assert (into["a"].tolist(), into["b"].tolist()) == ([0, 1, 2], [0, 1, 2, 3])
        assert into["c"].tolist() == [7, 7]
    assert source.read(0, {"a": np.zeros(3, "i8"), "b": np.zeros(4)}) == ()
    renamed = source_of(folder, data, {"z": "c", "a": "x"}, optional=["c"])
    assert [*renamed.schema(0)] == ["x"]
    assert renamed.read(0, {"c": np.zeros(1), "x": np.zeros(3, "i8")}) == ("c",)


def test_other_fields_than_the_optional_ones_must_be_there_and_no_others(folder):
    data = npz_bytes({"a": np.arange(3), "b": np.arange(4.0)})
    source = source_of(folder, data, optional=["c"])
    a, b, c, d = np.zeros(3, "i8"), np.zeros(4), np.zeros(1), np.zeros(1)
    with pytest.raises(SourceError, match=r"lacks 'd': .*--fill d=0 \(fill=\{'d': 0\}\)"):
        source.read(0, {"a": a, "b": b, "c": c, "d": d})
    with pytest.raises(SourceError, match=r"also has 'b': its fields are 'a', 'b', expected 'a', 'c'.* b=0"):
        source.read(0, {"a": a, "c": c})
    with pytest.raises(SourceError, match=r"member 'b.npy': .*float64 \(4,\), expected float64 \(5,\)"):
        source.read(0, {"a": a, "b": np.zeros(5)})
    with pytest.raises(SourceError, match=r"has no array 'z'; .*--fill depth=0 \(fill=\{'depth': 0\}\)"):
        source_of(folder, data, {"z": "depth", "y": "c"}, optional=["c"]).schema(0)


def test_members_that_are_no_arrays_are_refused_unless_left_out(folder):
    data = zip_bytes([("x.npy", npy_bytes(np.arange(3))), ("data.pkl", pickle.dumps([1])), ("empty", b"")])
    for name in ("data.pkl", "empty"):
        source = source_of(folder, data, {name: "f"})
        for use in (source.schema, functools.partial(source.read, into={"f": np.zeros(1, "u1")})):
            with pytest.raises(SourceError) as caught:
                use(0)
            assert caught.value.member == name
            assert "not a .npy array" in caught.value.cause
            assert "allow_pickle" not in str(caught.value)
    with pytest.raises(SourceError, match=r"data\.pkl"):
        source_of(folder, data).schema(0)
    assert read(source_of(folder, data, {"x": "x"}))["x"].tolist() == [0, 1, 2]


def test_a_file_without_arrays_is_refused(folder):
    with pytest.raises(SourceError, match="without arrays"):
        source_of(folder, zip_bytes([])).schema(0)


@pytest.mark.parametrize("deflate", [False, True])
def test_a_sample_that_does_not_fit_is_refused_with_both_sides(folder, deflate):
    source = source_of(folder, npz_bytes({"x": np.zeros((4, 8), "f4"), "y": np.int64(1)}, deflate=deflate))
    good = {"x": np.zeros((4, 8), "f4"), "y": np.zeros((), "i8")}
    source.read(0, good)
    for other in (
        np.zeros((8, 4), "f4"),
        np.zeros((4, 8), "i4"),
        np.zeros((4, 9), "f4"),
        np.zeros((4, 7), "f4"),
        np.zeros((4, 8), "f8"),
        np.zeros((0, 8), "f4"),
        np.zeros((), "f4"),
        np.zeros((4000, 8), "f4"),
        np.zeros(160, "u1"),
    ):
        with pytest.raises(SourceError) as caught:
            source.read(0, {**good, "x": other})
        found, expected = "float32 (4, 8)", str(ArraySpec(other.dtype, other.shape))
        assert f"field 'x' is {found}, expected {expected}" in caught.value.cause
        assert caught.value.member == "x.npy"
        assert caught.value.file == source.describe(0)
    with pytest.raises(SourceError) as caught:
        source.read(0, {"x": good["x"], "z": good["y"]})
    assert "lacks 'z' and also has 'y'" in caught.value.cause
    assert "its fields are 'x', 'y', expected 'x', 'z'" in caught.value.cause


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("change", [-100, -1, 1, 100])
def test_a_payload_of_another_size_than_its_header_is_refused_with_both_counts(folder, deflate, change):
    content = npy_bytes(np.arange(512, dtype="u1"))
    content = content[:change] if change < 0 else content + bytes(change)
    source = source_of(folder, zip_bytes([("x.npy", content)], deflate=deflate))
    for use in (source.schema, lambda index: source.read(index, {"x": np.zeros(512, "u1")})):
        with pytest.raises(SourceError, match=f"takes 512 bytes, and {512 + change} are there"):
            use(0)


@pytest.mark.parametrize("deflate", [False, True])
def test_headers_of_any_allowed_length_are_read(folder, deflate):
    for length in (1, 60, 500, 520, 9_990):
        text = b"{'descr':'<i4','fortran_order':False,'shape':(3,)}".ljust(length)
        for version in (1, 2):
            size = len(text).to_bytes(2 * version, "little")
            content = b"\x93NUMPY" + bytes([version, 0]) + size + text + np.arange(3, dtype="<i4").tobytes()
            source = source_of(folder, zip_bytes([("x.npy", content)], deflate=deflate))
            assert read(source)["x"].tolist() == [0, 1, 2]


SMALL = {"x": np.arange(6, dtype=">i2").reshape(2, 3), "y": np.float32(-0.0)}


@pytest.mark.parametrize("deflate", [False, True])
def test_a_file_cut_at_any_byte_is_refused_and_leaks_nothing(folder, deflate):
    data = npz_bytes(SMALL, deflate=deflate)
    before = open_descriptors()
    into = {"x": np.zeros((2, 3), "i2"), "y": np.zeros((), "f4")}
    for length in range(len(data)):
        source = source_of(folder, data[:length])
        for use in (source.schema, source.fingerprint, functools.partial(source.read, into=into)):
            with pytest.raises(SourceError) as caught:
                use(0)
            assert caught.value.file == os.path.join(folder, "s.npz")
    assert open_descriptors() == before


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_source_error_or_the_same_arrays(folder, data):
    original = data.draw(
        st.sampled_from([npz_bytes(SMALL), npz_bytes(SMALL, deflate=True), npz_bytes(SMALL, stream=True)])
    )
    blob = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    source = source_of(folder, bytes(blob))
    into = {"x": np.zeros((2, 3), "i2"), "y": np.zeros((), "f4")}
    try:
        source.read(0, into)
    except SourceError:
        pass
    else:
        assert {key: bits(array) for key, array in into.items()} == {k: bits(a) for k, a in SMALL.items()}
    try:
        schema = source.schema(0)
    except SourceError:
        return
    # Whoever allocates by a schema must not be misled beyond what the file can hold.
    assert sum(spec.nbytes for spec in schema.values()) <= len(blob) * 1032


def test_a_claimed_size_is_refused_before_anyone_allocates_it(folder):
    huge = npy_bytes(np.zeros(1)).replace(b"(1,), }" + b" " * 12, b"(1000000000000,), }")
    for deflate in (False, True):
        source = source_of(folder, zip_bytes([("x.npy", huge)], deflate=deflate))
        with pytest.raises(SourceError, match="takes 8000000000000 bytes, and 8 are there"):
            source.schema(0)


def test_a_file_that_is_no_zip_is_named_for_what_it_is(folder):
    for data, said in (
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (npy_bytes(np.arange(3)), "bare .npy"),
    ):
        with pytest.raises(SourceError, match=said):
            source_of(folder, data).read(0, {})


def test_what_cannot_be_opened_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    os.mkdir(tmp_path / "dir.npz")
    source = NpzSource(Listing(str(tmp_path), ("pipe.npz", "dir.npz", "gone.npz", "nul\0.npz"), 0, 0))
    before = open_descriptors()
    for index, said in enumerate(("not a file", "not a file", "No such file", "null byte")):
        for use in (source.schema, source.fingerprint):
            with pytest.raises(SourceError, match=said) as caught:
                use(index)
            assert caught.value.file == source.describe(index)
    assert open_descriptors() == before


def test_a_file_that_changes_while_it_is_read_is_refused(folder, monkeypatch):
    data = npz_bytes({"x": np.arange(5)})
    source = source_of(folder, data)

    def meanwhile(*args):
        with open(source.describe(0), "ab") as file:
            file.write(b"more")
        return real(*args)

    real = archives.read_member
    monkeypatch.setattr(archives, "read_member", meanwhile)
    with pytest.raises(
        SourceError, match=f"changed while it was read .{len(data)} bytes before, {len(data) + 4}"
    ):
        source.read(0, {"x": np.zeros(5, "i8")})


def test_the_fingerprint_sees_a_change_that_keeps_size_and_time(tmp_path):
    def write(value, name="s.npz", **options):
        source = source_of(str(tmp_path), npz_bytes({"x": np.full(100, value)}, **options), name=name)
        os.utime(source.describe(0), ns=(7, 7))
        return source.fingerprint(0)

    first = write(1)
    assert first == write(1)
    assert isinstance(first, bytes)
    others = [write(2), write(1, name="t.npz"), write(1, deflate=True), write(1, comment=b"c")]
    assert len({first, *others}) == 5


def test_the_fingerprint_costs_one_read(folder, monkeypatch):
    source = source_of(folder, npz_bytes({"x": np.zeros(100_000), "y": np.int64(1)}))
    calls = count_reads(monkeypatch)
    source.fingerprint(0)
    assert len(calls) == 1
    source.read(0, {"x": np.zeros(100_000), "y": np.zeros((), "i8")})
    assert len(calls) == 4  # the directory, and one for each array


def test_a_source_says_what_it_is(tmp_path):
    for at in (2, 10, 1):
        put(str(tmp_path / "sub" / f"s{at}.npz"), npz_bytes({"x": np.int64(at)}))
    source = NpzSource(list_files([tmp_path]))
    assert (source.kind, source.parallel, len(source)) == ("npz", True, 3)
    assert [source.name(index) for index in range(3)] == ["sub/s1.npz", "sub/s2.npz", "sub/s10.npz"]
    assert source.describe(2) == str(tmp_path / "sub" / "s10.npz")
    assert [int(read(source, index)["x"]) for index in range(3)] == [1, 2, 10]
    clone = pickle.loads(pickle.dumps(source))
    assert clone.fingerprint(1) == source.fingerprint(1)


def test_a_lack_of_descriptors_says_nothing_against_a_file(tmp_path):
    # As a fault of the file, it would be left out by --on-error skip.
    source = source_of(str(tmp_path), npz_bytes({"x": np.zeros(3)}))
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            source.schema(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.filename == source.describe(0)


def test_threads_read_side_by_side(tmp_path):
    samples = [np.full((50, 1000), at, "i4") for at in range(16)]
    for at, sample in enumerate(samples):
        put(str(tmp_path / f"s{at}.npz"), npz_bytes({"x": sample}, deflate=at % 2 == 1))
    source = NpzSource(list_files([tmp_path]))
    chunk = np.zeros((64, 50, 1000), "i4")
    before = open_descriptors()

    def fill(thread):
        for at in range(16):
            source.read(at, {"x": chunk[thread * 16 + at]})

    threads = [threading.Thread(target=fill, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (chunk.reshape(4, 16, -1) == np.arange(16)[None, :, None]).all()
    assert open_descriptors() == before


def test_reading_imports_neither_torch_nor_zarr(tmp_path):
    code = (
        "import sys; import mmapload.sources.npz, mmapload.sources.listing; "
        "print([m for m in ('torch', 'zarr', 'numcodecs') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


real = pytest.mark.skipif(not os.path.isdir(REAL), reason="the real files are not on this machine")


@real
@pytest.mark.parametrize(
    "name",
    [
        "chemprop_classification_features.npz",
        "chemprop_mol_bond_features.npz",
        "loftr_scannet_test_pairs.npz",
    ],
)
def test_real_files_equal_what_numpy_loads(name):
    with open(os.path.join(REAL, name), "rb") as file:
        assert_equal_to_numpy(read(NpzSource(list_files([os.path.join(REAL, name)]))), file.read())


@real
@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("ibl_alignment_data.npz", "brain_regions_ref", "Python objects"),
        ("imitation_pendulum_rollouts.npz", "infos", "Python objects"),
    ],
)
def test_real_files_with_what_a_store_cannot_hold_are_refused_and_the_rest_is_read(name, key, said):
    path = os.path.join(REAL, name)
    with pytest.raises(SourceError) as caught:
        NpzSource(list_files([path])).schema(0)
    assert caught.value.member == key + ".npy"
    assert said in caught.value.cause
    assert "allow_pickle" not in str(caught.value)
    with np.load(path) as expected:
        keys = [other for other in expected.files if other != key]
        sample = read(NpzSource(list_files([path]), {other: other for other in keys}))
        assert list(sample) == keys
        for other in keys:
            assert sample[other].dtype == expected[other].dtype
            assert bits(sample[other]) == bits(expected[other])


@real
def test_a_real_lfs_pointer_is_named_for_what_it_is():
    path = os.path.join(REAL, "imitation_lfs_pointer.npz")
    with pytest.raises(SourceError, match=r"131 bytes.*run git lfs pull") as caught:
        NpzSource(list_files([path])).schema(0)
    assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("longer", [True, False])
def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path, suffix, longer):
    """As when a copy is still running: what it holds now may be whole, or half of it."""
    for name in ("a", "b"):
        write_array(tmp_path / f"{name}{suffix}", np.arange(3))
    files = list_files([tmp_path], suffixes=(suffix,))
    source = NpzSource(files) if suffix == ".npz" else NpySource(files)
    before = os.stat(tmp_path / f"b{suffix}")
    write_array(tmp_path / f"b{suffix}", np.arange(9 if longer else 3))
    os.utime(tmp_path / f"b{suffix}", ns=(before.st_mtime_ns, before.st_mtime_ns + (not longer)))
    said = "bytes then, [0-9]+ now" if longer else "written anew"
    for use in (source.schema, source.fingerprint, lambda index: source.read(index, {})):
        with pytest.raises(SourceError, match=f"b{suffix}: changed since it was listed .*{said}"):
            use(1)
    assert source.schema(0)


def write_array(path, array):
    if path.suffix == ".npz":
        np.savez(path, x=array)
    else:
        np.save(path, array)
