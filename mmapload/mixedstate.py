"""What is saved of a position in a mix of several stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmapload.errors import StateMismatchError, shown
from mmapload.state import Saved, check_number, malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.order import Mode

__all__ = ["MixedState"]


@dataclass(frozen=True, slots=True)
class MixedState(Saved):
    """A position in an epoch of a mix, the same on all ranks.

    Attributes
    ----------
    fingerprint : str
        Of the stores, their shares and the length of an epoch.
    seed : int
        Of the order.
    mode : {"window", "full", "sequential"}
        How the samples of each store are shuffled.
    windows : list of int, or None
        Samples of each store that are mixed with each other; None unless the mode is "window".
    global_batch : int
        Samples of all ranks together in a step.
    epoch, step : int
        Which epoch, and batches of it that each rank has received.

    Examples
    --------
    >>> state = MixedState("0123456789abcdef", 0, "window", [1024, 512], 32, epoch=2, step=7)
    >>> MixedState.from_dict(state.to_dict()) == state
    True
    """

    fingerprint: str
    seed: int
    mode: Mode
    windows: list[int] | None
    global_batch: int
    epoch: int
    step: int

    @classmethod
    def _check_own(cls, entries: Mapping[str, Any]) -> None:
        windows = entries["windows"]
        if (windows is not None) != (entries["mode"] == "window"):
            raise malformed({"windows": windows}, "windows None unless the mode is window")
        if windows is not None:
            if type(windows) is not list:
                raise malformed({"windows": windows}, "windows as a list")
            for window in windows:
                check_number("windows", window, 1)

    def check(self, now: MixedState, steps: int, last_epoch: int) -> None:
        """Check that it belongs to a run, whose own state is given.

        Parameters
        ----------
        now : MixedState
            Of the run, at any position.
        steps, last_epoch : int
            How many its epochs have, and the last epoch that it may have.

        Raises
        ------
        StateMismatchError
            If it does not.
        """
        for name, advice in (
            ("fingerprint", "stores, proportions or epoch_length: pass the same ones"),
            ("seed", "seed: pass the same one"),
            ("mode", "shuffling: pass the same shuffle"),
            ("global_batch", "global batch: use a batch_size that makes it with this number of ranks"),
        ):
            if getattr(self, name) != getattr(now, name):
                saved, current = (shown(getattr(each, name)) for each in (self, now))
                raise StateMismatchError(f"the state is of another {advice}", saved, current)
        if self.step > steps or self.epoch > last_epoch:
            raise StateMismatchError(
                "the state's step or epoch lies beyond the last",
                f"step {self.step} of epoch {self.epoch}",
                f"at most {steps} steps, and epoch {last_epoch}",
            )
        if len(self.windows or ()) != len(now.windows or ()):
            raise malformed({"windows": self.windows}, "a window for each store")
