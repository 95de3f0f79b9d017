"""Go through a pickle before it is loaded, and refuse what would take time or memory beyond its own size.

A few bytes can name one tuple again and again inside others, so that its hash takes for ever, and can number
values so that Python makes room for billions. Here only sizes are followed, as the loader would go.
"""

from __future__ import annotations

import pickletools
from typing import Any, Final

__all__ = ["RefusedError", "allowance", "check_opcodes"]

_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OF_MANY: Final = frozenset({"TUPLE", "FROZENSET", "SETITEM", "SETITEMS", "ADDITEMS"})
_KEEPING: Final = frozenset({"APPEND", "APPENDS", "BUILD"})
_GROWTH: Final = 16
_LEAST: Final = 4096


class RefusedError(Exception):
    """A pickle holds what is never read."""


def allowance(nbytes: int) -> int:
    """Return how much a pickle of so many bytes may come to: honest ones come to a few times their size."""
    return _GROWTH * nbytes + _LEAST


def check_opcodes(data: bytes) -> None:
    r"""Go through a pickle, and load nothing.

    Raises
    ------
    RefusedError
        If it numbers a value beyond any that it can have, or its keys would take too long to hash.
    Exception
        Whatever a damaged pickle brings about.

    Examples
    --------
    >>> check_opcodes(b"N.")
    >>> check_opcodes(b"Np4000000000\n.")
    Traceback (most recent call last):
    mmapload.sources.opcodes.RefusedError: its pickle numbers a value 4000000000, and it has 14 bytes
    """
    walk = _Walk(len(data))
    for opcode, argument, _ in pickletools.genops(data):
        walk.step(opcode, argument)


class _Walk:
    """The loader's stack, with what it takes to hash each value; None is a mark."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._left = self._most = allowance(nbytes)
        self._stack: list[int | None] = []
        self._memo: dict[int, int] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name in _PUTS:
            self._number(int(argument))
        elif name == "MEMOIZE":
            self._number(len(self._memo))
        elif name in _GETS:
            self._stack.append(self._memo.get(int(argument), 1))
        elif name == "DUP":
            self._stack.append(self._top())
        elif name == "MARK":
            self._stack.append(None)
        elif name in _TUPLES:
            self._put(1 + sum(self._pop() for _ in range(_TUPLES[name])))
        elif name in _OF_MANY:
            self._take_many(name)
        else:
            self._other(opcode, argument, keeps=name in _KEEPING)

    def _number(self, number: int) -> None:
        if number > self._nbytes:
            raise RefusedError(f"its pickle numbers a value {number}, and it has {self._nbytes} bytes")
        self._memo[number] = self._top()

    def _take_many(self, name: str) -> None:
        items = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._to_mark()
        if name != "TUPLE":
            self._hash(items[::2] if name in {"SETITEM", "SETITEMS"} else items)
        if name in {"TUPLE", "FROZENSET"}:
            self._put(1 + sum(items))

    def _other(self, opcode: pickletools.OpcodeInfo, argument: Any, *, keeps: bool) -> None:
        """Take from the stack, and put there, what the table of opcodes says."""
        before = len(opcode.stack_before)
        if pickletools.markobject in opcode.stack_before:
            before = opcode.stack_before.index(pickletools.markobject)
            self._to_mark()
        for _ in range(before - keeps):  # what is changed in place stays what it is
            if self._stack.pop() is None and opcode.name != "POP":
                raise ValueError(f"{opcode.name} meets a mark")
        size = 1 + argument.bit_length() // 64 if isinstance(argument, int) else 1
        self._stack += [size] * (len(opcode.stack_after) - keeps)

    def _top(self) -> int:
        top = self._stack[-1]
        if top is None:
            raise ValueError("a mark is numbered")
        return top

    def _pop(self) -> int:
        top = self._top()
        self._stack.pop()
        return top

    def _put(self, size: int) -> None:
        if size > self._most:
            raise RefusedError("its pickle names the same values again and again")
        self._stack.append(size)

    def _to_mark(self) -> list[int]:
        items = []
        while (top := self._stack.pop()) is not None:
            items.append(top)
        return items[::-1]

    def _hash(self, sizes: list[int]) -> None:
        self._left -= sum(sizes)
        if self._left < 0:
            raise RefusedError("its pickle names the same keys again and again")
