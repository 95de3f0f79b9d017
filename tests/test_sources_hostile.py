"""Sources from a stranger: whatever is in a file, it is refused for what it is, or read as numpy reads it."""

import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.listing import Listing
from mmapload.sources.npz import NpzSource
from tests.npz_files import full_zip64_bytes, npy_bytes, npz_bytes, put, zip_bytes

SMALL = {"x": np.arange(6, dtype=">i2").reshape(2, 3), "y": np.asfortranarray(np.ones((2, 2), "f4"))}
FILES = {
    "stored": npz_bytes(SMALL),
    "deflated": npz_bytes(SMALL, deflate=True),
    "streamed": npz_bytes(SMALL, deflate=True, stream=True),
    "zip64": full_zip64_bytes([(key + ".npy", npy_bytes(array)) for key, array in SMALL.items()]),
}


def source_of(folder, data, name="s.npz"):
    put(os.path.join(folder, name), data)
    return NpzSource(Listing(str(folder), (name,), 0, 0))


def read_all(source):
    """Make room by the schema, and read into it."""
    into = {field: np.zeros(spec.shape, spec.dtype) for field, spec in source.schema(0).items()}
    source.read(0, into)
    return into


def refusal(folder, data):
    """Read a file in every way there is; return what the first of them says."""
    source = source_of(folder, data)
    messages = []
    for use in (source.schema, lambda index: source.read(index, {"x": np.zeros(3, "i4")})):
        with pytest.raises(SourceError) as caught:
            use(0)
        messages.append(str(caught.value))
        assert messages[-1].startswith(os.path.join(folder, "s.npz"))
        assert "allow_pickle" not in messages[-1]
    return messages[0]


def with_last(data, signature, offset, form, *values):
    """Overwrite fields of the last structure with this signature."""
    out = bytearray(data)
    struct.pack_into(form, out, data.rindex(signature) + offset, *values)
    return bytes(out)


ENTRY, LOCAL, END, END64 = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"
ONE = npz_bytes({"x": np.arange(3, dtype="i4")})


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_at_any_byte_is_said_to_be_cut(tmp_path, kind):
    source = source_of(tmp_path, FILES[kind])
    for length in reversed(range(len(FILES[kind]))):
        os.truncate(tmp_path / "s.npz", length)
        said = f"cut short ({length} bytes)" if length else "empty (0 bytes)"
        for use in (source.schema, source.fingerprint):
            with pytest.raises(SourceError) as caught:
                use(0)
            assert said in caught.value.cause


@pytest.mark.parametrize("kind", FILES)
def test_every_byte_counts_or_changes_nothing(tmp_path, kind):
    """Whoever allocates by a schema and then reads gets the arrays as they were written, or an error."""
    data = FILES[kind]
    expected = {
        key: np.ascontiguousarray(array, array.dtype.newbyteorder("=")) for key, array in SMALL.items()
    }
    source = source_of(tmp_path, data)
    fd = os.open(tmp_path / "s.npz", os.O_RDWR)
    counts = {"refused": 0, "read": 0}
    for at, byte in enumerate(data):
        for change in (0x01, 0x80, 0xFF):
            os.pwrite(fd, bytes([byte ^ change]), at)
            try:
                found = read_all(source)
            except SourceError:
                counts["refused"] += 1
                continue
            counts["read"] += 1
            assert [array.tobytes() for array in found.values()] == [a.tobytes() for a in expected.values()]
        os.pwrite(fd, bytes([byte]), at)
    os.close(fd)
    assert counts["refused"] > len(data)
    assert counts["read"] > 30, "times of day, attributes and the like tell nothing of the arrays"


def shape_of(text):
    """A member whose .npy header has this shape, and whose payload has 8 bytes."""
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {text}, }}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(8)


TERA = 1 << 40
ZIP64 = full_zip64_bytes([("x.npy", npy_bytes(np.arange(3, dtype="i4")))])
DEFLATED = npz_bytes({"x": np.zeros(300_000, "i4")}, deflate=True)
LIES = {
    "a product beyond 64 bits": (
        zip_bytes([("x.npy", shape_of("(4611686018427387904, 4)"))]),
        "more than an array",
    ),
    "a product of 2^64": (zip_bytes([("x.npy", shape_of("(4294967296, 4294967296)"))]), "more than an array"),
    "lengths of 90 digits": (zip_bytes([("x.npy", shape_of("(" + "9" * 90 + ",)"))]), "more than an array"),
    "lengths of 900 digits": (zip_bytes([("x.npy", shape_of("(" + "9" * 900 + ",)"))]), "is damaged"),
    "no bytes of a huge array": (
        zip_bytes([("x.npy", shape_of("(0, 9223372036854775807)"))]),
        "more than an array",
    ),
    "a negative length": (zip_bytes([("x.npy", shape_of("(-2,)"))]), "not a tuple of lengths"),
    "two negative lengths": (zip_bytes([("x.npy", shape_of("(-2, -1)"))]), "not a tuple of lengths"),
    "terabytes of numbers": (zip_bytes([("x.npy", shape_of(f"({TERA},)"))]), "and 8 are there"),
    "terabytes, deflated": (zip_bytes([("x.npy", shape_of(f"({TERA},)"))], deflate=True), "and 8 are there"),
    "a thousand axes": (zip_bytes([("x.npy", shape_of("(" + "1," * 1000 + ")"))]), "more than an array"),
    "a header of 4 GiB": (zip_bytes([("x.npy", b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(99))]), "limit"),
    "terabytes stored": (with_last(ZIP64, ENTRY, 46 + 5 + 4, "<QQ", TERA, TERA), "reach beyond"),
    "terabytes inflated": (with_last(ZIP64, ENTRY, 46 + 5 + 4, "<Q", TERA), "stored, but in"),
    "terabytes by deflate": (
        with_last(with_last(ZIP64, ENTRY, 46 + 5 + 4, "<Q", TERA), ENTRY, 10, "<H", 8),
        "cannot hold",
    ),
    "more inflated than there is": (
        with_last(DEFLATED, ENTRY, 24, "<I", 1_200_128 + 4096),
        "takes 1200000 bytes, and 1204096 are there",
    ),
    "less inflated than there is": (
        with_last(DEFLATED, ENTRY, 24, "<I", 1_200_128 - 4096),
        "takes 1200000 bytes, and 1195904 are there",
    ),
    "a place terabytes away": (with_last(ZIP64, ENTRY, 46 + 5 + 20, "<Q", TERA), "reach beyond"),
    "a place beyond what can be read": (
        with_last(ZIP64, ENTRY, 46 + 5 + 20, "<Q", 2**64 - 1),
        "reach beyond",
    ),
    "all entries there can be": (with_last(ZIP64, END64, 24, "<QQ", 2**64 - 1, 2**64 - 1), "entry 1 of 1844"),
    "a directory of all bytes there can be": (with_last(ZIP64, END64, 40, "<Q", 2**64 - 1), "were lost"),
    "a directory beyond what can be read": (with_last(ZIP64, END64, 48, "<Q", 2**64 - 1), "were lost"),
    "an end record at the end of all": (with_last(ZIP64, b"PK\x06\x07", 8, "<Q", 2**64 - 1), "were lost"),
    "two ends that contradict each other": (with_last(ZIP64, END, 10, "<H", 2), "contradict each other"),
    "a directory of 4 GiB": (with_last(ONE, END, 12, "<I", 2**32 - 2), "were lost"),
    "65,534 entries": (with_last(ONE, END, 8, "<HH", 65534, 65534), "entry 1 of 65534"),
    "a comment of 64 KiB that is not there": (with_last(ONE, END, 20, "<H", 65535), "cut short"),
    "a name of 64 KiB": (with_last(ONE, ENTRY, 28, "<H", 65535), "ends inside entry 0"),
    "an extra field of 64 KiB": (with_last(ONE, ENTRY, 30, "<H", 65535), "ends inside entry 0"),
    "a local name of 64 KiB": (with_last(ONE, LOCAL, 26, "<H", 65535), "does not start at byte 0"),
    "a local extra field of 64 KiB": (with_last(ONE, LOCAL, 28, "<H", 65535), "reaches beyond"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_size_is_refused_without_allocating_it(tmp_path, lie):
    data, said = LIES[lie]
    refusal(tmp_path, data)  # whatever is imported or compiled once
    tracemalloc.start()
    try:
        assert said in refusal(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


_CHILD = """
import os, resource, sys
import numpy as np
from mmapload.errors import SourceError
from mmapload.sources.listing import list_files
from mmapload.sources.npz import NpzSource

source = NpzSource(list_files([sys.argv[1]]))
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
for index in range(len(source)):
    for use in (source.schema, lambda index: source.read(index, {"x": np.zeros(3, "i4")})):
        try:
            use(index)
        except SourceError:
            pass
        else:
            sys.exit(f"{source.name(index)} was read")
print(len(source))
"""


def test_all_lies_are_refused_within_32_mib_of_address_space(tmp_path):
    """Which counts what C allocates, too, and what is reserved but never touched."""
    for number, (data, _) in enumerate(LIES.values()):
        put(str(tmp_path / f"{number}.npz"), data)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{len(LIES)}\n", "")


@pytest.mark.parametrize("at", [14, 18, 22, 10, 8, 6, 4])
def test_what_a_local_header_says_again_changes_nothing(tmp_path, at):
    """CRC, sizes, time, method, flags, version: the directory's word counts, held to it by the CRC-32."""
    for data in (npz_bytes(SMALL), npz_bytes(SMALL, deflate=True)):
        lie = with_last(data, LOCAL, at, "<H", 0x1234)
        expected = read_all(source_of(tmp_path, data))
        found = read_all(source_of(tmp_path, lie))
        assert {key: array.tobytes() for key, array in found.items()} == {
            key: array.tobytes() for key, array in expected.items()
        }


def test_what_a_data_descriptor_says_again_changes_nothing(tmp_path):
    data = npz_bytes(SMALL, stream=True)
    descriptor = b"PK\x07\x08"
    assert data.count(descriptor) == 2
    expected = read_all(source_of(tmp_path, data))
    for at in (4, 8, 12):
        found = read_all(source_of(tmp_path, with_last(data, descriptor, at, "<I", 0xDEADBEEF)))
        assert found["y"].tobytes() == expected["y"].tobytes()


def entry(name, crc, compressed, size, offset, method):
    raw = name.encode()
    head = struct.pack(
        "<4s6H3I5H2I", ENTRY, 20, 20, 0, method, 0, 33, crc, compressed, size, len(raw), 0, 0, 0, 0, 0, offset
    )
    return head + raw


def local(name, crc, compressed, size, method):
    raw = name.encode()
    return struct.pack("<4s5H3I2H", LOCAL, 20, 0, method, 0, 33, crc, compressed, size, len(raw), 0) + raw


def closed(body, entries):
    directory = b"".join(entries)
    return body + directory + struct.pack(
        "<4s4H2IH", END, 0, 0, len(entries), len(entries), len(directory), len(body), 0
    )  # fmt: skip


def quoting_bomb(files):
    """Every member is deflated from its own place to the end: it quotes the headers of those behind it."""
    content = npy_bytes(np.zeros(2_000_000, "u1"))
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = squeezer.compress(content) + squeezer.flush()
    made = []
    for number in reversed(range(files)):
        header = local(f"f{number}.npy", zlib.crc32(content), len(body), len(content), 8)
        made.append((f"f{number}.npy", zlib.crc32(content), len(body), len(content), len(header) + len(body)))
        body = header + body
        if number:
            quoted = header
            body = b"\0" + struct.pack("<HH", len(quoted), len(quoted) ^ 0xFFFF) + body
            content = quoted + content
    total = len(body)
    entries = [entry(n, crc, packed, size, total - away, 8) for n, crc, packed, size, away in reversed(made)]
    return closed(body, entries)


def test_a_bomb_of_members_that_quote_each_other_is_refused_before_anything_is_inflated(tmp_path):
    bomb = quoting_bomb(40)
    with zipfile.ZipFile(io.BytesIO(bomb)) as archive:
        claimed = sum(info.file_size for info in archive.infolist())
    assert claimed > 10_000 * len(bomb)
    assert "where the next member or the zip directory starts" in refusal(tmp_path, bomb)


@pytest.mark.parametrize("size", [0, 8])
def test_entries_that_share_bytes_are_refused(tmp_path, size):
    content = bytes(size)
    crc = zlib.crc32(content)
    body = local("x", crc, size, size, 0) + content
    twice = closed(body, [entry(name, crc, size, size, 0, 0) for name in ("x", "y")])
    inside = closed(body + body, [entry("x", crc, size + len(body), size + len(body), 0, 0),
                                  entry("y", crc, size, size, len(body), 0)])  # fmt: skip
    for data in (twice, inside):
        assert "where the next member or the zip directory starts" in refusal(tmp_path, data)


def test_honest_zeros_are_read_in_place_at_a_thousand_to_one(tmp_path):
    zeros = np.zeros(64 << 20, "u1")
    source = source_of(tmp_path, npz_bytes({"x": zeros}, deflate=True))
    assert os.path.getsize(source.describe(0)) < zeros.nbytes / 1000
    into = np.ones_like(zeros)
    tracemalloc.start()
    try:
        assert source.schema(0)["x"].nbytes == zeros.nbytes
        source.read(0, {"x": into})
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert not into.any()


class Touching:
    """Its pickle makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", [None, "x.npy", "x.pkl", "x"])
def test_nothing_is_ever_unpickled(tmp_path, name, protocol):
    trap = str(tmp_path / "sprung")
    pickled = pickle.dumps(Touching(trap), protocol=protocol)
    said = refusal(tmp_path, pickled if name is None else zip_bytes([(name, pickled)]))
    assert "a Python pickle, which mmapload never reads" in said
    array = np.empty((), object)
    array[()] = Touching(trap)
    assert "Python objects" in refusal(tmp_path, npz_bytes({"x": array}))
    assert not os.path.exists(trap)


def test_a_pickle_beside_arrays_can_be_left_out(tmp_path):
    put(
        str(tmp_path / "s.npz"),
        zip_bytes([("x.npy", npy_bytes(np.arange(3))), ("data.pkl", pickle.dumps(1))]),
    )
    source = NpzSource(Listing(str(tmp_path), ("s.npz",), 0, 0), {"x": "x"})
    assert read_all(source)["x"].tolist() == [0, 1, 2]
    assert "--fields a,b" in refusal(tmp_path, zip_bytes([("data.pkl", pickle.dumps(1))]))


def test_bytes_in_front_or_behind_are_counted(tmp_path):
    stub = b"MZ" + bytes(500)
    assert "502 bytes were put in front of it" in refusal(tmp_path, stub + ONE)
    assert "a zip file with 7 more bytes behind its end" in refusal(tmp_path, ONE + b"garbage")
    assert f"a zip file with {len(ONE) - 30} more bytes" in refusal(tmp_path, ONE + bytes(len(ONE) - 30))
    assert "10 bytes were lost" in refusal(tmp_path, ONE[10:])
    assert "cut short" in refusal(tmp_path, ONE + bytes(70_000))  # beyond any comment's reach


def test_a_zip_file_whose_own_figures_count_what_is_in_front_is_read(tmp_path):
    """As `zip -A` leaves a self-extracting archive."""
    stub = b"MZ" + bytes(500)
    moved = bytearray(stub + ONE)
    for signature, offset in ((ENTRY, 42), (END, 16)):
        at = moved.rindex(signature) + offset
        moved[at : at + 4] = (int.from_bytes(moved[at : at + 4], "little") + len(stub)).to_bytes(4, "little")
    assert read_all(source_of(tmp_path, bytes(moved)))["x"].tolist() == [0, 1, 2]


needs_zip = pytest.mark.skipif(shutil.which("zip") is None, reason="there is no zip command on this machine")


@needs_zip
def test_an_encrypted_file_is_said_to_be_encrypted(tmp_path):
    put(str(tmp_path / "x.npy"), npy_bytes(np.arange(3)))
    subprocess.run(["zip", "-q", "-P", "secret", "e.npz", "x.npy"], cwd=tmp_path, check=True)
    said = refusal(tmp_path, (tmp_path / "e.npz").read_bytes())
    assert "member 'x.npy': encrypted: write the file again without a password" in said


@needs_zip
def test_parts_of_a_split_file_are_said_to_be_parts(tmp_path):
    put(str(tmp_path / "x.npy"), np.random.default_rng(0).bytes(200_000))
    subprocess.run(["zip", "-q", "-0", "-s", "64k", "s.zip", "x.npy"], cwd=tmp_path, check=True)
    assert "the first part of a zip file split over several" in refusal(
        tmp_path, (tmp_path / "s.z01").read_bytes()
    )
    assert "one part of a zip file split over several: join them first" in refusal(
        tmp_path, (tmp_path / "s.zip").read_bytes()
    )


@needs_zip
def test_what_the_zip_command_streams_is_read(tmp_path):
    """From a pipe it writes sizes behind the contents, and zip64 fields for whatever might come."""
    content = npy_bytes(np.arange(1000.0))
    done = subprocess.run(["zip", "-q", "-", "-"], input=content, capture_output=True, check=True)
    assert read_all(source_of(tmp_path, done.stdout))["-"].tolist() == np.arange(1000.0).tolist()


def test_pytorch_files_are_named_for_what_they_are(tmp_path):
    torch = pytest.importorskip("torch")
    for old in (False, True):
        buffer = io.BytesIO()
        torch.save({"x": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=not old)
        assert "a PyTorch file" in refusal(tmp_path, buffer.getvalue())
    put(str(tmp_path / "t.npz"), buffer.getvalue())
    with pytest.raises(SourceError, match="a PyTorch file"):
        NpzSource(Listing(str(tmp_path), ("t.npz",), 0, 0), {"x": "x"}).schema(0)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a/s0.npz", "a/s1.npz"], "a zip file of .npz or zip files: unpack it, and give the folder"),
        (["inner.zip"], "unpack it"),
        (["[Content_Types].xml", "word/document.xml"], "an Office document"),
        (["META-INF/MANIFEST.MF", "a.class"], "a Java archive"),
        (["config.json", "model.weights.h5"], "a Keras model"),
        ([], "an .npz file without arrays"),
        (["folder/"], "an .npz file without arrays"),
    ],
)
def test_other_zip_files_are_named_for_what_they_are(tmp_path, names, said):
    assert said in refusal(tmp_path, zip_bytes([(name, b"" if name[-1] == "/" else ONE) for name in names]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n", "but a PNG image"),
        (b'{"fps": 24}', "but JSON that starts with"),
        (b"", "but nothing (0 bytes)"),
        (bytes(80), "but zero bytes"),
        (ONE, "but something that starts with b'PK"),
    ],
)
def test_a_member_that_is_no_array_is_named_for_what_it_is(tmp_path, content, said):
    message = refusal(tmp_path, zip_bytes([("x.npy", content)]))
    assert f"member 'x.npy': not a .npy array {said}" in message
    assert "--fields a,b" in message


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/etc/x",
        "..\\x",
        "C:\\x",
        "C:x",
        "a\nb",
        "\x1b[2Jx",
        "\u202ex",
        "x" * 60_000,
        "..",
        "con",
        "größe",
    ],
)
def test_names_of_arrays_are_keys_and_never_paths(tmp_path, monkeypatch, name):
    """Nothing is unpacked; what may become a field is decided by the store."""
    folder = tmp_path / "deep" / "er"
    source = source_of(folder, npz_bytes({name: np.arange(3)}))
    monkeypatch.chdir(folder)
    assert read_all(source)[name].tolist() == [0, 1, 2]
    assert [os.path.relpath(os.path.join(above, each), tmp_path) for above, _, names in os.walk(tmp_path)
            for each in names] == ["deep/er/s.npz"]  # fmt: skip
    with pytest.raises(SourceError) as caught:
        NpzSource(Listing(str(folder), ("s.npz",), 0, 0), {"other": "other"}).schema(0)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "..\\x", "C:\\x", "a\nb", "\x1b[2Jx", "..", "__mmapload__"]
)
def test_names_that_could_be_paths_are_refused_with_the_renaming_and_go_under_the_new_name(tmp_path, name):
    folder = tmp_path / "deep" / "er"
    source = source_of(folder, npz_bytes({name: np.arange(3), "y": np.int64(1)})).describe(0)
    before = sorted(os.walk(tmp_path))
    with pytest.raises(ValueError, match="rename it, for instance") as caught:
        preprocess(source, folder / "out", 1)
    assert str(caught.value).isprintable()
    assert sorted(os.walk(tmp_path)) == before
    store = preprocess(source, folder / "out", 1, fields={name: "x", "y": "y"})
    assert store.fields == ("x", "y")
    assert store.read_chunk("x", 0).tolist() == [[0, 1, 2]]
    assert sorted(os.listdir(tmp_path)) == ["deep"]
    assert sorted(os.listdir(folder)) == ["out", "s.npz"]
    assert sorted(os.listdir(folder / "out")) == ["__mmapload__", "x", "y", "zarr.json"]


def test_a_zero_byte_in_a_name_is_refused(tmp_path):
    # zipfile and others end the name there, so that two readers could see two names.
    data = zip_bytes([("x.npyQ", npy_bytes(np.arange(3)))]).replace(b"x.npyQ", b"x.npy\0")
    assert r"holds a zero byte: b'x.npy\x00'" in refusal(tmp_path, data)


def test_names_in_code_page_437_and_in_utf8_are_read_as_numpy_does(tmp_path):
    for raw, flags in (
        ("größe.npy".encode("cp437"), 0),
        ("größe.npy".encode(), 0),
        ("größe.npy".encode(), 0x800),
    ):
        data = zip_bytes([("_" * len(raw), npy_bytes(np.arange(3)))]).replace(b"_" * len(raw), raw)
        data = with_last(data, ENTRY, 8, "<H", flags)
        data = with_last(data, LOCAL, 6, "<H", flags)
        with np.load(io.BytesIO(data)) as expected:
            assert list(read_all(source_of(tmp_path, data))) == expected.files


def test_a_message_about_many_arrays_stays_short(tmp_path):
    data = npz_bytes({f"{'k' * 200}{number}": np.int8(0) for number in range(500)})
    put(str(tmp_path / "s.npz"), data)
    source = NpzSource(Listing(str(tmp_path), ("s.npz",), 0, 0), {"x": "x"})
    for use in (source.schema, lambda index: source.read(index, {"x": np.zeros(())})):
        with pytest.raises(SourceError, match="500 in all") as caught:
            use(0)
        assert len(str(caught.value)) < 3000
