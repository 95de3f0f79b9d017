"""Arguments as people write them."""

from __future__ import annotations

import argparse

from mmapload.sizes import parse_size

__all__ = ["UsageError", "counting_number", "size", "whole_number"]


class UsageError(Exception):
    """What was asked for does not fit together, or not with what is there."""


def counting_number(text: str) -> int:
    """Read an integer of at least 1."""
    return _number(text, 1)


def whole_number(text: str) -> int:
    """Read an integer of at least 0."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, found {text!r}")
    return int(text)


def size(text: str) -> int:
    """Read a size in bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
