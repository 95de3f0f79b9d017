"""Python processes that have torch imported when they begin, which takes a fresh one three to five seconds.

One process is kept that has imported torch and nothing of ours, and forks for each run. What is run is a
process with arguments, folder, environment and streams of its own, which imports mmapload itself and ends as
Python ends. Not for tests of how much memory a process takes, of what it imports, or what signals do to it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["run_warm", "run_warm_ranks"]

_forking: dict[int, socket.socket] = {}
"""The connection to the process that forks, by the process that started it."""


def run_warm(
    *command: object,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    told: str = "",
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a process as `subprocess.run([sys.executable, *command])` does, and keep what it says.

    Parameters
    ----------
    command : sequence of str
        `-W error` or not; then a script, `-m` and a module, or `-c` and code; then arguments.
    told : str
        What it finds on its standard input.
    """
    return _run([{}], list(map(str, command)), cwd, env, told, timeout)[0]


def run_warm_ranks(
    count: int,
    *command: object,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> list[subprocess.CompletedProcess[str]]:
    """Run the ranks of a training in the environment that torchrun gives them, on one machine."""
    from torch.distributed import TCPStore

    # As torchrun's agent, hold the store in which they meet: so nobody else can take its port in between.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _run(ranks, list(map(str, command)), cwd, env, "", timeout)


def _run(
    ranks: Sequence[Mapping[str, str]],
    command: list[str],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    told: str,
    timeout: float,
) -> list[subprocess.CompletedProcess[str]]:
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as files:
        processes = []
        try:
            for own in ranks:
                streams = [files.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
                streams[0].write(told.encode())
                streams[0].seek(0)
                variables = {**(os.environ if env is None else env), **own}
                asked = {"command": command, "cwd": os.fspath(cwd or os.getcwd()), "env": variables}
                processes.append((_Running(asked, [each.fileno() for each in streams]), streams))
            found = []
            for process, streams in processes:
                status = process.wait(deadline)
                for each in streams:
                    each.seek(0)
                said = [each.read().decode() for each in streams[1:]]
                found.append(subprocess.CompletedProcess(command, status, *said))
            return found
        finally:
            for process, _ in processes:
                process.end()


class _Running:
    """A process that was asked for."""

    def __init__(self, asked: dict[str, Any], streams: list[int]) -> None:
        self._told, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as file:
            file.write(json.dumps(asked).encode())
            file.flush()
            socket.send_fds(_forker(), [b"?"], [file.fileno(), theirs.fileno(), *streams])
        self.pid = self._number()

    def _number(self) -> int:
        found = b""
        while not found.endswith(b"\n"):
            more = self._told.recv(1)
            if not more:
                raise RuntimeError("what forks for the tests is gone")
            found += more
        return int(found)

    def wait(self, deadline: float) -> int:
        """Return its exit code, or minus the signal that ended it."""
        self._told.settimeout(max(0.1, deadline - time.monotonic()))
        status = os.waitstatus_to_exitcode(self._number())
        self.pid = 0
        return status

    def end(self) -> None:
        """Kill it, if it has not ended yet."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._told.close()


def _forker() -> socket.socket:
    """Return the connection to the process that forks; the first who asks starts it."""
    if os.getpid() not in _forking:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

        def leave(owner: int = os.getpid()) -> None:
            if os.getpid() == owner:
                ours.shutdown(socket.SHUT_RDWR)
                process.wait()

        atexit.register(leave)
        _forking[os.getpid()] = ours
    return _forking[os.getpid()]


# What runs in the process that forks, and in its children.


def main(descriptor: int) -> None:
    """Import what takes long, fork for whoever asks, and in the child be what was asked for."""
    for name in ("torch", "torch._dynamo"):  # the latter is what torch's optimizers import
        importlib.import_module(name)
    assert "mmapload" not in sys.modules
    gc.freeze()  # or each fork would copy pages of torch's objects to go through them
    _become(_asked(socket.socket(fileno=descriptor)))


def _asked(connection: socket.socket) -> dict[str, Any]:
    """Return in a new process, as often as one is asked for; the first ends when nobody is left to ask."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1, 5)
        with contextlib.suppress(ChildProcessError):  # there are none, or none any more
            while os.waitpid(-1, os.WNOHANG if message else 0)[0]:
                pass
        if not message:
            sys.exit()
        if os.fork():
            for each in descriptors:
                os.close(each)
            continue
        connection.close()
        file, teller, *streams = descriptors
        child = os.fork()
        if child:
            os.write(teller, b"%d\n" % child)
            os.write(teller, b"%d\n" % os.waitpid(child, 0)[1])
            os._exit(0)
        os.close(teller)
        for target, each in enumerate(streams):
            os.dup2(each, target)
            os.close(each)
        with open(file, "rb") as opened:
            opened.seek(0)
            return dict(json.load(opened))


def _become(asked: dict[str, Any]) -> None:
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    added = [each for each in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = added
    if "OMP_NUM_THREADS" in os.environ:  # was read when torch was imported
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    command = asked["command"]
    sys.orig_argv[:] = [sys.executable, *command]  # a script may start itself anew by it
    while command[0] == "-W":
        warnings.simplefilter(command[1])
        command = command[2:]
    # Not by runpy: whoever looks at the stack, as torchrun's agent does again and again, would go through all
    # modules of torch each time, in search of the one whose file is "<frozen runpy>".
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path.insert(0, "")
        code = compile(command[1], "<string>", "exec")
    elif command[0] == "-m":
        sys.path.insert(0, asked["cwd"])
        spec = importlib.util.find_spec(command[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{command[1]}.__main__")
        assert spec is not None, command
        assert spec.origin is not None, command
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
        sys.argv = [spec.origin, *command[2:]]
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        module.__file__ = command[0]
        with open(command[0], "rb") as file:
            code = compile(file.read(), command[0], "exec")
    exec(code, module.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
