"""How torch's threads wait for each other: asleep, here."""

from __future__ import annotations

import os
import sys

POLICY = "OMP_WAIT_POLICY"
"""Of OpenMP (section "OMP_WAIT_POLICY" of its specification); read once, when torch is imported."""


def sleep_while_waiting() -> None:
    """Start this program again such that OpenMP's threads sleep while they wait, unless it says otherwise.

    By default they run in circles for some milliseconds after each copy. Where there are no more cores than
    threads, they take them from whatever loads the next batch, of every contender alike.
    """
    if POLICY not in os.environ:
        os.environ[POLICY] = "passive"
        os.execv(sys.executable, sys.orig_argv)
