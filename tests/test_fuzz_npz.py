"""Random damage to `.npz` files: an error of ours, or the values that numpy reads; never a crash or a hang.

An input is made from a seed and a number alone. A failure prints both, and the bytes; `made(seed, number)`
makes the input again.
"""

from __future__ import annotations

import io
import os
import random
import struct
import tracemalloc
import warnings

import numpy as np
import pytest

from mmapload.errors import MmaploadError
from mmapload.sources import ArraySpec
from mmapload.sources.keys import KeysSource, look_at_keys
from mmapload.sources.listing import Listing
from mmapload.sources.npz import NpzSource
from mmapload.sources.rowfiles import look_at_rows
from mmapload.sources.rows import RowsSource
from tests.fuzzing import PER_SEED, inputs, reproducible, seeds, watched
from tests.npz_files import full_zip64_bytes, npy_bytes, npz_bytes, zip_bytes

INPUTS = inputs(10_000)
WITH_MEMORY = max(1, INPUTS // 20)  # of these also the memory is measured, which takes several times as long

# Whatever warns would print what a stranger wrote, or fail where warnings are errors.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.timeout(300 + INPUTS // 50)]

ARRAYS = {
    "x": np.arange(6, dtype="<i2").reshape(2, 3),
    "turned": np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3)),
    "big": np.arange(4, dtype=">u4"),
    "both": np.asfortranarray(np.arange(12, dtype=">f8").reshape(3, 4)),
    "scalar": np.float32(-0.0),
    "none": np.zeros((0, 5), "i8"),
    "flags": np.array([True, False, True]),
    "complex": np.array([1 + 2j, complex(np.nan, -0.0)]),
    "half": np.arange(3, dtype="f2"),
}
CONTENTS = {key: npy_bytes(array) for key, array in ARRAYS.items()}
REFUSED = {
    "objects": npy_bytes(np.array([None, "a"])),
    "text": npy_bytes(np.array(["a", "bc"])),
    "struct": npy_bytes(np.zeros(2, [("a", "u2"), ("b", "f4", (3,))])),
    "times": npy_bytes(np.array(["2020-01-01"], "M8[D]")),
    "pickle": b"\x80\x04K\x01.",
}
CONTENTS["version2"] = npy_bytes(np.arange(5, dtype="u1"), (2, 0))
CONTENTS["version3"] = npy_bytes(np.arange(5, dtype="u1"), (3, 0))
PYTHON2 = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2L, 3L), }       \n"
CONTENTS["python2"] = b"\x93NUMPY\1\0" + struct.pack("<H", len(PYTHON2)) + PYTHON2 + bytes(range(6))
LONG = npz_bytes({"long": np.arange(2000, dtype="u1") % 7, "x": ARRAYS["x"]}, deflate=True)


def members(*keys):
    return [(key + ".npy", CONTENTS[key]) for key in keys]


SEEDS = (
    zip_bytes(members("x", "turned")),
    zip_bytes(members("x", "both"), deflate=True),
    zip_bytes(members("big", "scalar"), zip64=True),
    zip_bytes(members("x", "flags"), stream=True),
    zip_bytes(members("turned", "none"), stream=True, deflate=True),
    full_zip64_bytes(members("x", "big")),
    zip_bytes(members("complex", "half"), comment=b"said of it"),
    zip_bytes([("x", CONTENTS["x"]), ("folder/", b""), ("größe.npy", CONTENTS["python2"])]),
    LONG,
    zip_bytes([]),
)

STRUCTURES = {  # signature: places and sizes of the fields
    b"PK\3\4": ((4, 2), (6, 2), (8, 2), (10, 4), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\1\2": (
        (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2),
        (34, 2), (36, 2), (38, 4), (42, 4), (46, 4),
    ),
    b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
    b"PK\6\6": ((4, 8), (12, 2), (14, 2), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 8)),
    b"PK\6\7": ((4, 4), (8, 8), (16, 4)),
    b"PK\7\x08": ((4, 4), (8, 4), (12, 4)),
    b"\1\0\x18\0": ((0, 2), (2, 2), (4, 8), (12, 8), (20, 8)),  # zip64 extra fields
    b"\1\0\x10\0": ((0, 2), (2, 2), (4, 8), (12, 8)),
    b"\x93NUMPY": ((6, 1), (7, 1), (8, 2), (8, 4)),
}  # fmt: skip
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 12, 22, 30, 46, 128, 1032, 10_000, 65_557]
NUMBERS += [(1 << bits) + more for bits in (7, 8, 15, 16, 31, 32, 40, 62, 63, 64) for more in (-1, 0, 1)]
WORDS = [
    "'<f4'", "'>f4'", "'|u1'", "'<i8'", "'>c16'", "'|O'", "'<U2'", "'|S3'", "'<M8[s]'", "'|V4'", "'f4,f4'",
    "'3f4'", "'a5'", "'float32'", "'?'", "'='", "'<f16'", "'T'", "'<f'", "''", "[('a', '<f4')]", "[]", "None",
    "True", "False", "0", "1", "-1", "2.0", "3L", "1e9", "0x10", "00", "1_0", "()", "(2,)", "(3, 2)",
    "(1, 6, 1)", "(6,)", "(2, 3,)", "(2, 3), 'shape': (3, 2)", "(0, 3)", "(-2, -3)",
    "(4611686018427387904, 4)", "(9223372036854775807,)", "(1,) * 9", "((2, 3))", "(2 3)", "lambda: 0",
    "'descr'", "'shape'", "'fortran_order'", "{", "}", "(", ")", ",", ":", "'", '"', "\\", "\\N{x}", "\n",
    "\0", "#", " ", "é", "\x85", "__import__('os')", "'\\d'", "1if 1else 2", "(" * 300, "9" * 4400,
    "[" * 9000,
]  # fmt: skip


def damaged(data, rng):
    """Do one thing to a file, knowing nothing of it; or put a number into one of its structures."""
    out = bytearray(data)
    place = rng.randrange(len(out) + 1)
    match rng.randrange(10):
        case 0:
            return bytes(out[:place])
        case 1:
            del out[place : place + rng.choice([1, 2, 4, 16, 100])]
        case 2:
            out[place:place] = rng.choice(
                [rng.randbytes(rng.randrange(1, 20)), bytes(4), b"PK\5\6", b"PK\3\4"]
            )
        case 3:
            start = rng.randrange(len(out) + 1)
            out[place:place] = out[start : start + rng.randrange(1, 200)]
        case 4:
            other = rng.choice(SEEDS)
            return bytes(out[:place]) + other[rng.randrange(len(other)) :]
        case 5 | 6:
            for _ in range(rng.choice([1, 1, 2, 8])):
                if out:
                    out[rng.randrange(len(out))] = rng.choice([0, 0xFF, 0x7F, 0x80, rng.randrange(256)])
        case _:
            put_number(out, rng)
    return bytes(out)


def put_number(out, rng):
    """Overwrite a field of a structure with a number that often matters."""
    found = positions(out)
    if not found:
        return
    at, signature = rng.choice(found)
    offset, size = rng.choice(STRUCTURES[signature])
    old = int.from_bytes(out[at + offset : at + offset + size], "little")
    near = [old - 1, old + 1, 2 * old, len(out), len(out) - at, *(place for place, _ in found)]
    number = rng.choice([rng.choice(NUMBERS), rng.choice(near), rng.getrandbits(8 * size)])
    out[at + offset : at + offset + size] = (number % (1 << 8 * size)).to_bytes(size, "little")


def positions(out):
    """Find every structure."""
    found = []
    for signature in STRUCTURES:
        at = out.find(signature)
        while at >= 0:
            found.append((at, signature))
            at = out.find(signature, at + 1)
    return found


def rewritten(rng):
    """Make a sound zip file whose members are damaged: their CRC-32s are right, and hide nothing."""
    pool = CONTENTS | REFUSED
    chosen = []
    for key in rng.sample(sorted(pool), rng.randrange(1, 4)):
        content = pool[key]
        if rng.randrange(3):
            content = other_header(content, rng)
        name = rng.choice([key + ".npy"] * 6 + [key, "../" + key, "x.npy", "x", key + "\n.npy", "", "z/"])
        chosen.append((name, content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that are there twice
        return zip_bytes(
            chosen,
            deflate=rng.random() < 0.4,
            zip64=rng.random() < 0.2,
            stream=rng.random() < 0.2,
            comment=rng.choice([b"", b"", b"c" * rng.randrange(70)]),
        )


def other_header(content, rng):
    """Change an array's header text, or the bytes around it."""
    if rng.randrange(4) == 0 or not content.startswith(b"\x93NUMPY"):
        return damaged(content, rng)
    version = content[6]
    start = 10 if version == 1 else 12
    length = int.from_bytes(content[8:start], "little")
    text, payload = content[start : start + length].decode("latin-1"), content[start + length :]
    for _ in range(rng.choice([1, 1, 2])):
        parts = text.split(" ") if rng.randrange(2) else list(text)
        place = rng.randrange(len(parts) + 1)
        new = rng.choice(WORDS)
        match rng.randrange(4):
            case 0:
                parts[place:place] = [new]
            case 1:
                parts[place : place + 1] = [new + "," * rng.randrange(2)]
            case 2:
                del parts[place : place + 1]
            case _:
                old = rng.choice(
                    ["'<i2'", "'<f4'", "'>f8'", "False", "True", "(2, 3)", "(3, 4)", "(4,)", "(5,)"]
                )
                parts = [text.replace(old, new)]
                text = parts[0]
                continue
        text = (" " if len(parts) < length // 2 else "").join(parts)
    if rng.randrange(2):
        text = text.rstrip() + " " * rng.choice([0, 1, 63, 500])
    encoded = text.encode("latin-1", "replace")
    size = (len(encoded) if rng.randrange(8) else rng.choice(NUMBERS)) % (1 << 8 * (start - 8))
    return content[:8] + size.to_bytes(start - 8, "little") + encoded + payload


def made(seed, number):
    """Make an input."""
    rng = random.Random(seed * PER_SEED + number)
    data = rewritten(rng) if rng.randrange(10) < 4 else rng.choice(SEEDS)
    for _ in range(rng.choice([0, 1]) if data not in SEEDS else rng.choice([1, 1, 1, 2, 3])):
        data = damaged(data, rng)
    return data


class File:
    """One file in memory that is written again for every input, and read as a source."""

    def __init__(self):
        self.fd = os.memfd_create("fuzz")
        self.files = Listing("/proc/self/fd", (str(self.fd),), 0, 0)
        self.source = NpzSource(self.files)

    def take(self, data):
        """Give what is read of an input, or None if it is refused."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, data, 0)
        outcomes = []
        uses = (self.source.fingerprint, self._read_whole, self._read_as_expected)
        for use in (*uses, self._read_rows, self._read_keys):
            try:
                outcomes.append(use(0))
            except MmaploadError as error:
                outcomes.append(None)
                message = str(error)
            else:
                message = ""
            assert message.isprintable()
            assert len(message) < 5000
        _, whole, expected, rows, keys = outcomes
        if expected is not None:
            assert whole is not None
            assert {k: a.tobytes() for k, a in expected.items()} == {k: a.tobytes() for k, a in whole.items()}
        if rows is not None and whole is not None:
            indices, found = rows
            for key, array in found.items():
                assert array.tobytes() == whole[key][indices].tobytes()
        if keys is not None and whole is not None:
            assert sorted(array.tobytes() for array in keys) == sorted(a.tobytes() for a in whole.values())
        return whole

    def _read_rows(self, _):
        """Take the first rows and the last, if all of the file is sound."""
        source = RowsSource(look_at_rows(self.files, None, ()), "npz", "/tmp")
        count = len(source)
        indices = [*range(min(count, 3)), *([count - 1] if count > 3 else [])]
        if not indices:
            return None
        schema = source.schema(0)
        assert sum(spec.nbytes for spec in schema.values()) <= os.fstat(self.fd).st_size * 1032
        into = {field: np.full((len(indices), *spec.shape), 1, spec.dtype) for field, spec in schema.items()}
        source.prove_rest(source.read_many(indices, into).sums)
        return indices, into

    def _read_keys(self, _):
        """Take every key for a sample."""
        source = KeysSource(look_at_keys(self.files))
        found = []
        for index in range(len(source)):
            schema = source.schema(index)
            assert sum(spec.nbytes for spec in schema.values()) <= os.fstat(self.fd).st_size * 1032
            into = {field: np.full(spec.shape, 1, spec.dtype) for field, spec in schema.items()}
            source.read(index, into)
            found += into.values()
        return found

    def _read_whole(self, index):
        schema = self.source.schema(index)
        # Whoever allocates by a schema must not be misled beyond what the file can hold.
        assert sum(spec.nbytes for spec in schema.values()) <= os.fstat(self.fd).st_size * 1032
        return self._read_into({field: np.full(spec.shape, 1, spec.dtype) for field, spec in schema.items()})

    def _read_as_expected(self, index):
        """As if the sample were to fit others."""
        return self._read_into(
            {key: np.empty(ARRAYS[key].shape, ARRAYS[key].dtype.newbyteorder("=")) for key in ("x", "turned")}
        )

    def _read_into(self, into):
        self.source.read(0, into)
        return into


def check_witness(data, sample):
    """Compare with numpy, where it reads the same file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's parser warns of odd literals
        try:
            loaded = np.load(io.BytesIO(data), allow_pickle=False)
        except Exception:
            return
        with loaded:
            for key, found in sample.items():
                try:
                    array = loaded[key]
                except Exception as error:
                    if "CRC" in str(error):
                        raise AssertionError("its CRC-32 is another") from error
                    continue
                assert ArraySpec(array.dtype.newbyteorder("="), array.shape) == ArraySpec(
                    found.dtype, found.shape
                )
                native = array if array.dtype.isnative else array.byteswap()
                assert found.tobytes() == native.tobytes()


@pytest.fixture(scope="module")
def file():
    opened = File()
    yield opened
    os.close(opened.fd)


@pytest.fixture(scope="module")
def counts():
    return {"refused": 0, "read": 0}


@seeds(INPUTS)
def test_whatever_is_in_a_file_it_is_refused_or_read_as_numpy_reads_it(file, counts, seed):
    with watched():
        for number in range(PER_SEED):
            data = made(seed, number)
            with reproducible(f"made({seed}, {number})", data):
                sample = file.take(data)
                counts["refused" if sample is None else "read"] += 1
                if sample is not None:
                    check_witness(data, sample)


def test_the_inputs_reach_every_part(counts):
    """Were all refused at the first byte, or none, nothing would be tested."""
    total = sum(counts.values())
    if not total:
        pytest.skip("counts what another test did, which did not run")
    assert total >= INPUTS
    assert counts["read"] > total // 20
    assert counts["refused"] > total // 3


@seeds(WITH_MEMORY)
def test_no_input_takes_more_memory_than_a_few_of_its_bytes(file, seed):
    with watched():
        for number in range(PER_SEED):
            data = made(seed, number)
            with reproducible(f"made({seed}, {number})", data):
                tracemalloc.start()
                try:
                    file.take(data)
                    assert tracemalloc.get_traced_memory()[1] < (2 << 20) + 3 * 1032 * len(data)
                finally:
                    tracemalloc.stop()


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_what_is_damaged_was_sound(file, number):
    sample = file.take(SEEDS[number])
    if number == len(SEEDS) - 1:
        assert sample is None
    else:
        check_witness(SEEDS[number], sample)
        with np.load(io.BytesIO(SEEDS[number])) as loaded:
            assert list(sample) == [key for key in loaded.files if key != "folder/"]
