"""Read a whole source and say what is wrong with it, before anything is written."""

from __future__ import annotations

import operator
import time
import warnings
from contextlib import closing
from itertools import count as numbers
from typing import TYPE_CHECKING, Any

from mmapload.checking.allowed import Allowed, open_allowing, parse_allowed, problems_of
from mmapload.checking.blocks import default_jobs, read_blocks
from mmapload.checking.reading import Block, Usual, count_non_finite, fault_of
from mmapload.checking.report import CheckReport, NonFinite, Outlier, SampleFault, Variety
from mmapload.checking.tally import Tally
from mmapload.errors import SourceError
from mmapload.progress import progress_to
from mmapload.sources.samples import IterableSource
from mmapload.sources.values import specs_of, take_array

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from mmapload.preprocessing import Fields, Source
    from mmapload.preprocessing.opening import OpenedSource
    from mmapload.preprocessing.plan import Samples
    from mmapload.progress import Progress
    from mmapload.sources import ArraySpec, IndexedSource
    from mmapload.store import StrPath

__all__ = ["CheckReport", "NonFinite", "Outlier", "SampleFault", "Variety", "check", "check_opened"]


def check(
    source: Source | None,
    *,
    fields: Fields | None = None,
    jobs: int | None = None,
    list_file: StrPath | None = None,
    samples: Samples = "files",
    allow_pickle: bool = False,
    ragged: str | Sequence[str] | None = None,
    optional: str | Sequence[str] | None = None,
    fill: Mapping[str, Any] | None = None,
    cast: str | Sequence[str] | Mapping[str, str] | None = None,
    quiet: bool = True,
) -> CheckReport:
    """Read every sample of a source, write nothing, and report all that is wrong with it.

    Every array is read whole, its checksum compared where there is one, and its values searched for NaN and
    infinity. What most samples have is taken for right: those with other fields, dtypes or shapes are listed,
    but for what the options of the planned `preprocess` allow.

    Parameters
    ----------
    source : path, list of paths, sequence or iterable
        As `preprocess` takes it.
    fields : str, list of str, or mapping, optional
        Which arrays to look at, and new names, as `preprocess` takes them. By default all.
    jobs : int, optional
        Threads, or processes where there are many files; by default one for each core.
    list_file : path, optional
        A text file that names files, one a line, to come after those of `source`.
    samples : "files", "rows" or "keys"
        How samples lie in files, as `preprocess` takes it.
    allow_pickle : bool
        Whether arrays of Python objects are read, as `preprocess` does; only for files that you trust.
    ragged, optional, fill, cast : optional
        In what samples may differ: shapes, fields that are missing, dtypes; as `preprocess` takes them.
    quiet : bool
        Whether to tell nothing on standard error.

    Returns
    -------
    CheckReport
        Its `sound` says whether `preprocess` with these options could store all samples; `describe()` has it
        all but for the faults.

    Raises
    ------
    SourceError
        If there is no sample at all.
    ValueError, TypeError
        If an argument is none.

    Examples
    --------
    >>> import numpy as np
    >>> samples = [{"x": np.zeros((2, 3), "f4")} for _ in range(9)] + [{"x": np.zeros((3, 2), "f4")}]
    >>> report = check(samples)
    >>> report.sound, [(each.field, str(each.found), each.samples.tolist()) for each in report.outliers]
    (False, [('x', 'float32 (3, 2)', [9])])
    >>> report = check(samples, ragged="auto")
    >>> report.sound, str(report.schema["x"])
    (True, 'float32 (2 to 3 x 2 to 3), ragged')
    """
    from mmapload.preprocessing.plan import PICKLES_ARE_READ

    allowed = parse_allowed(fields, ragged, optional, fill, cast)
    if allow_pickle:
        warnings.warn(PICKLES_ARE_READ, stacklevel=2)
    opened = open_allowing(source, list_file, samples, allowed, allow_pickle=allow_pickle)
    return check_opened(opened, allowed, jobs=jobs, progress=progress_to(quiet=quiet))


def check_opened(
    opened: OpenedSource,
    allowed: Allowed,
    *,
    jobs: int | None = None,
    progress: Progress,
    told: Callable[[SampleFault], None] | None = None,
) -> CheckReport:
    """Check a source that is open, and tell each fault as soon as it is found; as `check`."""
    if jobs is not None and (isinstance(jobs, bool) or operator.index(jobs) < 1):
        raise ValueError(f"jobs must be an integer of at least 1, not {jobs!r}")
    started = time.monotonic()
    source = opened.source
    schema = {} if isinstance(source, IterableSource) else _usual(source)
    usual = Usual(schema, allowed.ragged)
    tally = Tally(schema, allowed.ragged, allowed.lacking)
    samples = 0
    try:
        if isinstance(source, IterableSource):
            found, total = _stream_blocks(source), None
        else:
            found, total = read_blocks(source, usual, jobs or default_jobs(source, usual)), len(source)
        progress.start(total, sum(spec.nbytes for spec in schema.values()))
        with closing(found) as blocks:
            for block in blocks:
                samples += block.samples
                _take(tally, block, told)
                progress.at(samples)
    except KeyboardInterrupt:
        of = "" if isinstance(source, IterableSource) else f" of {len(source):,}"
        found_so_far = f"{len(tally.faults):,} of them cannot be read"
        raise KeyboardInterrupt(f"interrupted after {samples:,}{of} samples; {found_so_far}") from None
    finally:
        progress.close()
    if not samples:
        raise SourceError("the source", None, "there is no sample in it")
    found_schema, outliers = tally.outliers(samples)
    return CheckReport(
        kind=source.kind,
        samples=samples,
        nbytes=tally.nbytes,
        seconds=time.monotonic() - started,
        schema=found_schema,
        faults=tuple(sorted(tally.faults, key=lambda fault: fault.index)),
        outliers=outliers,
        non_finite=tally.non_finite(),
        problems=tuple(problems_of(found_schema, allowed)),
        hidden=opened.listing.hidden if opened.listing else 0,
        foreign=opened.listing.foreign if opened.listing else 0,
        notes=opened.listing.notes if opened.listing else (),
        name=_namer(source),
    )


def _take(tally: Tally, block: Block, told: Callable[[SampleFault], None] | None) -> None:
    tally.add_sound(block.samples - len(block.faults), block.nbytes)
    for fault in block.faults:
        tally.faults.append(fault)
        if told is not None:
            told(fault)
    for index, schema in block.unlike:
        tally.add_unlike(index, schema)
    for found in block.values:
        tally.add_values(*found)


def _usual(source: IndexedSource) -> Mapping[str, ArraySpec]:
    """Return the schema of a sample that is as most are; empty if no sample has one."""
    from mmapload.preprocessing.usual import usual_sample

    found = usual_sample(source, range(len(source)))
    return {} if found is None else found[1]


def _namer(source: IndexedSource | IterableSource) -> Callable[[int], str]:
    if isinstance(source, IterableSource):
        return "sample {}".format
    return lambda index: source.name(index) or source.describe(index)


def _stream_blocks(source: IterableSource) -> Generator[Block]:
    """Look at samples that come once; the first is as unusual as all others."""
    for index, sample in zip(numbers(), source, strict=False):
        block = Block(1)
        where = f"sample {index}"
        try:
            if isinstance(sample, SourceError):
                raise sample
            schema = specs_of(sample, where)
            for name in schema:
                array, spec = take_array(sample, name, where)
                block.nbytes += spec.nbytes
                nan, inf = count_non_finite(array)
                if nan or inf:
                    block.values.append((index, name, nan, inf))
            block.unlike.append((index, schema))
        except SourceError as error:
            block.faults.append(fault_of(index, error))
        yield block
