"""`mmapload verify`: read every file of a store and compare it with its checksum."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from mmapload.errors import printable

if TYPE_CHECKING:
    import argparse

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "check every size and checksum of a store"
USAGE: Final = "mmapload verify STORE"
DESCRIPTION: Final = """\
Read every chunk file of a store: is it there, has it the right size, are its checksum and its contents
whole, and is it where it belongs? Prints field, chunk, samples and file of each fault, and notes on files
that do not belong to the store. Exit status 1 if there is a fault."""
EXAMPLES: Final = """\
examples:
  mmapload verify train.mml
  mmapload verify train.mml && rsync -a train.mml node7:/scratch/"""

_MOST_THREADS: Final = 4
_MOST_NOTES: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("store", metavar="STORE", help="the store's folder")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from tqdm import tqdm

    from mmapload.cli.files import foreign_files
    from mmapload.store import open_store

    store = open_store(arguments.store)
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    files = faults = 0
    bar = tqdm(total=store.chunk_files, unit=" files", file=sys.stderr, disable=not sys.stderr.isatty())
    with bar:
        for fault in store.verify(threads):
            files += 1
            if fault is not None:
                faults += 1
                bar.clear()
                print(f"fault: {fault}", flush=True)
            bar.total = max(bar.total, files)  # how many files hold names is known when they are read
            bar.update()
    if not store.layout.has_checksums:
        print("note: the store lists no checksums: chunk files that were swapped could not be noticed")
    foreign = foreign_files(store)
    for path in foreign[:_MOST_NOTES]:
        print(f"note: {printable(path)} is no part of the store")
    if len(foreign) > _MOST_NOTES:
        print(f"note: nor are {len(foreign) - _MOST_NOTES:,} more")
    if faults:
        print(f"{printable(store.path)}: {faults:,} of {files:,} files are not as they were written")
        return 1
    print(f"{printable(store.path)}: {files:,} files are whole")
    return 0
