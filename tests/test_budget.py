"""How much memory there is: the machine's or the container's, whichever is less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.budget import AUTO_SHARE, available_memory, resolve_budget
from tests.loading_cases import memory_cgroup, run_python

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "36 25 0:31 {root} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
V1_OTHER = "37 25 0:32 / /sys/fs/cgroup/cpu rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct"


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def machine(available: int = 64 * GIB, cgroup: str = "0::/\n", mounts: str = "") -> dict[str, str]:
    meminfo = f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
    return {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}


def v2(folder: str, limit: int | str, used: int = 0, cached: int = 0) -> dict[str, str]:
    where = f"sys/fs/cgroup{folder}"
    stat = f"anon {used - cached}\ninactive_file {cached // 2}\nactive_file {cached - cached // 2}\n"
    return {
        f"{where}/memory.max": f"{limit}\n",
        f"{where}/memory.current": f"{used}\n",
        f"{where}/memory.stat": stat,
    }


def v1(folder: str, limit: int, used: int = 0, cached: int = 0) -> dict[str, str]:
    where = f"sys/fs/cgroup/memory{folder}"
    stat = f"cache 0\ninactive_file 0\nactive_file 0\ntotal_inactive_file {cached}\ntotal_active_file 0\n"
    return {
        f"{where}/memory.limit_in_bytes": f"{limit}\n",
        f"{where}/memory.usage_in_bytes": f"{used}\n",
        f"{where}/memory.stat": stat,
    }


def test_without_limits_it_is_what_the_system_says_is_available(tmp_path: Path) -> None:
    assert available_memory(write(tmp_path, machine(5 * GIB))) == 5 * GIB
    no_limit = v2("", "max") | v2("/user", "max", 3 * GIB)
    files = machine(5 * GIB, "0::/user\n", V2_MOUNT.format(root="/") + "\n") | no_limit
    assert available_memory(write(tmp_path, files)) == 5 * GIB


def test_without_anything_to_read_half_of_the_machine_is_assumed(tmp_path: Path) -> None:
    assert 0 < available_memory(str(tmp_path)) < available_memory() * 100


@pytest.mark.parametrize("limited", ["", "/a", "/a/b", "/a/b/c"])
def test_a_version_2_limit_counts_at_every_level(tmp_path: Path, limited: str) -> None:
    files = machine(cgroup="0::/a/b/c\n", mounts=V2_MOUNT.format(root="/") + "\n")
    for folder in ("", "/a", "/a/b", "/a/b/c"):
        files |= v2(folder, "max" if folder != limited else 3 * GIB, 2 * GIB, GIB // 2)
    assert available_memory(write(tmp_path, files)) == 3 * GIB - 2 * GIB + GIB // 2


@pytest.mark.parametrize("limited", ["", "/a", "/a/b", "/a/b/c"])
def test_a_version_1_limit_counts_at_every_level(tmp_path: Path, limited: str) -> None:
    cgroup = "5:cpu,cpuacct:/x\n4:memory:/a/b/c\n1:name=systemd:/y\n0::/z\n"
    files = machine(cgroup=cgroup, mounts=f"{V1_OTHER}\n{V1_MOUNT.format(root='/')}\n")
    for folder in ("", "/a", "/a/b", "/a/b/c"):
        limit = 3 * GIB if folder == limited else 2**63 - 4096  # version 1's "no limit"
        files |= v1(folder, limit, 2 * GIB, GIB // 2)
    assert available_memory(write(tmp_path, files)) == 3 * GIB - 2 * GIB + GIB // 2


def test_the_least_of_several_limits_counts(tmp_path: Path) -> None:
    files = machine(40 * GIB, "0::/a/b\n", V2_MOUNT.format(root="/") + "\n")
    files |= v2("/a", 8 * GIB, 7 * GIB) | v2("/a/b", 4 * GIB, 2 * GIB)
    assert available_memory(write(tmp_path, files)) == GIB


def test_limits_of_other_cgroups_do_not_count(tmp_path: Path) -> None:
    files = machine(40 * GIB, "0::/a\n", V2_MOUNT.format(root="/") + "\n")
    files |= v2("/b", GIB) | v2("/a/child", GIB) | v1("/a", GIB)
    assert available_memory(write(tmp_path, files)) == 40 * GIB


def test_version_1_memory_counts_where_version_2_is_mounted_beside_it(tmp_path: Path) -> None:
    unified = "40 25 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    mounts = f"{V1_OTHER}\n{V1_MOUNT.format(root='/')}\n{unified}\n"
    files = machine(cgroup="4:memory:/job\n0::/\n", mounts=mounts) | v1("/job", 2 * GIB)
    assert available_memory(write(tmp_path, files)) == 2 * GIB


@pytest.mark.parametrize("inside", ["", "/worker"])
def test_in_a_container_the_mount_s_own_root_is_not_looked_for_below_the_mount(
    tmp_path: Path, inside: str
) -> None:
    mounts = V1_MOUNT.format(root="/docker/abc") + "\n"
    files = machine(cgroup=f"4:memory:/docker/abc{inside}\n", mounts=mounts) | v1(inside, 2 * GIB, GIB)
    assert available_memory(write(tmp_path, files)) == GIB


def test_in_a_container_whose_cgroup_path_is_the_host_s_the_mount_itself_counts(tmp_path: Path) -> None:
    mounts = V2_MOUNT.format(root="/") + "\n"
    files = machine(cgroup="0::/kubepods/pod1/c1\n", mounts=mounts) | v2("", 2 * GIB)
    assert available_memory(write(tmp_path, files)) == 2 * GIB
    mounts = V2_MOUNT.format(root="/other") + "\n"
    files = machine(cgroup="0::/../sibling\n", mounts=mounts) | v2("", 2 * GIB)
    assert available_memory(write(tmp_path, files)) == 2 * GIB


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    mounts = V2_MOUNT.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/my\\040cgroup") + "\n"
    files = machine(cgroup="0::/\n", mounts=mounts)
    moved = {name.replace("fs/cgroup", "fs/my cgroup"): text for name, text in v2("", GIB).items()}
    assert available_memory(write(tmp_path, files | moved)) == GIB


def test_where_a_version_2_cgroup_is_slowed_down_counts_as_a_limit(tmp_path: Path) -> None:
    files = machine(cgroup="0::/a\n", mounts=V2_MOUNT.format(root="/") + "\n") | v2("/a", "max", GIB)
    files["sys/fs/cgroup/a/memory.high"] = f"{3 * GIB}\n"
    assert available_memory(write(tmp_path, files)) == 2 * GIB


@pytest.mark.parametrize(
    ("told", "mebibytes"),
    [
        ({"SLURM_MEM_PER_NODE": "4096"}, 4096),
        ({"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_ON_NODE": "8"}, 8000),
        ({"SLURM_MEM_PER_GPU": "1500", "SLURM_GPUS_ON_NODE": "2"}, 3000),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_CPU": "1000"}, None),
        ({"SLURM_MEM_PER_NODE": "much", "SLURM_MEM_PER_CPU": "-5", "SLURM_CPUS_ON_NODE": "8"}, None),
    ],
)
def test_what_a_slurm_job_may_use_on_the_node_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str], mebibytes: int | None
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    expected = 64 * GIB if mebibytes is None else mebibytes << 20
    assert available_memory(write(tmp_path, machine())) == expected


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_counts_less_what_it_has_mapped(limit: str) -> None:
    told = run_python(
        "import resource, sys\n"
        "from mmapload.budget import available_memory\n"
        "import numpy as np\n"
        "limit = getattr(resource, sys.argv[1])\n"
        "resource.setrlimit(limit, (3 << 30, resource.getrlimit(limit)[1]))\n"
        "before = available_memory()\n"
        "taken = np.ones(100 << 20, np.uint8)\n"
        "print(before, before - available_memory())\n",
        limit,
    )
    before, taken = map(int, told.split())
    assert 0 < before < 3 << 30
    assert 90 << 20 < taken < 130 << 20


def test_a_full_cgroup_leaves_nothing_and_never_less(tmp_path: Path) -> None:
    files = machine(cgroup="0::/a\n", mounts=V2_MOUNT.format(root="/") + "\n") | v2("/a", GIB, 2 * GIB)
    assert available_memory(write(tmp_path, files)) == 0


@given(garbage=st.text(alphabet=st.sampled_from(list("0123456789:/ -\nabc.,=max"))), data=st.data())
def test_strange_contents_of_the_system_s_files_never_raise(
    tmp_path_factory: pytest.TempPathFactory, garbage: str, data: st.DataObject
) -> None:
    files = machine(cgroup="0::/a\n", mounts=V2_MOUNT.format(root="/") + "\n") | v2("/a", GIB, GIB // 2)
    files[data.draw(st.sampled_from(sorted(files)))] = garbage
    assert available_memory(write(tmp_path_factory.mktemp("garbage"), files)) >= 0


def test_in_a_real_version_1_cgroup_its_limit_counts_and_cached_file_pages_do_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100 << 20))
    with memory_cgroup(200 << 20) as folder:
        told = run_python(
            "import os, pathlib, sys\n"
            "from mmapload.budget import available_memory, resolve_budget\n"
            "folder, file = map(pathlib.Path, sys.argv[1:])\n"
            "fd = os.open(file, os.O_RDONLY)\n"
            "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "(folder / 'cgroup.procs').write_text(str(os.getpid()))\n"
            "first = available_memory()\n"
            "while os.read(fd, 1 << 20): pass\n"
            "print(first, available_memory(), resolve_budget(0.5), resolve_budget('auto'))\n",
            folder,
            tmp_path / "file",
        )
    first, cached, half, auto = map(int, told.split())
    assert 150 << 20 < first <= 200 << 20
    assert abs(first - cached) < 20 << 20
    assert abs(half - cached / 2) < 20 << 20
    assert abs(auto - cached * AUTO_SHARE) < 20 << 20


def test_a_budget_is_a_size_a_number_of_bytes_a_share_or_automatic() -> None:
    assert resolve_budget("8GiB") == 8 * GIB
    assert resolve_budget("2GB") == 2 * 10**9
    assert resolve_budget(12345) == 12345
    assert resolve_budget(1) == 1
    everything = resolve_budget(1.0)
    assert everything > GIB // 8
    assert 0.5 * everything * 0.25 < resolve_budget(0.25) < 2 * everything * 0.25
    assert 0.5 * everything * AUTO_SHARE < resolve_budget("auto") < 2 * everything * AUTO_SHARE


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_a_budget_may_be_a_numpy_integer(kind: type[np.integer[Any]]) -> None:
    assert resolve_budget(kind(100)) == 100  # type: ignore[arg-type] # what people pass


def test_a_budget_may_be_a_numpy_float() -> None:
    assert 0 < resolve_budget(np.float64(0.5)) < resolve_budget(1.0)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, 8e9, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        resolve_budget(share)


@pytest.mark.parametrize("size", ["", "much", "8 apples", "-1", "0", 0, -5, True, None, "AUTO "])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        resolve_budget(size)
