"""Which samples each epoch of a sampler is over: all of a dataset once, or drawn by their weights."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmapload.order import Chosen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mmapload.order import Geometry, Groups
    from mmapload.weights import Weights

__all__ = ["Epochs"]


class Epochs:
    """The samples of every epoch, for an order that gives positions among them.

    Parameters
    ----------
    geometry : Geometry
        Of a dataset.
    chosen : Chosen or None
        Its samples, by their numbers in the store; None: all of the store.
    fingerprint : str
        Of the dataset.
    seed : int
        Of the order.
    weights : Weights or None
        How often each sample of the dataset comes; None: once an epoch.
    groups : Groups, optional
        Of the samples, for batches that have one group each.

    Attributes
    ----------
    geometry : Geometry
        How an epoch is cut.
    fingerprint : str
        Of all that decides which samples epochs have, and which groups these are of.
    groups : Groups or None
        As given.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> from mmapload.weights import checked_weights
    >>> weights = checked_weights([1, 1, 0, 6], samples=4, length=8)
    >>> epochs = Epochs(Geometry(4, 2, 1), None, "", 0, weights)
    >>> epochs.geometry.samples, epochs.drawn(0).tolist(), epochs.chosen(0).all_numbers().tolist()
    (8, [0, 1, 3, 3, 3, 3, 3, 3], [0, 1, 3, 3, 3, 3, 3, 3])
    """

    def __init__(
        self,
        geometry: Geometry,
        chosen: Chosen | None,
        fingerprint: str,
        seed: int,
        weights: Weights | None,
        groups: Groups | None = None,
    ) -> None:
        self.geometry = geometry if weights is None else replace(geometry, samples=weights.length)
        self.fingerprint = fingerprint
        if weights is not None:
            whole = hashlib.sha256(fingerprint.encode() + b"weights" + weights.digest())
            self.fingerprint = whole.hexdigest()[:16]
        if groups is not None:
            whole = hashlib.sha256(fingerprint.encode() + b"groups" + groups.digest)
            self.fingerprint = whole.hexdigest()[:16]
        self.groups = groups
        self._chosen = chosen
        self._seed = seed
        self._weights = weights
        self._latest: tuple[int, npt.NDArray[np.int64], Chosen] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_latest": None}

    def chosen(self, epoch: int) -> Chosen | None:
        """Return the samples of an epoch by their numbers in the store; None: all of the store, once."""
        return self._chosen if self._weights is None else self._draw(self._weights, epoch)[2]

    def drawn(self, epoch: int) -> npt.NDArray[np.int64] | None:
        """Return the samples of an epoch by their numbers in the dataset; None: all of the dataset, once."""
        return None if self._weights is None else self._draw(self._weights, epoch)[1]

    def _draw(self, weights: Weights, epoch: int) -> tuple[int, npt.NDArray[np.int64], Chosen]:
        latest = self._latest
        if latest is None or latest[0] != epoch:
            drawn = weights.drawn(self._seed, epoch)
            numbers = drawn if self._chosen is None else self._chosen.numbers(drawn)
            chosen = Chosen.of(numbers, self.geometry.chunk_length, repeats=True)
            latest = self._latest = (epoch, drawn, chosen)
        return latest
