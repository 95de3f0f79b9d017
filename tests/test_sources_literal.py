"""The literals of `.npy` headers: as Python reads them, or refused, whatever the text."""

import ast
import string
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.sources.literal import parse_literal

texts = st.text(st.characters(exclude_characters="\\'\"", exclude_categories=["Cs"]), max_size=8)
literals = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**99), 10**99) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(literals)
def test_what_python_writes_is_read_as_it_was(value):
    assert parse_literal(repr(value).replace("\\", "/")) == ast.literal_eval(repr(value).replace("\\", "/"))


@settings(max_examples=300)
@given(st.text("()[]{}:,'\"\\ \n0123LTrueFalsNon-+.#x", max_size=30))
def test_what_is_read_python_reads_likewise(text):
    try:
        value = parse_literal(text)
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's parser warns of odd escapes
        expected = ast.literal_eval(text.strip())
    if "\\" not in text:  # which parse_literal leaves as it is
        assert value == expected
        assert repr(value) == repr(expected)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "(", ")", "(,)", "(1", "(1,,2)", "(1 2)", "[1)", "{1: 2}", "{'a'}", "{'a': 1, 'a': 2}",
        "{'a': 1 'b': 2}", "{,}", "1 2", "01", "1.0", "1e3", "1_0", "0x1", "1L", "- 1", "--1", "Truely",
        "None1", "f()", "a", "'a", "'a' 'b'", "b'a'", "1+2j", "{1, 2}", "# 1", "1;2", "9" * 101, "(" * 9000,
        "-" * 9000 + "1", "[" * 30 + "]" * 30, "\0", "1\0", "\ufeff1", "1\u2003", "\u0661",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_literal(text)


def test_numbers_of_python_2_are_read_where_they_may_stand():
    assert parse_literal("(3L, 12L, 4)", longs=True) == (3, 12, 4)
    for text in ("(3L)", "(3LL,)", "(L,)", "(3l,)", "(3L4,)"):
        with pytest.raises(ValueError, match=r"."):
            parse_literal(text, longs=text == "(3LL,)")


def test_nesting_is_read_as_deep_as_said():
    assert parse_literal("[" * 20 + "]" * 20)
    with pytest.raises(ValueError, match="too deep"):
        parse_literal("[" * 22 + "]" * 22)


def test_no_text_warns_or_takes_long():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for piece in (
            "'\\d'",
            "1if",
            "'a' is",
            "(1)(2)",
            "'",
            "'\\",
            "[",
            "{'a':",
            "-",
            "(1,",
            *string.printable,
        ):
            with pytest.raises(ValueError, match=r"."):
                parse_literal(piece * 10_000 + "?")
