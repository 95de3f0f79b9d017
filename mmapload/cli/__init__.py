"""The command `mmapload`: results on standard output, progress and errors on standard error.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done with samples left out, 130 interrupted. Nothing that
takes time is imported before a command is known to run.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from mmapload import __version__
from mmapload.cli import bench, check, export, info, preprocess, shuffle_report, verify
from mmapload.cli.parsing import UsageError
from mmapload.errors import MmaploadError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS: Final = {
    "preprocess": preprocess,
    "check": check,
    "info": info,
    "verify": verify,
    "export": export,
    "bench": bench,
    "shuffle-report": shuffle_report,
}

_DESCRIPTION: Final = """\
Load arrays for PyTorch from batch-aligned Zarr chunks.

Preprocess .npz files once into a store; train from it with mmapload.ChunkDataLoader."""

_EXAMPLES: Final = """\
examples:
  mmapload check train/
  mmapload preprocess train/ train.mml --batch-size 32
  mmapload info train.mml
  mmapload verify train.mml
  mmapload export train.mml train-npz/
  mmapload bench train.mml --source train/
  mmapload shuffle-report train.mml --label class

`mmapload COMMAND --help` says more of each. Exit status: 0 done, 1 failed, 2 wrong usage, 3 done with
samples left out, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the command's own name; by default those of this process.

    Returns
    -------
    int
        The exit status.

    Examples
    --------
    >>> main(["info", "/nowhere"])  # tells why on standard error
    1
    """
    _open_missing_streams()
    try:
        try:
            arguments = _parse(argv)
        except SystemExit as end:  # argparse has said what there is to say
            return int(end.code or 0)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # paths may hold bytes of any encoding
        status: int = _COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 141  # as if SIGPIPE had ended the process
    except KeyboardInterrupt as interrupt:
        return _complain(str(interrupt) or "interrupted", 130)
    except UsageError as error:
        return _complain(f"error: {error}", 2)
    except MmaploadError as error:
        return _complain(f"error: {error}", 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _complain(f"error: {where}{error.strerror or error}", 1)
    except MemoryError as error:
        return _complain(f"error: out of memory {error}".rstrip(), 1)
    return status


def _open_missing_streams() -> None:
    """Let standard output and error go nowhere where a process is started without them, by `2>&-`.

    It also keeps their descriptors from files that are written, into which others then might print.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open to the end


class _Parser(argparse.ArgumentParser):
    """Complains without passing on what an argument has that commands a terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, keep="\n"))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "mmapload", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=kind, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"mmapload {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {}
    for name, command in _COMMANDS.items():
        parsers[name] = commands.add_parser(
            name,
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=command.EXAMPLES,
            usage=command.USAGE,
            formatter_class=kind,
            allow_abbrev=False,
        )
        command.add_arguments(parsers[name])
    words = sys.argv[1:] if argv is None else list(argv)
    arguments, rest = parser.parse_known_args(words)
    arguments.words = words
    # argparse takes only the first run of arguments for paths, and leaves those after an option over.
    if any(each.startswith("-") for each in rest) or (rest and not hasattr(arguments, "paths")):
        parsers[arguments.command].error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.paths += rest
    return arguments


def _complain(text: str, status: int) -> int:
    print(f"mmapload: {printable(text, keep=chr(10))}", file=sys.stderr)
    return status


def _discard_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
