"""What bounds a loader, as a table; and measurements of small stores: what is counted, never how fast."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import mmapload
from mmapload.bench import Settings, run_bench
from mmapload.bench.ceilings import THREADS, chunk_files, reading
from mmapload.bench.course import Course
from mmapload.bench.loaders import Part, deliver, fixed_buffers
from mmapload.bench.matching import match
from mmapload.bench.rounds import Contender, Run, one_round, standings
from mmapload.bench.verdict import Figures, Rate, bound_by
from mmapload.errors import ChunkError, MmaploadError, SourceError
from mmapload.store import open_store
from tests.loading_cases import evictable_folder, random_arrays, undisturbed, write_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.store import Store

LOADERS = [
    "ChunkDataLoader, window",
    "ChunkDataLoader, batch",
    "ChunkDataLoader, full",
    "DataLoader + ChunkBatchSampler",
]
SOURCES = [".npz, DataLoader, 0 workers", ".npz, DataLoader, 2 workers"]
COPIES = ["memory copy", "memory copy, twice at once"]
READS = [
    f"{kind}, {count} thread{'s' * (count > 1)}" for kind in ("pread", "populate") for count in (1, 2, 4)
]


@pytest.fixture(autouse=True)
def _once(monkeypatch):
    """Run what is short once only: no test looks at rates."""
    monkeypatch.setattr("mmapload.bench.LEAST_SECONDS", 0.0)


# the verdict


def steady(rate: float) -> Rate:
    return Rate(rate, 0.8 * rate, 1.2 * rate)


BASE = Figures(
    loader=steady(1000),
    copies=steady(4000),
    reads=steady(9000),
    reads_by="populate, 4 threads",
    decodes=None,
    loader_disk=0.0,
    reads_disk=0.0,
    batch_nbytes=2**25,
    batch_size=32,
    windows=4,
    cores=8,
)


@pytest.mark.parametrize(
    ("changes", "bound", "parts"),
    [
        ({"loader": 3360}, "copying memory", ["bound by copying memory", "84 %", "4,000 samples/s"]),
        ({"loader": 2800}, "copying memory", ["70 %"]),
        ({"loader": 4400}, "copying memory", ["110 %"]),
        ({"loader": 2799}, "neither", ["bound by neither", "70 %", "lowest ceiling"]),
        # from the disk
        (
            {"loader": 480, "reads": 600, "loader_disk": 1.0, "reads_disk": 1.0},
            "the disk",
            ["bound by the disk", "80 %", "by populate, 4 threads (600 samples/s)"],
        ),
        ({"loader": 480, "reads": 600, "loader_disk": 0.5, "reads_disk": 0.9}, "the disk", ["80 %"]),
        ({"loader": 480, "reads": 600, "loader_disk": None, "reads_disk": None}, "the disk", ["80 %"]),
        ({"loader": 3500, "loader_disk": 1.0, "reads_disk": 1.0}, "copying memory", ["88 %"]),
        ({"loader": 200, "reads": 600, "loader_disk": 1.0, "reads_disk": 1.0}, "neither", ["33 %", "disk"]),
        (
            {"loader": 200, "reads": 600, "loader_disk": 1.0, "reads_disk": 1.0, "windows": 1.0},
            "neither",
            ["only 1 window long", "--seconds"],
        ),
        # from the page cache
        ({"loader": 900, "reads": 1000}, "the page cache", ["bound by the page cache", "90 %"]),
        ({"loader": 1200, "reads": 1000}, "the page cache", ["120 %"]),
        ({"loader": 3600, "reads": 1000}, "copying memory", ["90 %"]),  # it has the chunks in memory already
        # one of them from the disk, the other not
        ({"loader_disk": 0.9, "reads_disk": 0.0}, "unknown", ["90 %", "0 %", "--cold"]),
        ({"loader_disk": 0.0, "reads_disk": 1.0}, "unknown", ["cannot be told"]),
        ({"loader": 4000, "loader_disk": 0.05, "reads_disk": 0.0}, "copying memory", ["100 %"]),
        # compressed
        ({"loader": 450, "decodes": 500.0}, "decompressing", ["bound by decompressing", "90 %"]),
        ({"loader": 300, "decodes": 500.0}, "neither", ["60 %", "decompresses"]),
        ({"loader": 3900, "decodes": 500.0}, "copying memory", ["98 %"]),
        (
            {
                "loader": 450,
                "decodes": 900.0,
                "reads": 460,
                "loader_disk": 1.0,
                "reads_disk": 1.0,
            },
            "the disk",
            ["98 %"],
        ),
        # neither, and what to try
        ({"loader": 100, "batch_nbytes": 2**12}, "neither", ["Python's work", "320,000 µs", "larger batch"]),
        ({"loader": 100, "cores": 2}, "neither", ["share 2 cores"]),
        ({"loader": 100, "cores": 1}, "neither", ["share 1 core:"]),
        ({"loader": 100}, "neither", ["idle machine"]),
        # nothing to read
        ({"loader": 100, "reads": None, "reads_by": "", "loader_disk": None}, "neither", ["copies batches"]),
    ],
)
def test_what_bounds_a_loader_follows_from_the_figures(changes, bound, parts):
    rates = {
        name: steady(value) if isinstance(value, int | float) else value
        for name, value in changes.items()
        if name in {"loader", "copies", "reads", "decodes"}
    }
    verdict = bound_by(dataclasses.replace(BASE, **{**changes, **rates}))
    assert verdict.bound == bound
    for part in parts:
        assert part in verdict.sentence


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        # It cannot be faster than its batches are copied.
        ({"loader": 7400}, ["185 % of the rate at which this machine copies batches twice at once"]),
        # The numbers of a machine on which others work.
        (
            {"loader": 1500, "copies": Rate(1211, 757, 1945)},
            ["1,211 samples/s, 757 to 1,945 in its rounds", "1,500 samples/s, 1,200 to 1,800", "124 %"],
        ),
        ({"loader": 3000, "copies": Rate(4000, 1900, 4100)}, ["4,000 samples/s, 1,900 to 4,100"]),
        ({"loader": Rate(3000, 1000, 3100)}, ["3,000 samples/s, 1,000 to 3,100"]),
        ({"loader": 900, "reads": Rate(1000, 500, 1100)}, ["reads the chunk files", "500 to 1,100"]),
        ({"loader": 400, "decodes": Rate(500, 200, 900)}, ["decompresses chunks", "200 to 900"]),
    ],
)
def test_figures_that_cannot_be_or_vary_twofold_are_called_too_noisy_with_what_to_do(changes, parts):
    rates = {name: value if isinstance(value, Rate) else steady(value) for name, value in changes.items()}
    verdict = bound_by(dataclasses.replace(BASE, **rates))
    assert verdict.bound == "unknown"
    assert verdict.sentence.startswith("what bounds it cannot be told: the figures are too noisy")
    for part in (*parts, "idle machine", "--rounds", "--seconds"):
        assert part in verdict.sentence


def test_rounds_that_vary_do_not_matter_where_each_tells_the_same():
    changes = {"loader": Rate(1000, 400, 1200), "copies": Rate(4000, 1900, 9000)}
    assert bound_by(dataclasses.replace(BASE, **changes)).bound == "neither"
    changes["loader"] = Rate(1000, 400, 1400)
    assert bound_by(dataclasses.replace(BASE, **changes)).bound == "unknown"


# rounds


def test_every_round_has_each_contender_once_and_begins_with_another():
    order: list[str] = []

    def contender(name: str) -> Contender:
        return Contender(
            name, "loader", 10, 100, (), lambda number: lambda: order.append(f"{name}{number}") or 2.0
        )

    contenders = [contender(name) for name in "abcd"]
    rounds = [one_round(contenders, number, cold=False, done=lambda _: None) for number in range(4)]
    assert sorted(order) == sorted(f"{name}{number}" for name in "abcd" for number in range(4))
    assert len({order[4 * number][0] for number in range(4)}) == 4
    assert [len(runs) for runs in rounds] == [4] * 4


def test_a_short_run_is_done_again_and_its_mean_counts_but_not_one_of_dropped_files():
    for each, times in ((0.0, 8), (1.25, 8), (3.0, 4), (10.0, 1), (11.0, 1)):
        calls: list[int] = []
        contender = Contender("x", "loader", 10, 100, (), lambda _, s=each, c=calls: lambda: c.append(1) or s)
        (run,) = one_round([contender], 0, cold=False, done=lambda _: None, least_seconds=10.0)
        assert (len(calls), run.seconds) == (times, max(each, 1e-9))
        calls.clear()
        one_round([contender], 0, cold=True, done=lambda _: None, least_seconds=10.0)
        assert len(calls) == 1


def test_medians_least_and_most_come_from_all_rounds(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    contender = Contender("x", "pread", 10, 1000, (str(path),), lambda _: lambda: 1.0)
    seconds, disk = (1.0, 4.0, 2.0), (1000, None, 500)
    rounds = [[Run(each, read, None)] for each, read in zip(seconds, disk, strict=True)]
    (found,) = standings([contender], rounds)
    assert (found.rate, found.least, found.most) == (5, 2.5, 10)
    assert found.bytes_per_second == 500
    assert (found.disk, found.disk_share, found.stayed) == (750, 0.75, None)


# whole measurements


def npz_store(folder: Path, count: int = 40, batch: int = 4, codec: str = "raw", **options: Any) -> Store:
    source = folder / "npz"
    source.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        arrays = {"x": rng.integers(0, 256, (3, 5), np.uint8), "y": np.float32(number)}
        np.savez(source / f"s{number}.npz", **arrays)
    options.setdefault("chunk_bytes", 8 * 15)
    return mmapload.preprocess(source, folder / "store", batch, codec=codec, **options)


def names(bench: Any) -> list[str]:
    return [each.name for each in bench.standings]


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_all_contenders_are_measured_in_every_round_with_the_same_samples(tmp_path, codec):
    store = npz_store(tmp_path, codec=codec)
    assert store.layout.chunk_length == 8
    bench = run_bench(store, Settings(4, rounds=2, samples=40, source=str(tmp_path / "npz")))
    decode = ["decode, 2 threads"] * (codec != "raw")
    assert names(bench) == LOADERS + SOURCES + COPIES + READS + decode
    assert {each.samples for each in bench.standings} == {40}
    assert {len(each.seconds) for each in bench.standings} == {2}
    assert (bench.samples, bench.batch_size, bench.rounds, bench.window) == (40, 4, 2, 40)
    files = sum(path.stat().st_size for path in Path(store.path).glob("[xy]/c.*"))
    assert bench.file_nbytes == files
    assert bench.cached_before is None or 0 <= bench.cached_before <= files
    moved = {each.kind: each.nbytes for each in bench.standings}
    assert moved["loader"] == moved["source"] == moved["copy"] == 40 * (15 + 4)
    assert moved["pread"] == moved["populate"] == files
    assert bench.verdict.sentence


@pytest.mark.parametrize(
    ("asked", "taken"),
    [(1, 1), (2, 2), (3, 3), (4, 8), (8, 8), (9, 8), (17, 16), (39, 32), (40, 40), (99, 40)],
)
def test_a_part_is_whole_chunks_or_less_than_half_of_one(tmp_path, asked, taken):
    store = npz_store(tmp_path, batch=8)
    part = Course(store, Settings(1), None, 10**9, exceeds=False, cold=False).part(asked)
    assert part.samples == taken


@pytest.mark.parametrize("samples", [2, 8, 16, 32, 40])
def test_of_a_part_every_contender_delivers_the_same_samples_each_once(tmp_path, samples):
    store = npz_store(tmp_path)
    bench = run_bench(store, Settings(2, rounds=1, samples=samples, source=str(tmp_path / "npz")))
    # What reads files reads whole ones, and its rate counts the samples in them.
    held = {each.kind: each.samples for each in bench.standings}
    assert held["loader"] == held["source"] == held["copy"] == samples
    assert held["pread"] == held["populate"] == max(samples, 8)
    assert bench.window == (40 if samples == 40 else min(samples, 8))


@pytest.mark.parametrize("exceeds", [False, True])
@pytest.mark.parametrize("samples", [8, 24, 40])
def test_a_part_drops_chunks_behind_where_the_whole_store_would(tmp_path, samples, exceeds):
    store = npz_store(tmp_path)
    part = Part(store, samples, 4, exceeds, 2 * store.layout.chunk_nbytes if exceeds else 10**9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dataset = part.dataset()
        assert len(dataset) == samples
        loader = mmapload.ChunkDataLoader(dataset, 4, "window", window=part.window)
        deliver(loader, part, fixed_buffers(part))
    assert dataset.residency.capacity <= part.chunks
    if exceeds:
        assert dataset.memory <= part.memory


def test_a_store_that_exceeds_memory_is_read_from_the_disk_each_time_and_that_is_said(tmp_path):
    with evictable_folder(tmp_path) as folder:
        arrays = random_arrays(24, x=("u1", (2**18,)))
        store = write_store(folder / "store", arrays, 2)

        @undisturbed
        def check() -> None:
            bench = run_bench(store, Settings(2, rounds=1, samples=24, memory="2MiB"))
            assert (bench.cold, bench.exceeds) == (True, True)
            assert bench.window == 2, "of the four chunks in the budget, two windows of one chunk touch three"
            assert "ChunkDataLoader, full" not in names(bench)
            assert any("exceeds the memory budget" in note for note in bench.notes)
            for each in bench.standings:
                if each.kind not in {"copy", "decode"} and each.disk is not None:
                    assert each.disk >= 24 * 2**18, each.name
                    assert each.stayed in {0, None}

        check()


def test_cold_runs_find_nothing_of_the_store_or_its_source_in_the_page_cache(tmp_path):
    with evictable_folder(tmp_path) as folder:
        source = folder / "npz"
        source.mkdir()
        rng = np.random.default_rng(0)
        for number in range(8):
            with (source / f"{number}.npz").open("wb") as file:
                np.savez(file, x=rng.integers(0, 256, 2**19, np.uint8))
                file.flush()
                os.fsync(file.fileno())  # what is not on the disk yet cannot be dropped
        store = mmapload.preprocess(source, folder / "store", 2, chunk_bytes="1MiB")
        settings = Settings(2, rounds=2, samples=8, cold=True, source=str(source))

        @undisturbed
        def check_cold() -> None:
            bench = run_bench(store, settings)
            assert bench.cold
            for each in bench.standings:
                if each.file_nbytes and each.disk is not None:
                    assert each.stayed in {0, None}
                    assert each.disk >= 8 * 2**19, each.name

        @undisturbed
        def check_warm() -> None:
            bench = run_bench(store, dataclasses.replace(settings, cold=False))
            assert not bench.cold
            for each in bench.standings:
                assert each.stayed is None
                assert each.disk is None or each.disk < 8 * 2**19

        check_cold()
        check_warm()


@pytest.mark.parametrize(
    ("count", "nbytes", "batch", "taken"),
    [
        (300, 2**17, 32, 300),  # 37 MiB
        (1000, 10, 10, 1000),
        (1500, 10, 10, 1020),  # 1,024 samples, in whole batches
        (80, 2**20, 4, 64),  # 64 MiB
        (80, 2**20, 70, 70),  # a batch
    ],
)
def test_however_short_the_time_a_small_store_is_measured_whole_and_of_another_as_much(
    tmp_path, count, nbytes, batch, taken
):
    arrays = {"x": np.zeros((count, nbytes), np.uint8)}
    store = write_store(tmp_path / "store", arrays, batch)
    bench = run_bench(store, Settings(batch, rounds=4, seconds=1e-6, memory="1GiB"))
    assert bench.samples == taken
    assert {len(each.seconds) for each in bench.standings} == {bench.rounds} == {1}
    assert any(note.startswith("ended after 1 of 4 rounds") for note in bench.notes)
    assert "one round does not show how far the figures vary" in bench.notes


def test_with_more_time_more_samples_are_measured_and_all_rounds(tmp_path):
    store = write_store(tmp_path / "store", {"x": np.zeros((3000, 10), np.uint8)}, 100)
    bench = run_bench(store, Settings(100, rounds=2, seconds=600))
    assert (bench.samples, bench.rounds) == (3000, 2)


def test_the_time_counts_from_when_the_work_began(tmp_path):
    store = write_store(tmp_path / "store", {"x": np.zeros((3000, 10), np.uint8)}, 100)
    bench = run_bench(store, Settings(100, rounds=2, seconds=600), start=time.monotonic() - 1000)
    assert (bench.samples, bench.rounds) == (1000, 1)


def test_a_round_before_those_that_count_is_run_once_and_short_runs_are_not_repeated_in_it(tmp_path):
    store = write_store(tmp_path / "store", {"x": np.zeros((40, 10), np.uint8)}, 4)
    settings = Settings(4, rounds=2, seconds=600)
    course = Course(store, settings, None, 10**9, exceeds=False, cold=False)
    calls: list[tuple[str, int]] = []

    def counting(contender: Contender) -> Contender:
        def prepare(number: int) -> Callable[[], float]:
            work = contender.prepare(number)
            return lambda: calls.append((contender.name, number)) or work()

        return dataclasses.replace(contender, prepare=prepare)

    made = course.contenders
    course.contenders = lambda part: list(map(counting, made(part)))  # type: ignore[method-assign]
    part, contenders, warm = course.fitting(time.monotonic() + 600)
    assert (part.samples, warm) == (40, True)
    assert sorted(calls) == sorted((each.name, 0) for each in contenders)


def test_progress_is_told_up_to_the_end(tmp_path):
    store = write_store(tmp_path / "store", random_arrays(16, x=("u1", (100,))), 4)
    told: list[tuple[str, Any]] = []

    class Told:
        def start(self, samples: int | None, sample_nbytes: int, done: int = 0) -> None:
            told.append(("start", samples))

        def at(self, samples: int) -> None:
            told.append(("at", samples))

        def note(self, text: str) -> None:
            told.append(("note", text))

        def close(self) -> None:
            told.append(("close", None))

    run_bench(store, Settings(4, rounds=2, samples=16), Told())
    assert [what for what, _ in told if what != "at"] == ["note", "start", "close"]
    runs = len(LOADERS + COPIES + READS) * 3
    assert [value for what, value in told if what in {"start", "at"}] == [
        runs * 16,
        *range(16, runs * 16 + 1, 16),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"x": ("u1", (7,))},
        {"x": ("u1", (0, 3)), "y": ("f4", ())},
        {"x": ("i4", (3, 0))},
        {"index": ("i8", ()), "größe , ": ("c8", (2, 2)), "keys": ("?", (5,))},
        {"f": ("u8", (2,)), "self": ("f2", (3,))},
    ],
    ids="+".join,
)
@pytest.mark.parametrize(("count", "batch"), [(1, 1), (1, 4), (7, 4), (13, 1)])
def test_every_kind_of_field_and_size_is_measured(tmp_path, fields, count, batch):
    store = write_store(tmp_path / "store", random_arrays(count, **fields), batch)
    bench = run_bench(store, Settings(batch, rounds=1, samples=count))
    empty = not store.layout.sample_nbytes
    assert names(bench) == LOADERS + COPIES + READS * (not empty)
    assert bench.verdict.sentence


def test_a_batch_size_that_the_stores_own_does_not_fit_leaves_out_its_batches(tmp_path):
    store = write_store(tmp_path / "store", random_arrays(24, x=("u1", (9,))), 4)
    with_batches = [2, 4, 8, 12]
    for size in (2, 3, 4, 5, 6, 8, 12):
        bench = run_bench(store, Settings(size, rounds=1, samples=24))
        assert ("ChunkDataLoader, batch" in names(bench)) == (size in with_batches)


@pytest.mark.parametrize("read", READS)
def test_each_way_to_read_reads_every_file_whole_in_pieces_and_names_one_that_it_cannot(
    tmp_path, read, monkeypatch
):
    store = write_store(tmp_path / "store", random_arrays(12, x=("u1", (2**15,)), y=("f4", (3,))), 2)
    monkeypatch.setattr("mmapload.bench.ceilings.MOST_AT_ONCE", 2**16 - 1)  # so that a file is two pieces
    files = chunk_files(store, store.layout.chunks)
    assert len(files) == 12
    (contender,) = [each for each in reading(files, 12, 1) if each.name == read]
    assert contender.prepare(0)() > 0
    path = files[5][2]
    os.truncate(path, 3)
    with pytest.raises(ChunkError, match=path):
        contender.prepare(1)()
    os.remove(path)
    with pytest.raises(ChunkError, match=path):
        contender.prepare(2)()
    assert THREADS == (1, 2, 4)


def test_other_samples_than_each_once_are_an_error(tmp_path):
    store = write_store(tmp_path / "store", random_arrays(8, x=("u1", (9,))), 4)
    part = Part(store, 8, 4, False, 10**9)
    buffers = fixed_buffers(part)
    batch = {"x": torch.zeros(4, 9, dtype=torch.uint8), "index": torch.arange(4)}
    later = batch | {"index": torch.arange(4, 8)}
    assert deliver([batch, later], part, buffers) > 0
    assert deliver([later, batch], part, buffers) > 0
    for wrong in ([batch], [batch, batch], [batch, later, batch], []):
        with pytest.raises(MmaploadError, match="not each of the first 8 once"):
            deliver(wrong, part, buffers)


# the source


def test_the_files_of_shuffled_renamed_and_filled_samples_are_found_by_name_and_bits(tmp_path):
    source = tmp_path / "npz"
    (source / "sub").mkdir(parents=True)
    for number in range(9):
        arrays = {"a": np.full(3, number, ">i4"), "b": np.float32([-0.0, np.nan, number])}
        if number % 2:
            del arrays["b"]
        np.savez(source / "sub" / f"{number}.npz", left_out=np.array([None]), **arrays)
    store = mmapload.preprocess(
        source, tmp_path / "store", 2, shuffle=3, fields={"a": "x", "b": "b"}, fill={"b": 7}
    )
    arrays = match(store, str(source))
    assert arrays.keys == {"x": "a", "b": "b"}
    assert arrays.stand_ins["b"].tolist() in ([7, 7, 7], [0, 0, 0])
    bench = run_bench(store, Settings(2, rounds=1, samples=9, source=str(source)))
    assert set(SOURCES) < set(names(bench))


def change_content(source: Path) -> None:
    np.savez(source / "s0.npz", x=np.zeros((3, 5), np.uint8), y=np.float32(0))


def change_sign_of_zero(source: Path) -> None:
    with np.load(source / "s0.npz") as file:
        x = file["x"]
    np.savez(source / "s0.npz", x=x, y=np.float32(-0.0))


def change_dtype(source: Path) -> None:
    with np.load(source / "s39.npz") as file:
        x = file["x"]
    np.savez(source / "s39.npz", x=x.astype(np.int16), y=np.float32(39))


def drop_field(source: Path) -> None:
    np.savez(source / "s0.npz", y=np.float32(0))


@pytest.mark.parametrize("change", [change_content, change_sign_of_zero, change_dtype, drop_field])
def test_a_source_whose_bits_differ_is_refused_and_named(tmp_path, change: Callable[[Path], None]):
    store = npz_store(tmp_path)
    source = tmp_path / "npz"
    match(store, str(source))
    change(source)
    with pytest.raises(SourceError, match=r"s(0|39)\.npz.*is not what .*store was made from"):
        match(store, str(source))


def test_a_source_without_the_files_or_with_broken_ones_is_refused(tmp_path):
    store = npz_store(tmp_path)
    with pytest.raises(SourceError, match="no such file, of which sample 0 was made"):
        match(store, str(tmp_path))
    (tmp_path / "npz" / "s10.npz").write_bytes(b"PK no zip")
    with pytest.raises(SourceError, match=r"s10\.npz: not a zip file"):
        match(store, str(tmp_path / "npz"))


@pytest.mark.parametrize("arrays", [None, {"x": np.zeros((3, 6), np.uint8), "y": np.float32(1)}, {"z": 1}])
def test_a_file_that_breaks_between_those_compared_is_an_error_of_the_source(tmp_path, arrays):
    store = npz_store(tmp_path)
    if arrays is None:
        (tmp_path / "npz" / "s1.npz").write_bytes(b"PK no zip")
    else:
        np.savez(tmp_path / "npz" / "s1.npz", **arrays)
    with pytest.raises(SourceError, match=r"npz/s1\.npz"):
        run_bench(store, Settings(4, rounds=1, samples=40, source=str(tmp_path / "npz")))


def test_a_store_without_names_cannot_be_compared_with_files(tmp_path):
    store = write_store(tmp_path / "store", random_arrays(4, x=("u1", (9,))), 2)
    with pytest.raises(SourceError, match="keeps no names"):
        match(store, str(tmp_path))


def test_the_store_is_left_as_it_was(tmp_path):
    store = npz_store(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run_bench(store, Settings(4, rounds=1, samples=40, source=str(tmp_path / "npz")))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert open_store(store.path) == store


@pytest.mark.parametrize(
    "sample",
    [
        lambda i: {"words": np.zeros(i, "f4")},
        lambda i: {"text": "a" * i, "at": np.datetime64(i, "D"), "half": torch.ones(3, dtype=torch.bfloat16)},
    ],
    ids=["ragged", "noted"],
)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_fields_that_are_ragged_or_come_as_other_things_than_tensors_are_measured(tmp_path, sample, codec):
    samples = [sample(i) for i in range(1, 14)]
    store = mmapload.preprocess(samples, tmp_path / "store", 4, codec=codec, ragged="auto", chunk_bytes=32)
    bench = run_bench(store, Settings(4, rounds=1, samples=13))
    assert names(bench)[: len(LOADERS)] == LOADERS
    assert bench.verdict.sentence


def test_a_field_that_numpy_has_no_type_for_is_not_sought_in_files(tmp_path):
    store = mmapload.preprocess([{"at": np.datetime64(0, "s")}], tmp_path / "store", 1)
    with pytest.raises(MmaploadError, match=r"field 'at' .*is datetime64\[s\].*leave out --source"):
        match(store, str(tmp_path))
