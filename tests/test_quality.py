"""Shuffle quality: measured figures against closed forms, and closed forms against all permutations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mmapload
from mmapload.order import Geometry, auto_window
from mmapload.quality.counts import chosen_steps, count_order, mates_apart
from mmapload.quality.expected import Batching, expected_pairs, pairs_of, short_slot, uniform_rate
from mmapload.quality.report import halving_window, order_of

SEED = 5


@st.composite
def batchings(draw):
    """Stores of any shape, primes and short last chunks among them, and batches that fit their mode."""
    unit = draw(st.integers(1, 13))
    length = unit * draw(st.integers(1, 8))
    samples = draw(st.integers(40, 2500))
    mode = draw(st.sampled_from(["window", "window", "window", "batch", "full", "sequential"]))
    if mode == "batch":
        factor = draw(st.integers(1, 4))
        divisors = [each for each in range(1, unit + 1) if unit % each == 0]
        batch = draw(st.sampled_from([unit * factor, *divisors]))
        return Batching(Geometry(samples, length, unit), batch, mode)
    lanes = draw(st.integers(1, min(3, samples))) if mode == "window" else 1
    batch = lanes * draw(st.integers(2, 40))
    window = lanes * draw(st.integers(1, 300)) if mode == "window" else None
    return Batching(Geometry(samples, length, unit), batch, mode, window, lanes)


def counted_and_expected(batching, most_samples):
    """Count epochs until enough pairs of one chunk have been seen, or the samples are used up."""
    steps = np.arange(batching.steps)
    same = expected = 0.0
    epochs = 0
    while expected < 10_000 and epochs < 80 and (epochs + 1) * batching.geometry.samples <= most_samples:
        same += count_order(order_of(batching, SEED, epochs), steps).same_chunk
        expected += expected_pairs(batching, steps, short_slot(batching.geometry, SEED, epochs))
        epochs += 1
    return same, expected, epochs


@settings(max_examples=10, derandomize=True, deadline=None)
@given(batchings())
@example(Batching(Geometry(1009, 35, 7), 13, "window", 97, 1))
@example(Batching(Geometry(1009, 35, 7), 26, "window", 194, 2))
@example(Batching(Geometry(1000, 40, 8), 40, "window", 11, 1))  # windows smaller than chunks and batches
@example(Batching(Geometry(1003, 40, 8), 32, "batch"))
@example(Batching(Geometry(1003, 40, 8), 4, "batch"))
@example(Batching(Geometry(997, 40, 8), 61, "full"))
def test_pairs_of_one_chunk_in_a_batch_are_within_five_percent_of_the_closed_form(batching):
    same, expected, epochs = counted_and_expected(batching, 250_000)
    # Pairs come in lumps: a whole unit or chunk at once in mode "batch". Five standard deviations of too few.
    lump = batching.geometry.chunk_length if batching.mode == "batch" else 4
    noise = 5 * math.sqrt(lump * expected)
    assert abs(same - expected) <= max(0.05 * expected, 0 if expected >= 10_000 else noise), (
        epochs,
        expected,
    )


def test_the_closed_form_is_the_mean_over_all_permutations_of_a_window():
    """Two windows of 4 over chunks of 3, 3 and 2, batches of 3: every border cuts something."""
    geometry = Geometry(8, 3, 3)
    batching = Batching(geometry, 3, "window", 4)
    for short in range(3):
        lengths = [3, 3]
        lengths.insert(short, 2)
        chunks = np.repeat(np.arange(3), lengths)
        total = 0
        for first, second in itertools.product(itertools.permutations(range(4)), repeat=2):
            order = chunks[[*first, *(4 + place for place in second)]]
            total += sum(
                a == b for low in (0, 3, 6) for a, b in itertools.combinations(order[low : low + 3], 2)
            )
        assert expected_pairs(batching, np.arange(3), short) == pytest.approx(total / 24**2)


@pytest.mark.parametrize(("batch", "short_unit"), [(4, 0), (4, 1), (2, 1), (6, 1), (6, 0)])
def test_the_closed_form_is_the_mean_over_all_permutations_of_units(batch, short_unit):
    """Units of 2, chunks of 4, the last of them short."""
    samples = 10 + short_unit
    batching = Batching(Geometry(samples, 4, 2), batch, "batch")
    total = 0
    permutations = list(itertools.permutations(range(5)))
    for units in permutations:
        order = [unit * 2 + row for unit in units for row in (0, 1)] + list(range(10, samples))
        chunks = [sample // 4 for sample in order]
        total += sum(
            a == b
            for low in range(0, samples, batch)
            for a, b in itertools.combinations(chunks[low : low + batch], 2)
        )
    expected = expected_pairs(batching, np.arange(batching.steps), 0)
    assert expected == pytest.approx(total / len(permutations))


@pytest.mark.parametrize(("length", "window", "batch"), [(8, 64, 16), (32, 1024, 32), (5, 35, 7)])
def test_where_windows_hold_whole_chunks_and_batches_the_closed_form_is_c_minus_1_over_w_minus_1(
    length, window, batch
):
    batching = Batching(Geometry(window * 6, length, length), batch, "window", window)
    steps = np.arange(batching.steps)
    rate = expected_pairs(batching, steps, 0) / pairs_of(batching, steps)
    assert rate == pytest.approx((length - 1) / (window - 1))


@given(st.integers(2, 300), st.integers(1, 60), st.integers(1, 50), st.integers(0, 2**20))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_a_window_of_the_whole_store_is_a_full_shuffle_by_the_closed_form(samples, length, batch, place):
    geometry = Geometry(samples, length, length)
    batching = Batching(geometry, batch, "window", samples)
    steps = np.arange(batching.steps)
    expected = expected_pairs(batching, steps, place % geometry.chunks)
    assert expected == pytest.approx(pairs_of(batching, steps) * uniform_rate(geometry))


def test_the_closed_form_of_chosen_steps_adds_up_to_that_of_all():
    for batching in (
        Batching(Geometry(1009, 35, 7), 26, "window", 194, 2),
        Batching(Geometry(1009, 35, 7), 28, "batch"),
        Batching(Geometry(1009, 35, 7), 28, "sequential"),
    ):
        steps = np.arange(batching.steps)
        each = [expected_pairs(batching, steps[step : step + 1], 4) for step in steps]
        assert sum(each) == pytest.approx(expected_pairs(batching, steps, 4))


def test_distances_are_those_of_the_definition():
    order = order_of(Batching(Geometry(23, 4, 2), 6, "window", 9), 1, 0)
    served = np.concatenate([order.step_batch(step) for step in range(order.steps)])
    counts = count_order(order, np.arange(order.steps))
    assert counts.samples == 23
    assert counts.moved == sum(abs(position - sample) for position, sample in enumerate(served.tolist()))
    assert counts.moved_uniform / 23 == pytest.approx((23**2 - 1) / (3 * 23))
    position = {sample: place for place, sample in enumerate(served.tolist())}
    pairs = [(a, b) for a, b in itertools.combinations(range(23), 2) if a // 4 == b // 4]
    assert mates_apart(order) == pytest.approx(np.mean([abs(position[a] - position[b]) for a, b in pairs]))


def test_chosen_steps_rise_are_spread_evenly_and_repeat_none():
    for steps, most in [(1, 1), (7, 7), (2001, 2000), (3000, 2000), (10**6, 2000), (10**12, 500)]:
        chosen = chosen_steps(steps, most)
        assert 0 < len(chosen) <= most
        assert (np.diff(chosen) > 0).all()
        assert chosen[0] >= 0
        assert chosen[-1] < steps
        assert np.abs(chosen / steps - np.linspace(0, 1, len(chosen))).max() < 2 / most + 0.2 * (
            steps < 3 * most
        )


@pytest.mark.parametrize(
    ("mode", "window", "batch"),
    [("window", 64, 16), ("window", 7, 16), ("batch", None, 16), ("batch", None, 8)],
)
def test_the_halving_window_is_the_least_of_whole_chunks_that_halves_the_closed_form(mode, window, batch):
    geometry = Geometry(4003, 32, 16)
    now = Batching(geometry, batch, mode, window)
    found = halving_window(now, SEED)
    steps = np.arange(now.steps)
    short = short_slot(geometry, SEED, 0)

    def rate(window):
        return expected_pairs(Batching(geometry, batch, "window", window), steps, short)

    assert found is not None
    assert found % 32 == 0
    half = expected_pairs(now, steps, short) / 2
    assert rate(found) <= half < rate(found - 32)


def test_no_window_halves_what_is_a_full_shuffle_already_or_has_no_pairs():
    geometry = Geometry(400, 32, 16)
    assert halving_window(Batching(geometry, 16, "full"), SEED) is None
    assert halving_window(Batching(geometry, 16, "window", 400), SEED) is None
    assert halving_window(Batching(geometry, 1, "window", 64), SEED) is None
    assert halving_window(Batching(Geometry(400, 1, 1), 16, "window", 64), SEED) is None


# Over stores.


def write(path, labels, batch_size=16, chunk_length=32, **options):
    samples = [
        {"x": np.full(chunk_length, number % 251, np.uint8), "y": y} for number, y in enumerate(labels)
    ]
    return mmapload.preprocess(samples, path, batch_size, chunk_bytes=chunk_length**2, **options)


@pytest.fixture(scope="module")
def in_class_order(tmp_path_factory):
    return write(tmp_path_factory.mktemp("ordered") / "store", np.arange(3200) // 320)


@pytest.fixture(scope="module")
def written_shuffled(tmp_path_factory):
    return write(tmp_path_factory.mktemp("shuffled") / "store", np.arange(3200) // 320, shuffle=3)


def test_labels_of_a_store_written_with_shuffle_are_within_two_percent_of_a_full_shuffle(written_shuffled):
    quality = mmapload.shuffle_quality(written_shuffled, label="y")
    assert quality.batching.window == auto_window(3200, 32) == 1024
    assert quality.written_shuffled
    assert abs(quality.label_entropy.ratio - 1) < 0.02
    assert "nothing needs to change" in quality.advice
    in_batches = mmapload.shuffle_quality(written_shuffled, shuffle="batch", label="y")
    assert abs(in_batches.label_entropy.ratio - 1) < 0.02
    assert in_batches.same_chunk.found == in_batches.same_chunk.expected == 1


def test_labels_of_a_store_in_class_order_are_reported_as_what_they_are(in_class_order):
    """Mode "batch" serves one class a batch; a window of one chunk too; a window of four chunks a few."""
    in_batches = mmapload.shuffle_quality(in_class_order, shuffle="batch", label="y")
    assert in_batches.label_entropy.found == 0
    assert not in_batches.written_shuffled
    assert "preprocess with --shuffle" in in_batches.advice
    narrow = mmapload.shuffle_quality(in_class_order, window=32, label="y")
    assert narrow.label_entropy.found == 0
    wider = mmapload.shuffle_quality(in_class_order, window=128, label="y")
    assert 0 < wider.label_entropy.ratio < 0.75
    # 256 would do but for the last window, which is half as long.
    assert wider.advice == (
        "window 128 over a store written in order mixes samples within 4 % of the stored data: the labels "
        f"of a batch have {100 * wider.label_entropy.ratio:.0f} % of the entropy that a full shuffle gives "
        "them; preprocess with --shuffle, or widen the window to 288, which halves how often samples of "
        "one chunk meet"
    )


def test_a_full_shuffle_is_one_in_every_figure(in_class_order):
    quality = mmapload.shuffle_quality(in_class_order, shuffle="full", label="y", epochs=8)
    assert quality.displacement.ratio == pytest.approx(1, abs=0.02)
    assert quality.mates_apart.ratio == pytest.approx(1, abs=0.02)
    assert quality.same_chunk.expected == pytest.approx(quality.same_chunk.uniform)
    assert quality.same_chunk.ratio == pytest.approx(1, abs=0.05)
    assert quality.label_entropy.ratio == 1
    assert quality.halving_window is None
    assert "nothing mixes samples better" in quality.advice


def test_windows_move_samples_across_the_store_and_leave_chunk_mates_close(in_class_order):
    quality = mmapload.shuffle_quality(in_class_order, window=64, epochs=8)
    assert quality.displacement.ratio == pytest.approx(1, abs=0.1)
    assert quality.mates_apart.found == pytest.approx(65 / 3, rel=0.05)
    assert quality.mates_apart.uniform == pytest.approx(3201 / 3)
    assert quality.same_chunk.found == pytest.approx(31 / 63, rel=0.05)
    in_order = mmapload.shuffle_quality(in_class_order, shuffle=False)
    assert in_order.displacement.found == 0
    assert in_order.same_chunk.found == in_order.same_chunk.expected == 1


def test_ranks_together_have_one_batch(in_class_order):
    quality = mmapload.shuffle_quality(in_class_order, batch_size=8, world_size=4)
    assert quality.batching.global_batch == 32
    assert quality.batches == quality.batches_in_all == 4 * 100
    assert not quality.sampled


def test_a_report_is_a_pure_function_of_its_arguments(in_class_order):
    arguments = {"window": 100, "label": "y", "seed": 7}
    assert mmapload.shuffle_quality(in_class_order, **arguments) == mmapload.shuffle_quality(
        in_class_order.path, **arguments
    )


def test_one_sample_and_batches_of_one_are_no_error(tmp_path):
    store = write(tmp_path / "store", [3])
    quality = mmapload.shuffle_quality(store, label="y")
    assert quality.label_entropy.found == quality.label_entropy.uniform == 0
    assert "a batch has one label, as in a full shuffle" in quality.advice
    alone = mmapload.shuffle_quality(write(tmp_path / "more", range(50)), batch_size=1)
    assert alone.same_chunk.found == alone.same_chunk.expected == 0
    assert "nothing needs to change" in alone.advice


def test_large_stores_are_sampled_and_the_label_files_that_are_read_are_bounded(tmp_path, monkeypatch):
    """100 million samples by their number alone; 8,000 in files for what labels need."""
    geometry = Geometry(10**8, 320, 32)
    batching = Batching(geometry, 256, "window", auto_window(10**8, 320))
    steps = chosen_steps(batching.steps, 500)
    counts = count_order(order_of(batching, SEED, 0), steps)
    assert counts.samples == 500 * 256
    expected = expected_pairs(batching, steps, short_slot(geometry, SEED, 0))
    assert counts.same_chunk == pytest.approx(expected, rel=0.05)
    assert counts.moved == pytest.approx(counts.moved_uniform, rel=0.02)

    store = write(tmp_path / "store", np.arange(3200) // 320)
    monkeypatch.setattr("mmapload.quality.report._WHOLE", 8000)
    monkeypatch.setattr("mmapload.quality.labels._MOST_FILES", 80)
    real = type(store).read_chunk
    read = []
    monkeypatch.setattr(type(store), "read_chunk", lambda *told: read.append(told[2]) or real(*told))
    quality = mmapload.shuffle_quality(store, window=64, label="y")
    assert quality.sampled
    assert 400 < quality.batches <= 500 < quality.batches_in_all == 800
    assert quality.mates_apart is None
    assert quality.label_batches == 4  # one an epoch, of 16 chunks at most each
    assert len(read) == len(set(read)) <= 2 * 80
    assert quality.same_chunk.found == pytest.approx(quality.same_chunk.expected, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"label": "z"}, "has no field 'z' to take as label, only x, y"),
        ({"label": "x"}, r"field 'x' has shape \(32,\): name a field of scalars"),
        ({"shuffle": "chunks"}, "shuffle is True, False, 'window', 'batch' or 'full', not 'chunks'"),
        ({"shuffle": "batch", "window": 64}, "window and lanes belong to shuffle='window'"),
        ({"window": "wide"}, "window is a number of samples or 'auto', not 'wide'"),
        ({"window": 0}, "window is an integer from 1 up, not 0"),
        ({"epochs": 0}, "epochs is an integer from 1 up, not 0"),
        ({"batch_size": True}, "batch_size is an integer from 1 up, not True"),
        ({"shuffle": "batch", "batch_size": 24}, "in mode 'batch' the global batch must be a multiple"),
        ({"lanes": 3}, "3 lanes do not divide a global batch of 16"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(in_class_order, arguments, told):
    with pytest.raises(ValueError, match=told):
        mmapload.shuffle_quality(in_class_order, **arguments)


def test_a_field_of_too_many_values_is_no_label(tmp_path):
    store = write(tmp_path / "store", np.linspace(0, 1, 10_001), chunk_length=1024)
    with pytest.raises(ValueError, match="field 'y' has 10,001 different values in 10,001 samples, too many"):
        mmapload.shuffle_quality(store, label="y")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_labels_are_of_any_real_type_and_one_value_in_any_shape(tmp_path, dtype):
    store = write(tmp_path / "store", (np.arange(640) // 320).astype(dtype).reshape(-1, 1))
    quality = mmapload.shuffle_quality(store, shuffle="full", label="y")
    assert quality.label_values == 2
    assert quality.label_entropy.found > 0.9
