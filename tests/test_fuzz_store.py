"""Random damage to stores: an error of ours, or what was written; never a crash, a hang or a wrong value.

An input is made from a seed and a number alone; a failure prints both, and the damaged files.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tempfile
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from zarr.core.metadata.v3 import ArrayV3Metadata

from mmapload.codecs import CODEC_NAMES, checksum
from mmapload.dataset import ChunkDataset
from mmapload.errors import LayoutError, MmaploadError, printable
from mmapload.layout import CORE_DTYPES
from mmapload.metadata import MAX_LENGTH, parse_field, parse_root
from mmapload.preprocessing import preprocess
from mmapload.seals import document_text, sealed
from mmapload.store import open_store
from mmapload.strictjson import parse_document
from tests.fuzzing import PER_SEED, inputs, limited_memory, reproducible, seeds, watched
from tests.loading_cases import unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mmapload.layout import FieldLayout
    from mmapload.store import Store

T = TypeVar("T")

INPUTS = inputs(1_500)
STORES = max(1, INPUTS // 2)
DOCUMENTS = max(1, INPUTS - STORES)
MOST_CHUNKS, MOST_FILES = 4, 40  # of those that a damaged store claims, so many are read and verified

pytestmark = pytest.mark.timeout(300 + INPUTS // 20)

SAMPLES, BATCH_SIZE = 5, 2
ARRAYS = {
    "image": np.arange(SAMPLES * 6, dtype="u1").reshape(SAMPLES, 2, 3),
    "flow": np.repeat(np.arange(SAMPLES, dtype="<f4"), 40).reshape(SAMPLES, 2, 20),
    "label": np.arange(SAMPLES, dtype="<i8") - 2,
}

# JSON as it is written, right or wrong.
TOKENS = [
    "null", "true", "false", "0", "1", "2", "3", "4", "5", "6", "8", "-1", "-0", "3.0", "0.5", "1e2",
    "1e999", "-1e-999", "NaN", "Infinity", "-Infinity", "9007199254740991", "9007199254740992",
    "9007199254740993", "18446744073709551616", "9" * 400, "9" * 5000, "1" + "0" * 400 + ".0", "[]", "{}",
    "[1]", "[2]", "[2, 2, 3]", "[2, 6]", "[5, 2, 3]", "[5, 0, 3]", "[4503599627370496, 2, 3]",
    "[5, 9007199254740992, 9007199254740992, 0]", "[" + "1, " * 31 + "1]", "[" + "1, " * 32 + "1]", '""',
    '"x"', '"."', '".."', '"/"', '"\\u0000"', '"\\ud800"', '"\\u202e"', '"\x7f"', '"\\u001b[2J"',
    '"' + "x" * 300 + '"', '"bytes"', '"crc32c"', '"zstd"', '"blosc"', '"gzip"', '"transpose"',
    '"sharding_indexed"', '"vlen-utf8"', '"big"', '"little"', '"lz4"', '"bitshuffle"', '"shuffle"',
    '"noshuffle"', '"regular"', '"rectilinear"', '"default"', '"v2"', '"group"', '"array"', '"string"',
    '"bfloat16"', '"object"', '">f4"', '"r32"', '"numpy.datetime64"', '{"name": "crc32c"}',
    '{"name": "bytes"}', '{"name": "bytes", "configuration": {"endian": "big"}}',
    '{"name": "zstd", "configuration": {"level": 3, "checksum": false}}',
    '{"name": "transpose", "configuration": {"order": [2, 1, 0]}}',
    '{"name": "x", "must_understand": true}', '{"must_understand": false}', "[" * 70 + "]" * 70,
    '{"a":' * 70 + "1" + "}" * 70, "[" * 3000, "", ",", "}", "]", ":", '"',
    *(f'"{name}"' for name in CORE_DTYPES),
]  # fmt: skip
KEYS = [
    "image", "IMAGE", "flow", "..", "a/b", "/etc", "a\\b", "", "zarr.json", "__mmapload__", "\0", "\ud800",
    "x" * 300, "é", "e\u0301", "zarr_format", "node_type", "attributes", "mmapload", "format_version",
    "samples", "batch_size", "fields", "names", "checksums", "source", "shape", "data_type", "chunk_grid",
    "chunk_key_encoding", "fill_value", "codecs", "storage_transformers", "dimension_names",
    "consolidated_metadata", "must_understand", "name", "configuration", "chunk_shape", "separator",
    "endian", "level", "checksum", "typesize", "cname", "clevel", "blocksize", "shuffle",
]  # fmt: skip


NUMBERS = [1, 2, 3, 4, 5, 6, 1000, 2**20, 2**31, 2**40, 2**46, 2**53]


class Pairs(list):
    """A JSON object as a list of [key, value], in which a key may be twice."""


class Token(str):
    """JSON as it is written."""

    __slots__ = ()


def tree(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=lambda pairs: Pairs([list(pair) for pair in pairs]))


def written(node: Any) -> str:
    if isinstance(node, Token):
        return str(node)
    if isinstance(node, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(value)}" for key, value in node) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(written, node)) + "]"
    return json.dumps(node)


def containers(node: Any) -> list[list[Any]]:
    """Return the objects and arrays that are not empty."""
    if not isinstance(node, list):
        return []
    values = [pair[1] for pair in node] if isinstance(node, Pairs) else node
    return ([node] if node else []) + [found for value in values for found in containers(value)]


def damage_tree(top: list[Any], rng: random.Random) -> None:
    """Replace, delete, insert, double, rename, move or wrap one value."""
    found = containers(top)
    node = rng.choice(found)
    place = rng.randrange(len(node))
    new = Token(rng.choice(TOKENS)) if rng.randrange(8) else copy.deepcopy(rng.choice(found))
    if isinstance(node, Pairs):
        pair = node[place]
        match rng.randrange(8):
            case 0 | 1 | 2:
                pair[1] = new
            case 3:
                del node[place]
            case 4:
                node.insert(place, [rng.choice(KEYS), new])
            case 5:
                node.insert(rng.randrange(len(node) + 1), [pair[0], rng.choice([pair[1], new])])
            case 6:
                pair[0] = rng.choice(KEYS)
            case _:
                pair[1] = rng.choice([Pairs([["x", pair[1]]]), [pair[1]]])
    else:
        new = Token(rng.choice(TOKENS))
        match rng.randrange(5):
            case 0 | 1:
                node[place] = new
            case 2:
                del node[place]
            case 3:
                node.insert(place, rng.choice([new, node[place]]))
            case _:
                node[place] = [node[place]]


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut, insert, double or overwrite, knowing nothing of what the bytes mean."""
    out = bytearray(data)
    place = rng.randrange(len(out) + 1)
    match rng.randrange(8):
        case 0:
            del out[place:]
        case 1:
            del out[place : place + rng.choice([1, 1, 2, 4, 16])]
        case 2:
            out[place:place] = rng.choice(
                [rng.randbytes(rng.randrange(1, 9)), b"\0", b"\xef\xbb\xbf", b'"', b"9" * 700]
            )
        case 3:
            start = rng.randrange(len(out) + 1)
            out[place:place] = out[start : start + rng.randrange(1, 40)]
        case 4:
            out += rng.choice([b"\0", b"\n", b"}", rng.randbytes(4), bytes(out)])
        case _:
            for _ in range(rng.choice([1, 1, 2, 8])):
                if out:
                    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def made(seed: int, number: int, text: bytes) -> bytes:
    """Make a damaged document out of a sound one."""
    rng = random.Random(seed * PER_SEED + number)
    if rng.randrange(4):
        top = tree(text)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            damage_tree(top, rng)
            if not top:
                break
        text = written(top).encode("utf-8", "surrogatepass")
    if rng.randrange(4) == 0:
        text = damage_bytes(text, rng)
    return text


def check_told(problems: list[str] | tuple[str, ...]) -> None:
    for problem in problems:
        assert printable(problem).isprintable()
        assert len(problem) < 1500


UNSEALED = ("raw", "zstd")
"""Stores without a checksum of the metadata, so that what damaged metadata says reaches whoever reads it."""


class Originals:
    """A sound store of each codec, and all its files as bytes."""

    def __init__(self, parent: Path) -> None:
        source = parent / "samples"
        source.mkdir()
        for sample in range(SAMPLES):
            np.savez(source / f"größe{sample}.npz", **{name: array[sample] for name, array in ARRAYS.items()})
        self.paths = {}
        self.files: dict[str, dict[str, bytes]] = {}
        for codec in CODEC_NAMES:
            store = preprocess(source, parent / codec, BATCH_SIZE, codec=codec, chunk_bytes=1)
            if codec in UNSEALED:
                unseal(store.path)
            self.paths[codec] = Path(store.path)
            self.files[codec] = {
                os.path.relpath(os.path.join(folder, name), store.path): Path(folder, name).read_bytes()
                for folder, _, names in os.walk(store.path)
                for name in sorted(names)
            }

    def documents(self, codec: str) -> list[str]:
        return ["zarr.json", *(f"{name}/zarr.json" for name in ARRAYS)]


@pytest.fixture(scope="module")
def originals() -> Iterator[Originals]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mmapload-fuzz-", dir=memory) as parent:
        yield Originals(Path(parent))


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    return Counter()


def read_document(text: bytes, name: str, original: bytes) -> str:
    """Read a damaged document by itself; returns what became of it."""
    document, problems = parse_document(text, name)
    if not problems:
        assert json.loads(text) == document
    field: FieldLayout | None = None
    if name == "zarr.json":
        layout, names, found = parse_root(document, name)
        assert layout is not None or (found and not names)
        for each in names:
            assert not {"", ".", "..", "zarr.json"} & set(each.split("/"))
            assert not {"\\", "\0"} & set(each)
    else:
        field, found = parse_field(name.partition("/")[0], document, SAMPLES, BATCH_SIZE, name)
        assert (field is None) == bool(found)
    check_told([*problems, *found])
    if field is not None:
        assert 0 <= field.chunk_nbytes <= MAX_LENGTH
        assert field.chunk_length % BATCH_SIZE == 0
        assert field.dtype.byteorder in "<|="
    if problems or found:
        return "document refused"
    if field is not None:
        check_witness(document, field)
    return "document equal" if document == json.loads(original) else "document accepted"


def check_witness(document: dict[str, Any], field: FieldLayout) -> None:
    """Let zarr-python read the document: but for keys that we do not look at, it must see the same array."""
    zero = {"b": False, "i": 0, "u": 0, "f": 0.0, "c": [0.0, 0.0]}[field.dtype.kind]
    unread = {"fill_value": zero, "attributes": {}, "dimension_names": None}
    seen = ArrayV3Metadata.from_dict(document | unread)
    assert seen.shape[1:] == field.shape
    assert seen.chunk_grid.chunk_shape == field.zarr_chunk_shape
    assert seen.data_type.to_native_dtype().newbyteorder("<") == field.dtype


@seeds(DOCUMENTS)
def test_a_damaged_document_is_read_or_refused(originals, counts, seed):
    rng = random.Random(seed)
    with watched():
        for number in range(PER_SEED):
            codec = rng.choice(CODEC_NAMES)
            name = rng.choice(originals.documents(codec))
            original = originals.files[codec][name]
            text = made(seed, number, original)
            with reproducible(f"made({seed}, {number}, {codec}/{name})", text):
                counts[read_document(text, name, original)] += 1


def harmed(data: bytes, others: list[bytes], rng: random.Random) -> tuple[bytes | None, bool]:
    """Damage a chunk file, None deletes it; and say whether its own checksum is right nevertheless."""
    payload, trailer = data[:-4], data[-4:]
    match rng.randrange(8):
        case 0:
            return None, False
        case 1:  # of another chunk, or of another field
            return rng.choice(others), True
        case 2:
            return bytes(len(data)), False
        case 3:
            payload = damage_bytes(payload, rng)
            return payload + checksum(np.frombuffer(payload, np.uint8)), True
        case 4:  # a number in the frame's header, if it is one
            out = bytearray(payload)
            at, width = rng.choice([0, 4, 8, 12, 5, 6]), rng.choice([1, 2, 4, 8])
            number = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**63, rng.getrandbits(64)])
            out[at : at + width] = number.to_bytes(8, "little")[:width]
            return bytes(out) + checksum(np.frombuffer(out, np.uint8)), True
        case 5:
            return payload + damage_bytes(trailer, rng), False
        case _:
            return damage_bytes(data, rng), False


def put(path: Path, data: bytes | None, rng: random.Random | None = None) -> None:
    """Write a file anew, or something else in its place."""
    if path.is_symlink() or not path.is_file():
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    if data is None:
        path.unlink(missing_ok=True)
        return
    if rng is not None and rng.randrange(60) == 0:
        path.unlink(missing_ok=True)
        other = path.with_name("zarr.json") if path.name != "zarr.json" else Path("/dev/zero")
        [lambda: os.mkfifo(path), path.mkdir, lambda: path.symlink_to(other)][rng.randrange(3)]()
        return
    path.write_bytes(data)


@dataclass
class Damage:
    """What was done: contents of files, and fields of which one has a checksum that is right nevertheless."""

    files: dict[str, bytes | None]
    forged: set[str]


def claims(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes | None]:
    """Let all documents agree on other numbers of samples, in the store and in a chunk."""
    samples, length = rng.choice(NUMBERS), BATCH_SIZE * rng.choice(NUMBERS)
    fields = rng.choice([list(ARRAYS), [rng.choice(list(ARRAYS))]])
    root = json.loads(files["zarr.json"])
    root["attributes"]["mmapload"] |= {"samples": samples, "fields": {field: {} for field in fields}}
    documents: dict[str, Any] = {"zarr.json": root}
    for field in fields:
        document = json.loads(files[f"{field}/zarr.json"])
        axes = [0] if rng.randrange(10) == 0 else document["shape"][1:]
        document["shape"] = [samples, *axes]
        document["chunk_grid"]["configuration"]["chunk_shape"] = [length, *(max(1, axis) for axis in axes)]
        documents[f"{field}/zarr.json"] = document
    return {name: json.dumps(document).encode() for name, document in documents.items()}


@contextmanager
def damaged(
    folder: Path, files: dict[str, bytes], rng: random.Random, *, claiming: bool = True
) -> Iterator[Damage]:
    """Damage some files of a store, and restore them."""
    documents = [name for name in files if name.endswith("zarr.json")]
    chunks = [name for name in files if not name.endswith("zarr.json")]
    damage = Damage(claims(files, rng) if claiming and rng.randrange(20) == 0 else {}, set())
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.randrange(2):
            name = rng.choice(documents)
            damage.files[name] = made(rng.getrandbits(48), 0, files[name])
        else:
            name = rng.choice(chunks)
            damage.files[name], forged = harmed(files[name], [files[each] for each in chunks], rng)
            damage.forged |= {name.partition("/")[0]} if forged else set()
    try:
        for name, data in damage.files.items():
            put(folder / name, data, rng)
        yield damage
    finally:
        for name in damage.files:
            put(folder / name, files[name])


def attempt(read: Callable[[], T]) -> T | None:
    """Return what is read, or None for an error of ours."""
    try:
        return read()
    except MmaploadError as error:
        check_error(error)
        return None


def check_error(error: MmaploadError) -> None:
    text = str(error)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < (60_000 if isinstance(error, LayoutError) else 3000)
    assert "of memory to read it" not in text


def comparable(store: Store, damage: Damage) -> set[str]:
    """Return the fields of which no value may be wrong: they mean what they meant, and no checksum is forged.

    Where the store lists checksums, a forged one is noticed too.
    """
    if store.layout.chunk_length != BATCH_SIZE:
        return set()
    return {
        field.name
        for field in store.layout.fields
        if field.name in ARRAYS
        and (field.dtype, field.shape) == (ARRAYS[field.name].dtype, ARRAYS[field.name].shape[1:])
        and (store.layout.has_checksums or field.name not in damage.forged)
    }


def check_rows(found: np.ndarray, field: str, samples: Sequence[int]) -> None:
    """Compare with what was written; a damaged store may claim more samples."""
    there = [row for row, sample in enumerate(samples) if sample < SAMPLES]
    expected = ARRAYS[field][[samples[row] for row in there]]
    assert found[there].tobytes() == expected.tobytes(), f"wrong values in {field}"


def use(folder: Path, damage: Damage, rng: random.Random) -> str:
    """Open a store, read it in every way, verify it; returns what became of it."""
    store = attempt(lambda: open_store(folder))
    if store is None:
        return "store refused"
    compared = comparable(store, damage)
    chunks = min(store.layout.chunks, MOST_CHUNKS)
    unread = 0
    for field in store.fields:
        for chunk in range(chunks):
            rows = attempt(partial(store.read_chunk, field, chunk))
            if rows is None:
                unread += 1
            elif field in compared:
                check_rows(rows, field, range(chunk * BATCH_SIZE, chunk * BATCH_SIZE + len(rows)))
    faults = [fault for fault in islice(store.verify(), MOST_FILES) if fault is not None]
    for fault in faults:
        check_error(fault)
    assert faults or not unread
    attempt(lambda: store.sample_name(len(store) - 1))
    verify = rng.choice(["first", "always"])
    dataset = attempt(lambda: ChunkDataset(folder, memory="1GiB", verify=verify))
    if dataset is None:
        assert faults
        return "store with faults"
    samples = [rng.randrange(min(len(dataset), 2 * SAMPLES)) for _ in range(rng.randrange(1, 9))]
    batch = attempt(lambda: dataset.read(samples))
    if batch is None:
        assert faults
    else:
        for field in compared:
            check_rows(batch.tensors[field].numpy(), field, samples)
    return "store with faults" if faults else "store read"


def each_store(
    originals: Originals, counts: Counter[str], seed: int, check: Callable[[Path, Damage, random.Random], str]
) -> None:
    with watched():
        for number in range(PER_SEED):
            rng = random.Random(seed * PER_SEED + number)
            codec = rng.choice(CODEC_NAMES)
            folder = originals.paths[codec]
            with damaged(folder, originals.files[codec], rng) as damage:
                told = f"seed {seed}, number {number}, codec {codec}"
                with reproducible(told, repr(damage.files).encode()):
                    counts[check(folder, damage, rng)] += 1


@seeds(STORES)
def test_a_damaged_store_is_refused_or_gives_what_was_written(originals, counts, seed):
    with limited_memory(4 << 30):
        each_store(originals, counts, seed, use)


def use_traced(folder: Path, damage: Damage, rng: random.Random) -> str:
    tracemalloc.start()
    try:
        use(folder, damage, rng)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    return "store under a measure of memory"


MIXED = ("sealed", "unsealed", "appending")
"""Stores of ragged fields, text, times and a field that samples lack; and one that an append is changing."""


def mixed_sample(number: int) -> dict[str, Any]:
    return {
        "words": np.arange((3, 0, 1, 9, 6)[number], dtype=np.float32) + number,
        "boxes": np.full((number % 3, 2), number + 1, np.uint8),
        "caption": np.str_(("", "ab", "ü", "end", "a")[number]),
        "when": np.datetime64(1000 * number + 1, "ms"),
        **({"depth": np.float32(number + 1)} if number % 2 else {}),
    }


@pytest.fixture(scope="module")
def mixed() -> Iterator[dict[str, tuple[Path, dict[str, bytes], dict[str, Any]]]]:
    """Path, files and values of each."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mmapload-fuzz-", dir=memory) as parent:
        found = {}
        for kind in MIXED:
            path = Path(parent, kind)
            if kind == "appending":
                values = [{name: array[each] for name, array in ARRAYS.items()} for each in range(SAMPLES)]
                preprocess(values, path, BATCH_SIZE, chunk_bytes=1)
                let_an_append_begin(path)
            else:
                source = Path(parent, f"{kind}-samples")
                source.mkdir()
                for number in range(SAMPLES):
                    np.savez(source / f"s{number}.npz", **mixed_sample(number))
                options = {"ragged": "words,boxes", "optional": "depth", "chunk_bytes": 1}
                preprocess(source, path, BATCH_SIZE, codec="raw" if kind == "sealed" else "zstd", **options)
            if kind == "unsealed":
                unseal(path)
            files = {
                str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
            }
            found[kind] = path, files, all_values(path)
        yield found


def let_an_append_begin(path: Path) -> None:
    """Write a root that says so, as it stands while files are renamed."""
    root = json.loads((path / "zarr.json").read_text())
    last = [int.from_bytes(next(path.glob(f"{name}/c.2*")).read_bytes()[-4:], "little") for name in ARRAYS]
    root["attributes"]["mmapload"]["appending"] = {"samples": 9, "checksums": last}
    documents = {name: json.loads((path / name / "zarr.json").read_text()) for name in ARRAYS}
    (path / "zarr.json").write_bytes(document_text(sealed(root, documents)))


def bits(value: Any) -> Any:
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value if isinstance(value, str) else [bits(each) for each in value]


def all_values(folder: Path, verify: Any = "first") -> dict[str, Any]:
    dataset = ChunkDataset(folder, memory="1GiB", verify=verify)
    numbers = range(min(len(dataset), 2 * SAMPLES))
    return {name: bits(value) for name, value in dataset.read(numbers).tensors.items()}


@seeds(max(1, STORES // 2))
def test_a_damaged_store_of_other_kinds_is_refused_or_gives_what_was_written(mixed, seed):
    with limited_memory(4 << 30), watched():
        for number in range(PER_SEED):
            rng = random.Random(seed * PER_SEED + number)
            kind = rng.choice(MIXED)
            path, files, values = mixed[kind]
            with (
                damaged(path, files, rng, claiming=kind == "appending") as damage,
                reproducible(f"seed {seed}, number {number}, {kind}", repr(damage.files).encode()),
            ):
                read = use_mixed(path, rng.choice(["first", "always"]))
                if read is not None and kind != "unsealed" and not damage.forged:
                    assert read == values


def use_mixed(path: Path, verify: str) -> dict[str, Any] | None:
    """Open, verify and read a store; returns its values."""
    store = attempt(partial(open_store, path))
    if store is None:
        return None
    faults = [fault for fault in islice(store.verify(), MOST_FILES) if fault is not None]
    for fault in faults:
        check_error(fault)
    attempt(partial(store.sample_name, len(store) - 1))
    for field in store.fields:
        attempt(partial(store.read_chunk, field, 0))
    read = attempt(partial(all_values, path, verify))
    assert read is not None or faults
    return read


@seeds(max(1, STORES // 20))
def test_no_damaged_store_takes_more_memory_than_its_files_can_fill(originals, counts, seed):
    each_store(originals, counts, seed, use_traced)


def test_the_inputs_reach_every_part(counts):
    """Were all refused at the first byte, or none, nothing would be tested."""
    total = sum(counts.values())
    if not total:
        pytest.skip("counts what other tests did, which did not run")
    print(f"{total:,} inputs:", ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())))
    assert total >= INPUTS
    for kind in ("document refused", "document accepted", "store refused", "store with faults", "store read"):
        assert counts[kind] > total // 200, kind
