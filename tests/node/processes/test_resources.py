"""What this process may use: of the machine, and of its control group."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbcomm.node.processes import resources

V2, V1 = "0::/user/me\n", "3:cpu,cpuacct:/a\n2:memory:/a/b\n1:pids:/a\n0::/\n"


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "_ROOT", tmp_path / "sys")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(total=9000, available=5000))
    return tmp_path


def write(system: Path, groups: str, **files: str) -> None:
    (system / "cgroup").write_text(groups)
    for name, text in files.items():
        file = system / "sys" / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert resources.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert resources.usable_cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert resources.usable_cores() == 1
    assert not (system / "sys").exists()


def test_without_a_limit_the_machine_counts(system: Path) -> None:
    write(system, V2, user__me__cpu_DOT_max="max 100000", user__me__memory_DOT_max="max", user__pids_DOT_max="max")
    assert (resources.usable_cores(), resources.free_memory(), resources.free_tasks()) == (8, 5000, None)
    write(
        system,
        V1,
        cpu__a__cpu_DOT_cfs_quota_us="-1",
        cpu__a__cpu_DOT_cfs_period_us="100000",
        memory__a__b__memory_DOT_limit_in_bytes="9223372036854771712",
        memory__a__b__memory_DOT_usage_in_bytes="7",
    )
    assert (resources.usable_cores(), resources.free_memory(), resources.free_tasks()) == (8, 5000, None)


@pytest.mark.parametrize(("quota", "cores"), [("250000", 3), ("20000", 1), ("9900000", 8)])
def test_a_container_may_have_the_time_of_fewer_cores(system: Path, quota: str, cores: int) -> None:
    write(system, V2, user__me__cpu_DOT_max=f"{quota} 100000")
    assert resources.usable_cores() == cores
    write(system, V1, cpu__a__cpu_DOT_cfs_quota_us=quota, cpu__a__cpu_DOT_cfs_period_us="100000")
    assert resources.usable_cores() == cores


def test_a_container_has_the_memory_of_its_group_without_that_of_files(system: Path) -> None:
    write(
        system,
        V2,
        user__me__memory_DOT_max="max",
        user__memory_DOT_max="3000",
        user__memory_DOT_current="2500",
        user__memory_DOT_stat="anon 700\ninactive_file 1800",
    )
    assert resources.free_memory() == 2300, "the limit of a group around it holds as well"
    write(
        system,
        V1,
        memory__a__b__memory_DOT_limit_in_bytes="1000",
        memory__a__b__memory_DOT_usage_in_bytes="1500",
        memory__a__b__memory_DOT_stat="total_inactive_file 100",
    )
    assert resources.free_memory() == 0


def test_a_container_may_have_few_processes(system: Path) -> None:
    write(system, V2, pids_DOT_max="100", pids_DOT_current="40", user__pids_DOT_max="max")
    assert resources.free_tasks() == 60
    write(system, V1, pids__a__pids_DOT_max="50", pids__a__pids_DOT_current="45")
    assert resources.free_tasks() == 5
