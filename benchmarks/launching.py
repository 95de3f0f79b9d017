"""Run work in a process of its own, in a memory cgroup if need be, and say how it ended.

The process is forked: what has been imported before is there at once, and memory that was in use before does
not count against a limit. So whoever calls this must not have run torch yet, or started threads.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from cgroups import MemoryCgroup

    Report = Callable[[dict[str, Any]], None]
    Join = Callable[[], None]


STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What may ask the parent to stop."""


class LaunchError(Exception):
    """The work failed, for another reason than a want of memory."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What came of one process.

    Attributes
    ----------
    reports : list of dict
        What it reported, in order.
    killed : bool
        Whether the kernel killed it, or a child of it, for want of memory; what it had reported counts.
    """

    reports: list[dict[str, Any]]
    killed: bool


def launch(
    work: Callable[[Report, Join], None], cgroup: MemoryCgroup | None = None, seconds: float | None = None
) -> Launch:
    """Run `work(report, join)` in a new process, and wait for its end.

    Parameters
    ----------
    work : callable
        Calls `report` with whatever JSON can say, as often as it likes, and `join` once, to move into the
        cgroup.
    cgroup : MemoryCgroup, optional
        Without one, `join` does nothing.
    seconds : float, optional
        After which the process is ended. That is an error, unless something in it was killed before.

    Raises
    ------
    LaunchError
        If the work raised, or the process died otherwise, or did not end in time.
    """
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_run, args=(work, sending, cgroup))
    try:
        # An exception that a signal raises in the midst of a fork would be lost in the hooks that run there.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        sending.close()
        deadline = None if seconds is None else time.monotonic() + seconds
        reports = list(_received(receiving, process, deadline))
        late = process.is_alive() and deadline is not None and time.monotonic() > deadline
        if late:
            _kill_group(process)
        process.join()
    finally:
        if process.pid is not None and process.exitcode != 0:
            _kill_group(process)
            process.join()
        receiving.close()
    killed = (process.exitcode == -signal.SIGKILL and not late) or (
        cgroup is not None and cgroup.oom_kills > 0
    )
    failed = [report["failed"] for report in reports if "failed" in report]
    if late and not killed:
        raise LaunchError(f"a process did not end within {seconds:.0f} seconds")
    if process.exitcode and not killed:
        raise LaunchError(failed[0] if failed else f"a process ended with exit code {process.exitcode}")
    return Launch([report for report in reports if "failed" not in report], killed)


def _received(receiving: Connection, process: Any, deadline: float | None) -> Any:
    """Yield reports until the process has ended; workers that it leaves behind may hold the pipe open."""
    while deadline is None or time.monotonic() < deadline:
        alive = process.is_alive()
        while receiving.poll(0.05 if alive else 0):
            try:
                yield json.loads(receiving.recv_bytes())
            except EOFError:
                return
        if not alive:
            return


def _kill_group(process: Any) -> None:
    """End the process and all that it started: they are one group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # where it did not come to make a group


def _run(work: Callable[[Report, Join], None], sending: Connection, cgroup: MemoryCgroup | None) -> None:
    os.setsid()  # Ctrl-C goes to the parent alone, which then ends this group
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    gc.freeze()  # a collection would otherwise write to, and so copy, every page of the parent's objects

    def report(found: dict[str, Any]) -> None:
        sending.send_bytes(json.dumps(found).encode())

    try:
        work(report, cgroup.join if cgroup is not None else lambda: None)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        report({"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
