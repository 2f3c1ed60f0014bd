"""The processes of a world, kept step by step; with a real fork server, test_forkserver does it."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from nbcomm.faults import Faults
from nbcomm.node.processes import child, children, liveness
from nbcomm.node.processes.children import Children
from nbcomm.node.processes.liveness import lives
from nbcomm.protocol import Exited, Report, Signal, Start, Started, Unwatched
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from ..served import await_that, has_ended, no_file_more

_PARENT = """
import os, subprocess, sys, time

child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


class Kept:
    """The children of one world, and what is reported of them."""

    def __init__(self, home: WorldDir) -> None:
        self.home = home
        self.selector = selectors.DefaultSelector()
        self.reports: list[Report] = []
        self.faults = Faults()
        self.children = Children(home, self.selector, self.reports.append, lambda: None, self.faults)
        self.numbers = iter(range(1, 1000))

    def start(self, key: str = "rank 0", **changes: object) -> Started:
        environment = {**os.environ, HOME_VARIABLE: os.fspath(self.home.path)}
        order = Start(next(self.numbers), key, "engine", ["600"], environment, "/")
        self.children.start(msgspec.structs.replace(order, **changes))
        started = self.reports[-1]
        assert isinstance(started, Started)
        # In the midst of an exec nothing can be read of it, and nobody would adopt it.
        await_that(lambda: lives(self.home, started.pid) or has_ended(psutil.Process(started.pid)), "it does not come")
        return started

    def await_report(self) -> Report:
        """Do as the fork server until there is another report."""
        before = len(self.reports)

        def told() -> bool:
            for key, _ in self.selector.select(0):
                assert isinstance(key.fileobj, int)
                self.children.bury(key.fileobj)
            self.children.reap()
            self.children.look()
            return len(self.reports) > before

        await_that(told, "nothing is reported")
        return self.reports[before]

    def written(self) -> list[list[object]]:
        """What another fork server would read."""
        return msgspec.json.decode(self.home.read_children())


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorldDir]:
    """A world whose engines only sleep."""

    def spawn(order: Start, _: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", *order.argv], env=order.env, cwd=order.cwd, start_new_session=True)

    monkeypatch.setattr(child, "spawn", spawn)
    made = WorldDir.create()
    yield made
    made.remove()


@pytest.fixture
def keep(home: WorldDir) -> Iterator[Callable[[], Kept]]:
    """Make the children of a world; several, one after the other, are those of as many fork servers."""
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept(home))
        return made[-1]

    yield make
    for kept in made:
        kept.children.end_all()
        kept.selector.close()


@pytest.fixture
def kept(keep: Callable[[], Kept]) -> Kept:
    return keep()


def test_what_lives_is_written_down_at_each_start_and_end(kept: Kept) -> None:
    assert not kept.children.any
    first, second = kept.start("rank 0"), kept.start("controller")
    assert kept.written() == [[1, "rank 0", first.pid], [2, "controller", second.pid]]
    assert kept.children.any
    os.kill(first.pid, signal.SIGTERM)
    assert kept.await_report() == Exited(1, "rank 0", first.pid, -signal.SIGTERM)
    assert kept.written() == [[2, "controller", second.pid]]


def test_an_exit_code_is_told(kept: Kept) -> None:
    started = kept.start(argv=["0"])
    assert kept.await_report() == Exited(1, "rank 0", started.pid, 0)
    assert not kept.children.any


def test_all_that_is_known_is_told_the_living_and_the_last_end_of_each_key(kept: Kept) -> None:
    first = kept.start("rank 0", argv=["0"])
    kept.await_report()
    assert kept.children.state() == [first, Exited(1, "rank 0", first.pid, 0)]
    second = kept.start("rank 0")
    assert kept.children.state() == [second]
    third = kept.start("rank 1", argv=["0"])
    ended = kept.await_report()
    assert kept.children.state() == [second, third, ended]


def test_where_nothing_can_be_written_processes_are_started_and_ended_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept.home, "write_children", full)
    started = kept.start(argv=["0"])
    assert kept.await_report() == Exited(1, "rank 0", started.pid, 0)
    assert "No space left" in capsys.readouterr().err


def test_what_could_not_be_written_down_is_written_as_soon_as_there_is_room(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = kept.start("rank 0")
    assert not kept.children.due
    with monkeypatch.context() as patched:
        patched.setattr(kept.home, "write_children", full)
        second = kept.start("rank 1")
        kept.children.look()
        assert kept.children.due, "the fork server looks again soon"
        assert kept.written() == [[1, "rank 0", first.pid]]
    kept.children.look()
    assert kept.written() == [[1, "rank 0", first.pid], [2, "rank 1", second.pid]]
    assert not kept.children.due


def test_what_cannot_be_started_leaves_no_trace(kept: Kept) -> None:
    with pytest.raises(FileNotFoundError):
        kept.start(cwd="/nowhere")
    assert kept.children.state() == []
    assert not kept.children.any


def test_a_child_that_another_has_waited_for_has_ended(kept: Kept) -> None:
    started = kept.start(argv=["0"])
    os.waitpid(started.pid, 0)
    assert kept.await_report() == Exited(1, "rank 0", started.pid, 0)


@pytest.fixture
def grandchildren(monkeypatch: pytest.MonkeyPatch) -> list[psutil.Process]:
    """Let engines have a child process each, and return these."""
    heard: list[psutil.Process] = []

    def spawn(order: Start, _: Path) -> subprocess.Popen[bytes]:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT], env=order.env, stdout=subprocess.PIPE, start_new_session=True
        )
        assert parent.stdout is not None
        heard.append(psutil.Process(int(parent.stdout.readline())))
        parent.stdout.close()
        return parent

    monkeypatch.setattr(child, "spawn", spawn)
    return heard


def test_with_a_rank_its_child_processes_end(kept: Kept, grandchildren: list[psutil.Process]) -> None:
    one, _ = kept.start("rank 0"), kept.start("rank 1")
    os.kill(one.pid, signal.SIGKILL)
    kept.await_report()
    await_that(lambda: has_ended(grandchildren[0]), "it lives on")
    assert not has_ended(grandchildren[1])
    kept.children.end_all()
    await_that(lambda: has_ended(grandchildren[1]), "it lives on")


# ── another fork server ─────────────────────────────────────────────────────────────────────────────


def test_another_one_takes_over_what_lives_and_knows_what_has_ended(keep: Callable[[], Kept]) -> None:
    before = keep()
    stays, goes = before.start("rank 0"), before.start("rank 1")
    os.kill(goes.pid, signal.SIGKILL)
    os.waitpid(goes.pid, 0)
    after = keep()
    after.children.adopt_all()
    assert after.reports == [], "who claims the world asks"
    assert after.children.state() == [stays, goes, Exited(2, "rank 1", goes.pid, None)]
    assert after.written() == [[1, "rank 0", stays.pid]]
    assert not after.children.due
    os.kill(stays.pid, signal.SIGKILL)
    assert after.await_report() == Exited(1, "rank 0", stays.pid, None)
    assert not after.children.any
    assert after.written() == []


@pytest.mark.parametrize("written", [None, b"", b"{", b'{"a": 1}', b'[["x", 1, 2]]', b"\xff"])
def test_without_an_earlier_one_there_is_nothing_to_take_over(kept: Kept, written: bytes | None) -> None:
    if written is not None:
        kept.home.write_children(written)
    kept.children.adopt_all()
    assert kept.children.state() == []
    assert not kept.children.any


def test_a_process_that_has_the_pid_of_a_rank_is_not_taken_over(kept: Kept) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            kept.home.write_children(msgspec.json.encode([(1, "rank 0", stranger.pid), (2, "rank 1", 1 << 30)]))
            kept.children.adopt_all()
            assert not kept.children.any
            assert [report.pid for report in kept.children.state() if isinstance(report, Exited)] == [
                stranger.pid,
                1 << 30,
            ]
            kept.children.end_all()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_it_takes_over_also_what_a_notebook_knows_and_nobody_could_write_down(keep: Callable[[], Kept]) -> None:
    before = keep()
    written, known, gone = (before.start(f"rank {rank}") for rank in range(3))
    before.home.write_children(msgspec.json.encode([[written.start, written.key, written.pid]]))
    os.kill(gone.pid, signal.SIGKILL)
    os.waitpid(gone.pid, 0)
    after = keep()
    after.children.adopt_all()
    after.children.adopt([written, known, gone])
    after.children.adopt([written, known, gone])  # each agent hears of them
    assert after.children.state() == [written, known, gone, Exited(gone.start, gone.key, gone.pid, None)]
    assert after.written() == [[each.start, each.key, each.pid] for each in (written, known)]
    os.kill(known.pid, signal.SIGKILL)
    assert after.await_report() == Exited(known.start, known.key, known.pid, None)


@pytest.mark.parametrize(
    "why", [OSError(errno.EMFILE, "Too many open files"), AttributeError("no pidfd_open")], ids=str
)
def test_what_cannot_be_watched_is_looked_at(
    keep: Callable[[], Kept], monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    def fail(_: int) -> int:
        raise why

    before = keep()
    stays, goes = before.start("rank 0"), before.start("rank 1")
    monkeypatch.setattr(os, "pidfd_open", fail)
    after = keep()
    after.children.adopt_all()
    assert after.children.due
    assert set(map(type, after.children.state())) == {Started, Unwatched}
    assert Unwatched(2, "rank 1", str(why)) in after.children.state()
    after.children.look()
    assert after.reports == []
    os.kill(goes.pid, signal.SIGKILL)
    assert after.await_report() == Exited(2, "rank 1", goes.pid, None)
    assert [report for report in after.children.state() if isinstance(report, Unwatched)] == [
        Unwatched(1, "rank 0", str(why))
    ]
    after.children.end_all()
    assert os.waitpid(stays.pid, 0)[1] == signal.SIGKILL


def test_where_no_file_can_be_opened_no_process_is_taken_for_dead(keep: Callable[[], Kept]) -> None:
    before = keep()
    stays = before.start()
    after = keep()
    with no_file_more():
        after.children._adopt(stays)
        after.children.look()
        told, unwatched = after.children.state()
        assert told == stays
        assert isinstance(unwatched, Unwatched)
        assert "Too many open files" in unwatched.why
        with pytest.raises(OSError, match="Too many open files"):
            after.children.signal(Signal(9, 1, signal.SIGTERM))
    os.kill(stays.pid, signal.SIGKILL)
    assert after.await_report() == Exited(1, "rank 0", stays.pid, None)


def test_one_of_which_nothing_is_known_does_not_keep_the_others_from_their_end(
    keep: Callable[[], Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keep()
    first, second = before.start("rank 0"), before.start("rank 1")

    def failing(home: WorldDir, pid: int) -> bool:
        if pid == first.pid:
            raise OSError(errno.EMFILE, "Too many open files")
        return lives(home, pid)

    after = keep()
    after.children.adopt_all()
    with monkeypatch.context() as patch:
        patch.setattr(liveness, "lives", failing)
        after.children.end_all()
    assert os.waitpid(second.pid, 0)[1] == signal.SIGKILL
    assert lives(after.home, first.pid)


def test_one_that_cannot_be_taken_over_does_not_keep_the_others_from_it(
    keep: Callable[[], Kept], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = keep()
    first, second = before.start("rank 0"), before.start("rank 1")

    def failing(home: WorldDir, pid: int) -> bool:
        if pid == first.pid:
            raise RuntimeError("on purpose")
        return lives(home, pid)

    after = keep()
    with monkeypatch.context() as patch:
        patch.setattr("nbcomm.node.processes.children.lives", failing)
        after.children.adopt_all()
    assert after.children.living() == [second]
    assert "on purpose" in capsys.readouterr().err


@pytest.mark.parametrize("lives_on", [True, False])
def test_a_start_that_comes_again_is_not_done_again(keep: Callable[[], Kept], *, lives_on: bool) -> None:
    before, after = keep(), keep()
    started = before.start()
    if not lives_on:
        os.kill(started.pid, signal.SIGKILL)
        os.waitpid(started.pid, 0)
    after.children.adopt_all()
    after.children.start(Start(1, "rank 0", "engine", ["600"], {}, "/"))
    ended = [] if lives_on else [Exited(1, "rank 0", started.pid, None)]
    assert after.reports == [started, *ended]
    assert after.children.living() == ([started] if lives_on else [])


@pytest.mark.parametrize("when", ["before", "watched", "unwatched"])
def test_with_an_adopted_rank_its_child_processes_end(
    keep: Callable[[], Kept], grandchildren: list[psutil.Process], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    before, after = keep(), keep()
    goes, stays = before.start("rank 0"), before.start("rank 1")
    if when == "unwatched":
        monkeypatch.delattr(os, "pidfd_open")
    if when != "before":
        after.children.adopt_all()
    os.kill(goes.pid, signal.SIGKILL)
    os.waitpid(goes.pid, 0)
    if when == "before":
        after.children.adopt_all()
        assert after.children.living() == [stays]
    else:
        assert after.await_report() == Exited(1, "rank 0", goes.pid, None)
    await_that(lambda: has_ended(grandchildren[0]), "it lives on")
    assert not has_ended(grandchildren[1])


def test_an_adopted_process_is_started_again_under_its_key(keep: Callable[[], Kept]) -> None:
    before = keep()
    first = before.start("rank 0")
    after = keep()
    after.children.adopt_all()
    os.kill(first.pid, signal.SIGKILL)
    after.await_report()
    after.numbers = iter([77])
    second = after.start("rank 0")
    assert after.children.state() == [second]
    assert after.written() == [[77, "rank 0", second.pid]]


_CONTROLLER = """
import os, sys, time
from contextlib import suppress

from nbcomm.faults import Faults
from nbcomm.node.processes import child
from nbcomm.node.processes.children import Children
from nbcomm.protocol import Start
from nbcomm.world_dir import WorldDir

def let_go():
    while os.getppid() == forker:
        time.sleep(0.001)

def record(_):
    print("it serves", flush=True)

child._take_log, child._stay_here = lambda _: None, lambda: None
child.MODULES = {"controller": "served_by_nobody"}
sys.modules["served_by_nobody"] = sys.modules["__main__"]
main = record
forker = os.fork() or os.getpid()
if forker == os.getpid():
    children = Children(WorldDir(sys.argv[1]), None, lambda _: None, let_go, Faults())
    children.forks = True
    children.start(Start(1, "controller", "controller", [], dict(os.environ), "/"))
    os._exit(0)
"""
"""Forks a controller whose parent ends before it can ask to end with it."""


def test_a_controller_whose_parent_has_ended_before_it_could_ask_for_its_end_ends(home: WorldDir) -> None:
    command = [sys.executable, "-c", _CONTROLLER, os.fspath(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# ── signals ─────────────────────────────────────────────────────────────────────────────────────────


def test_signals_reach_the_process_of_a_start_whoever_started_it(keep: Callable[[], Kept]) -> None:
    before = keep()
    adopted, other = before.start("rank 0"), before.start("rank 1")
    after = keep()
    after.children.adopt_all()
    after.numbers = iter([5])
    own = after.start("rank 2")
    for start, pid in ((1, adopted.pid), (5, own.pid)):
        after.children.signal(Signal(9, start, signal.SIGTERM))
        ended = after.await_report()
        assert isinstance(ended, Exited)
        assert ended.pid == pid
    after.children.signal(Signal(9, 1, signal.SIGTERM))
    after.children.signal(Signal(9, 77, signal.SIGTERM))
    assert lives(after.home, other.pid)


def test_no_signal_reaches_another_process_that_has_the_pid(
    keep: Callable[[], Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keep()
    started = before.start("rank 0")
    after = keep()
    after.children.adopt_all()
    for module in (children, liveness):
        monkeypatch.setattr(module, "lives", lambda *_: False)
    after.children.signal(Signal(9, 1, signal.SIGTERM))
    after.children.end_all()
    assert lives(after.home, started.pid)


# ── liveness ────────────────────────────────────────────────────────────────────────────────────────


def test_a_process_of_this_world_lives_until_it_has_ended(kept: Kept, tmp_path: Path) -> None:
    started = kept.start("rank 0")
    await_that(lambda: lives(kept.home, started.pid), "between fork and exec nothing can be read of it")
    assert not lives(WorldDir(tmp_path), started.pid), "it is another world's"
    os.kill(started.pid, signal.SIGKILL)
    await_that(lambda: not lives(kept.home, started.pid), "it has ended, though nobody has waited for it")
    assert psutil.pid_exists(started.pid)
    kept.await_report()
    assert not lives(kept.home, started.pid)


def test_neither_this_process_nor_none_is_one_of_a_world(kept: Kept) -> None:
    assert not lives(kept.home, os.getpid())
    assert not lives(kept.home, 1 << 30)
