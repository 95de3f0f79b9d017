import functools
import gzip
import itertools
import os
import subprocess
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources.listing import list_files, natural_key
from mmapload.sources.plainfiles import open_plain
from tests.npz_files import npz_bytes, put


def make(folder, *names):
    for name in names:
        put(os.path.join(folder, name), b"")
    return str(folder)


def compare(one, other):
    """The documented order again, written another way."""
    for a, b in itertools.zip_longest(one.split("/"), other.split("/")):
        if a is None or b is None:
            return -1 if a is None else 1
        if a == b:
            continue
        for p, q in itertools.zip_longest(stretches(a), stretches(b)):
            if p is None or q is None:
                return -1 if p is None else 1
            if p != q:
                return -1 if p < q else 1
        return -1 if a < b else 1
    return 0


def stretches(part):
    """Text, number, text, number and so on; the first text perhaps empty, and so the last."""
    out, text = [], ""
    for digit, run in itertools.groupby(part, lambda c: c in "0123456789"):
        if digit:
            out += [text, int("".join(run))]
            text = ""
        else:
            text = "".join(run)
    return [*out, text]


paths = st.lists(st.text("a01 2é.٣", max_size=5), min_size=1, max_size=3).map("/".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(paths, max_size=12, unique=True), st.randoms())
def test_the_order_is_a_total_function_of_the_paths(given_paths, random):
    expected = sorted(given_paths, key=functools.cmp_to_key(compare))
    random.shuffle(given_paths)
    assert sorted(given_paths, key=natural_key) == expected
    assert len({natural_key(path) for path in given_paths}) == len(given_paths)


def test_numbers_of_any_length_compare_by_value():
    ones = "1" * 5000
    assert sorted([ones + "2", ones + "1", "9" * 4999], key=natural_key) == [
        "9" * 4999,
        ones + "1",
        ones + "2",
    ]


def test_folders_are_listed_in_natural_order_whatever_was_made_first(tmp_path):
    numbers = [100, 2, 1000, 0, 10, 99, 1, 101, 9, 11]
    for number in numbers:
        make(tmp_path, *(f"{sub}/frame_{number}.npz" for sub in ("b", "a", "a10", "a2")), f"a{number}.npz")
    listing = list_files([tmp_path])
    assert list(listing.names) == sorted(listing.names, key=natural_key)
    assert [name for name in listing.names if name.startswith("a2/")] == [
        f"a2/frame_{number}.npz" for number in sorted(numbers)
    ]
    assert len(listing) == 50
    assert listing.path(0) == os.path.join(listing.root, listing.names[0])
    assert os.path.exists(listing.path(49))
    assert (listing.hidden, listing.foreign) == (0, 0)


def test_hidden_and_foreign_files_are_skipped_and_counted(tmp_path):
    make(tmp_path, *(f"train/s{k}.npz" for k in range(4)))
    make(
        tmp_path, "train/._s0.npz", "train/.DS_Store", "train/.s2.npz.swp", "train/.ipynb_checkpoints/s1.npz"
    )
    make(tmp_path, "__MACOSX/train/._s1.npz", "__MACOSX/train/s1.npz", "train/Thumbs.db", "train/README.txt")
    make(tmp_path, "s4.npz.tmp", "s5.npz.part", "s6.npz~", "s7 (1).npz", "S8.NPZ")
    make(tmp_path, "@eaDir/s0.npz", "$RECYCLE.BIN/s1.npz", "train/lost+found/s2.npz")
    listing = list_files([tmp_path])
    assert list(listing.names) == ["S8.NPZ", "s7 (1).npz", *(f"train/s{k}.npz" for k in range(4))]
    assert (listing.hidden, listing.foreign) == (8, 5)


def test_a_hidden_folder_named_as_the_source_is_listed(tmp_path):
    make(tmp_path / ".cache", "a.npz")
    assert list_files([tmp_path / ".cache"]).names == ("a.npz",)


def test_other_suffixes_can_be_asked_for(tmp_path):
    make(tmp_path, "a.npy", "b.npz", "c.NPY")
    assert list_files([tmp_path], suffixes=(".npy",)).names == ("a.npy", "c.NPY")
    assert list_files([tmp_path], suffixes=(".npy", ".npz")).names == ("a.npy", "b.npz", "c.NPY")


@pytest.mark.parametrize(
    ("pattern", "expected", "hidden", "foreign"),
    [
        ("*.npz", "s1.npz s2.npz", 1, 0),
        ("s?.npz", "s1.npz s2.npz", 0, 0),
        ("[s]1*", "s1.npz", 0, 0),
        ("*", "deep/er/s4.npz deep/s3.npz s1.npz s2.npz", 2, 1),
        ("**", "deep/er/s4.npz deep/s3.npz s1.npz s2.npz", 2, 1),
        ("**/*.npz", "deep/er/s4.npz deep/s3.npz s1.npz s2.npz", 2, 0),
        ("**/er/*.npz", "deep/er/s4.npz", 1, 0),
        ("*/*.npz", "deep/s3.npz", 1, 0),
        ("d*", "deep/er/s4.npz deep/s3.npz", 0, 0),
        ("**/**/s3.npz", "deep/s3.npz", 1, 0),
        ("deep/**/*.npz", "er/s4.npz s3.npz", 0, 0),
        ("de?p/er", "deep/er/s4.npz", 0, 0),
        ("d*/**/e*/s*", "deep/er/s4.npz", 0, 0),
        (".*.npz", ".s.npz", 0, 0),
        ("**/.*.npz", ".s.npz", 1, 0),
        (".*/*", ".git/s5.npz", 0, 0),
    ],
)
def test_globs_take_what_matches_and_all_below_folders_that_match(
    tmp_path, pattern, expected, hidden, foreign
):
    make(tmp_path, "s1.npz", "s2.npz", ".s.npz", "notes.txt", "deep/s3.npz", "deep/er/s4.npz", ".git/s5.npz")
    listing = list_files([os.path.join(tmp_path, pattern)])
    assert " ".join(listing.names) == expected
    assert (listing.hidden, listing.foreign) == (hidden, foreign)
    assert all(os.path.exists(listing.path(index)) for index in range(len(listing)))


def test_a_path_that_exists_is_no_glob(tmp_path):
    make(tmp_path, "run[1]/a.npz", "run1/b.npz", "c[1].npz", "c1.npz")
    assert list_files([tmp_path / "run[1]"]).names == ("a.npz",)
    assert list_files([tmp_path / "c[1].npz"]).names == ("c[1].npz",)


def test_several_sources_follow_one_another_under_names_that_stay_unique(tmp_path):
    make(tmp_path, "x/data/s2.npz", "x/data/s10.npz", "y/data/s1.npz", "y/data/more/s2.npz", "z.npz")
    listing = list_files([tmp_path / "y" / "data", f"{tmp_path}/x/*/*.npz", tmp_path / "z.npz"])
    assert listing.root == str(tmp_path)
    assert listing.names == (
        "y/data/more/s2.npz", "y/data/s1.npz", "x/data/s2.npz", "x/data/s10.npz", "z.npz",
    )  # fmt: skip
    files = [str(tmp_path / "x" / "data" / name) for name in ("s10.npz", "s2.npz")]
    assert list_files(files).names == ("s10.npz", "s2.npz")


def test_relative_sources_have_absolute_paths(tmp_path, monkeypatch):
    make(tmp_path, "d/a.npz")
    monkeypatch.chdir(tmp_path)
    for source in ("d", "./d/", "d/*", "d/a.npz", "d/../d"):
        listing = list_files([source])
        assert listing.path(0) == str(tmp_path / "d" / "a.npz")
        assert listing.names == ("a.npz",)
    assert list_files(["."]).names == ("d/a.npz",)


def test_a_list_file_keeps_its_order_and_is_relative_to_its_folder(tmp_path):
    make(tmp_path, "lists/x", "data/s1.npz", "data/s2.npz", "data/sub dir/s3.npz")
    text = f"../data/s2.npz\r\n\n../data/sub dir/s3.npz\n{tmp_path}/data/s1.npz"
    put(str(tmp_path / "lists" / "train.txt"), b"\xef\xbb\xbf" + text.encode())
    listing = list_files([], list_file=tmp_path / "lists" / "train.txt")
    assert listing.names == ("s2.npz", "sub dir/s3.npz", "s1.npz")
    assert listing.root == str(tmp_path / "data")
    make(tmp_path, "more/s4.npz")
    listing = list_files([tmp_path / "more"], list_file=tmp_path / "lists" / "train.txt")
    assert listing.names == ("more/s4.npz", "data/s2.npz", "data/sub dir/s3.npz", "data/s1.npz")


@pytest.mark.parametrize("line", ["gone.npz", "folder", "notes.txt", "a\0b.npz"])
def test_a_bad_line_of_a_list_file_is_named(tmp_path, line):
    make(tmp_path, "a.npz", "folder/b.npz", "notes.txt")
    put(str(tmp_path / "list.txt"), f"a.npz\n{line}\n".encode())
    with pytest.raises(SourceError, match=r"line 2 of .*list\.txt"):
        list_files([], list_file=tmp_path / "list.txt")


def listed_in(tmp_path, data):
    put(str(tmp_path / "list.txt"), data)
    with pytest.raises(SourceError, match=r"list\.txt") as caught:
        list_files([], list_file=tmp_path / "list.txt")
    assert len(str(caught.value)) < 800
    return caught.value.cause


def test_what_is_no_list_of_files_is_said_to_be_what_it_is(tmp_path):
    cause = listed_in(tmp_path, npz_bytes({"x": np.arange(5)}))
    assert cause.startswith("it should name one file a line, and is a zip or .npz file: line 1 of ")
    assert "is text in UTF-16 (write it in UTF-8): line 1" in listed_in(tmp_path, "a.npz\n".encode("utf-16"))
    assert "is gzip data: line 1" in listed_in(tmp_path, gzip.compress(b"a.npz\n"))
    assert "is an HTML or XML page" in listed_in(tmp_path, b"<html>\n")
    assert "is JSON that starts with" in listed_in(tmp_path, b'["a.npz"]\n')
    assert "is something that starts with" in listed_in(tmp_path, b"\x01\xff" * 1_500_000)
    cause = listed_in(tmp_path, b"a" * 3_000_000)
    assert cause.startswith("line 1 of ")
    assert cause.endswith("is longer than the 4,096 bytes that a path may have")


def test_of_a_list_that_does_not_end_little_is_read(tmp_path):
    sparse = tmp_path / "zeros.txt"
    sparse.touch()
    os.truncate(sparse, 200 * 2**20)
    for endless in ("/dev/zero", sparse):
        tracemalloc.start()
        with pytest.raises(SourceError, match=r"zero bytes at least at its start.*line 1.*holds a null byte"):
            list_files([], list_file=endless)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


def test_a_list_may_come_through_a_pipe(tmp_path):
    make(tmp_path, "a.npz", "b.npz")
    reader, writer = os.pipe()
    os.write(writer, f"{tmp_path}/b.npz\n{tmp_path}/a.npz\n".encode())
    os.close(writer)
    assert list_files([], list_file=f"/dev/fd/{reader}").names == ("b.npz", "a.npz")
    os.close(reader)


def test_a_line_may_be_as_long_as_a_path(tmp_path):
    make(tmp_path, "a.npz")
    padding = "/" * (4096 - len(f"{tmp_path}/a.npz"))
    put(str(tmp_path / "list.txt"), b"\xef\xbb\xbf" + f"{tmp_path}{padding}/a.npz\r\n".encode())
    assert list_files([], list_file=tmp_path / "list.txt").names == ("a.npz",)


def test_a_null_in_the_list_s_own_name_is_said(tmp_path):
    with pytest.raises(SourceError, match="null byte"):
        list_files([], list_file=str(tmp_path / "a\0b"))


def test_the_same_file_twice_is_refused(tmp_path):
    make(tmp_path, "train/s1.npz", "train/s2.npz", "other/s3.npz")
    os.symlink(tmp_path / "train", tmp_path / "latest")
    put(str(tmp_path / "list.txt"), b"train/s2.npz\n")
    train = tmp_path / "train"
    for sources in (
        [train, train],
        [train, train / "s2.npz"],
        [tmp_path / "other", train, f"{train}/*2.npz"],
        [train, tmp_path / "latest"],
        [train / "s1.npz", tmp_path / "latest" / "s1.npz"],
        [tmp_path],
    ):
        with pytest.raises(SourceError, match=r"the same file is listed before, as .*/(train|latest)/s"):
            list_files(sources)
    with pytest.raises(SourceError, match="the same file is listed before"):
        list_files([train], list_file=tmp_path / "list.txt")


def test_links_are_followed_but_not_in_circles(tmp_path):
    make(tmp_path, "set/a/s1.npz", "elsewhere/s2.npz", "target.bin")
    os.symlink("..", tmp_path / "set" / "a" / "up")
    os.symlink(".", tmp_path / "set" / "a" / "self")
    os.symlink(tmp_path / "elsewhere", tmp_path / "set" / "b")
    os.symlink(tmp_path / "set", tmp_path / "elsewhere" / "back")
    os.symlink("missing", tmp_path / "set" / "broken.npz")
    os.symlink("missing", tmp_path / "set" / "broken")
    os.symlink("ring", tmp_path / "set" / "ring")
    os.symlink(tmp_path / "target.bin", tmp_path / "set" / "link.npz")
    listing = list_files([tmp_path / "set"])
    # A broken link that is named as a sample is one: reading it says what is wrong.
    assert listing.names == ("a/s1.npz", "b/s2.npz", "broken.npz", "link.npz")
    assert listing.foreign == 2
    assert list_files([tmp_path / "set" / "**" / "s*"]).names == ("a/s1.npz", "b/s2.npz")


def chain_of_links(tmp_path, depth):
    """Folders d0, d1, ... with two links each to the next: 2**depth paths lead to the last."""
    for number in range(depth + 1):
        (tmp_path / "set" / f"d{number}").mkdir(parents=True)
    for number in range(depth):
        for name in "ab":
            os.symlink(f"../d{number + 1}", tmp_path / "set" / f"d{number}" / name)


@pytest.mark.parametrize("below", ["", "**", "**/*.npz"])
def test_a_folder_to_which_many_paths_lead_is_not_walked_by_each_of_them(tmp_path, monkeypatch, below):
    chain_of_links(tmp_path, 40)
    put(tmp_path / "set" / "x.npz", b"x")
    put(tmp_path / "set" / "d40" / "notes.txt", b"x")
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    assert list_files([tmp_path / "set" / below]).names == ("x.npz",)
    assert len(scans) == 42


def test_a_file_to_which_many_paths_lead_is_refused_at_the_second(tmp_path):
    chain_of_links(tmp_path, 40)
    put(tmp_path / "set" / "d40" / "x.npz", b"x")
    with pytest.raises(SourceError, match="the same file is listed before"):
        list_files([tmp_path / "set"])


def test_a_glob_finds_by_one_path_what_another_leads_to_in_a_circle(tmp_path):
    put(tmp_path / "set" / "a" / "x.npz", b"x")
    (tmp_path / "set" / "a" / "f").mkdir()
    os.symlink("..", tmp_path / "set" / "a" / "f" / "up")
    (tmp_path / "set" / "b").mkdir()
    os.symlink("../a/f", tmp_path / "set" / "b" / "f")
    assert list_files([tmp_path / "set" / "*" / "*" / "up" / "*.npz"]).names == ("b/f/up/x.npz",)


def test_a_source_without_a_sample_is_refused_with_path_pattern_and_counts(tmp_path, monkeypatch):
    make(tmp_path, "empty/deep/x.np", "empty/y.txt", "empty/.z.npz", "upper/S0.NPZ")
    assert list_files([tmp_path / "upper"]).names == ("S0.NPZ",)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        list_files(["empty"])
    assert caught.value.file == str(tmp_path / "empty")
    assert (
        "ends in .npz (in upper or lower case), besides 2 files of other kinds and 1 with hidden names"
        in caught.value.cause
    )
    with pytest.raises(SourceError, match=r"empty/\*\.npz"):
        list_files(["empty/*.npz"])
    with pytest.raises(SourceError, match="names no file"):
        list_files([])
    put(str(tmp_path / "list.txt"), b"\n\n")
    with pytest.raises(SourceError, match=r"list\.txt"):
        list_files([], list_file="list.txt")


def test_paths_that_are_missing_or_of_another_kind_are_refused(tmp_path):
    make(tmp_path, "afile", "a.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    for source, said in (
        ("missing", "No such file or directory: check the path of the folder, file or glob"),
        ("missing/*.npz", "there is no folder"),
        ("afile", r"should end in \.npz"),
        ("pipe.npz", "not a file"),
        ("nul\0", "null byte"),
    ):
        with pytest.raises(SourceError, match=said) as caught:
            list_files([os.path.join(tmp_path, source)])
        assert caught.value.file == os.path.join(tmp_path, source)
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        list_files([], list_file=tmp_path / "gone.txt")


def test_a_download_that_has_not_ended_is_skipped_and_refused_by_name(tmp_path):
    make(tmp_path, "a.npz", "b.npz.part", "c.npz.crdownload", "D.NPZ.PART", "e.npz.tmp")
    assert (list_files([tmp_path]).names, list_files([tmp_path]).foreign) == (("a.npz",), 4)
    for name in ("b.npz.part", "c.npz.crdownload", "D.NPZ.PART", "e.npz.tmp"):
        with pytest.raises(SourceError, match="a download that has not ended: wait for it"):
            list_files([tmp_path / name])
    put(str(tmp_path / "list.txt"), b"b.npz.part\n")
    with pytest.raises(SourceError, match=r"not ended \(line 1 of .*list\.txt\): wait for it"):
        list_files([], list_file=tmp_path / "list.txt")


def test_names_that_garble_a_terminal_are_listed_as_they_are_and_escaped_in_messages(tmp_path):
    name = "a\x1b[2J\n\x9b1m\u202e"
    make(tmp_path, f"{name}/{name}.npz", f"{name}.txt")
    assert list_files([tmp_path]).names == (f"{name}/{name}.npz",)
    for sources in ([tmp_path / f"{name}.txt"], [tmp_path / name] * 2, [tmp_path / f"no{name}"]):
        with pytest.raises(SourceError) as caught:
            list_files(sources)
        assert str(caught.value).isprintable()
        assert r"a\x1b[2J\n\x9b1m\u202e" in str(caught.value)


def test_names_that_lead_out_of_a_folder_lead_to_a_file_or_an_error(tmp_path):
    """A list of files may name any file that its reader may read; none is ever written."""
    make(tmp_path, "in/x", "out/s.npz")
    put(str(tmp_path / "in" / "list.txt"), b"../out/s.npz\n")
    assert list_files([], list_file=tmp_path / "in" / "list.txt").path(0) == str(tmp_path / "out" / "s.npz")
    put(str(tmp_path / "in" / "list.txt"), b"../out/../../nowhere.npz\n")
    with pytest.raises(SourceError, match="line 1 of"):
        list_files([], list_file=tmp_path / "in" / "list.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_named(tmp_path):
    make(tmp_path, "locked/a.npz", "b.npz")
    os.chmod(tmp_path / "locked", 0)
    try:
        with pytest.raises(SourceError, match="locked: the folder cannot be read"):
            list_files([tmp_path])
    finally:
        os.chmod(tmp_path / "locked", 0o700)


def test_a_name_that_is_not_utf8_is_listed_as_one_types_it_and_is_not_opened(tmp_path):
    make(tmp_path, "größe.npz")
    assert list_files([tmp_path]).misnamed == frozenset()
    try:
        put(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"\xffa'.npz")), b"")
    except OSError:
        pytest.skip("this file system has no names but UTF-8")
    files = list_files([tmp_path])
    assert files.names == ("größe.npz", r"$'\xffa\''.npz")
    assert files.misnamed == {files.names[1]}
    typed = subprocess.run(
        ["bash", "-c", f"ls {files.names[1]}"], cwd=tmp_path, stdout=subprocess.PIPE, check=True
    )
    assert typed.stdout == b"\xffa'.npz\n"
    with pytest.raises(SourceError, match="its name is not UTF-8: rename it"):
        open_plain(files.path(1))
    put(files.path(1), b"")
    with pytest.raises(SourceError, match="its name is that of another"):
        list_files([tmp_path])


def test_folders_deeper_than_the_interpreter_recurses_are_listed(tmp_path):
    here, deep = os.getcwd(), 1200
    os.chdir(tmp_path)
    try:
        for _ in range(deep):
            os.mkdir("d")
            os.chdir("d")
        put(os.path.join(".", "a.npz"), b"")
        assert list_files([tmp_path]).names == ("d/" * deep + "a.npz",)
    finally:
        os.chdir(here)
        # What clears up after the tests recurses, and would fail in a later run.
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
