"""Errors: each is caught as the built-in that a caller expects, says all it knows, and survives pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from mmapload import errors

EXAMPLES = [
    (errors.MmaploadError("something"), Exception),
    (errors.StoreNotFoundError("no store at /data/x"), FileNotFoundError),
    (errors.LayoutError("/data/x", ["first", "second"]), ValueError),
    (errors.ChunkError("flow", 3, "/data/x/flow/c.3.0", "10 bytes", "9 bytes"), OSError),
    (errors.ChunkError("flow", 3, "/data/x/flow/c.3.0", "10 bytes", "9 bytes", "look again"), OSError),
    (errors.ChunkError("flow", 3, "/x/c.3", "a", "b", "", range(6, 8), ["a.npz", "b\n.npz"]), OSError),
    (errors.SourceError("/data/a.npz", "flow", "bad CRC"), ValueError),
    (errors.SourceError("/data/a.npz", None, "no zip file"), ValueError),
    (errors.StateMismatchError("another store", "abc", "def"), ValueError),
    (errors.WorkerError("worker 3 died"), RuntimeError),
]


@pytest.mark.parametrize(("error", "builtin"), EXAMPLES, ids=lambda each: getattr(each, "__name__", None))
def test_each_error_is_the_builtin_one_would_expect(error, builtin):
    assert isinstance(error, builtin)
    assert isinstance(error, errors.MmaploadError)


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("through", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_each_error_crosses_processes_whole(error, through):
    """A DataLoader's workers send their errors pickled."""
    again = through(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_layout_error_lists_every_problem():
    error = errors.LayoutError("/data/x", iter(["first", "second"]))
    assert error.problems == ("first", "second")
    assert str(error).splitlines()[1:] == ["  - first", "  - second"]
    assert "/data/x" in str(error)


def test_a_chunk_error_says_field_chunk_file_both_sides_and_what_to_do():
    error = errors.ChunkError("flow", 3, "/data/x/flow/c.3.0", "10 bytes", "9 bytes")
    for part in ("chunk 3", "'flow'", "/data/x/flow/c.3.0", "10 bytes", "9 bytes", "preprocess again"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("samples", "names", "told"),
    [
        (range(96, 128), [], "samples 96 to 127"),
        (range(96, 97), [], "sample 96"),
        (range(96, 97), ["a.npz"], "sample 96 ('a.npz')"),
        (range(96, 98), ["a.npz", "b.npz"], "samples 96 to 97 ('a.npz', 'b.npz')"),
        (
            range(96, 128),
            ["z.npz", "b.npz", "m.npz"],
            "samples 96 to 127 ('z.npz', 'b.npz', 'm.npz' and 29 more)",
        ),
        (range(2), ["a, b", "\udcff"], "samples 0 to 1 ('a, b', '\\udcff')"),
    ],
)
def test_a_chunk_error_says_which_samples_are_in_the_chunk(samples, names, told):
    plain = errors.ChunkError("flow", 3, "/data/c.3", "10 bytes", "9 bytes", "look again")
    error = plain.of_samples(samples, names)
    assert str(error) == str(plain).replace("'flow'", f"'flow', {told}")
    assert (error.samples, error.names) == (samples, tuple(names))
    assert (plain.samples, plain.names) == (None, ())


def test_a_chunk_error_keeps_where_it_was_raised_when_samples_are_added():
    with pytest.raises(errors.ChunkError) as caught:
        raise errors.ChunkError("flow", 3, "/data/c.3", "10 bytes", "9 bytes")
    assert caught.value.of_samples(range(3), []).__traceback__ is caught.value.__traceback__


def test_a_source_error_names_the_member_only_where_there_is_one():
    assert str(errors.SourceError("a.npz", "flow", "bad CRC")) == "a.npz, member 'flow': bad CRC"
    assert str(errors.SourceError("a.npz", None, "no zip file")) == "a.npz: no zip file"


def test_the_names_of_all_errors_are_public():
    import mmapload

    for name in errors.__all__:
        assert getattr(mmapload, name) is getattr(errors, name)


def test_a_chunk_error_made_from_a_message_alone_keeps_its_class_and_the_message():
    error = pickle.loads(pickle.dumps(errors.ChunkError("Caught ChunkError in DataLoader worker process 0.")))
    assert isinstance(error, errors.ChunkError)
    assert str(error) == "Caught ChunkError in DataLoader worker process 0."
    assert (error.field, error.chunk, error.path) == ("", -1, "")


NASTY = "a\x1b[2J\nb\r\x07\x7f\x85\x9b31m\u202e\u2028\udcff"
ESCAPED = r"a\x1b[2J\nb\r\x07\x7f\x85\x9b31m\u202e\u2028\udcff"


@pytest.mark.parametrize(
    "error",
    [
        errors.SourceError(NASTY, NASTY, f"the same as {NASTY}"),
        errors.ChunkError(NASTY, 3, NASTY, NASTY, NASTY),
        errors.LayoutError(NASTY, [NASTY, "second"]),
        errors.StoreNotFoundError(f"no store at {NASTY}"),
        errors.StateMismatchError(NASTY, NASTY, NASTY),
        errors.WorkerError(NASTY),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_name_in_a_message_commands_the_terminal(error):
    lines = str(error).split("\n")
    assert all(line.isprintable() for line in lines)
    assert r"\x1b[2J" in str(error)
    if type(error) in {errors.SourceError, errors.ChunkError}:
        assert len(lines) == 1
        assert ESCAPED in str(error)
    if type(error) is errors.LayoutError:
        assert len(lines) == 3
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_names_that_can_be_printed_stay_as_they_are():
    for name in ("größe 1.npz", "数据", "données\u0301", "שלום", "😀"):
        assert errors.printable(name) == name
    assert errors.printable(NASTY) == ESCAPED


def test_a_long_member_name_is_shortened_in_the_message_alone():
    error = errors.SourceError("a.npz", "x" * 60_000, "bad CRC")
    assert len(str(error)) < 200
    assert len(error.member) == 60_000


def test_what_is_shown_of_a_value_is_short_however_it_is_nested():
    value = "x" * 1000
    for _ in range(6):
        value = [value] * 20
    assert len(errors.shown(value)) < 500
    assert len(errors.shown({"a" * 1000: value})) < 500
