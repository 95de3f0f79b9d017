"""What looking at a whole source found, as frozen values, and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import shown
from mmapload.progress import rate_of
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from mmapload.sources import ArraySpec

__all__ = ["CheckReport", "NonFinite", "Outlier", "SampleFault", "Variety"]

_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A sample that cannot be read.

    Attributes
    ----------
    index : int
        Its number in the source.
    file : str
        Its file, or a description where there is none.
    member : str or None
        The array in it, if the fault lies in one.
    cause : str
        What is wrong, and what to do.
    """

    index: int
    file: str
    member: str | None
    cause: str

    def __str__(self) -> str:
        where = self.file if self.member is None else f"{self.file}, member {shown(self.member)}"
        return f"{where}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Variety:
    """Shapes of one dtype and number of axes: those of a ragged field, or too many to tell each.

    Attributes
    ----------
    dtype : numpy.dtype
        Of all of them.
    shortest, longest : tuple of int
        Of each axis, the least and the greatest length.
    ragged : bool
        Whether they may differ.
    """

    dtype: np.dtype[Any]
    shortest: tuple[int, ...]
    longest: tuple[int, ...]
    ragged: bool = False

    def __str__(self) -> str:
        if self.ragged:
            pairs = zip(self.shortest, self.longest, strict=True)
            ranges = [f"{least:,}" if least == most else f"{least:,} to {most:,}" for least, most in pairs]
            return f"{self.dtype.name} ({' x '.join(ranges)}), ragged"
        return f"{self.dtype.name}, other shapes from {self.shortest} to {self.longest}"


@dataclass(frozen=True, slots=True)
class Outlier:
    """Samples in which a field is otherwise than in most.

    Attributes
    ----------
    field : str
        Its name.
    found : ArraySpec, Variety or None
        What it is in these samples; None where they lack it.
    expected : ArraySpec, Variety or None
        What it is in most samples; None where most lack it.
    samples : numpy.ndarray of int64, shape (count,)
        Their numbers in the source, rising.
    """

    field: str
    found: ArraySpec | Variety | None
    expected: ArraySpec | Variety | None
    samples: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Values of a field that are no numbers, or infinite.

    Attributes
    ----------
    field : str
        Its name.
    nan, inf : int
        How many values are NaN, and how many infinite; a complex one counts as NaN if a part of it is.
    samples : numpy.ndarray of int64, shape (count,)
        Numbers of the samples that have such values, rising.
    """

    field: str
    nan: int
    inf: int
    samples: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `mmapload.check` found.

    Attributes
    ----------
    kind : str
        Of the source, "npz" for instance.
    samples : int
        How many samples there are, those with faults included.
    nbytes : int
        Bytes of all arrays that were read.
    seconds : float
        Wall time.
    schema : mapping of str to ArraySpec or Variety
        What most samples have, by field.
    faults : tuple of SampleFault
        Samples that cannot be read, in the source's order.
    outliers : tuple of Outlier
        Samples whose schema is not that of most.
    non_finite : tuple of NonFinite
        Fields with NaN or infinite values; they are told, and no fault.
    problems : tuple of str
        What no store can be made of for another reason: names that no field can have, and options that do
        not fit the samples.
    hidden, foreign : int
        Files that were passed over: names that begin with a dot, and other suffixes.
    notes : tuple of str
        What else was noticed where the files were listed.
    name : callable
        From a sample's number to its name.
    """

    kind: str
    samples: int
    nbytes: int
    seconds: float
    schema: Mapping[str, ArraySpec | Variety]
    faults: tuple[SampleFault, ...]
    outliers: tuple[Outlier, ...]
    non_finite: tuple[NonFinite, ...]
    problems: tuple[str, ...]
    hidden: int
    foreign: int
    notes: tuple[str, ...]
    name: Callable[[int], str]

    @property
    def sound(self) -> bool:
        """Whether `preprocess` can store every sample: no fault, no outlier, no problem."""
        return not (self.faults or self.outliers or self.problems)

    def describe(self) -> str:
        """Write for people what was found, but for the faults; several lines."""
        width = max((len(field) for field in self.schema), default=0)
        lines = [f"{'':<8}{field:<{width}}  {spec}" for field, spec in self.schema.items()]
        if lines:
            lines[0] = "fields" + lines[0][len("fields") :]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"outlier: {self._told(outlier)}" for outlier in self.outliers]
        lines += [f"note: {self._noted(values)}" for values in self.non_finite]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"note: {self.passed_over} skipped"] * bool(self.passed_over)
        return "\n".join([*lines, self.summary])

    @property
    def passed_over(self) -> str:
        """How many files were passed over, of each kind that there was; empty if none."""
        counts = {"hidden": self.hidden, "foreign": self.foreign}
        kinds = [f"{count:,} {kind}" for kind, count in counts.items() if count]
        return f"{' and '.join(kinds)} file{'s' * (self.hidden + self.foreign > 1)}" if kinds else ""

    @property
    def summary(self) -> str:
        """What was found, in one line."""
        counts = {
            "that cannot be read": len(self.faults),
            "unlike most": self._unlike(),
            "problems with names": len(self.problems),
        }
        found = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        rate = rate_of(self.samples, self.nbytes, self.seconds)
        read = f"{format_size(self.nbytes)} of arrays read in {self.seconds:.1f} s ({rate})"
        return f"{self.samples:,} samples: {found or 'sound'}; {read}"

    def _unlike(self) -> int:
        return len({int(index) for outlier in self.outliers for index in outlier.samples})

    def _told(self, outlier: Outlier) -> str:
        where = self._named(outlier.samples)
        count = f"{len(outlier.samples):,} of {self.samples:,} samples"
        if outlier.found is None:
            return f"{shown(outlier.field)} is missing in {count}: {where}"
        if outlier.expected is None:
            return f"{shown(outlier.field)} is only in {count}, {outlier.found}: {where}"
        return f"{shown(outlier.field)} is {outlier.found} in {count}, not {outlier.expected}: {where}"

    def _noted(self, values: NonFinite) -> str:
        kinds = [
            f"{count:,} {what}" for count, what in ((values.nan, "NaN"), (values.inf, "infinite")) if count
        ]
        where = self._named(values.samples)
        many = f"{len(values.samples):,} of {self.samples:,} samples"
        return f"{shown(values.field)} has {' and '.join(kinds)} values in {many}: {where}"

    def _named(self, indices: npt.NDArray[np.int64]) -> str:
        first = ", ".join(self.name(int(index)) for index in indices[:_MOST_NAMED])
        more = len(indices) - _MOST_NAMED
        return first + (f", ... ({more:,} more; --json lists all)" if more > 0 else "")
