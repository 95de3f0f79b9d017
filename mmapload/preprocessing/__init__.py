"""From a source to a store: plan, execute, resume.

`preprocess` does all of it; `plan_preprocess` and `execute` are its two halves, for those who show the plan
first or want to know what was left out.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

from mmapload.preprocessing.build import SkippedSample
from mmapload.preprocessing.execution import PreprocessResult, execute
from mmapload.preprocessing.plan import PICKLES_ARE_READ, OnError, Options, PreprocessPlan, Samples
from mmapload.preprocessing.planning import make_plan
from mmapload.preprocessing.resume import check_unfinished
from mmapload.preprocessing.skipped import skipped_path
from mmapload.progress import progress_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.preprocessing.fill import Number
    from mmapload.sources import IndexedSource
    from mmapload.sources.samples import SupportsSamples
    from mmapload.store import Store, StrPath

    Source: TypeAlias = (
        StrPath | Sequence[StrPath] | SupportsSamples | Iterable[Mapping[str, Any]] | IndexedSource
    )
    Fill: TypeAlias = Mapping[str, Number | npt.NDArray[Any]]
    Fields: TypeAlias = str | Sequence[str] | Mapping[str, str]

__all__ = [
    "OnError",
    "Options",
    "PreprocessPlan",
    "PreprocessResult",
    "SkippedSample",
    "check_unfinished",
    "execute",
    "plan_preprocess",
    "preprocess",
    "skipped_path",
]


def plan_preprocess(
    source: Source | None,
    out: StrPath,
    batch_size: int,
    *,
    codec: str = "raw",
    chunk_bytes: str | int = "64MiB",
    jobs: int | None = None,
    fields: Fields | None = None,
    shuffle: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    list_file: StrPath | None = None,
    fill: Fill | None = None,
    samples: Samples = "files",
    take: StrPath | npt.ArrayLike | None = None,
    append: bool = False,
    allow_pickle: bool = False,
    ragged: str | Sequence[str] | None = None,
    optional: str | Sequence[str] | None = None,
    cast: str | Sequence[str] | Mapping[str, str] | None = None,
) -> PreprocessPlan:
    """Look at the source and the target and say what `preprocess` would do; writes nothing.

    Parameters are those of `preprocess`, and so are the errors that come before anything is written. Of an
    iterable the first sample is taken, and kept in the plan.

    Returns
    -------
    PreprocessPlan
        For `execute`; its `describe()` is what `--dry-run` prints.
    """
    return make_plan(
        source,
        out,
        batch_size,
        codec=codec,
        chunk_bytes=chunk_bytes,
        jobs=jobs,
        fields=fields,
        shuffle=shuffle,
        on_error=on_error,
        overwrite=overwrite,
        list_file=list_file,
        fill=fill,
        samples=samples,
        take=take,
        append=append,
        allow_pickle=allow_pickle,
        ragged=ragged,
        optional=optional,
        cast=cast,
    )


def preprocess(
    source: Source | None,
    out: StrPath,
    batch_size: int,
    *,
    codec: str = "raw",
    chunk_bytes: str | int = "64MiB",
    jobs: int | None = None,
    fields: Fields | None = None,
    shuffle: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    list_file: StrPath | None = None,
    fill: Fill | None = None,
    samples: Samples = "files",
    take: StrPath | npt.ArrayLike | None = None,
    append: bool = False,
    allow_pickle: bool = False,
    ragged: str | Sequence[str] | None = None,
    optional: str | Sequence[str] | None = None,
    cast: str | Sequence[str] | Mapping[str, str] | None = None,
    quiet: bool = True,
) -> Store:
    """Write samples into a store whose chunks are aligned to batches.

    It is built in `.<name>.partial` beside `out` and renamed when it is whole. A run that is interrupted is
    continued by the same call; the result is the same, byte for byte.

    Parameters
    ----------
    source : path, list of paths, sequence or iterable
        Folders (with all that is below them), `.npz` files and globs, each file one sample; or samples
        from Python, `{name: array}` each: anything with a length and an index, a torch dataset for
        instance, or any iterable. An iterable is read once: it can be neither resumed nor shuffled. Of
        a sequence, every 16th sample is compared with what is written when a run is resumed.
        None if `list_file` names all files.
    out : path
        The store's folder.
    batch_size : int
        Chunks hold a multiple of this.
    codec : str
        raw, zstd, blosc-lz4 or blosc-zstd.
    chunk_bytes : str or int
        Largest chunk of the largest field, such as "64MiB"; at least one batch.
    jobs : int, optional
        Threads, and sets of chunk buffers; by default two for each core, at most eight, and fewer where
        memory is scarce. The store does not depend on it.
    fields : str, list of str, or mapping, optional
        Which arrays to take, and new names: "a,b=c" takes `a`, and `b` as `c`. By default all.
    shuffle : int, optional
        Seed of a permutation in which samples are written, the same on every machine.
    on_error : "fail" or "skip"
        Whether a bad sample ends the run, or is left out and listed in `<out>.skipped.jsonl`.
    overwrite : bool
        Replace a store at `out` once the new one is whole, and throw away an unfinished one that does not
        match. Anything else is never replaced.
    list_file : path, optional
        A text file that names files, one a line, to come after those of `source`.
    fill : mapping of str to number or array, optional
        What is stored for a field in samples that lack it, by the field's name in the store; without it that
        is an error. A number stands for all elements of an array whose dtype and shape are those of the first
        sample that has the field: among files it is sought in all headers, in a sequence in the first 1,024
        samples, and of an iterable it must be the first sample. An array is one sample's, and says dtype and
        shape too. What the dtype cannot hold exactly is refused.
    samples : "files", "rows" or "keys"
        How samples lie in files: each file is one; or axis 0 of every array in a file is the axis of samples;
        or each array of a file is one, with a single field, "data". The store keeps the names of rows and
        keys as "file.npz[17]" and "file.npz/key".
    take : path, or array of int or bool, shape (samples,), optional
        Which samples to take, by their numbers in the source, and in which order; or for every sample whether
        to take it. A path names a text file with a number a line, an `.npy` file, or an array in an `.npz`
        file, as in "split.npz:train".
    allow_pickle : bool
        Whether arrays of Python objects in `.npz` files, which are pickles, are read: those of arrays of one
        dtype and shape, of numbers of one kind, or of texts; and a dict that was saved alone, as its keys. A
        pickle that holds anything else is refused by the name of its class, and nothing that it names is
        called; still, do so only with files that you trust.
    append : bool
        Whether to add the samples to the finished store at `out`, behind its own. Fields, dtypes, shapes,
        batch size, codec, seed of the shuffle and stand-ins have to be those that it was made with; its
        chunks stay as long as they are. Until its last step the store has its old samples, and it can be
        read all the time. `docs/append.md` has more.
    ragged : str or list of str, optional
        Fields whose samples may differ in shape, but not in dtype or number of axes: names, or "auto" for
        those of which two samples do. The headers of all files are read for it before anything is written;
        the samples of a sequence are made twice; and an iterable cannot have any.
    optional : str or list of str, optional
        Fields that samples may lack. What `fill` says is stored then, by default zeros, of a ragged field a
        sample without values; and the field `NAME_present`, of type bool, says which samples have it.
    cast : str, list of str, or mapping of str to str, optional
        Types that numbers are cast to, by the fields' names in the store: "flow=float16,label=int32", or
        {"flow": "bfloat16"}. Real and complex types take the nearest value; how many values changed, became
        infinite or NaN is told at the end. To a whole number or bool only such values are cast as it holds:
        a sample with any other is a bad one. Nothing is cast that is not named.
    quiet : bool
        Whether to tell nothing on standard error.

    Returns
    -------
    Store
        The finished store, opened.

    Raises
    ------
    SourceError
        If there is no sample, or a bad one; names file, member and cause.
    StateMismatchError
        If an interrupted run had other options or another source; names the difference.
    ChunkError
        If the disk is full or does not take the data; the same call continues once there is room.
    MmaploadError
        If `out` is there, another process is writing it, or there is too little room.
    ValueError, TypeError
        If an argument is none.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> samples = [{"x": np.full((2, 2), i, "f4"), "label": i} for i in range(10)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = preprocess(samples, f"{folder}/store", batch_size=4)
    ...     len(store), store.fields, store.read_chunk("label", 0).tolist()
    (10, ('x', 'label'), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    if allow_pickle:
        warnings.warn(PICKLES_ARE_READ, stacklevel=2)
    plan = plan_preprocess(
        source,
        out,
        batch_size,
        codec=codec,
        chunk_bytes=chunk_bytes,
        jobs=jobs,
        fields=fields,
        shuffle=shuffle,
        on_error=on_error,
        overwrite=overwrite,
        list_file=list_file,
        fill=fill,
        samples=samples,
        take=take,
        append=append,
        allow_pickle=allow_pickle,
        ragged=ragged,
        optional=optional,
        cast=cast,
    )
    return execute(plan, progress_to(quiet=quiet)).store
