"""What is saved of a position in an epoch, and what it has to agree with where it is restored.

A state is small, flat, and made of what JSON has. Whoever reads one trusts nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self, get_args

import numpy as np

from mmapload.errors import StateMismatchError, shown
from mmapload.order import ORDER_VERSION, GroupedOrder, Mode, Remainder, epoch_order

if TYPE_CHECKING:
    from mmapload.order import EpochOrder, Geometry, Groups

__all__ = ["STATE_VERSION", "Saved", "SavedState", "check_number", "malformed"]

STATE_VERSION: Final = 1
"""Changes whenever a state of before could be misread."""

_NUMBERS: Final = {"seed": 0, "global_batch": 1, "epoch": 0, "step": 0}
"""Whole numbers of every state, below 2**64, and their least values."""

_WORDS: Final = {"mode": get_args(Mode), "remainder": get_args(Remainder)}
"""Entries that are one of a few words."""

_SEARCHED: Final = 4096
"""How far above the batch size others that work are looked for."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What states of all kinds have in common: entries of their own beside two versions, each checked."""

    def to_dict(self) -> dict[str, Any]:
        """Return what is saved: values that JSON has."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"version": STATE_VERSION, "order_version": ORDER_VERSION, **own}

    @classmethod
    def from_dict(cls, found: object) -> Self:
        """Read what was saved, by anyone.

        Raises
        ------
        StateMismatchError
            If it is of another version, or no state of this kind.
        """
        entries = _known_entries(found, [field.name for field in fields(cls)])
        for name, least in _NUMBERS.items():
            check_number(name, entries[name], least)
        for name in ("fingerprint", "mode"):
            if type(entries[name]) is not str:
                raise malformed({name: entries[name]}, f"{name} as text")
        cls._check_own(entries)
        return cls(**entries)

    @classmethod
    def _check_own(cls, entries: Mapping[str, Any]) -> None:
        """Check the entries that only this kind has."""


@dataclass(frozen=True, slots=True)
class SavedState(Saved):
    """A position in an epoch, the same on all ranks.

    Attributes
    ----------
    fingerprint : str
        Of the store, or of the samples that were chosen, weighed or grouped.
    seed : int
        Of the order, and of the generators that transforms are given.
    mode : {"window", "batch", "full", "sequential"}
        How samples are shuffled.
    window : int or None
        Samples that are mixed with each other, as it came out; None unless the mode is "window".
    lanes : int
        Groups of ranks with windows of their own.
    global_batch : int
        Samples of all ranks together in a step.
    remainder : {"keep", "pad", "drop"}
        What becomes of the last samples.
    epoch : int
        Which.
    step : int
        Batches of that epoch that each rank has received.

    Examples
    --------
    >>> state = SavedState("0123456789abcdef", 0, "window", 1024, 1, 32, "keep", epoch=2, step=7)
    >>> state.to_dict()["step"], SavedState.from_dict(state.to_dict()) == state
    (7, True)
    >>> SavedState.from_dict({"version": 99})
    Traceback (most recent call last):
      ...
    mmapload.errors.StateMismatchError: the state's version is not one that is known here: saved 99, now 1
    """

    fingerprint: str
    seed: int
    mode: Mode
    window: int | None
    lanes: int
    global_batch: int
    remainder: Remainder
    epoch: int
    step: int

    @classmethod
    def _check_own(cls, entries: Mapping[str, Any]) -> None:
        check_number("lanes", entries["lanes"], 1)
        for name, known in _WORDS.items():
            if type(entries[name]) is not str or entries[name] not in known:
                raise malformed({name: entries[name]}, f"{name} as one of {', '.join(known)}")
        if entries["mode"] == "window":
            check_number("window", entries["window"], 1)
        elif entries["window"] is not None or entries["lanes"] != 1:
            told = {name: entries[name] for name in ("mode", "window", "lanes")}
            raise malformed(told, "window None and lanes 1 unless the mode is window")

    def check_store(self, fingerprint: str, path: str) -> None:
        """Check that the state is of the store at a path, and of the same samples of it.

        Raises
        ------
        StateMismatchError
            If it is not.
        """
        if self.fingerprint != fingerprint:
            raise StateMismatchError(
                f"the state is of another store than {path} (`mmapload info` shows fingerprints), or of it "
                "before samples were appended, or of other samples, weights, groups or length of an epoch: "
                "pass the same ones",
                shown(self.fingerprint),
                fingerprint,
            )

    def resumed(
        self,
        geometry: Geometry,
        *,
        batch_size: int,
        world_size: int,
        mode: Mode,
        seed: int,
        remainder: Remainder | None,
        groups: Groups | None = None,
    ) -> tuple[EpochOrder | GroupedOrder, int]:
        """Return the order of the state's epoch, with its window and lanes, and the step at which it goes on.

        Parameters
        ----------
        geometry : Geometry
            Of the store.
        batch_size, world_size : int
            Samples of a rank in a step, and ranks.
        mode, seed
            Of the order.
        remainder : {"keep", "pad", "drop"}, optional
            By default the state's.
        groups : Groups, optional
            Of the samples, where batches have one group each.

        Raises
        ------
        StateMismatchError
            If the order would be another one, or no step begins where the state is: what has been received is
            no whole number of global batches of this size. The message names batch sizes that fit.

        Examples
        --------
        >>> from mmapload.order import Geometry
        >>> saved = SavedState("0123456789abcdef", 0, "full", None, 1, 32, "keep", epoch=0, step=3)
        >>> run = dict(world_size=4, mode="full", seed=0, remainder=None)
        >>> [saved.resumed(Geometry(1000, 32, 32), batch_size=size, **run)[1] for size in (8, 12, 24)]
        [3, 2, 1]
        """
        if self.mode != mode:
            raise _other("shuffling: pass the same shuffle", self.mode, mode)
        if self.seed != seed:
            raise _other("seed: pass the same one", f"seed={self.seed}", f"seed={seed}")
        global_batch = batch_size * world_size
        remainder = remainder or self.remainder
        sizes = np.array([geometry.samples]) if groups is None else groups.sizes
        if remainder != self.remainder and (sizes % global_batch).any():
            advice = "remainder: pass the same one (drop_last=True is 'drop')"
            raise _other(advice, f"remainder={self.remainder!r}", f"remainder={remainder!r}")
        step = self._step(geometry, batch_size, world_size, groups)
        try:
            walk = epoch_order(
                geometry,
                global_batch=global_batch,
                mode=mode,
                seed=seed,
                epoch=self.epoch,
                window=self.window,
                lanes=self.lanes,
                remainder=remainder,
            )
            if groups is not None and self.lanes != 1:
                raise ValueError("batches of one group each are made in one lane")  # noqa: TRY301 - told below
            order = walk if groups is None else GroupedOrder(walk, groups)
            order.check_world_size(world_size)
        except ValueError as error:
            of_order = f"window={self.window}, lanes={self.lanes}, remainder={self.remainder!r}"
            raise StateMismatchError(
                f"the state does not suit this run: {error}",
                f"{of_order}, global batches of {self.global_batch} samples",
                f"batch_size={batch_size} on {world_size} ranks",
            ) from error
        return order, step

    def _step(self, geometry: Geometry, batch_size: int, world_size: int, groups: Groups | None) -> int:
        steps = _steps(geometry.samples, self.global_batch, self.remainder, groups)
        if self.step > steps:
            raise StateMismatchError(
                f"the state's step lies beyond its epoch of {geometry.samples} samples",
                f"step {self.step} of batches of {self.global_batch}",
                f"at most {steps} steps",
            )
        global_batch = batch_size * world_size
        if self.global_batch == global_batch:
            return self.step
        if self.step == steps:
            return _steps(geometry.samples, global_batch, self.remainder, groups)
        position = self.step * self.global_batch
        if groups is not None and position:
            raise StateMismatchError(
                "batches of one group each are others for another global batch: use a batch_size that makes "
                "the state's with this number of ranks",
                f"{self.step} global batches of {self.global_batch} samples",
                f"batch_size={batch_size} on {world_size} ranks",
            )
        if position % global_batch == 0:
            return position // global_batch
        below = range(batch_size - 1, max(0, batch_size - _SEARCHED), -1)
        above = range(batch_size + 1, batch_size + _SEARCHED)
        near = [
            next((str(size) for size in sizes if self._fits(geometry, size * world_size)), None)
            for sizes in (below, above)
        ]
        works = " or ".join(size for size in near if size is not None)
        advice = f"use batch_size={works} on {world_size} ranks" if works else "use another number of ranks"
        raise StateMismatchError(
            f"{position} samples of the epoch have been received, which is no whole number of global batches "
            f"of {global_batch}: {advice}, or a state saved at another step",
            f"{self.step} global batches of {self.global_batch} samples",
            f"batch_size={batch_size} on {world_size} ranks",
        )

    def _fits(self, geometry: Geometry, global_batch: int) -> bool:
        """Say whether a global batch of this size begins where the state is, and fits the order."""
        if self.step * self.global_batch % global_batch or global_batch % self.lanes:
            return False
        return self.mode != "batch" or not (global_batch % geometry.unit and geometry.unit % global_batch)


def _known_entries(found: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the entries of these names of what was saved, by anyone, once its versions are known ones.

    Raises
    ------
    StateMismatchError
        If it is of another version, or has other entries.
    """
    if not isinstance(found, Mapping):
        raise malformed(found, "a dict that state_dict() returned")
    entries = sorted(map(str, found)), f"entries version, order_version, {', '.join(names)}"
    for name, what, known in (
        ("version", "state's version", STATE_VERSION),
        ("order_version", "order's version", ORDER_VERSION),
    ):
        if name not in found:
            raise malformed(*entries)
        if type(found[name]) is not int or found[name] != known:
            said = f"the {what} is not one that is known here"
            raise StateMismatchError(said, shown(found[name]), str(known))
    if set(found) != {"version", "order_version", *names}:
        raise malformed(*entries)
    return {name: found[name] for name in names}


def _other(what: str, saved: str, now: str) -> StateMismatchError:
    return StateMismatchError(f"the state is of another {what}", saved, now)


def check_number(name: str, value: object, least: int) -> None:
    """Check that an entry is a whole number from `least` up, below 2**64."""
    if type(value) is not int or not least <= value < 2**64:
        raise malformed({name: value}, f"{name} as an integer in [{least}, 2**64)")


def malformed(found: object, expected: str) -> StateMismatchError:
    """Return the error for what is no state."""
    return StateMismatchError("this is no state of a sampler or loader", shown(found), f"expected {expected}")


def _steps(samples: int, global_batch: int, remainder: Remainder, groups: Groups | None) -> int:
    if groups is not None:
        return groups.steps(global_batch, remainder)
    return samples // global_batch if remainder == "drop" else -(-samples // global_batch)
