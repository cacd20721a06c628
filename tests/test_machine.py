"""Limits of the process, from planted control groups."""

import os

import psutil
import pytest

from stallscope import machine
from stallscope.machine import (
    CpuUse,
    busy_core_s,
    cores_available,
    cpu_groups,
    memory_available_bytes,
    memory_groups,
)

MIB = 1 << 20
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def plant(tmp_path):
    """Writes files under a root that stands in for `/`."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def version_2(group="/"):
    return {"proc/self/cgroup": f"0::{group}\n"}


def version_1(group="/"):
    names = enumerate(("cpu,cpuacct", "memory"), 1)
    return {"proc/self/cgroup": "".join(f"{n}:{name}:{group}\n" for n, name in names)}


class TestCores:
    def test_quota_of_version_2(self, plant):
        """Half of a period of CPU is half a core."""
        root = plant(version_2() | {"sys/fs/cgroup/cpu.max": "50000 100000\n"})

        assert 0.5 == cores_available(root)

    @pytest.mark.parametrize(
        "files",
        [
            version_2() | {"sys/fs/cgroup/cpu.max": "max 100000\n"},
            version_1()
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            version_2() | {"sys/fs/cgroup/cpu.max": "soon 0"},
            version_2(),
            {},
        ],
        ids=["max", "-1", "nonsense", "no controller", "no proc"],
    )
    def test_without_a_quota_the_affinity_counts(self, plant, files):
        assert not cpu_groups(plant(files))
        assert float(CORES) == cores_available(plant(files))

    def test_a_large_quota_gives_no_cores_that_are_not_there(self, plant):
        root = plant(version_2() | {"sys/fs/cgroup/cpu.max": "99900000 100000"})

        assert float(CORES) == cores_available(root)


class TestMemory:
    def test_without_a_limit_it_is_the_machines(self, plant):
        unlimited = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}

        assert 1 << 20 < memory_available_bytes(plant(version_1() | unlimited))
        assert not memory_groups(plant(version_1() | unlimited))

    @pytest.mark.parametrize(
        ("version", "folder", "limit", "used"),
        [
            (version_2, "", "memory.max", "memory.current"),
            (version_1, "memory/", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ],
    )
    def test_what_a_group_has_left(self, plant, version, folder, limit, used):
        """A group has its limit less the memory in use; unused file pages are free."""
        at = f"sys/fs/cgroup/{folder}"
        total = "total_" if version is version_1 else ""
        group = {
            f"{at}{limit}": f"{4 * MIB}",
            f"{at}{used}": f"{3 * MIB}",
            f"{at}memory.stat": f"anon 1\n{total}inactive_file {MIB}\n",
        }

        assert 2 * MIB == memory_available_bytes(plant(version() | group))


def test_of_this_machine():
    assert 0 < cores_available() <= (os.cpu_count() or 1)
    assert 0 <= memory_available_bytes() <= psutil.virtual_memory().total


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_cores_that_may_not_be_used_are_not_counted(monkeypatch, plant):
    """Core 1 of two, with 1 s of user, nice, system, irq, softirq and steal each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    stat = "cpu  9 9\ncpu0 9 9 9 9 9 9 9 9 0 0\ncpu1 100 100 100 7 7 100 100 100 0 0\nintr 5\n"
    monkeypatch.setattr(machine, "_ROOT", plant({"proc/stat": stat}))

    assert {"1": 600 / os.sysconf("SC_CLK_TCK")} == busy_core_s()


def test_others_use_the_rest_of_the_busy_time(monkeypatch):
    """One of two busy seconds of four was its own, so others use a quarter of the cores."""
    assert 0.0 <= CpuUse(0.0, 0.0, 0.0).since(0.0)[1] <= 1.0
    before, after = CpuUse(10.0, 100.0, 5.0), CpuUse(12.0, 104.0, 6.0)
    monkeypatch.setattr(CpuUse, "now", lambda: after)

    assert (1.0, 0.25) == before.since(0.0)
    assert (1.0, 0.125) == before.since(0.5)
    assert (0.0, 0.0) == after.since(0.0)
