"""What the order of samples costs: a small network on 1,797 digits, sorted by class when they were stored.

Needs scikit-learn, which brings the digits, and matplotlib for the figure: pip install "mmapload[examples]"

Examples
--------
python examples/digits_order.py
python examples/digits_order.py --seeds 1 --epochs 2 --only "window 256"
python examples/digits_order.py --figure docs/digits.png
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mmapload

BATCH = 16
LABELS = 10


@dataclass(frozen=True, slots=True)
class Order:
    """A way to shuffle: of the loader, and of the samples when they are written."""

    name: str
    shuffle: str | bool
    window: int | str = "auto"
    write_shuffled: bool = False


ORDERS = [
    Order("full shuffle", "full"),
    Order("window 1,024", "window", 1024),
    Order("window 256", "window", 256),
    Order("window 64", "window", 64),
    Order("batch", "batch"),
    Order("in order", shuffle=False),
    Order("window 64, written with shuffle", "window", 64, write_shuffled=True),
    Order("batch, written with shuffle", "batch", write_shuffled=True),
]


@dataclass(frozen=True, slots=True)
class Digits:
    """Images (n, 64) float32 in [0, 1], and labels (n,) int64."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, numbers: np.ndarray) -> Digits:
        """Return some of them."""
        return Digits(self.images[numbers], self.labels[numbers])


def load_digits() -> Digits:
    """Read the digits that are installed with scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise SystemExit(f'{error}: pip install "mmapload[examples]"') from error
    found = datasets.load_digits()
    return Digits((found.data / 16).astype(np.float32), found.target.astype(np.int64))


def split(digits: Digits) -> tuple[Digits, Digits]:
    """Take a fifth at random for the test, and sort the others by class."""
    mixed = np.random.default_rng(0).permutation(len(digits))
    test, train = digits.at(mixed[: len(mixed) // 5]), digits.at(mixed[len(mixed) // 5 :])
    return train.at(np.argsort(train.labels, kind="stable")), test


def write(train: Digits, folder: Path, *, shuffled: bool) -> mmapload.Store:
    """Store the digits in chunks of two batches, in the order in which they are, or shuffled."""
    samples = [
        {"image": image, "label": label} for image, label in zip(train.images, train.labels, strict=True)
    ]
    return mmapload.preprocess(
        samples,
        folder,
        BATCH,
        chunk_bytes=2 * BATCH * train.images[0].nbytes,
        shuffle=1 if shuffled else None,
    )


def accuracy_of(store: mmapload.Store, test: Digits, order: Order, seed: int, epochs: int) -> float:
    """Train from nothing and return the share of test digits that are told right."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, LABELS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = mmapload.ChunkDataLoader(
        store.path, BATCH, shuffle=order.shuffle, window=order.window, seed=seed
    )
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        told = model(torch.from_numpy(test.images)).argmax(1)
    return float((told == torch.from_numpy(test.labels)).float().mean())


def compare(digits: Digits, orders: list[Order], seeds: int, epochs: int) -> dict[str, list[float]]:
    """Train in every order, print a table, and return the accuracies of all seeds."""
    train, test = split(digits)
    found: dict[str, list[float]] = {}
    print(
        f"{len(train):,} digits in batches of {BATCH}, {len(test)} for the test; "
        f"epochs: {epochs}, seeds: {seeds}"
    )
    print("| order | pairs from one chunk | label entropy of a batch | test accuracy | least to most |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        stores = {
            shuffled: write(train, Path(folder) / str(shuffled), shuffled=shuffled)
            for shuffled in {order.write_shuffled for order in orders}
        }
        for order in orders:
            store = stores[order.write_shuffled]
            mixed = mmapload.shuffle_quality(
                store, shuffle=order.shuffle, window=order.window, label="label", epochs=20
            )
            each = found[order.name] = [
                accuracy_of(store, test, order, seed, epochs) for seed in range(seeds)
            ]
            print(
                f"| {order.name} | {mixed.same_chunk.found:.1%} | {mixed.label_entropy.ratio:.1%} of full "
                f"| {statistics.mean(each):.1%} | {min(each):.1%} to {max(each):.1%} |",
                flush=True,
            )
    return found


def draw(found: dict[str, list[float]], target: Path) -> None:
    """Draw every seed's accuracy as a point, an order a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 0.32 * len(found) + 0.9), layout="constrained")
    axes = figure.subplots()
    best = statistics.mean(found.get("full shuffle", [1.0]))
    axes.axvline(best, color="tab:gray", linewidth=1, linestyle=":")
    for place, (name, each) in enumerate(found.items()):
        axes.plot(each, [place] * len(each), "|", color="tab:blue", markersize=9, alpha=0.6)
        axes.plot(statistics.mean(each), place, "o", color="tab:blue" if "written" in name else "tab:orange")
    axes.set_yticks(range(len(found)), list(found), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy: every seed, and their mean; dotted: the full shuffle's", fontsize="small")
    figure.savefig(target, dpi=100)


def main() -> None:
    """Compare the orders that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="trainings of each (default 8)")
    parser.add_argument("--epochs", type=int, default=10, help="of each training (default 10)")
    parser.add_argument("--only", choices=[order.name for order in ORDERS], help="one order alone")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw the accuracies, as a PNG")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so small a network gains nothing from more
    orders = [order for order in ORDERS if arguments.only in {None, order.name}]
    found = compare(load_digits(), orders, arguments.seeds, arguments.epochs)
    if arguments.figure:
        draw(found, arguments.figure)


if __name__ == "__main__":
    main()
