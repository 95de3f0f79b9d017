"""Train a network that draws the frame between two frames, from .npz files or, three lines later, a store.

Every .npz file is a sample. `i0i1gt`, uint8 (9, H, W), is frame 0, frame 1 and the true frame between them,
RGB each. `ft0ft1`, float32 (4, H, W), is the flow in pixels from the middle to frame 0 and to frame 1, x and
y each, that a larger network found for the training set.

The validation set has no flow, and zeros stand in for it: `--loader npz` makes them in `__getitem__`; the
store has them from `--fill` at preprocessing. So they are said in one place, and loading does nothing for
them; they cost room on the disk, 1.8 MB for a sample of 256x448 (next to nothing with `--codec zstd`).

The script ends with 1 unless each sample, for training and for validation, comes exactly once an epoch over
all ranks together, and the loss goes down. For training, 96 samples fill the batches of 8 on one rank and on
two, so there is nothing to pad. The 21 for validation do not: `remainder="keep"` shares out the last batch in
unequal parts, where DistributedSampler serves one sample twice.

Examples
--------
python examples/vimeo_flow.py --make-data data
mmapload preprocess data/train data/train.mml --batch-size 8
mmapload preprocess data/validation data/validation.mml --batch-size 8 --fill ft0ft1=0:float32:4x32x48
python examples/vimeo_flow.py data
python examples/vimeo_flow.py data --loader npz
python examples/vimeo_flow.py data --transform sample --workers 2
torchrun --standalone --nproc-per-node 2 examples/vimeo_flow.py data --transform batch
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from mmapload import ChunkDataLoader, ChunkDataset

Sample = dict[str, torch.Tensor]
Transform = Callable[[Sample], Sample] | None
GPU = torch.cuda.is_available()


class NpzDataset(Dataset[Sample]):
    """The samples of a folder as they are read without mmapload, with zeros where there is no flow."""

    def __init__(self, folder: Path, transform: Transform) -> None:
        self.paths = sorted(folder.glob("*.npz"))
        if not self.paths:
            raise SystemExit(f"no .npz files in {folder}")
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        with np.load(self.paths[index]) as arrays:
            frames = arrays["i0i1gt"]
            flow = arrays["ft0ft1"] if "ft0ft1" in arrays else np.zeros((4, *frames.shape[1:]), np.float32)
        sample = {
            "i0i1gt": torch.from_numpy(frames),
            "ft0ft1": torch.from_numpy(flow),
            "index": torch.tensor(index),
        }
        return sample if self.transform is None else self.transform(sample)


# Before and after: with the import above, these are the lines that change. All others serve both.
def npz_loader(folder: Path, batch: int, workers: int, transform: Transform, *, shuffle: bool) -> Any:
    """Load .npz files."""
    dataset = NpzDataset(folder, transform)
    sampler = DistributedSampler(dataset, shuffle=shuffle)
    return DataLoader(dataset, batch, sampler=sampler, num_workers=workers, pin_memory=GPU)


def mmapload_loader(folder: Path, batch: int, workers: int, transform: Transform, *, shuffle: bool) -> Any:
    """Load the store beside them; `remainder="keep"` is every sample once, on any number of ranks."""
    dataset = ChunkDataset(f"{folder}.mml", transform=transform, with_index=True)
    return ChunkDataLoader(dataset, batch, shuffle, num_workers=workers, pin_memory=GPU, remainder="keep")


LOADERS = {"npz": npz_loader, "mmapload": mmapload_loader}


class Draw(NamedTuple):
    """What chance decides for a sample."""

    top: int
    left: int
    mirrored: bool
    upended: bool


class CropAndFlip:
    """Cut the same random part out of frames and flow, and flip both by chance, sideways and upside down.

    Called with a sample it is a transform for datasets, in whatever process. `of_batch` does the same to a
    whole batch, on the device that it is on; the training loop calls it, since loaders know no transforms of
    batches. The draw follows from seed, epoch and the sample's number alone, so it does not matter which of
    the two is used, nor in which worker or on which rank.
    """

    def __init__(self, height: int, width: int, seed: int) -> None:
        self.size = height, width
        self.seed = seed
        # In shared memory, since workers may have been started for an earlier epoch.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def draw(self, index: int, shape: tuple[int, ...]) -> Draw:
        """Return the draw for sample `index`, whose frames have this shape, (..., H, W)."""
        random = np.random.default_rng((self.seed, int(self.epoch), index))
        top, left = (
            int(random.integers(have - keep + 1)) for have, keep in zip(shape[-2:], self.size, strict=True)
        )
        mirrored, upended = (random.integers(2, size=2) == 1).tolist()
        return Draw(top, left, mirrored, upended)

    def __call__(self, sample: Sample) -> Sample:
        """Transform one sample: fields of (C, H, W), and `index`."""
        frames, flow = sample["i0i1gt"], sample["ft0ft1"]
        draw = self.draw(int(sample["index"]), frames.shape)
        rows = slice(draw.top, draw.top + self.size[0])
        columns = slice(draw.left, draw.left + self.size[1])
        frames, flow = frames[:, rows, columns], flow[:, rows, columns]
        if draw.mirrored:  # what moved to the right moves to the left
            frames, flow = frames.flip(2), flow.flip(2) * torch.tensor([-1.0, 1, -1, 1])[:, None, None]
        if draw.upended:
            frames, flow = frames.flip(1), flow.flip(1) * torch.tensor([1.0, -1, 1, -1])[:, None, None]
        return sample | {"i0i1gt": frames, "ft0ft1": flow}

    def of_batch(self, batch: Sample) -> Sample:
        """Transform a batch: fields of (N, C, H, W), and `index` of (N,)."""
        frames, flow = batch["i0i1gt"], batch["ft0ft1"]
        draws = [self.draw(index, frames.shape) for index in batch["index"].tolist()]
        top, left, mirrored, upended = torch.tensor(draws, device=frames.device).T[:, :, None]
        # Each pixel of a part as a place in the source: sample, channel, row, column.
        down, right = (torch.arange(length, device=frames.device) for length in self.size)
        number = torch.arange(len(draws), device=frames.device)[:, None, None, None]
        rows = (top + torch.where(upended == 1, down.flip(0), down))[:, None, :, None]
        columns = (left + torch.where(mirrored == 1, right.flip(0), right))[:, None, None, :]

        def cut(field: torch.Tensor) -> torch.Tensor:
            channel = torch.arange(field.shape[1], device=field.device)[:, None, None]
            return field[number, channel, rows, columns]

        signs = 1 - 2 * torch.cat((mirrored, upended), dim=1).repeat(1, 2)[:, :, None, None]
        return batch | {"i0i1gt": cut(frames), "ft0ft1": cut(flow) * signs}


def coordinate_grid(height: int, width: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return where each pixel lies, as grid_sample wants it: (H, W, 2), x before y, each from -1 to 1."""
    y, x = (torch.linspace(-1, 1, length, device=device) for length in (height, width))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def warp(frame: torch.Tensor, flow: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Fetch each pixel from where its flow points to: (N, 3, H, W), (N, 2, H, W), (N, H, W, 2)."""
    height, width = frame.shape[-2:]
    scale = 2 / torch.tensor([width - 1, height - 1], device=frame.device)
    points = grid + flow.permute(0, 2, 3, 1) * scale
    return nn.functional.grid_sample(frame, points, padding_mode="border", align_corners=True)


class Interpolation(nn.Module):
    """Estimate both flows, warp the frames by them, blend the two; the data's flow is there to teach."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(8, channels, 5, padding=2),
            nn.PReLU(),
            nn.Conv2d(channels, channels, 3, padding=2, dilation=2),
            nn.PReLU(),
            nn.Conv2d(channels, 8, 3, padding=1),
        )

    def forward(
        self,
        frame0: torch.Tensor,
        frame1: torch.Tensor,
        truth: torch.Tensor,
        flow: torch.Tensor,
        grid: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean error of the frame, in brightness from 0 to 1, and that of the flow, in pixels."""
        seen = torch.cat((frame0, frame1, grid.permute(0, 3, 1, 2)), dim=1)
        estimate, share, rest = self.layers(seen).split((4, 1, 3), dim=1)
        share = share.sigmoid()
        from0, from1 = warp(frame0, estimate[:, :2], grid), warp(frame1, estimate[:, 2:], grid)
        drawn = share * from0 + (1 - share) * from1 + rest
        return (drawn - truth).abs().mean(), (estimate - flow).abs().mean()


def network_inputs(batch: Sample) -> tuple[torch.Tensor, ...]:
    """Make of a batch what the network takes: frames 0 and 1, truth, flow, grid; float32, N first."""
    frames = batch["i0i1gt"].float() / 255
    grid = coordinate_grid(*frames.shape[2:], frames.device).expand(len(frames), -1, -1, -1)
    return *frames.split(3, dim=1), batch["ft0ft1"], grid


class Epoch(NamedTuple):
    """What one pass over a loader came to, on all ranks together."""

    image_loss: float
    flow_loss: float
    samples: list[int]


def run_epoch(
    model: nn.Module,
    loader: Any,
    device: torch.device,
    optimizer: torch.optim.Optimizer | None = None,
    batch_transform: Transform = None,
) -> Epoch:
    """Train where there is an optimizer, else validate; losses are means over samples, not over batches."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    numbers: list[int] = []
    with torch.set_grad_enabled(optimizer is not None):
        for loaded in loader:
            numbers += loaded["index"].tolist()
            arrays = {name: loaded[name].to(device, non_blocking=True) for name in ("i0i1gt", "ft0ft1")}
            batch = loaded | arrays
            if batch_transform is not None:
                batch = batch_transform(batch)
            image_loss, flow_loss = model(*network_inputs(batch))
            if optimizer is not None:
                optimizer.zero_grad()
                (image_loss + 0.01 * flow_loss).backward()
                optimizer.step()
            # Ranks may have batches of different length at the end: sums are exact, means of means are not.
            sums += len(loaded["index"]) * torch.stack(
                (image_loss.detach(), flow_loss.detach(), torch.ones((), device=device))
            )
    dist.all_reduce(sums)
    everyones: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, numbers)
    image, flow, count = sums.tolist()
    return Epoch(image / count, flow / count, sorted(number for each in everyones for number in each))


def check_each_once(what: str, samples: list[int], total: int) -> None:
    """Exit with what is wrong unless the ranks together had every sample exactly once."""
    missing, repeated = total - len(set(samples)), len(samples) - len(set(samples))
    if missing or repeated:
        raise SystemExit(f"{what}: of {total} samples {missing} are missing, {repeated} came more than once")


def check_went_down(what: str, losses: list[float]) -> None:
    """Exit with the losses unless the last is less than the first, or the only one."""
    if len(losses) > 1 and not losses[-1] < losses[0]:
        raise SystemExit(f"{what}: the loss did not go down: {losses}")


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    """Train for some epochs; exit with 1 unless each had every sample once and the losses went down."""
    first = dist.get_rank() == 0
    torch.manual_seed(arguments.seed)  # the weights at the start
    model = nn.parallel.DistributedDataParallel(Interpolation().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    transform = CropAndFlip(*arguments.crop, arguments.seed)
    of_sample = transform if arguments.transform == "sample" else None
    of_batch = transform.of_batch if arguments.transform == "batch" else None

    make_loader = LOADERS[arguments.loader]
    batch, workers = arguments.batch_size, arguments.workers
    train_loader = make_loader(arguments.data / "train", batch, workers, of_sample, shuffle=True)
    validation_loader = make_loader(arguments.data / "validation", batch, workers, None, shuffle=False)

    before = run_epoch(model, validation_loader, device)
    epochs = []
    for epoch in range(arguments.epochs):
        train_loader.sampler.set_epoch(epoch)
        transform.epoch.fill_(epoch)
        epochs.append(run_epoch(model, train_loader, device, optimizer, of_batch))
        check_each_once(f"training, epoch {epoch}", epochs[-1].samples, len(train_loader.dataset))
        if first:
            image_loss, flow_loss, samples = epochs[-1]
            print(f"epoch {epoch}: {len(samples)} samples, loss {image_loss:.5f}, flow {flow_loss:.4f}")
    after = run_epoch(model, validation_loader, device)
    if first:
        count, was, now = len(after.samples), before.image_loss, after.image_loss
        print(f"validation: {count} samples, loss {was:.5f} to {now:.5f}")
    total = len(validation_loader.dataset)
    if arguments.loader == "npz":
        # DistributedSampler repeats samples until every rank has as many, and the loss counts them twice.
        check_each_once("validation", sorted(set(after.samples)), total)
    else:
        check_each_once("validation", after.samples, total)
    check_went_down("validation", [before.image_loss, after.image_loss])
    check_went_down("training", [epoch.image_loss for epoch in epochs])


def make_sample(number: int, height: int, width: int) -> dict[str, np.ndarray]:
    """Return a smooth texture that moves evenly: two frames, the one between them, and the flow that it had.

    The texture is a sum of waves, so it can be drawn at any shift without interpolating.
    """
    random = np.random.default_rng(number)
    motion = random.uniform((1, -1), (5, 1))  # pixels from frame 0 to frame 1, x and y; mostly to the right
    waves = random.normal(0, 0.25, (3, 6, 2))  # radians for each pixel, x and y
    phases = random.uniform(0, 2 * np.pi, (3, 6, 1, 1))
    y, x = np.mgrid[:height, :width]

    def frame(time: float) -> np.ndarray:
        right, down = x - time * motion[0], y - time * motion[1]
        angles = waves[:, :, 0, None, None] * right + waves[:, :, 1, None, None] * down + phases
        return np.rint(127.5 + 20 * np.sin(angles).sum(axis=1)).clip(0, 255).astype(np.uint8)

    flow = np.concatenate((-0.5 * motion, 0.5 * motion)).astype(np.float32)
    return {
        "i0i1gt": np.concatenate((frame(0), frame(1), frame(0.5))),
        "ft0ft1": np.broadcast_to(flow[:, None, None], (4, height, width)),
    }


def make_data(arguments: argparse.Namespace) -> None:
    """Write both sets, and say what comes next."""
    folder = arguments.make_data
    for part in ("train", "validation"):
        if (folder / part).exists():
            raise SystemExit(f"{folder / part} is there already: give another folder, or move it away")
    for part, count, offset in (("train", arguments.train, 0), ("validation", arguments.validation, 1 << 32)):
        (folder / part).mkdir(parents=True)
        for number in range(count):
            sample = make_sample(offset + number, arguments.height, arguments.width)
            if part == "validation":
                del sample["ft0ft1"]
            np.savez(folder / part / f"{number:06}.npz", **sample)
    train, validation = str(folder / "train"), str(folder / "validation")
    size = ["--batch-size", str(arguments.batch_size)]
    fill = ["--fill", f"ft0ft1=0:float32:4x{arguments.height}x{arguments.width}"]
    print(shlex.join(["mmapload", "preprocess", train, f"{train}.mml", *size]))
    print(shlex.join(["mmapload", "preprocess", validation, f"{validation}.mml", *size, *fill]))
    print(shlex.join(["python", sys.argv[0], str(folder)]))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", help="the folder with train, validation and the stores")
    parser.add_argument("--loader", choices=LOADERS, default="mmapload")
    parser.add_argument("--transform", choices=("none", "sample", "batch"), default="none")
    parser.add_argument("--workers", type=int, default=0, help="processes that load, on every rank")
    parser.add_argument("--batch-size", type=int, default=8, help="samples in a batch, on every rank")
    parser.add_argument("--crop", type=int, nargs=2, default=(24, 32), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--make-data", type=Path, metavar="DIR", help="make a small set, and do nothing else")
    parser.add_argument("--train", type=int, default=96, help="samples to make")
    parser.add_argument("--validation", type=int, default=21, help="likewise")
    parser.add_argument("--height", type=int, default=32, help="pixels of the frames to make")
    parser.add_argument("--width", type=int, default=48, help="likewise")
    arguments = parser.parse_args()
    if (arguments.data is None) == (arguments.make_data is None):
        parser.error("give the folder to train on, or --make-data DIR")
    return arguments


def main() -> None:
    """Make data, or train in one process or in those that torchrun has started."""
    arguments = parse()
    if arguments.make_data is not None:
        make_data(arguments)
        return
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # a group of one, so that DistributedSampler and DDP need no exception
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if GPU else torch.device("cpu")
    train(arguments, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
