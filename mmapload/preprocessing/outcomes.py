"""What comes of samples and chunks: done, or left out; and how a journal's lines say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmapload.writer.chunks import ChunkFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.errors import SourceError
    from mmapload.sources.grouped import Sums
    from mmapload.writer.chunks import Written

__all__ = ["BadSample", "DoneChunk", "SkippedSample"]


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that was left out.

    Attributes
    ----------
    index : int
        Its number in the source.
    file : str
        Its file, or a description where there is none.
    member : str or None
        The array in it, if the fault lies in one.
    cause : str
        What is wrong.
    """

    index: int
    file: str
    member: str | None
    cause: str


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be read, and its position in the order of writing."""

    position: int
    index: int
    digest: str
    error: SourceError

    @property
    def skipped(self) -> SkippedSample:
        """What is told of it when it is left out."""
        return SkippedSample(self.index, self.error.file, self.error.member, self.error.cause)


@dataclass(frozen=True, slots=True)
class DoneChunk:
    """A chunk whose files are on the disk.

    Attributes
    ----------
    chunk : int
        Its number.
    files : tuple of ChunkFile, tuple of ChunkFile, or None
        For every field; None where it has no chunk files, and several of a ragged one.
    digests : str
        `digest_of` each of its samples, one after the other; of one for each file where many lie in one.
    stand_ins : mapping of str to int
        In how many of them something stands in for a field that they lack.
    non_finite : mapping of str to int
        In how many of them a field has a value that is NaN or infinite.
    sums : Sums
        What was read, where many samples lie in one file.
    """

    chunk: int
    files: tuple[Written, ...]
    digests: str
    stand_ins: Mapping[str, int]
    sums: Sums = field(default_factory=dict)
    non_finite: Mapping[str, int] = field(default_factory=dict)

    @property
    def note(self) -> dict[str, Any]:
        """What a journal says of it, as JSON values."""
        return {
            "chunk": self.chunk,
            "files": [_noted(written) for written in self.files],
            "digests": self.digests,
            "stand_ins": self.stand_ins,
            **({"sums": self.sums} if self.sums else {}),
            **({"non_finite": self.non_finite} if self.non_finite else {}),
        }

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> DoneChunk:
        """Make one of what a journal says."""
        sums = {key: (nbytes, total) for key, (nbytes, total) in note.get("sums", {}).items()}
        files = tuple(map(_written, note["files"]))
        counts = note.get("stand_ins", {}), sums, note.get("non_finite", {})
        return cls(note["chunk"], files, note["digests"], *counts)


def _noted(written: Written) -> Any:
    if isinstance(written, tuple):
        return [[file.nbytes, file.checksum] for file in written]
    return written and [written.nbytes, written.checksum]


def _written(noted: Any) -> Written:
    if noted and isinstance(noted[0], list):
        return tuple(ChunkFile(*file) for file in noted)
    return noted and ChunkFile(*noted)
