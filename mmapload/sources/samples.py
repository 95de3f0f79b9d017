"""Samples from Python: sequences (lists, map-style torch datasets) and iterables (generators).

A sample is a mapping of names to arrays, to anything numpy takes for one (tensors in CPU memory, nested
lists of numbers), or to numbers and booleans. Neither torch nor any other library is imported for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from mmapload.errors import SourceError
from mmapload.sources.values import names_in, select, specs_of, store_sample, take_array

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.sources import ArraySpec

__all__ = ["IterableSource", "SequenceSource", "SupportsSamples"]

_SPOT: Final = 16
"""Of a sequence, every sixteenth sample is compared when an interrupted run goes on."""


class SupportsSamples(Protocol):
    """What `SequenceSource` needs: a list of mappings has it, and so has a map-style torch dataset."""

    def __len__(self) -> int:
        """Count the samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""


class SequenceSource:
    """Samples from anything with a length and an index.

    Only the thread that runs `preprocess` reads it, in order.

    Parameters
    ----------
    samples : sequence of mappings
        A list of dicts or a map-style torch dataset, for instance.
    fields : mapping of str to str, optional
        Which names to take, and the field that each becomes. None: all, under their own names.
    optional : collection of str
        Fields that a sample may lack.

    Examples
    --------
    >>> import numpy as np
    >>> samples = [{"x": np.arange(3), "y": 0.5}, {"x": np.arange(3), "y": 1.5}]
    >>> source = SequenceSource(samples, {"y": "label"})
    >>> {name: str(spec) for name, spec in source.schema(0).items()}
    {'label': 'float64 ()'}
    >>> label = np.empty(())
    >>> absent = source.read(1, {"label": label})
    >>> float(label)
    1.5
    """

    def __init__(
        self,
        samples: SupportsSamples,
        fields: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self.kind = "sequence"
        self.parallel = False
        self._samples = samples
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)
        self._taken: tuple[int, Any] | None = None

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._samples)

    def name(self, index: int) -> None:
        """Return None: the samples of a sequence have no names."""

    def describe(self, index: int) -> str:
        """Return "sample 7"."""
        return f"sample {index}"

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Take sample `index` and return dtype and shape of its arrays.

        Raises
        ------
        SourceError
            If taking it fails, or it is nothing that a store can hold.
        """
        return specs_of(self._take(index), self.describe(index), self._optional)

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Take sample `index` and copy its arrays.

        Returns
        -------
        tuple of str
            The optional fields that it lacks; their arrays are left as they are.

        Raises
        ------
        SourceError
            If taking it fails, or it differs from `into`.
        """
        taken, self._taken = self._taken, None
        sample = taken[1] if taken is not None and taken[0] == index else self._take(index)
        return store_sample(sample, into, self.describe(index), self._optional)

    def fingerprint(self, index: int) -> bytes:
        """Summarise the contents of every sixteenth sample; of the others nothing.

        Making a sample may be expensive, and comparing all would cost as much as starting anew. A sample
        that is read next is not made twice.
        """
        if index % _SPOT:
            return b""
        sample = self._take(index)
        self._taken = (index, sample)
        digest = hashlib.blake2b(digest_size=16)
        try:
            names = names_in(sample, "") if isinstance(sample, Mapping) else []
        except SourceError:
            return b""  # `read` will say so
        for name in names:
            try:
                array, _ = take_array(sample, name, "")
            except SourceError:
                continue  # `read` will say so
            digest.update(f"{name} {array.dtype} {array.shape}".encode("utf-8", "surrogatepass"))
            digest.update(array.tobytes())
        return digest.digest()

    def _take(self, index: int) -> Any:
        try:
            sample = self._samples[index]
        except Exception as error:
            cause = f"the sequence raised {type(error).__name__}: {error}"
            raise SourceError(self.describe(index), None, cause) from error
        return select(sample, self._fields, self.describe(index), self._optional)


class IterableSource:
    """Samples that come one after the other, once.

    Parameters
    ----------
    samples : iterable of mappings
        A generator, for instance.
    fields : mapping of str to str, optional
        Which names to take, and the field that each becomes. None: all, under their own names.
    optional : collection of str
        Fields that a sample may lack.

    Examples
    --------
    >>> import numpy as np
    >>> source = IterableSource({"x": np.float32(i)} for i in range(3))
    >>> {name: str(spec) for name, spec in source.schema().items()}
    {'x': 'float32 ()'}
    >>> [float(sample["x"]) for sample in source]
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        samples: Iterable[Mapping[str, Any]],
        fields: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self.kind = "iterable"
        self._samples = samples
        self._iterator: Iterator[Any] | None = None
        self._peeked: list[Any] = []
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield every sample; fields that a sample lacks are missing in it."""
        samples = chain(self._peeked, self._iterator or iter(self._samples))
        self._peeked, self._iterator = [], iter(())
        fields = self._fields
        if fields is None:
            return samples
        return (_chosen(sample, fields, f"sample {index}") for index, sample in enumerate(samples))

    def schema(self, *, skip: bool = False) -> dict[str, ArraySpec]:
        """Take the first sample, keep it for later, and return dtype and shape of its arrays.

        Parameters
        ----------
        skip : bool
            Whether to go on to the next sample where one cannot be stored.

        Raises
        ------
        SourceError
            If it is nothing that a store can hold, or there is none.
        """
        if self._iterator is None:
            self._iterator = iter(self._samples)
        fault: SourceError | None = None
        for sample in self._iterator:
            where = f"sample {len(self._peeked)}"
            try:
                chosen = select(sample, self._fields, where, self._optional)
                specs = specs_of(chosen, where, self._optional)
            except SourceError as error:
                if not skip:
                    raise
                # Not the sample: a generator that yields one dict again and again may mend it meanwhile.
                self._peeked.append(error)
                fault = fault or error
            else:
                self._peeked.append(sample)
                return specs
        if fault is not None:
            raise SourceError(fault.file, fault.member, f"{fault.cause}; and no other sample is sound")
        raise SourceError("the iterable", None, "there is no sample in it")


def _chosen(sample: Any, fields: Mapping[str, str], where: str) -> Any:
    """Take the fields that a sample has; or return what is wrong, to be raised when it is to be stored."""
    try:
        # It may lack all of them here: only storing it tells what others have.
        return select(sample, fields, where, fields.values())
    except SourceError as error:
        return error
