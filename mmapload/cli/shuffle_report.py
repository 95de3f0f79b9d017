"""`mmapload shuffle-report`: how far the order of training is from a true permutation."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from mmapload.cli.parsing import UsageError, counting_number, whole_number
from mmapload.cli.tables import table
from mmapload.errors import MmaploadError

if TYPE_CHECKING:
    import argparse

    from mmapload.quality import Comparison, ShuffleQuality
    from mmapload.store import Store

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "say how well a shuffle mixes, and what would mix better"
USAGE: Final = "mmapload shuffle-report STORE [--label FIELD] [options]"
DESCRIPTION: Final = """\
Compare the order of training with a true permutation of all samples: how far samples move, how far apart two
samples of one chunk end up, how often they share a batch (beside the closed form), and with --label how mixed
the labels of a batch are. The last line says in one sentence what to change, if anything.

Only metadata is read, and the chunks of the label's field. Of large stores, batches are sampled, and the
report says how many. docs/order.md has the formulas."""
EXAMPLES: Final = """\
examples:
  mmapload shuffle-report train.mml
  mmapload shuffle-report train.mml --label class --ranks 4
  mmapload shuffle-report train.mml --window 4096 --plot order.png
  mmapload shuffle-report train.mml --shuffle batch --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("store", metavar="STORE", help="the store's folder")
    parser.add_argument(
        "--label",
        metavar="FIELD",
        help="a field of one value a sample, a class for instance, whose mixing is measured",
    )
    parser.add_argument(
        "--batch-size",
        type=counting_number,
        metavar="B",
        help="samples in a batch of one rank (by default the batch size that STORE was made with)",
    )
    parser.add_argument(
        "--ranks",
        type=counting_number,
        default=1,
        metavar="R",
        help="number of ranks, whose batches together make a gradient (default 1)",
    )
    parser.add_argument(
        "--shuffle",
        choices=["window", "batch", "full"],
        default="window",
        help="as in training (default window)",
    )
    parser.add_argument(
        "--window",
        type=counting_number,
        metavar="W",
        help="samples in a window (by default the larger of 1,024 samples and 16 chunks); name a smaller "
        "one where the loader warns that memory holds no more",
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, metavar="S", help="as in training (default 0)"
    )
    parser.add_argument(
        "--epochs",
        type=counting_number,
        default=4,
        metavar="E",
        help="look at the first E epochs (default 4)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object; distances are in samples, entropies in bits",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="also draw where samples go, and what other windows would do, as a PNG; needs matplotlib",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from mmapload.store import open_store

    store = open_store(arguments.store)
    if arguments.plot is not None and find_spec("matplotlib") is None:
        raise MmaploadError('--plot needs matplotlib, which is not installed: pip install "mmapload[bench]"')

    from mmapload.quality import shuffle_quality

    try:
        quality = shuffle_quality(
            store,
            batch_size=arguments.batch_size,
            world_size=arguments.ranks,
            shuffle=arguments.shuffle,
            window="auto" if arguments.window is None else arguments.window,
            seed=arguments.seed,
            epochs=arguments.epochs,
            label=arguments.label,
        )
    except MmaploadError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    if arguments.plot is not None:
        from mmapload.quality.chart import draw

        draw(quality, arguments.plot)
    if arguments.json:
        print(json.dumps(_told(store, quality, arguments.ranks), indent=2))
    else:
        print(_text(store, quality, arguments.ranks))
    return 0


def _told(store: Store, quality: ShuffleQuality, ranks: int) -> dict[str, Any]:
    batching = quality.batching
    return {
        "store": store.path,
        "fingerprint": store.fingerprint,
        "samples": batching.geometry.samples,
        "chunk_length": batching.geometry.chunk_length,
        "written_shuffled": quality.written_shuffled,
        "shuffle": batching.mode,
        "window": batching.window,
        "global_batch": batching.global_batch,
        "ranks": ranks,
        "seed": quality.seed,
        "epochs": quality.epochs,
        "batches": quality.batches_in_all,
        "batches_looked_at": quality.batches,
        "sampled": quality.sampled,
        "displacement": _numbers(quality.displacement),
        "mates_apart": _numbers(quality.mates_apart),
        "same_chunk": _numbers(quality.same_chunk),
        "halving_window": quality.halving_window,
        "label": quality.label,
        "label_values": quality.label_values,
        "label_batches": quality.label_batches,
        "label_entropy": _numbers(quality.label_entropy),
        "advice": quality.advice,
    }


def _numbers(figure: Comparison | None) -> dict[str, float | None] | None:
    if figure is None:
        return None
    ratio = None if math.isnan(figure.ratio) else figure.ratio
    return {"found": figure.found, "uniform": figure.uniform, "ratio": ratio, "closed_form": figure.expected}


def _text(store: Store, quality: ShuffleQuality, ranks: int) -> str:
    batching = quality.batching
    geometry = batching.geometry
    window = "" if batching.window is None else f" {batching.window:,}"
    written = "written shuffled" if quality.written_shuffled else "written in its source's order"
    epochs = "1 epoch" if quality.epochs == 1 else f"{quality.epochs:,} epochs"
    per_rank = "" if ranks == 1 else f" ({ranks:,} ranks)"
    looked_at = (
        f"{quality.batches:,} of {quality.batches_in_all:,} batches of {epochs}: a sample, spread evenly"
        if quality.sampled
        else f"all {quality.batches_in_all:,} batches of {epochs}"
    )
    heads = [
        ("store", store.path),
        ("samples", f"{geometry.samples:,} in chunks of {geometry.chunk_length:,}, {written}"),
        (
            "order",
            f"{batching.mode}{window}, batches of {batching.global_batch:,}{per_rank}, seed {quality.seed}",
        ),
        ("measured", looked_at),
    ]
    if quality.label is not None:
        values = "1 value" if quality.label_values == 1 else f"{quality.label_values:,} values"
        of_labels = (
            f"field {quality.label}, {values} seen in {quality.label_batches:,} batches of either order"
        )
        heads.append(("labels", of_labels))
    rows: list[tuple[str, ...]] = [("", "this order", "full shuffle", "ratio", "closed form")]
    rows.append(_row("a sample moves by", quality.displacement, _count))
    if quality.mates_apart is not None:
        rows.append(_row("samples of a chunk are apart", quality.mates_apart, _count))
    rows.append(_row("pairs in a batch from one chunk", quality.same_chunk, _share))
    if quality.label_entropy is not None:
        rows.append(_row("label entropy of a batch, bits", quality.label_entropy, "{:.3f}".format))
    halving = "none" if quality.halving_window is None else f"{quality.halving_window:,}"
    rows.append(("the window that halves these pairs", halving, "", "", ""))
    return f"{table(heads, left=2)}\n\n{table(rows, left=1)}\n\n{quality.advice}"


def _row(name: str, figure: Comparison, shown: Any) -> tuple[str, ...]:
    ratio = "" if math.isnan(figure.ratio) else f"{figure.ratio:,.3g}"
    expected = "" if figure.expected is None else shown(figure.expected)
    return name, shown(figure.found), shown(figure.uniform), ratio, expected


def _count(samples: float) -> str:
    return f"{samples:,.1f}"


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"
