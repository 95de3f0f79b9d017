"""`mmapload preprocess`: from `.npz` files to a store."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Final

from mmapload.cli.interrupts import interruptible
from mmapload.cli.parsing import UsageError, counting_number, size, whole_number
from mmapload.cli.waiting import telling
from mmapload.errors import MmaploadError, SourceError, printable

if TYPE_CHECKING:
    import argparse

    from mmapload.preprocessing import PreprocessPlan

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "write .npz files, or those of other kinds, into a store"
USAGE: Final = "mmapload preprocess SOURCE... OUT --batch-size B [options]"
DESCRIPTION: Final = """\
Write .npz files, each of them one sample of named arrays, into a store; or .npy, HDF5 (.h5), WebDataset
(.tar), .pt, .safetensors and MATLAB (.mat) files, Zarr folders, or images, whose folders are their classes.

SOURCE is a folder (with all folders below it), a file, or a glob in quotes; samples stand in the
natural order of their paths. The sources are only read. An interrupted run leaves .OUT.partial beside
OUT, and the same command continues it; OUT appears when it is whole."""
EXAMPLES: Final = """\
examples:
  mmapload preprocess train/ train.mml --batch-size 32
  mmapload preprocess train/ train.mml --batch-size 32 --dry-run
  mmapload preprocess 'data/*/frames_*.npz' out.mml --batch-size 32 --codec zstd --shuffle 0
  mmapload preprocess val/ val.mml --batch-size 32 --fill flow=0
  mmapload preprocess words/ words.mml --batch-size 32 --ragged auto --optional label
  mmapload preprocess train/ train.mml --batch-size 32 --cast flow=float16
  mmapload preprocess day2/ train.mml --batch-size 32 --append
  mmapload preprocess mnist.npz train.mml --batch-size 256 --samples rows --fields 'x_train=x,y_train=y'
  mmapload preprocess all.npz train.mml --batch-size 32 --samples rows --take split.npz:train
  mmapload preprocess train.h5 train.mml --batch-size 32 --samples rows
  mmapload preprocess 'shards/*.tar' out.mml --batch-size 32 --fields jpg=image,cls=label
  mmapload preprocess --list files.txt out.mml --batch-size 8 --fields 'image,enc/W=weights'"""

_CODECS: Final = ("raw", "zstd", "blosc-lz4", "blosc-zstd")  # those of `codecs`, whose import takes time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("paths", nargs="*", metavar="SOURCE... OUT", help="where to read, and the new store")
    parser.add_argument(
        "--batch-size",
        type=counting_number,
        required=True,
        metavar="B",
        help="samples in a batch; every chunk holds a whole number of batches",
    )
    parser.add_argument(
        "--codec",
        choices=_CODECS,
        default="raw",
        help="raw (the default) is mapped into memory as it is; the others take less room on the disk",
    )
    parser.add_argument(
        "--chunk-bytes",
        type=size,
        default="64MiB",
        metavar="SIZE",
        help="largest chunk of the largest field (default 64MiB), at least one batch",
    )
    parser.add_argument(
        "--jobs",
        type=counting_number,
        metavar="J",
        help="threads (by default two for each core, at most 8); --dry-run tells the memory that they take",
    )
    parser.add_argument(
        "--samples",
        choices=("files", "rows", "keys"),
        default="files",
        help="what a sample is: a file (the default), a row of all arrays in a file, or one array of a file",
    )
    parser.add_argument(
        "--take",
        metavar="INDEXFILE",
        help="take only the samples of these numbers, in this order: a text file with one a line, an .npy "
        "file of numbers or of true and false, or an array in an archive, as in split.npz:train",
    )
    parser.add_argument(
        "--fields", metavar="A,B=C", help="arrays to take, here A, and B under the name C; by default all"
    )
    parser.add_argument(
        "--fill",
        action="append",
        metavar="A=VALUE",
        help="store a number where a sample lacks array A, as in flow=0; may be given again. If --fields "
        "renames A, give the new name. If no sample has A, say dtype and shape as well: "
        "flow=0:float32:2x256x448, or label=-1:int64: for single numbers",
    )
    parser.add_argument(
        "--ragged",
        metavar="A,B",
        help="fields whose samples differ in shape, or auto: those of which two samples do; all headers are "
        "read first",
    )
    parser.add_argument(
        "--optional",
        metavar="A,B",
        help="fields that samples may lack: zeros, or what --fill says, are stored, and the field A_present "
        "says which samples have A",
    )
    parser.add_argument(
        "--cast",
        metavar="A=TYPE,B=TYPE",
        help="cast numbers to another type, such as flow=float16 or label=int32; what that changes is told, "
        "and a value that no whole number is makes its sample a bad one",
    )
    parser.add_argument(
        "--shuffle",
        type=whole_number,
        metavar="SEED",
        help="permute the samples as they are written; a seed gives one order on every machine",
    )
    parser.add_argument(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="stop at the first bad sample (the default), or leave it out and list it in OUT.skipped.jsonl",
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read arrays of Python objects too, from files that you trust: regular ones become fields, a "
        "dict saved alone its keys; nothing but arrays and plain values is ever made of a pickle",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a store at OUT")
    parser.add_argument(
        "--append",
        action="store_true",
        help="add the samples to the store at OUT, behind its own; it can be read all the time",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and write nothing")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--list", metavar="FILE", help="a text file that names more files, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    *sources, out = arguments.paths or [None]
    if out is None or not (sources or arguments.list):
        raise UsageError(f"expected SOURCE... and OUT, found {' '.join(arguments.paths) or 'neither'}")

    from mmapload.preprocessing import check_unfinished, execute
    from mmapload.progress import progress_to

    with telling("looking at the source", quiet=arguments.quiet):
        plan = _plan(sources, out, arguments)
    check_unfinished(plan)  # before the plan is shown: it is refused
    if arguments.dry_run:
        if not arguments.quiet:
            print(printable(plan.describe(), keep="\n"))
        return 0 if plan.fits else 1
    if not arguments.quiet:
        print(printable(plan.describe(), keep="\n"), file=sys.stderr, flush=True)
    again = shlex.join(["mmapload", *arguments.words])
    with interruptible(f"to go on: {again}\n"):
        try:
            result = execute(plan, progress_to(quiet=arguments.quiet))
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"{interrupt or 'interrupted'}:\n  {again}") from None
    if not arguments.quiet:
        from mmapload.cli.summary import summary

        print(printable(summary(plan, result), keep="\n"))
    return 3 if result.skipped else 0


def _plan(sources: list[str], out: str, arguments: argparse.Namespace) -> PreprocessPlan:
    from mmapload.cli.fill import parse_fill
    from mmapload.preprocessing import plan_preprocess

    try:
        return plan_preprocess(
            sources or None,
            out,
            arguments.batch_size,
            codec=arguments.codec,
            chunk_bytes=arguments.chunk_bytes,
            jobs=arguments.jobs,
            fields=arguments.fields,
            shuffle=arguments.shuffle,
            on_error=arguments.on_error,
            overwrite=arguments.overwrite,
            list_file=arguments.list,
            fill=parse_fill(arguments.fill or ()),
            samples=arguments.samples,
            take=arguments.take,
            append=arguments.append,
            allow_pickle=arguments.allow_pickle,
            ragged=arguments.ragged,
            optional=arguments.optional,
            cast=arguments.cast,
        )
    except SourceError as error:
        if not _is_out_elsewhere(sources, out, error.file):
            raise
        what = "the last path is OUT, where the store goes"
        hint = f"to make it at {sources[-1]}, name that last, not {out}"
        cause, _, _ = error.cause.partition(":")
        raise SourceError(error.file, error.member, f"{cause}: {what}; {hint}") from None
    except MmaploadError:
        raise
    except ValueError as error:  # an option that does not fit the others, or the source
        raise UsageError(str(error)) from error


def _is_out_elsewhere(sources: list[str], out: str, missing: str) -> bool:
    """Whether the store to be is likely the source named last, and what stands in its place a source."""
    from mmapload.writer.workfolder import is_store

    if not sources or os.path.abspath(sources[-1]) != missing or os.path.lexists(missing):
        return False
    return os.path.isdir(out) and bool(os.listdir(out)) and not is_store(out)
