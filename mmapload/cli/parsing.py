"""Arguments as people write them."""

from __future__ import annotations

import argparse

from mmapload.sizes import parse_size

__all__ = ["UsageError", "counting_number", "size", "whole_number"]


class UsageError(Exception):
    """What was asked for does not fit together, or not with what is there."""


def counting_number(text: str) -> int:
    """Read an integer of at least 1."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1")
    return number


def whole_number(text: str) -> int:
    """Read an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def size(text: str) -> int:
    """Read a size in bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
