"""What a run of `preprocess` will do, as a frozen value: made first, shown by --dry-run, then executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from mmapload.codecs import codec_named
from mmapload.layout import FieldLayout, StoreLayout, chunk_length_for
from mmapload.notes import note_of
from mmapload.sizes import format_size
from mmapload.writer.checksums import checksums_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.preprocessing.fill import StandIn
    from mmapload.preprocessing.ragged import RaggedPlan
    from mmapload.sources import ArraySpec, IndexedSource, StreamSource
    from mmapload.sources.listing import Listing

__all__ = ["PICKLES_ARE_READ", "OnError", "Options", "PreprocessPlan", "Samples"]

_PADDING_TOLD: Final = 0.05
"""Share of a store from which on it is said what fills the last chunk."""

_EXTENT_BYTES: Final = 8
"""Of each number that says where a sample of a ragged field ends, and of its shape."""

PICKLES_ARE_READ: Final = "arrays of objects are read from their pickles: only for files that you trust"
OnError: TypeAlias = Literal["fail", "skip"]
Samples: TypeAlias = Literal["files", "rows", "keys"]


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, checked.

    Attributes
    ----------
    batch_size : int
        Chunk boundaries are multiples of this.
    codec : str
        raw, zstd, blosc-lz4 or blosc-zstd.
    chunk_bytes : int
        Largest chunk of the largest field, in bytes.
    fields : tuple of (str, str), or None
        Names in the source and in the store; None takes all as they are.
    shuffle : int or None
        Seed of the permutation in which samples are written.
    on_error : "fail" or "skip"
        What to do with a sample that cannot be read.
    overwrite : bool
        Whether a finished store may be replaced and an unfinished one thrown away.
    samples : "files", "rows" or "keys"
        Whether a sample is a file, a row of all arrays in a file, or one array of a file.
    take : str or None
        What changes with the samples that are taken, and their order; None takes all.
    allow_pickle : bool
        Whether arrays of objects are read from their pickles.
    ragged : tuple of str
        Fields whose samples may differ in shape, or "auto".
    optional : tuple of str
        Fields that samples may lack, and of which a mask says which do.
    cast : tuple of (str, str)
        Fields that are cast, by their names in the store, and the type of each.
    """

    batch_size: int
    codec: str
    chunk_bytes: int
    fields: tuple[tuple[str, str], ...] | None
    shuffle: int | None
    on_error: OnError
    overwrite: bool
    samples: Samples = "files"
    take: str | None = None
    allow_pickle: bool = False
    ragged: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    cast: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PreprocessPlan:
    """What will be written, where, and what it takes.

    Attributes
    ----------
    source : IndexedSource or StreamSource
        Where the samples come from.
    out : str
        Absolute path of the store.
    options : Options
        What was asked for.
    jobs : int
        Threads, and sets of chunk buffers.
    schema : mapping of str to ArraySpec
        Every field's dtype and shape, by its name in the store.
    fill : mapping of str to StandIn
        What is stored for which field in samples that lack it.
    samples : int or None
        How many there are; None if only the end of the source will tell.
    names_bytes : int
        Bytes of the files that keep the samples' names; 0 if the source has none.
    free_bytes : int
        Room on the target's file system.
    present_bytes : int
        Bytes that an interrupted run has left there, to be used again.
    hidden, foreign : int
        Files of the source that were skipped: names that begin with a dot, and other suffixes.
    in_source : bool
        Whether `out` lies in a folder of the source, so that the next run comes across its files.
    source_bytes : int or None
        Bytes of the source's files; None where there are none.
    remarks : tuple of str
        What else was noticed of the source, to be told.
    likeness : str
        What else a sample might be, by the first file; empty if nothing suggests it.
    first : int
        The number of the sample that the schema is from.
    ragged : mapping of str to RaggedPlan
        The fields whose samples differ in shape; the schema has the shape of one sample.
    masks : mapping of str to str
        For every field that says whether samples have another one, that field.
    files : Listing or None
        Files that are compared with what they were when they were listed, once all is read; None where
        whoever reads them does.
    """

    source: IndexedSource | StreamSource
    out: str
    options: Options
    jobs: int
    schema: Mapping[str, ArraySpec]
    fill: Mapping[str, StandIn]
    samples: int | None
    names_bytes: int
    free_bytes: int
    present_bytes: int
    hidden: int = 0
    foreign: int = 0
    in_source: bool = False
    source_bytes: int | None = None
    remarks: tuple[str, ...] = ()
    likeness: str = ""
    first: int = 0
    ragged: Mapping[str, RaggedPlan] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    files: Listing | None = None

    @property
    def indexed(self) -> IndexedSource:
        """The source, where the number of samples is known."""
        return cast("IndexedSource", self.source)

    def place_of(self, index: int) -> int | None:
        """Return the place of a sample among all that the store is made of; None if it is there already."""
        return index

    @property
    def stream(self) -> StreamSource:
        """The source, where only its end will tell."""
        return cast("StreamSource", self.source)

    @property
    def anew(self) -> str:
        """The options that give up what is unfinished."""
        return "--overwrite (overwrite=True)"

    @property
    def has_names(self) -> bool:
        """Whether the source names its samples."""
        return self.names_bytes > 0

    def layout(self, samples: int | None, skipped: int = 0) -> StoreLayout:
        """Return the layout of the store of that many samples; of no samples where their number is open."""
        largest = max(map(self.field_nbytes, self.schema))
        length = chunk_length_for(samples, self.options.batch_size, largest, self.options.chunk_bytes)
        fields = tuple(self._field(name, length) for name in self.schema)
        made: dict[str, Any] = {
            "kind": self.source.kind,
            "skipped": skipped,
            "shuffle": self.options.shuffle,
            **getattr(self.source, "notes", {}),
        }
        if self.fill:
            made["fill"] = {name: stand_in.note for name, stand_in in self.fill.items()}
        if self.masks:
            made["optional"] = {name: mask for mask, name in self.masks.items()}
        return StoreLayout(
            samples or 0, self.options.batch_size, length, fields, self.has_names, made, has_checksums=True
        )

    def _field(self, name: str, length: int) -> FieldLayout:
        spec, ragged = self.schema[name], self.ragged.get(name)
        meaning = note_of(spec.dtype)
        dtype, axes = (meaning.stored, meaning.axes) if meaning else (spec.dtype, ())
        codec = codec_named(self.options.codec, dtype.itemsize)
        if ragged is None:
            return FieldLayout(name, dtype, (*spec.shape, *axes), length, codec, meaning=meaning)
        shape = (-1,) * ragged.axes
        return FieldLayout(name, dtype, shape, length, codec, ragged.piece_length, meaning)

    def field_nbytes(self, name: str) -> int:
        """Return the bytes of one sample of a field, of a ragged one on average."""
        return self.ragged[name].mean_nbytes if name in self.ragged else self.schema[name].nbytes

    @property
    def longest(self) -> dict[str, int]:
        """Values of the longest chunk of each ragged field."""
        return {name: ragged.longest for name, ragged in self.ragged.items()}

    @property
    def passed_over(self) -> str:
        """How many files of the source were skipped, of each kind that there was; empty if none."""
        counts = {"hidden": self.hidden, "foreign": self.foreign}
        kinds = [f"{count:,} {kind}" for kind, count in counts.items() if count]
        return f"{' and '.join(kinds)} file{'s' * (self.hidden + self.foreign > 1)}" if kinds else ""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample, all fields; of ragged ones on average."""
        return sum(map(self.field_nbytes, self.schema))

    @property
    def chunk_length(self) -> int:
        """Samples in a chunk."""
        return self.layout(self.samples).chunk_length

    @property
    def chunks(self) -> int | None:
        """Chunks in every field; None where the number of samples is open."""
        return None if self.samples is None else self.layout(self.samples).chunks

    @property
    def store_bytes(self) -> int | None:
        """Bytes of all files but the metadata: exact for raw, the most it can be if the codec compresses.

        Holes in ragged fields do not count.
        """
        if self.samples is None or self.chunks is None:
            return None
        listed = checksums_nbytes(self.chunks, len(self.schema))
        rows = self.chunks * self.chunk_length
        own = sum(ragged.nbytes + rows * _EXTENT_BYTES * ragged.axes for ragged in self.ragged.values())
        return rows * self.layout(self.samples).sample_nbytes + own + self.names_bytes + listed

    @property
    def padding_bytes(self) -> int:
        """Bytes of zeros behind the last sample, since the last chunk is as long as the others."""
        if self.samples is None or self.chunks is None:
            return 0
        rows = self.chunks * self.chunk_length - self.samples
        return rows * self.layout(self.samples).sample_nbytes

    @property
    def memory_bytes(self) -> int:
        """The most that buffers take: for each job a chunk of all fields, and what encodes the largest.

        A compressing codec needs room for one encoded chunk of one field, which is at most 1/256 and
        64 KiB longer than the chunk. What the source itself holds for one sample comes on top.
        """
        layout = self.layout(self.samples)
        values = [ragged.longest * ragged.spec.dtype.itemsize for ragged in self.ragged.values()]
        ends = [layout.chunk_length * _EXTENT_BYTES * (1 + ragged.axes) for ragged in self.ragged.values()]
        largest = max([field.chunk_nbytes for field in layout.fields] + values)
        encoded = 0 if self.options.codec == "raw" else largest + largest // 256 + 2**16
        return self.jobs * (layout.chunk_nbytes + sum(values) + sum(ends) + encoded)

    @property
    def fits(self) -> bool:
        """Whether the target has room, as far as that is known before."""
        if self.store_bytes is None or self.options.codec != "raw":
            return True
        return self.store_bytes <= self.free_bytes + self.present_bytes

    def describe(self) -> str:
        """Write the plan for people, several lines."""
        counted = "samples, as many as come" if self.samples is None else f"{self.samples:,} samples"
        lines = [("source", f"{self.source.kind}: {counted}")]
        if self.passed_over:
            lines.append(("", f"{self.passed_over} skipped"))
        lines += [("", remark) for remark in (*self.remarks, self.likeness) if remark]
        if self.options.allow_pickle:
            lines.append(("", f"WARNING: {PICKLES_ARE_READ}"))
        width = max(len(name) for name in self.schema)
        for number, (name, spec) in enumerate(self.schema.items()):
            ragged = self.ragged.get(name)
            text = f"{name:<{width}}  {ragged or spec}, {format_size(self.field_nbytes(name))} a sample"
            text += " on average" if ragged else ""
            text += f", says which samples have {self.masks[name]}" if name in self.masks else ""
            text += f", {self.fill[name]} where missing" if name in self.fill else ""
            text += ", cast" if name in dict(self.options.cast) else ""
            lines.append(("" if number else "fields", text))
        lines.append(("store", self.out))
        if self.in_source:
            lines.append(("", "inside the source's folder, whose next run skips these files as foreign"))
        batches = self.chunk_length // self.options.batch_size
        of = f"{self.chunk_length:,} samples ({batches:,} x batch {self.options.batch_size:,})"
        each = format_size(self.chunk_length * self.sample_bytes)
        many = "chunks" if self.chunks is None else f"{self.chunks:,} chunk{'s' * (self.chunks != 1)}"
        lines.append(("chunks", f"{many} of {of}, {each} each, {self.options.codec}"))
        jobs = f"{self.jobs} job{'s' * (self.jobs != 1)}"
        lines.append(("memory", f"at most {format_size(self.memory_bytes)} of buffers, {jobs}"))
        lines.append(("space", self._space()))
        return "\n".join(f"{head:<8}{text}" for head, text in lines)

    def _space(self) -> str:
        free = f"{format_size(self.free_bytes)} free"
        if self.store_bytes is None:
            return f"{format_size(self.sample_bytes)} needed for every sample, {free}"
        most = "" if self.options.codec == "raw" else "at most "
        needed = f"{most}{format_size(self.store_bytes)} needed"
        if self.options.codec == "raw" and self.padding_bytes > _PADDING_TOLD * self.store_bytes:
            needed += f", of which {format_size(self.padding_bytes)} of zeros fill the last chunk"
        there = f", {format_size(self.present_bytes)} there already" if self.present_bytes else ""
        return f"{needed}{there}, {free}" + ("" if self.fits else ": TOO LITTLE")
