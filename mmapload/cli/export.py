"""`mmapload export`: from a store back to `.npz` files."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Final

from mmapload.cli.interrupts import interruptible
from mmapload.errors import printable
from mmapload.sizes import format_size

if TYPE_CHECKING:
    import argparse

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "write the samples of a store back into .npz files"
USAGE: Final = "mmapload export STORE OUT [--quiet]"
DESCRIPTION: Final = """\
Write every sample of a store into an .npz file of its own, as numpy.savez does: what went into the store
comes out, bit by bit. Files have the names that the samples had in their source, or the samples' numbers
where there are none. OUT is a new folder, which appears when it is whole; nothing is ever overwritten. An
interrupted run leaves .OUT.partial beside OUT, and the same command continues it."""
EXAMPLES: Final = """\
examples:
  mmapload export train.mml train-npz/
  mmapload export train.mml train-npz/ --quiet && mmapload check train-npz/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("store", metavar="STORE", help="the store's folder")
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from mmapload.exporting import export
    from mmapload.store import open_store

    started = time.monotonic()
    again = shlex.join(["mmapload", *arguments.words])
    with interruptible(f"to go on: {again}\n"):
        try:
            result = export(open_store(arguments.store), arguments.out, quiet=arguments.quiet)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"{interrupt or 'interrupted'}:\n  {again}") from None
    if not arguments.quiet:
        seconds = time.monotonic() - started
        speed = result.nbytes / max(seconds, 1e-9) / 1e6
        files = f"{result.files:,} .npz file{'s' * (result.files != 1)}, {format_size(result.nbytes)}"
        print(f"{printable(result.out)}: {files}, in {seconds:.1f} s ({speed:,.0f} MB/s)")
    return 0
