"""Ranks: given by hand, from torch.distributed, or one process alone; test_torchrun.py has real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from mmapload.ranks import Ranks, find_ranks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_process_alone_is_rank_0_of_1() -> None:
    assert find_ranks(None, None) == Ranks(0, 1, nodes=1, can_agree=False)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (6, 7)])
def test_ranks_given_by_hand_are_taken_and_cannot_agree(rank: int, world_size: int) -> None:
    assert find_ranks(rank, world_size) == Ranks(rank, world_size, nodes=1, can_agree=False, by_hand=True)
    assert find_ranks(rank, world_size).least(5) == 5


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, None, "both or neither, not 0 and None"),
        (None, 2, "both or neither, not None and 2"),
        (2, 2, r"\[0, world_size\), found 2 of 2"),
        (-1, 2, "found -1 of 2"),
        (0, 0, "found 0 of 0"),
        (0, -1, "found 0 of -1"),
        (0.0, 1, "integers"),
        ("0", "1", "integers"),
        (True, 2, "integers"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank: Any, world_size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_ranks(rank, world_size)


def test_a_process_group_of_one_tells_rank_and_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert find_ranks(None, None) == Ranks(0, 1, nodes=1, can_agree=False)
        monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
        assert find_ranks(None, None).nodes == 3
        monkeypatch.setenv("GROUP_WORLD_SIZE", "many")
        assert find_ranks(None, None).nodes == 1
        assert find_ranks(1, 4) == Ranks(1, 4, nodes=1, can_agree=False, by_hand=True)
    finally:
        dist.destroy_process_group()
    assert find_ranks(None, None) == Ranks(0, 1, nodes=1, can_agree=False)
