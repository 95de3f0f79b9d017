"""Copying many pieces of memory with one call, and where the system does not allow it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.scattered import LARGE_BYTES, MOST_PIECES, copy_pieces

ROOT = Path(__file__).parents[1]


def copied_as_numpy_does(lengths: list[int], seed: int) -> bool:
    """Copy pieces of these lengths out of the middle of noise, to places in another order."""
    rng = np.random.default_rng(seed)
    count, nbytes = len(lengths), np.array(lengths, np.int64)
    memory = rng.integers(0, 256, 2 * LARGE_BYTES, np.uint8)
    begins = rng.integers(0, len(memory) - nbytes + 1)
    order = rng.permutation(count)
    lows = np.empty(count, np.int64)
    lows[order] = np.cumsum(nbytes[order] + 1) - nbytes[order]
    room = np.zeros(int(nbytes.sum()) + count + 1, np.uint8)
    wanted = room.copy()
    for begin, low, length in zip(begins, lows, lengths, strict=True):
        wanted[low : low + length] = memory[begin : begin + length]
    copy_pieces(room.ctypes.data + lows, memory.ctypes.data + begins, nbytes)
    return bool((room == wanted).all())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0, 1, 3, 4096, 5000, LARGE_BYTES - 1, LARGE_BYTES]), max_size=40),
    st.integers(0, 2**32),
)
def test_pieces_of_any_lengths_arrive_where_they_belong_and_nothing_else_changes(lengths, seed):
    assert copied_as_numpy_does(lengths, seed)


@pytest.mark.parametrize("count", [MOST_PIECES - 1, MOST_PIECES, MOST_PIECES + 1, 2 * MOST_PIECES + 1])
def test_more_pieces_than_one_call_takes_are_copied(count):
    assert copied_as_numpy_does([i % 7 for i in range(count)], count)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such call to be forbidden")
def test_where_the_call_is_forbidden_as_in_some_containers_pieces_are_copied_one_by_one():
    """Seccomp answers the call with EPERM, as older container engines do."""
    code = dedent("""
        import ctypes, platform, struct, sys
        from tests.test_scattered import copied_as_numpy_does
        number = {"x86_64": 310, "aarch64": 270}.get(platform.machine())
        if number is None:
            sys.exit(77)
        steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
        rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(rules))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
            sys.exit(77)
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        assert libc.process_vm_readv(0, None, 0, None, 0, 0) == -1 and ctypes.get_errno() == 1
        assert copied_as_numpy_does([0, 1, 5000, 70000] * 300, 0)
    """)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this system takes no seccomp filter")
    assert done.returncode == 0, done.stderr
