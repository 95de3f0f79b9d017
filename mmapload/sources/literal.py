"""The literals of Python that stand in `.npy` headers, read without Python's own parser.

That one warns of odd literals through filters that all threads share, recurses as deep as a text says, and
takes memory and time by its own rules. Headers need little: dicts, tuples, lists, strings, whole numbers,
True, False and None.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

__all__ = ["Literal", "parse_literal"]

Literal: TypeAlias = "str | int | bool | tuple[Literal, ...] | list[Literal] | dict[str, Literal] | None"

_LEXEME: Final = re.compile(
    r"""[ \t\n\r\f]*(?:
      (?P<mark>[][(){},:])
    | (?P<number>-?(?:0|[1-9][0-9]{0,99}))(?P<long>L?)(?![0-9A-Za-z_.])
    | (?P<word>True|False|None)(?![0-9A-Za-z_])
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {"True": True, "False": False, "None": None}
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_DEEPEST: Final = 20


def parse_literal(text: str, *, longs: bool = False) -> Literal:
    r"""Parse one literal.

    Parameters
    ----------
    text : str
        The whole of it. Backslashes in strings stay as they are.
    longs : bool
        Whether whole numbers may end in `L`, as Python 2 wrote them.

    Raises
    ------
    ValueError
        If it is none, or a key is no string or there twice, or a number has more than 100 digits, or brackets
        nest more than 20 deep.

    Examples
    --------
    >>> parse_literal("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")
    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}
    >>> parse_literal("(3L,)", longs=True)
    (3,)
    """
    parser = _Parser(text, longs)
    value = parser.value(0)
    if parser.kind != "end":
        raise ValueError("more than one literal")
    return value


class _Parser:
    """Reads lexeme after lexeme; `kind` and `lexeme` are those of the one that comes next."""

    def __init__(self, text: str, longs: bool) -> None:
        self._text = text
        self._longs = longs
        self._at = 0
        self.kind: str | None = None
        self.lexeme = ""
        self._advance()

    def _advance(self) -> None:
        found = _LEXEME.match(self._text, self._at)
        if found is None or (found["long"] and not self._longs):
            raise ValueError("no literal")
        self._at = found.end()
        self.kind = "number" if found["number"] is not None else found.lastgroup
        self.lexeme = found[self.kind or 0]

    def _take(self, mark: str) -> bool:
        if self.kind != "mark" or self.lexeme != mark:
            return False
        self._advance()
        return True

    def value(self, depth: int) -> Literal:
        kind, lexeme = self.kind, self.lexeme
        if kind == "end" or depth > _DEEPEST:
            raise ValueError("no end, or too deep")
        self._advance()
        if kind == "number":
            return int(lexeme)
        if kind == "word":
            return _WORDS[lexeme]
        if kind == "string":
            return lexeme[1:-1]
        if lexeme == "{":
            return self._dict(depth + 1)
        if lexeme not in _CLOSING:
            raise ValueError("no literal")
        values, comma = self._sequence(_CLOSING[lexeme], depth + 1)
        if lexeme == "[":
            return values
        return values[0] if len(values) == 1 and not comma else tuple(values)

    def _sequence(self, closing: str, depth: int) -> tuple[list[Literal], bool]:
        """Read values up to the closing bracket; also say whether a comma stands before it."""
        values: list[Literal] = []
        comma = False
        while not self._take(closing):
            if values and not comma:
                raise ValueError("no comma")
            values.append(self.value(depth))
            comma = self._take(",")
        return values, comma

    def _dict(self, depth: int) -> dict[str, Literal]:
        found: dict[str, Literal] = {}
        comma = True
        while not self._take("}"):
            key = self.value(depth)
            if not comma or not isinstance(key, str) or key in found or not self._take(":"):
                raise ValueError("no key")
            found[key] = self.value(depth)
            comma = self._take(",")
        return found
