"""`mmapload check`: read a whole source and say what is wrong with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mmapload.cli.interrupts import interruptible
from mmapload.cli.parsing import UsageError, counting_number
from mmapload.cli.waiting import telling
from mmapload.errors import MmaploadError, printable

if TYPE_CHECKING:
    import argparse

    from mmapload.checking import CheckReport, SampleFault

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "read all samples, and list every fault"
USAGE: Final = "mmapload check SOURCE... [options]"
DESCRIPTION: Final = """\
Read every sample of a source whole, and write nothing. Prints each file that cannot be read and why, as soon
as it is found; then the samples whose fields, dtypes or shapes are not those of most, and where NaN and
infinite values are. With the options of the planned preprocess, what these allow is none of it. Exit status 1
if there is a fault, or a sample that is unlike most."""
EXAMPLES: Final = """\
examples:
  mmapload check train/
  mmapload check train/ --fields image,flow
  mmapload check words/ --ragged auto --optional label
  mmapload check train/ --json > report.json
  mmapload check --list files.txt && mmapload preprocess --list files.txt train.mml --batch-size 32"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("paths", nargs="*", metavar="SOURCE", help="folders, files, or globs in quotes")
    parser.add_argument("--list", metavar="FILE", help="a text file that names more files, one a line")
    parser.add_argument("--fields", metavar="A,B", help="arrays to look at; by default all")
    parser.add_argument(
        "--ragged", metavar="A,B", help="fields whose samples may differ in shape, or auto: all that do"
    )
    parser.add_argument("--optional", metavar="A,B", help="fields that samples may lack")
    parser.add_argument(
        "--fill",
        action="append",
        metavar="A=VALUE",
        help="fields that samples may lack, with what preprocess is to store; may be given again",
    )
    parser.add_argument("--cast", metavar="A=TYPE,B=TYPE", help="types that fields are to be cast to")
    parser.add_argument(
        "--samples",
        choices=("files", "rows", "keys"),
        default="files",
        help="what a sample is: a file (the default), a row of all arrays in a file, or one array of a file",
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read arrays of Python objects too, from files that you trust",
    )
    parser.add_argument(
        "--jobs",
        type=counting_number,
        metavar="J",
        help="threads, or processes where there are many files (by default one for each core)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with all sample names")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if not (arguments.paths or arguments.list):
        raise UsageError("expected SOURCE, found none")

    from mmapload.checking import check_opened
    from mmapload.checking.allowed import open_allowing, parse_allowed
    from mmapload.cli.fill import parse_fill
    from mmapload.preprocessing.plan import PICKLES_ARE_READ
    from mmapload.progress import progress_to

    with interruptible():
        try:
            allowed = parse_allowed(
                arguments.fields,
                arguments.ragged,
                arguments.optional,
                parse_fill(arguments.fill or ()),
                arguments.cast,
            )
            with telling("looking at the source", quiet=arguments.quiet):
                opened = open_allowing(
                    arguments.paths or None,
                    arguments.list,
                    arguments.samples,
                    allowed,
                    allow_pickle=arguments.allow_pickle,
                )
        except MmaploadError:
            raise
        except ValueError as error:
            raise UsageError(str(error)) from error
        progress = progress_to(quiet=arguments.quiet)
        if arguments.allow_pickle:
            progress.note(f"WARNING: {PICKLES_ARE_READ}")

        def told(fault: SampleFault) -> None:
            progress.clear()
            print(printable(f"fault: {fault}"), flush=True)

        report = check_opened(
            opened, allowed, jobs=arguments.jobs, progress=progress, told=None if arguments.json else told
        )
    if arguments.json:
        print(json.dumps(_told(report), indent=2))
    else:
        print(printable(report.describe(), keep="\n"))
    return 0 if report.sound else 1


def _told(report: CheckReport) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "samples": report.samples,
        "nbytes": report.nbytes,
        "seconds": report.seconds,
        "sound": report.sound,
        "schema": {field: _spec(spec) for field, spec in report.schema.items()},
        "faults": [
            {"index": each.index, "file": each.file, "member": each.member, "cause": each.cause}
            for each in report.faults
        ],
        "outliers": [
            {
                "field": each.field,
                "found": _spec(each.found),
                "expected": _spec(each.expected),
                "samples": [report.name(int(index)) for index in each.samples],
            }
            for each in report.outliers
        ],
        "non_finite": [
            {
                "field": each.field,
                "nan": each.nan,
                "inf": each.inf,
                "samples": [report.name(int(index)) for index in each.samples],
            }
            for each in report.non_finite
        ],
        "problems": list(report.problems),
        "hidden": report.hidden,
        "foreign": report.foreign,
        "notes": list(report.notes),
    }


def _spec(spec: object) -> str | None:
    return None if spec is None else str(spec)
