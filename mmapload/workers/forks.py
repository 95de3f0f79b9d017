"""Shared memory that forked processes may still look at must not be written again.

A process that forks hands all its tensors on. Tensors in private memory are copied as soon as one side
writes; those in shared memory are not. So objects over shared memory that are alive when the process forks
are marked, and can ask later whether all processes that inherited them have ended. What tells is a pipe: the
forked process holds its writing end, knowingly or not, and the reading end is at its end when nobody does.
"""

from __future__ import annotations

import os
import select
from typing import Final
from weakref import WeakSet

__all__ = ["Descendants", "Inherited"]


class Descendants:
    """The processes that were forked since the last time that somebody asked for them.

    Raises
    ------
    OSError
        If there is no descriptor left for a pipe.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()  # closed by exec, not by fork
        self._pid = os.getpid()

    def ended(self) -> bool:
        """Say whether all of them have ended. Processes forked from now on are not among them."""
        if self._writing >= 0:
            if _forked.latest is self:
                _forked.latest = None
            os.close(self._writing)
            self._writing = -1
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self) -> None:
        if getattr(self, "_pid", None) != os.getpid():
            return  # in a forked process: what the writing end is there for
        for fd in (self._reading, self._writing):
            if fd >= 0:
                os.close(fd)


class Inherited:
    """Something that forked processes have a copy of.

    Attributes
    ----------
    descendants : tuple of Descendants
        Who may have one.
    """

    __slots__ = ("__weakref__", "descendants")

    def __init__(self) -> None:
        self.descendants: tuple[Descendants, ...] = ()
        _forked.alive.add(self)


class _Unknown(Descendants):
    """Processes that could not be given a pipe, and so for all one knows never end."""

    def __init__(self) -> None:
        pass

    def ended(self) -> bool:
        """Say no."""
        return False


class _Forked:
    """What this process knows about its forks."""

    def __init__(self) -> None:
        self.alive: WeakSet[Inherited] = WeakSet()
        self.latest: Descendants | None = None


_forked: Final = _Forked()
_unknown: Final = _Unknown()


def _before_fork() -> None:
    alive = list(_forked.alive)
    if not alive:
        return
    try:
        latest = _forked.latest = _forked.latest or Descendants()
    except OSError:
        latest = _unknown
    for each in alive:
        if latest not in each.descendants:
            each.descendants += (latest,)


def _after_fork_in_child() -> None:
    _forked.alive = WeakSet()
    _forked.latest = None


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
