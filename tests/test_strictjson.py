"""Documents: JSON objects are read, and what is none is refused, by name where it has one."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.strictjson import MAX_DEPTH, MAX_DIGITS, MAX_DOCUMENT_BYTES, parse_document


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "not JSON but an empty file"),
        (b"<!DOCTYPE html>\n<html>Sign in</html>", "not JSON but an HTML or XML page"),
        (b'\n<?xml version="1.0"?>', "not JSON but an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n", "run git lfs pull"),
        (gzip.compress(b"{}", mtime=0), "not JSON but gzip data"),
        (bytes(4096), "not JSON but zero bytes"),
        (b"\xef\xbb\xbf{}", "not JSON but an object after a byte order mark"),
        ("{}".encode("utf-16"), "not JSON but text in UTF-16"),
        (b'{"a": NaN}', "not JSON (NaN is no number in JSON)"),
        (b'{"a": [1, -Infinity]}', "not JSON (-Infinity is no number in JSON)"),
        (b'{"a": "\xe9"}', "not JSON (byte 0xe9 at 7 is not UTF-8)"),
        (b'{"a": "\xed\xa0\x80"}', "is not UTF-8"),
        (b'{"a": 1} \0', "not JSON"),
        (b'{"a\0": 1}', "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"{}{}", "not JSON"),
        (b"[]", "expected an object, found list"),
        (b"null", "expected an object, found NoneType"),
        (b"3", "expected an object, found int"),
        (b'{"samples": ' + b"9" * 5000 + b"}", "not JSON (an integer of 5,000 digits)"),
        (b'{"samples": ' + b"9" * (MAX_DOCUMENT_BYTES - 20) + b"}", "not JSON (an integer of"),
        (b'{"x": ' + b"[" * 65 + b"]" * 65 + b"}", "nested deeper"),
        # How deep the parser itself goes depends on the version of Python.
        (b'{"x": ' * 700 + b"1" + b"}" * 700, ""),
        (b'{"x": ' + b"[" * 10**6 + b"]" * 10**6 + b"}", ""),
        (b"[" * 10**6, ""),
        (b'{"x": ' * 10**5 + b"1" + b"}" * 10**5, ""),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "more than the"),
    ],
)
def test_what_is_no_proper_document_is_refused(text, told):
    document, (problem,) = parse_document(text, "zarr.json")
    assert document == {}
    assert told in problem
    assert problem.startswith("zarr.json: ")


@pytest.mark.parametrize("depth", range(50, 1200, 50))
def test_nesting_of_any_depth_is_refused_without_exhausting_the_stack(depth):
    for opening, closing in ((b"[", b"]"), (b'{"x":', b"}")):
        text = b'{"data_type": ' + opening * depth + b"1" + closing * depth + b"}"
        assert bool(parse_document(text, "")[1]) == (depth >= MAX_DEPTH)


def test_a_key_that_is_there_twice_is_named():
    text = b'{"a": 1, "b": {"samples": 1, "samples": 2, "c": 1}, "a": 3, "a": 4}'
    document, problems = parse_document(text, "zarr.json")
    assert document["a"] == 4
    assert problems == [
        "zarr.json: the key 'samples' is there twice",
        "zarr.json: the key 'a' is there 3 times",
    ]


def test_keys_that_differ_in_their_escapes_only_are_the_same():
    assert parse_document(b'{"a": 1, "\\u0061": 2}', "")[1] == [": the key 'a' is there twice"]


def test_a_document_full_of_keys_that_are_there_twice_is_refused_with_all_of_them():
    keys = 150_000
    text = "{" + ",".join(f'"{key}":0,"{key}":1' for key in range(keys)) + "}"
    assert len(text) < MAX_DOCUMENT_BYTES
    assert len(parse_document(text.encode(), "")[1]) == keys


@pytest.mark.parametrize("digits", [1, 17, 400, MAX_DIGITS])
def test_integers_are_read_exactly_however_long_they_may_be(digits):
    document, problems = parse_document(b'{"a": ' + b"7" * digits + b"}", "")
    assert problems == []
    assert str(document["a"]) == "7" * digits


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(text):
    document, problems = parse_document(text, "x")
    if problems:
        assert all(problem.startswith("x: ") for problem in problems)
    else:
        assert document == json.loads(text)
