"""torchrun's own agent, with ranks that are forked from it: each would import torch and more, for seconds.

It gives ranks their environment, and ends the others when one dies.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.warm_python import run_warm

__all__ = ["Ended", "Run", "launch", "of_epoch", "steps"]

ROOT = Path(__file__).parent.parent

TOO_LONG = 100
"""Seconds after which a rank hangs, on whatever machine: it takes two."""


@dataclass(frozen=True, slots=True)
class Run:
    """A script on several ranks.

    Attributes
    ----------
    ranks : int
        How many.
    command : list of str
        The script and its arguments.
    dies : int, optional
        After so many steps of the optimiser the last rank kills itself, before anything else is done.
    """

    ranks: int
    command: list[str]
    dies: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a run.

    Attributes
    ----------
    failed : bool
        Whether a rank did.
    out : list of str
        What each rank printed.
    errors : str
        What the ranks had to say of errors.
    """

    failed: bool
    out: list[str]
    errors: str


def launch(runs: list[Run], *needed: str) -> list[Ended]:
    """Run one after the other, with modules imported once for all."""
    with tempfile.TemporaryDirectory() as folder:
        told = json.dumps({"folder": folder, "needed": needed, "runs": [asdict(run) for run in runs]})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = run_warm("-m", "tests.launched", cwd=ROOT, env=environment, told=told)
        assert done.returncode == 0, done.stderr
        failed = json.loads(done.stdout.splitlines()[-1])
        found = []
        for number, run in enumerate(runs):
            (logs,) = Path(folder, str(number)).glob("*/attempt_0")
            of_ranks = [logs / str(rank) for rank in range(run.ranks)]
            out = [(each / "stdout.log").read_text() for each in of_ranks]
            told = [each / name for each in of_ranks for name in ("stderr.log", "error.json")]
            errors = "".join(each.read_text() for each in told if each.exists())
            found.append(Ended(failed[number], out, errors))
        return found


def steps(ended: Ended) -> list[tuple[int, int, list[int]]]:
    """Epoch, step and samples of each global batch, which an example prints with `--verbose`.

    Every rank has to have had its part of it; where one died, up to what each has told of.
    """
    of_ranks = []
    for out in ended.out:
        lines = [line.split() for line in out.splitlines() if line[:1].isdigit()]
        of_ranks.append([(int(epoch), int(step), [*map(int, rest)]) for epoch, step, *rest in lines])
    found = []
    for parts in zip(*of_ranks, strict=not ended.failed):
        assert len({part[:2] for part in parts}) == 1
        found.append((*parts[0][:2], [number for part in parts for number in part[2]]))
    return found


def of_epoch(ended: Ended, epoch: int) -> list[list[int]]:
    """Samples of each global batch of an epoch."""
    return [samples for found, _, samples in steps(ended) if found == epoch]


# What runs in the process of the agent, and in the ranks.


def main() -> None:
    """Run what standard input asks for; the last line of the output says which of it failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    asked = json.load(sys.stdin)
    for name in ("mmapload.loader", "mmapload.writer", *asked["needed"]):
        importlib.import_module(name)
    failed = []
    for number, run in enumerate(asked["runs"]):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=run["ranks"],
            run_id=str(number),
            rdzv_backend="c10d",  # this and the next line are what --standalone means
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            start_method="fork",
            logs_specs=DefaultLogsSpecs(f"{asked['folder']}/{number}", redirects=Std.ALL),
        )
        try:
            elastic_launch(config, be_rank)(run["command"], run["dies"])
        except ChildFailedError:
            failed.append(True)
        else:
            failed.append(False)
    print(json.dumps(failed))


def be_rank(command: list[str], dies: int | None) -> None:
    """Be the script that was asked for; if it hangs, say where, and end."""
    faulthandler.dump_traceback_later(TOO_LONG, exit=True)
    last = os.environ["LOCAL_RANK"] == str(int(os.environ["LOCAL_WORLD_SIZE"]) - 1)
    if dies is not None and last:
        die_after(dies)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).resolve().parent))
    runpy.run_path(command[0], run_name="__main__")


def die_after(steps: int) -> None:
    """Kill this process after so many steps of its optimisers."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    left = [steps]

    def count(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)


if __name__ == "__main__":
    main()
