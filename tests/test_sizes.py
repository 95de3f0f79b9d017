"""Sizes: what people write is read, and what is written reads back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 * 2**20),
        ("160KiB", 160 * 1024),
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("1", 1),
        ("12B", 12),
        (" 7k ", 7 * 1024),
        ("1.5M", 3 * 2**19),
        (".5KiB", 512),
        ("3TiB", 3 * 2**40),
        ("1PB", 10**15),
        (4096, 4096),
    ],
)
def test_sizes_parse_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "-5MiB", "0", "0.2", "1e6", "64 MiBs", "6 4", "1,5M", "inf", "nan", True, None]
)
def test_what_is_no_size_is_refused_by_its_own_words(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_size(text)


def test_a_large_size_stays_exact():
    assert parse_size(str(2**62 + 1)) == 2**62 + 1


@given(st.integers(1, 2**53))
def test_a_formatted_size_reads_back_within_its_three_digits(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)


@given(st.integers(0, 2**60))
def test_a_formatted_size_is_short_and_has_no_exponent(size):
    assert re.fullmatch(r"[0-9.]{1,8} (B|[KMGT]iB)", format_size(size)), format_size(size)


def test_sizes_just_below_a_unit_are_written_in_full():
    assert format_size(999.7) == "1000 B"
    assert format_size(1023 * 1024) == "1023 KiB"
    assert format_size(2**50) == "1024 TiB"
