"""How many processes the system has killed for lack of memory, on every kind of system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbcomm.node.processes import oom, resources


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "_ROOT", tmp_path / "sys")
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/user.slice/me\n", "user.slice/me/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/host/path\n", "memory.events", "oom_kill 3\n"),  # in a container
        ("5:cpu:/\n4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control", "under_oom 0\noom_kill 3\n"),
        ("4:cpu,memory:/host/path\n", "memory/memory.oom_control", "oom_kill 3\n"),
    ],
)
def test_the_count_is_found(system: Path, groups: str, file: str, text: str) -> None:
    (system / "cgroup").write_text(groups)
    (system / "sys" / file).parent.mkdir(parents=True)
    (system / "sys" / file).write_text(text)
    assert oom.kills() == 3


@pytest.mark.parametrize("groups", ["", "0::/\n", "nonsense\n", None])
def test_where_the_system_does_not_say_there_were_none(system: Path, groups: str | None) -> None:
    if groups is not None:
        (system / "cgroup").write_text(groups)
    assert oom.kills() == 0


def test_a_process_offers_itself() -> None:
    pid = os.fork()
    if pid == 0:
        oom.offer()
        os._exit(Path("/proc/self/oom_score_adj").read_text() != "500\n")
    assert os.waitpid(pid, 0)[1] == 0
