"""What is said of a job: its time, its end, and that nobody uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers.slurm import Job, JobState
from nbcomm.notebook.cluster import job_watch
from nbcomm.notebook.cluster.job_watch import JobWatch
from nbcomm.world_info import JobInfo

PATIENCE = 30.0


class Scripted(Job):
    """A job whose looks are scripted."""

    def __init__(self, *, ours: bool = True) -> None:
        super().__init__(JobInfo("12", ours=ours))
        self.left: float | None = 3600.0
        self.ending, self.state = "", "RUNNING"
        self.broken = False
        self.nodes = ""
        self.looked = threading.Semaphore(0)

    def look(self) -> JobState:
        try:
            if self.broken:
                raise StartError("Slurm has not answered.")
            self.ends = None if self.left is None else time.time() + self.left
            self.over = self.ending
            return JobState(self.state, nodes=self.nodes)
        finally:
            self.looked.release()

    def hosts(self, seen: JobState) -> list[str]:
        if self.broken:
            raise StartError("Slurm has not answered.")
        return seen.nodes.split(",")

    def cancel(self) -> bool:
        if self.broken:
            return False
        self.ending = f"{self} was cancelled"
        return True


class Watched:
    """A watch and what it has said."""

    def __init__(self, job: Scripted, idle: float = 0.0) -> None:
        self.job, self.said, self.resting = job, list[str](), 0.0
        self.ended = threading.Event()
        self.lasts = 0
        self.watch = JobWatch(
            job,
            self.said.append,
            resting=lambda: self.resting,
            idle=idle,
            ended=self.ended.set,
            last=self.last,
        )

    def last(self) -> None:
        self.lasts += 1

    def looks(self) -> list[str]:
        """What it says when it looks once more, to its end."""
        before = len(self.said)
        for _ in range(2):  # the second begins when the first has ended
            self.watch.hurry()
            assert self.job.looked.acquire(timeout=PATIENCE)
        return self.said[before:]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    """Make a watch that looks only when it is told to."""
    monkeypatch.setattr(job_watch, "PAUSE", 600.0)
    made: list[Watched] = []

    def make(idle: float = 0.0) -> Watched:
        made.append(Watched(Scripted(), idle))
        assert made[-1].job.looked.acquire(timeout=PATIENCE)
        return made[-1]

    yield make
    for one in made:
        one.watch.close()


def test_the_end_of_its_time_is_told_twice_before(watched: Callable[..., Watched]) -> None:
    one = watched()
    said, lasts = [], []
    for left in (3600.0, 599.0, 500.0, 119.0, 60.0):
        one.job.left = left
        said.append(one.looks())
        lasts.append(one.lasts)
    assert lasts == [0, 0, 0, 1, 1], "the hook is called once"
    assert said == [
        [],
        ["Slurm job 12 ends in 10 min; save what you need."],
        [],
        ["Slurm job 12 ends in 2 min; save what you need."],
        [],
    ]


def test_time_that_was_prolonged_is_told_again(watched: Callable[..., Watched]) -> None:
    one = watched()
    said = []
    for left in (500.0, 3600.0, 500.0, None):
        one.job.left = left
        said += one.looks()
    assert said == ["Slurm job 12 ends in 8 min; save what you need."] * 2


def test_the_end_of_the_job_is_told_once_and_to_who_must_know(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.job.ending = "Slurm job 12 was preempted by another job"
    one.watch.hurry()
    assert one.ended.wait(PATIENCE)
    one.watch._thread.join(PATIENCE)
    assert not one.watch._thread.is_alive()
    (said,) = one.said
    assert said == (
        "Slurm job 12 was preempted by another job, and the ranks have ended with it. Type %distributed restart to "
        "queue again."
    )


def test_nodes_that_the_job_has_lost_are_told_once(watched: Callable[..., Watched]) -> None:
    one = watched()
    said = []
    for nodes in ("a,b,c", "a,b,c", "a", "", "a"):
        one.job.nodes = nodes
        said.append(one.looks())
    assert [bool(sentences) for sentences in said] == [False, False, True, False, False]
    (sentence,) = said[2]
    assert sentence.startswith("Slurm job 12 has lost b, c, so that heal cannot replace the ranks there.")
    assert "to use what the job still has (a)" in sentence
    assert one.job.lost == {"b", "c"}


def test_a_job_that_is_about_to_end_has_lost_no_node_and_is_looked_at_soon(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watched()
    one.job.nodes = "a,b"
    one.looks()
    one.job.nodes, one.job.state, one.job.left = "a", "COMPLETING", 0.0
    monkeypatch.setattr(job_watch, "_SOON", 0.0)
    assert one.looks() == []
    for _ in range(2):  # by itself
        assert one.job.looked.acquire(timeout=PATIENCE)
    assert not one.job.lost


def test_a_scheduler_that_does_not_answer_changes_nothing(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.job.broken = True
    assert one.looks() == []
    one.job.broken, one.job.left = False, 60.0
    assert one.looks() == ["Slurm job 12 ends in 60 s; save what you need."]


def test_a_job_that_nobody_uses_is_given_back(watched: Callable[..., Watched]) -> None:
    one = watched(idle=1800.0)
    one.resting = 1799.0
    assert one.looks() == []
    one.resting = 1800.0
    one.watch.hurry()
    assert one.ended.wait(PATIENCE)
    assert one.said[0] == (
        "Slurm job 12 was given back after 30 min without a cell. Type %distributed restart to queue again."
    )
    one.watch._thread.join(PATIENCE)
    assert len(one.said) == 1, "it is told once, and nothing takes its place"


def test_a_job_that_cannot_be_given_back_now_is_kept(watched: Callable[..., Watched]) -> None:
    one = watched(idle=1800.0)
    one.job.broken, one.resting = True, 3600.0
    assert one.looks() == []
    assert not one.ended.is_set()


def test_a_job_around_the_notebook_is_never_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "PAUSE", 600.0)
    one = Watched(Scripted(ours=False), idle=0.1)
    one.resting = 3600.0
    assert one.job.looked.acquire(timeout=PATIENCE)
    try:
        assert one.looks() == []
        assert not one.job.ending
    finally:
        one.watch.close()


def test_the_watch_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "PAUSE", 0.0)
    one = Watched(Scripted())
    try:
        assert all(one.job.looked.acquire(timeout=PATIENCE) for _ in range(2))
    finally:
        one.watch.close()
    one.watch._thread.join(PATIENCE)
    assert not one.watch._thread.is_alive()
