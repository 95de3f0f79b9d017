"""What is written of a file that holds many samples stays only if the file proves sound as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmapload.errors import SourceError
from mmapload.preprocessing.build import BadSample, digest_of
from mmapload.preprocessing.gathering import many_of
from mmapload.preprocessing.parallel import not_skipped
from mmapload.preprocessing.staleness import contents_of
from mmapload.sources.grouped import UnsoundFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.preprocessing.build import Build
    from mmapload.progress import Progress

__all__ = ["run_proved"]


def run_proved(run: Callable[[Build, Progress], None], build: Build, progress: Progress) -> None:
    """Do all chunks that are missing, until no file of several samples is left that is not sound.

    Raises
    ------
    SourceError
        If a file is not sound and `on_error` is "fail"; the chunks that hold its samples are then no longer
        done. If a file was written since it was listed, whatever `on_error` is.
    """
    while True:
        try:
            run(build, progress)
            many = many_of(build.plan)
            if many is not None:
                many.prove_rest(build.sums, many.heads(build.left()) if build.skipped else None)
        except UnsoundFileError as error:
            _condemn(build, error)
        else:
            break
    if build.plan.files is not None:
        build.plan.files.check()
    if build.plan.has_names:
        build.keep_contents(contents_of(build))


def _condemn(build: Build, error: UnsoundFileError) -> None:
    """Leave out all samples of a file, or raise what is wrong with it."""
    positions = [each for each in build.positions_of(error.indices) if each not in build.skipped]
    chunks = build.chunks_of(positions)
    if build.plan.options.on_error == "fail":
        build.undo([chunk for chunk in chunks if chunk in build.done])
        raise not_skipped(SourceError(error.file, error.member, error.cause)) from error.__cause__
    indices = build.indices(positions)
    try:
        digest = digest_of(build.source, indices[0])
    except SourceError:
        digest = ""
    bad = [
        BadSample(position, index, digest, error) for position, index in zip(positions, indices, strict=True)
    ]
    build.skip(bad, int(np.min(chunks)))
