"""The user's whole case, as real processes: make the samples, preprocess them, train from either loader."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import mmapload
from tests.test_documents import said
from tests.warm_python import run_warm, run_warm_ranks

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "vimeo_flow.py"

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vimeo_flow", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example: Any = load_example()


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(*command: str) -> str:
    return said(run_warm(*command, cwd=ROOT, env=ENVIRONMENT))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set that the example makes by default, and the stores, by the commands that it prints."""
    folder = tmp_path_factory.mktemp("vimeo") / "data"
    told = run(str(SCRIPT), "--make-data", str(folder)).splitlines()
    assert [line.split()[0] for line in told] == ["mmapload", "mmapload", "python"]
    for line in told[:2]:
        run("-m", *shlex.split(line), "--quiet")
    return folder


def test_what_it_prints_can_be_typed_where_it_was_started_and_a_second_set_is_refused(tmp_path: Path) -> None:
    command = [os.path.relpath(SCRIPT, tmp_path), "--make-data", "my da'ta", "--train", "2"]
    command += ["--validation", "1"]
    first, second, third = map(shlex.split, said(run_warm(*command, cwd=tmp_path)).splitlines())
    assert first == ["mmapload", "preprocess", "my da'ta/train", "my da'ta/train.mml", "--batch-size", "8"]
    assert second[2:4] == ["my da'ta/validation", "my da'ta/validation.mml"]
    assert third[0] == "python"
    assert third[2] == "my da'ta"
    assert (tmp_path / third[1]).samefile(SCRIPT)
    again = run_warm(*command, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr == "my da'ta/train is there already: give another folder, or move it away\n"


def test_a_folder_without_npz_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no .npz files in {tmp_path}/train"):
        example.NpzDataset(tmp_path / "train", None)


class Report(NamedTuple):
    """What a training run printed: counts and losses of its epochs, and of the validation at the end."""

    samples: list[int]
    losses: list[float]
    validated: int
    validation_losses: tuple[float, float]


def train(data: Path, *options: str, ranks: int = 1) -> Report:
    command = [str(SCRIPT), str(data), *options]
    if ranks == 1:
        out = run(*command)
    else:
        out = "".join(map(said, run_warm_ranks(ranks, *command, cwd=ROOT, env=ENVIRONMENT)))
    epochs = re.findall(r"^epoch \d: (\d+) samples, loss ([\d.]+)", out, re.MULTILINE)
    validation = re.findall(r"^validation: (\d+) samples, loss ([\d.]+) to ([\d.]+)$", out, re.MULTILINE)
    assert len(validation) == 1, out
    count, was, now = validation[0]
    report = Report(
        [int(samples) for samples, _ in epochs],
        [float(loss) for _, loss in epochs],
        int(count),
        (float(was), float(now)),
    )
    assert report.losses[1] < report.losses[0]
    assert report.validation_losses[1] < report.validation_losses[0]
    return report


@needs_gloo
def test_one_process_learns_from_npz_files(data: Path) -> None:
    report = train(data, "--loader", "npz")
    assert report.samples == [96, 96]
    assert report.validated == 21


@needs_gloo
def test_one_process_learns_from_the_store(data: Path) -> None:
    report = train(data, "--loader", "mmapload")
    assert report.samples == [96, 96]
    assert report.validated == 21


@needs_gloo
def test_two_ranks_with_batches_transformed_do_what_one_does_with_samples_transformed_in_workers(
    data: Path,
) -> None:
    one = train(data, "--transform", "sample", "--workers", "2", "--batch-size", "16")
    two = train(data, "--transform", "batch", "--batch-size", "8", ranks=2)
    assert one.samples == two.samples == [96, 96]
    assert one.validated == two.validated == 21
    # The same samples, cut and flipped alike, in the same global batches: only sums differ, in their order.
    assert two.losses == pytest.approx(one.losses, rel=1e-3)
    assert two.validation_losses == pytest.approx(one.validation_losses, rel=1e-3)


@pytest.mark.parametrize(
    ("samples", "fault"),
    [
        ([0, 1, 3], "1 are missing, 0 came more than once"),
        ([0, 1, 2, 2, 3], "0 are missing, 1 came more than once"),
    ],
)
def test_a_missing_or_repeated_sample_is_found(samples: list[int], fault: str) -> None:
    example.check_each_once("training", [0, 1, 2, 3], 4)
    with pytest.raises(SystemExit, match=fault) as ended:
        example.check_each_once("training", samples, 4)
    assert isinstance(ended.value.code, str)  # printed, and the status is 1


@pytest.mark.parametrize("losses", [[1.0, 1.0], [1.0, 0.5, 1.5], [1.0, float("nan")]])
def test_a_loss_that_does_not_go_down_is_found(losses: list[float]) -> None:
    example.check_went_down("training", [1.0, 1.5, 0.5])
    with pytest.raises(SystemExit, match="the loss did not go down") as ended:
        example.check_went_down("training", losses)
    assert isinstance(ended.value.code, str)


def test_the_stores_hold_what_the_npz_dataset_serves_with_zeros_for_the_missing_flow(data: Path) -> None:
    for part, count in (("train", 96), ("validation", 21)):
        files = example.NpzDataset(data / part, None)
        store = mmapload.ChunkDataset(f"{data}/{part}.mml", with_index=True)
        assert len(files) == len(store) == count
        for one, other in zip(files, store, strict=True):
            assert one.keys() == other.keys()
            assert one["i0i1gt"].shape == (9, 32, 48)
            assert one["i0i1gt"].dtype == torch.uint8
            assert one["ft0ft1"].shape == (4, 32, 48)
            assert one["ft0ft1"].dtype == torch.float32
            assert all(torch.equal(one[name], other[name]) for name in one)
            assert bool(one["ft0ft1"].any()) == (part == "train")
    with np.load(next((data / "validation").glob("*.npz"))) as arrays:
        assert list(arrays) == ["i0i1gt"]


def made_batch(count: int, height: int, width: int) -> dict[str, torch.Tensor]:
    samples = [example.make_sample(number, height, width) for number in range(count)]
    batch = {name: torch.from_numpy(np.stack([each[name] for each in samples])) for name in samples[0]}
    return batch | {"index": torch.arange(count) * 7}


@given(
    crop=st.tuples(st.integers(1, 16), st.integers(1, 24)),
    count=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 1000),
)
def test_a_batch_is_transformed_as_its_samples_are(
    crop: tuple[int, int], count: int, seed: int, epoch: int
) -> None:
    transform = example.CropAndFlip(*crop, seed)
    transform.epoch.fill_(epoch)
    batch = made_batch(count, 16, 24)
    together = transform.of_batch(batch)
    apart = [transform({name: each[i] for name, each in batch.items()}) for i in range(count)]
    for name, each in torch.utils.data.default_collate(apart).items():
        assert torch.equal(together[name], each)
        assert together[name].dtype == batch[name].dtype
    assert together["i0i1gt"].shape == (count, 9, *crop)
    assert together["ft0ft1"].shape == (count, 4, *crop)


def test_the_draw_follows_from_seed_epoch_and_sample_and_covers_all_that_it_can() -> None:
    transform = example.CropAndFlip(15, 22, 0)
    draws = [transform.draw(index, (9, 16, 24)) for index in range(300)]
    assert len(set(draws)) == 2 * 3 * 2 * 2
    assert draws == [transform.draw(index, (4, 16, 24)) for index in range(300)]
    transform.epoch.fill_(1)
    assert draws != [transform.draw(index, (9, 16, 24)) for index in range(300)]
    other = example.CropAndFlip(15, 22, 1)
    assert draws != [other.draw(index, (9, 16, 24)) for index in range(300)]


def test_frames_are_warped_to_the_true_one_by_the_flow_before_and_after_crop_and_flip() -> None:
    batch = made_batch(32, 32, 48)
    transform = example.CropAndFlip(24, 32, 0)
    draws = {transform.draw(int(index), (32, 48))[2:] for index in batch["index"]}
    assert len(draws) == 4  # all flips
    for each in (batch, transform.of_batch(batch)):
        frame0, frame1, truth, flow, grid = example.network_inputs(each)
        inner = (..., slice(3, -3), slice(3, -3))  # what left the picture cannot be fetched
        for frame, to in ((frame0, flow[:, :2]), (frame1, flow[:, 2:])):
            error = (example.warp(frame, to, grid) - truth)[inner].abs().mean(dim=(1, 2, 3))
            wrong = (example.warp(frame, -to, grid) - truth)[inner].abs().mean(dim=(1, 2, 3))
            assert error.max() < 0.015
            assert (error < wrong / 3).all()


def test_the_network_is_given_floats_in_the_layout_that_it_and_grid_sample_want() -> None:
    inputs = example.network_inputs(made_batch(5, 16, 24))
    assert [tuple(each.shape) for each in inputs] == [(5, 3, 16, 24)] * 3 + [(5, 4, 16, 24), (5, 16, 24, 2)]
    assert {each.dtype for each in inputs} == {torch.float32}
    for frame in inputs[:3]:
        assert 0 <= frame.min() < frame.max() <= 1
    grid = inputs[4]
    same = torch.nn.functional.grid_sample(inputs[0], grid, align_corners=True)
    assert torch.allclose(same, inputs[0], atol=1e-5)


def diff_of_the_readme() -> tuple[list[str], list[str]]:
    blocks = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    lines = blocks[0].splitlines()
    assert all(line[0] in "+-" for line in lines)
    return [line[1:] for line in lines if line[0] == "-"], [line[1:] for line in lines if line[0] == "+"]


def test_the_diff_in_the_readme_is_what_parts_the_two_loaders_of_the_example() -> None:
    before, after = diff_of_the_readme()
    assert len(before) == len(after) == 3
    imported, *made = after
    assert imported in SCRIPT.read_text().splitlines()

    def body(function: Any) -> list[str]:
        signature, _docstring, *lines = inspect.getsource(function).splitlines()
        assert "(folder: Path, batch: int, workers: int, transform: Transform, *, shuffle: bool)" in signature
        return lines

    assert body(example.npz_loader) == before
    assert body(example.mmapload_loader) == made
