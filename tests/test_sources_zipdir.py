import io
import os
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources.zipdir import read_directory
from tests.npz_files import count_reads, full_zip64_bytes, npy_bytes, npz_bytes, open_descriptors, zip_bytes


def directory_of(data):
    fd = os.memfd_create("zip")
    try:
        os.write(fd, data)
        return read_directory(fd, len(data), "a.npz")
    finally:
        os.close(fd)


def facts(data):
    return [(m.name, m.method, m.crc, m.compressed, m.size, m.offset) for m in directory_of(data)]


def facts_by_zipfile(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [
            (m.filename, m.compress_type, m.CRC, m.compress_size, m.file_size, m.header_offset)
            for m in archive.infolist()
        ]


def patched(data, signature, offset, form, *values):
    """Overwrite fields of the last structure with this signature."""
    out = bytearray(data)
    struct.pack_into(form, out, data.rindex(signature) + offset, *values)
    return bytes(out)


TWO = zip_bytes([("a.npy", b"A" * 40), ("b.npy", b"B" * 50)])

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(names, st.binary(max_size=300), max_size=8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"", b"c", b"x" * 5000, b"y" * 65535]),
)
def test_the_directory_is_the_one_that_zipfile_reads(members, deflate, zip64, stream, comment):
    data = zip_bytes(members.items(), deflate=deflate, zip64=zip64, stream=stream, comment=comment)
    assert facts(data) == facts_by_zipfile(data)


@pytest.mark.parametrize("comment", [b"PK\x05\x06" * 30, b"PK\x05\x06" * 16_000, b"PK\x05\x06" + bytes(17)])
def test_signatures_in_the_comment_mislead_nobody(comment):
    members = [("a.npy", b"A"), ("b.npy", b"B")]
    assert facts(zip_bytes(members, comment=comment)) == facts(zip_bytes(members))


def test_a_small_directory_costs_one_read(monkeypatch):
    data = npz_bytes({f"key{k}": np.arange(50_000) for k in range(20)})
    calls = count_reads(monkeypatch)
    assert len(directory_of(data)) == 20
    assert [count for _, count, _ in calls] == [4096]


@pytest.mark.parametrize("count", [60, 300, 20_000, 66_000])
def test_a_long_directory_is_read_whole(count):
    data = zip_bytes((f"{k:06}", b"") for k in range(count))  # from 65,536 on the count is a zip64 figure
    assert [m.name for m in directory_of(data)] == [f"{k:06}" for k in range(count)]


def test_full_32_bit_figures_are_taken_from_the_zip64_fields():
    members = [("x.npy", npy_bytes(np.arange(9.0))), ("id.npy", npy_bytes(np.int64(1)))]
    data = full_zip64_bytes(members)
    assert facts(data) == facts_by_zipfile(data)
    assert [m.size for m in directory_of(data)] == [len(content) for _, content in members]


@pytest.mark.parametrize("make", [zip_bytes, full_zip64_bytes])
def test_a_file_cut_at_any_byte_is_refused(make):
    data = make([("a.npy", b"A" * 40), ("b.npy", b"B" * 50)])
    for length in range(len(data)):
        with pytest.raises(SourceError):
            directory_of(data[:length])


def test_bytes_before_or_behind_are_refused():
    for data in (b"x" + TWO, TWO + b"x", TWO[:50] + TWO[51:], TWO[:50] + b"x" + TWO[50:]):
        with pytest.raises(SourceError):
            directory_of(data)


END, ENTRY = b"PK\x05\x06", b"PK\x01\x02"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (patched(TWO, END, 8, "<HH", 1, 1), "holds more than the 1 entries"),
        (patched(TWO, END, 8, "<HH", 3, 3), "entry 2 of 3"),
        (patched(TWO, END, 8, "<HH", 65535, 65535), "entry 2 of 65535"),
        (patched(TWO, END, 12, "<I", 1 << 31), "should end at byte"),
        (patched(TWO, END, 16, "<I", 1 << 31), "should end at byte"),
        (patched(TWO, END, 12, "<I", 0xFFFFFFFF), "should end at byte"),
        (patched(TWO, END, 4, "<H", 1), "split over several"),
        (patched(TWO, END, 10, "<H", 9), "split over several"),
        (patched(TWO, ENTRY, 0, "<I", 7), "damaged at entry 1"),
        (patched(TWO, ENTRY, 20, "<II", 1 << 31, 1 << 31), "reach beyond"),
        (patched(TWO, ENTRY, 20, "<I", 51), "reach beyond"),
        (patched(TWO, ENTRY, 24, "<I", 51), "stored, but in 50 bytes"),
        (patched(patched(TWO, ENTRY, 10, "<H", 8), ENTRY, 24, "<I", 1 << 31), "cannot hold"),
        (patched(TWO, ENTRY, 24, "<I", 0xFFFFFFFF), "zip64 extra field"),
        (patched(TWO, ENTRY, 28, "<H", 60000), "inside entry 1"),
        (patched(TWO, ENTRY, 34, "<H", 1), "another part"),
        (patched(TWO, ENTRY, 42, "<I", 0), "reach beyond"),
        (patched(TWO, ENTRY, 42, "<I", 1 << 31), "reach beyond"),
        (patched(TWO, ENTRY, 46, "<5s", b"a.npy"), "more than once"),
        (patched(TWO, ENTRY, 46, "<5s", b"a\0npy"), "zero byte"),
        (patched(patched(TWO, ENTRY, 8, "<H", 0x800), ENTRY, 46, "<5s", b"\xff.npy"), "not UTF-8"),
    ],
)
def test_figures_that_lie_are_refused_for_what_they_are(data, said):
    with pytest.raises(SourceError, match=r"^a\.npz") as caught:
        directory_of(data)
    assert said in str(caught.value)


def test_zip64_end_records_count_where_no_figure_calls_for_them():
    """PyTorch's writer and others put them into every file."""
    data = full_zip64_bytes([("a.npy", b"A" * 40), ("b.npy", b"B" * 50)])
    length, start = struct.unpack_from("<QQ", data, data.rindex(b"PK\x06\x06") + 40)
    plain = patched(data, END, 4, "<4H2I", 0, 0, 2, 2, length, start)
    assert facts(plain) == facts(data) == facts_by_zipfile(plain)
    for figures in (
        (1, 0, 2, 2, length, start),
        (0, 0, 2, 3, length, start),
        (0, 0, 2, 2, length - 1, start),
    ):
        with pytest.raises(SourceError, match="contradict each other"):
            directory_of(patched(data, END, 4, "<4H2I", *figures))


def test_zip64_figures_that_lie_are_refused():
    data = full_zip64_bytes([("a.npy", b"A" * 40), ("b.npy", b"B" * 50)])
    end64, locator = b"PK\x06\x06", b"PK\x06\x07"
    for lie in (
        patched(data, end64, 24, "<QQ", 1 << 62, 1 << 62),
        patched(data, end64, 40, "<Q", 1 << 62),
        patched(data, end64, 48, "<Q", 1 << 62),
        patched(data, end64, 16, "<I", 1),
        patched(data, locator, 8, "<Q", 1 << 62),
        patched(data, locator, 8, "<Q", 0),
        patched(data, locator, 16, "<I", 2),
        patched(data, locator, 0, "<I", 0),
        patched(data, ENTRY, 46 + 5 + 4, "<Q", 1 << 62),
        patched(data, ENTRY, 46 + 5 + 20, "<Q", 1 << 62),
        patched(data, ENTRY, 46 + 5 + 2, "<H", 8),
    ):
        with pytest.raises(SourceError):
            directory_of(lie)


def test_a_name_that_occurs_twice_is_named():
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zip_bytes([("x.npy", b"1"), ("x.npy", b"2"), ("y.npy", b"3")])
    with pytest.raises(SourceError, match=r"'x\.npy': occurs more than once") as caught:
        directory_of(data)
    assert caught.value.member == "x.npy"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_source_error_or_places_inside_the_file(data):
    blob = bytearray(data.draw(st.sampled_from([TWO, full_zip64_bytes([("a", b"1"), ("b", b"22")])])))
    start = bytes(blob).index(ENTRY)
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(start, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        members = directory_of(bytes(blob))
    except SourceError:
        return
    for member in members:
        assert 0 <= member.offset < member.offset + 30 + member.compressed <= member.end <= start


@pytest.mark.parametrize("data", [END, END + bytes(7), b"xx" + END, END * 5, END + bytes(17), b"PK\x05"])
def test_what_is_shorter_than_an_end_record_is_no_zip_file(data):
    with pytest.raises(SourceError, match=r"not a zip file|cut short"):
        directory_of(data)


def test_a_file_that_shrinks_while_it_is_read_is_refused():
    fd = os.memfd_create("zip")
    try:
        os.write(fd, TWO)
        with pytest.raises(SourceError, match="while being read"):
            read_directory(fd, len(TWO) + 5000, "a.npz")
    finally:
        os.close(fd)


def test_no_descriptor_is_left_open_or_moved():
    before = open_descriptors()
    fd = os.memfd_create("zip")
    os.write(fd, TWO)
    os.lseek(fd, 3, os.SEEK_SET)
    read_directory(fd, len(TWO), "a.npz")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 3
    os.close(fd)
    assert open_descriptors() == before
