"""Checks of a start on several nodes; tests/nodes/inside_ssh.py has them over ssh."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm import doctor_nodes
from nbcomm.cli import main
from nbcomm.doctor_nodes import Room, slowest
from nbcomm.notebook.cluster.start_options import StartOptions

NAMES = {0: "node 0", 2: "node 1", 4: "node 2"}
GB = 1 << 30
NET = ["eth0", "mlx5_0"]


@pytest.mark.world
@pytest.mark.timeout(240)
def test_a_start_that_works_is_looked_at_from_all_sides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-n", "4", "--nodes", "2", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"ok    start +4 ranks on cpu are up in ", said)
    assert re.search(r"node 0 +\S+: 2 ranks on cpu, network \w+", said)
    assert re.search(r"node 1 +\S+: 2 ranks on cpu, ", said)
    assert re.search(r"time of a message +\d+ µs between two nodes \(median of 1 pair\)", said)
    assert re.search(r"bandwidth +\d+ MB/s between two nodes", said)
    assert said.endswith("This start works.\n")


def test_a_start_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engines", "ssh", "--hosts", "a:x"]) == 1
    assert "fail  start              'a:x' is no host with a number of ranks" in capsys.readouterr().out
    assert main(["doctor", "--nodes", "two"]) == 2
    assert "invalid int value: 'two'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["demo", "--nodes", "2"])


@pytest.mark.parametrize(
    ("room", "level", "said"),
    [
        (
            Room("h", 0.0, GB, GB, NET),
            "ok",
            (
                "h: 1 rank on cpu, network eth0, mlx5_0, "
                "1.0 GB free for files and 1.0 GB in shared memory; its clock agrees"
            ),
        ),
        (Room("h", 3.0, GB, GB, NET), "warn", "its clock is +3.0 s off"),
        (Room("h", -2.0, GB, GB, NET), "warn", "its clock is -2.0 s off"),
        (Room("h", 0.0, GB, GB // 8, NET), "warn", "that is little"),
        (Room("h", 0.0, 0, GB, NET), "warn", "that is little"),
    ],
)
def test_a_machine_is_judged(room: Room, level: str, said: str) -> None:
    class Session:
        def call(self, *_: Any, **__: Any) -> list[Room]:
            return [room._replace(clock=time.time() + room.clock)]

        def views(self) -> list[Any]:
            return [
                SimpleNamespace(node_rank=1, rank=2, device="cpu"),
                SimpleNamespace(node_rank=0, rank=0, device="cpu"),
            ]

    verdict = doctor_nodes._node(Session(), 1, 2)  # type: ignore[arg-type]
    assert verdict.level == level
    assert said in verdict.sentence


def test_a_pair_that_is_much_slower_is_named() -> None:
    times = {(0, 2): 1e-4, (0, 4): 1.1e-4, (2, 4): 9e-4}
    verdict = slowest(times, NAMES, "µs", 1e6)
    assert verdict.level == "warn"
    assert "110 µs between two nodes (median of 3 pairs); between node 1 and node 2 only 900 µs" in verdict.sentence
    speeds = {(0, 2): 1e9, (0, 4): 2e8, (2, 4): 9e8}
    verdict = slowest(speeds, NAMES, "MB/s", 0.0)
    assert "900 MB/s between two nodes (median of 3 pairs); between node 0 and node 2 only 200 MB/s" in verdict.sentence
    assert slowest({(0, 2): 1e-4}, NAMES, "µs", 1e6).level == "ok"


def test_nothing_is_left_of_a_start_whose_ranks_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []

    class Session:
        title = "2 ranks"

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            stopped.append(True)

        def views(self) -> list[Any]:
            raise doctor_nodes.NbcommError("a rank has died")

    monkeypatch.setattr(doctor_nodes.registry, "start", lambda **_: Session())
    found = list(doctor_nodes.findings(StartOptions(2)))
    assert [(subject, verdict.level) for subject, verdict in found] == [("start", "ok"), ("ranks", "fail")]
    assert stopped
