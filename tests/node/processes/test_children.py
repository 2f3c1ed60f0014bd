"""The processes of a world, kept step by step; with a real daemon, test_daemon does it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from nbcomm.faults import Faults
from nbcomm.node.processes import child, children, liveness, parenthood
from nbcomm.node.processes.children import Children
from nbcomm.node.processes.liveness import lives
from nbcomm.protocol import Exited, Signal, Start, Started
from nbcomm.protocol.codec import encode
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from ..served import await_that, has_ended, no_file_more

_PARENT = """
import os, subprocess, sys, time

child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


class Kept:
    """The children of one world."""

    def __init__(self, home: WorldDir) -> None:
        self.home = home
        self.poller = zmq.Poller()
        self.faults = Faults()
        self.children = Children(home, self.poller, self.faults)
        self.numbers = iter(range(1, 1000))

    def start(self, key: str = "rank 0", **changes: object) -> Started:
        environment = {**os.environ, HOME_VARIABLE: os.fspath(self.home.path)}
        order = Start(next(self.numbers), key, "engine", ["600"], environment, "/")
        self.children.spawn(msgspec.structs.replace(order, **changes))
        started = next(one for one in self.children.living() if one.start == order.number)
        # In the midst of an exec nothing can be read of it, and nobody would adopt it.
        await_that(lambda: lives(self.home, started.pid) or has_ended(psutil.Process(started.pid)), "it does not come")
        return started

    def turn(self) -> None:
        """Do as the daemon."""
        for descriptor, _ in self.poller.poll(0):
            self.children.on_exit(descriptor)
        self.children.reap()
        self.children.look()

    def await_end(self, start: int) -> Exited:
        """Do as the daemon until this start has ended."""

        def ended() -> list[Exited]:
            self.turn()
            return [one for one in self.children.table() if isinstance(one, Exited) and one.start == start]

        await_that(ended, "it does not end")
        return ended()[0]

    def written(self) -> list[list[object]]:
        """What another daemon would read."""
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
    """Make the children of a world; several, one after the other, are those of as many daemons."""
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept(home))
        return made[-1]

    yield make
    for kept in made:
        kept.children.end_all()


@pytest.fixture
def kept(keep: Callable[[], Kept]) -> Kept:
    return keep()


def test_what_lives_is_written_down_at_each_start_and_end(kept: Kept) -> None:
    assert not kept.children.any
    first, second = kept.start("rank 0"), kept.start("controller")
    assert kept.written() == [[1, "rank 0", first.pid, ""], [2, "controller", second.pid, ""]]
    assert kept.children.any
    os.kill(first.pid, signal.SIGTERM)
    assert kept.await_end(1) == Exited(1, "rank 0", first.pid, -signal.SIGTERM)
    assert kept.written() == [[2, "controller", second.pid, ""]]


def test_an_exit_code_is_told(kept: Kept) -> None:
    started = kept.start(argv=["0"])
    assert kept.await_end(1) == Exited(1, "rank 0", started.pid, 0)
    assert not kept.children.any


def test_all_that_is_known_is_told_the_living_and_the_last_end_of_each_key(kept: Kept) -> None:
    first = kept.start("rank 0", argv=["0"])
    kept.await_end(1)
    assert kept.children.table() == [first, Exited(1, "rank 0", first.pid, 0)]
    second = kept.start("rank 0")
    assert kept.children.table() == [second]
    third = kept.start("rank 1", argv=["0"])
    ended = kept.await_end(3)
    assert kept.children.table() == [second, third, ended]


def test_where_nothing_can_be_written_processes_are_started_and_ended_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept.home, "write_children", full)
    started = kept.start(argv=["0"])
    assert kept.await_end(1) == Exited(1, "rank 0", started.pid, 0)
    assert "No space left" in capsys.readouterr().err


def test_the_key_of_a_process_is_kept_for_whoever_asks_next_and_its_secret_is_not(kept: Kept) -> None:
    started = kept.start("rank 0", public="public", secret="secret")  # noqa: S106 - no secret
    assert started.public == "public"
    assert [each.public for each in children.written_down(kept.home)] == ["public"]
    assert b"secret" not in kept.home.read_children()


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
        assert kept.children.due, "the daemon looks again soon"
        assert kept.written() == [[1, "rank 0", first.pid, ""]]
    kept.children.look()
    assert kept.written() == [[1, "rank 0", first.pid, ""], [2, "rank 1", second.pid, ""]]
    assert not kept.children.due


def test_what_cannot_be_started_leaves_no_trace(kept: Kept) -> None:
    with pytest.raises(FileNotFoundError):
        kept.start(cwd="/nowhere")
    assert kept.children.table() == []
    assert not kept.children.any


def test_a_child_that_another_has_waited_for_has_ended(kept: Kept) -> None:
    started = kept.start(argv=["0"])
    os.waitpid(started.pid, 0)
    assert kept.await_end(1) == Exited(1, "rank 0", started.pid, None)


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
    kept.await_end(1)
    await_that(lambda: has_ended(grandchildren[0]), "it lives on")
    assert not has_ended(grandchildren[1])
    kept.children.end_all()
    await_that(lambda: has_ended(grandchildren[1]), "it lives on")


# ── another daemon ─────────────────────────────────────────────────────────────────────────────────


def test_another_one_takes_over_what_lives_and_knows_what_has_ended(keep: Callable[[], Kept]) -> None:
    before = keep()
    stays, goes = before.start("rank 0"), before.start("rank 1")
    os.kill(goes.pid, signal.SIGKILL)
    os.waitpid(goes.pid, 0)
    after = keep()
    after.children.adopt_all()
    assert after.children.table() == [stays, goes, Exited(2, "rank 1", goes.pid, None)]
    assert after.written() == [[1, "rank 0", stays.pid, ""]]
    assert not after.children.due
    os.kill(stays.pid, signal.SIGKILL)
    assert after.await_end(1) == Exited(1, "rank 0", stays.pid, None)
    assert not after.children.any
    assert after.written() == []


@pytest.mark.parametrize("written", [None, b"", b"{", b'{"a": 1}', b'[["x", 1, 2]]', b"\xff"])
def test_without_an_earlier_one_there_is_nothing_to_take_over(kept: Kept, written: bytes | None) -> None:
    if written is not None:
        kept.home.write_children(written)
    kept.children.adopt_all()
    assert kept.children.table() == []
    assert not kept.children.any


def test_a_process_that_has_the_pid_of_a_rank_is_not_taken_over(kept: Kept) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            kept.home.write_children(msgspec.json.encode([(1, "rank 0", stranger.pid, ""), (2, "rank 1", 1 << 30, "")]))
            kept.children.adopt_all()
            assert not kept.children.any
            assert [report.pid for report in kept.children.table() if isinstance(report, Exited)] == [
                stranger.pid,
                1 << 30,
            ]
            kept.children.end_all()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_it_takes_over_also_what_a_zygote_could_not_tell(keep: Callable[[], Kept]) -> None:
    before = keep()
    written, noted, gone = (before.start(f"rank {rank}") for rank in range(3))
    for each in (written, noted, gone):
        before.home.note_start(each.start, encode(Started(each.start, each.key, each.pid, "public")))
    before.home.note_start(9, b"no start")
    before.home.note_start(2, encode(Started(noted.start, noted.key, noted.pid, "its key")))  # it is done again
    before.home.write_children(msgspec.json.encode([[written.start, written.key, written.pid, ""]]))
    os.kill(gone.pid, signal.SIGKILL)
    before.await_end(gone.start)
    before.home.write_children(msgspec.json.encode([[written.start, written.key, written.pid, ""]]))
    after = keep()
    after.children.adopt_all()
    assert after.children.living() == [written, Started(noted.start, noted.key, noted.pid, "its key")]
    assert after.children.knows(noted.start)
    assert not after.children.knows(gone.start), "it has ended, and may have a follower"


def test_it_takes_over_also_what_a_notebook_knows_and_nobody_could_write_down(keep: Callable[[], Kept]) -> None:
    before = keep()
    written, known, gone = (before.start(f"rank {rank}") for rank in range(3))
    before.home.write_children(msgspec.json.encode([[written.start, written.key, written.pid, ""]]))
    os.kill(gone.pid, signal.SIGKILL)
    os.waitpid(gone.pid, 0)
    after = keep()
    after.children.adopt_all()
    after.children.adopt([written, known, gone])
    after.children.adopt([written, known, gone])  # a notebook may claim the world again
    assert after.children.table() == [written, known, gone, Exited(gone.start, gone.key, gone.pid, None)]
    assert after.written() == [[each.start, each.key, each.pid, ""] for each in (written, known)]
    os.kill(known.pid, signal.SIGKILL)
    assert after.await_end(known.start) == Exited(known.start, known.key, known.pid, None)


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
    assert after.children.table() == [stays, goes]
    after.children.look()
    assert after.children.table() == [stays, goes]
    os.kill(goes.pid, signal.SIGKILL)
    assert after.await_end(2) == Exited(2, "rank 1", goes.pid, None)
    assert after.children.due
    after.children.end_all()
    assert os.waitpid(stays.pid, 0)[1] == signal.SIGKILL


def test_where_no_file_can_be_opened_no_process_is_taken_for_dead(keep: Callable[[], Kept]) -> None:
    before = keep()
    stays = before.start()
    after = keep()
    with no_file_more():
        after.children._adopt(stays)
        after.children.look()
        assert after.children.table() == [stays]
        with pytest.raises(OSError, match="Too many open files"):
            after.children.signal(Signal(9, 1, signal.SIGTERM))
    os.kill(stays.pid, signal.SIGKILL)
    assert after.await_end(1) == Exited(1, "rank 0", stays.pid, None)


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
def test_a_start_that_was_done_under_an_earlier_one_is_known(keep: Callable[[], Kept], *, lives_on: bool) -> None:
    before, after = keep(), keep()
    started = before.start()
    if not lives_on:
        os.kill(started.pid, signal.SIGKILL)
        os.waitpid(started.pid, 0)
    after.children.adopt_all()
    assert after.children.knows(1)
    assert not after.children.knows(2)
    assert after.children.living() == ([started] if lives_on else [])


def test_each_change_has_a_version(keep: Callable[[], Kept]) -> None:
    kept = keep()
    versions = [kept.children.version]
    started = kept.start()
    versions.append(kept.children.version)
    kept.turn()
    assert kept.children.version == versions[-1], "nothing has changed"
    os.kill(started.pid, signal.SIGKILL)
    kept.await_end(1)
    versions.append(kept.children.version)
    assert versions == sorted(set(versions))


def test_an_end_whose_noting_fails_is_noted_by_the_next_turn(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = kept.start()
    os.kill(started.pid, signal.SIGKILL)
    await_that(lambda: has_ended(psutil.Process(started.pid)), "it lives on")

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Children, "_end", failing)
        kept.children.reap()
    assert kept.children.due, "the daemon turns again soon"
    assert kept.await_end(1).status == -signal.SIGKILL
    assert "on purpose" in capsys.readouterr().err


def test_an_end_is_noted_also_where_it_cannot_be_read_what_was_not_said(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("on purpose")

    started = kept.start()
    os.kill(started.pid, signal.SIGKILL)
    monkeypatch.setattr("nbcomm.node.unsaid.read", failing)
    assert kept.await_end(1) == Exited(1, "rank 0", started.pid, -signal.SIGKILL)
    assert "on purpose" in capsys.readouterr().err


def ended_with(status: int) -> int:
    """Return the pid of a child that has ended, and that nobody has reaped."""
    pid = os.fork()
    if not pid:
        os._exit(status)
    await_that(lambda: has_ended(psutil.Process(pid)), "it lives on")
    return pid


def test_what_a_rank_leaves_behind_is_reaped_and_never_taken_for_a_rank(kept: Kept) -> None:
    """Its pid may be that of the next rank, so its status is kept only where a start is under way."""
    pid = ended_with(3)
    kept.children.reap(starting=True)
    kept.children.reap()
    kept.children.add(Started(7, "rank 7", pid))
    assert kept.children.table() == [Started(7, "rank 7", pid)]
    assert kept.await_end(7).status is None, "nobody has such a process any more"


def test_one_that_ends_before_its_start_is_known_has_its_status(kept: Kept) -> None:
    pid = ended_with(3)
    kept.children.reap(starting=True)
    kept.children.add(Started(7, "rank 7", pid))
    assert kept.await_end(7) == Exited(7, "rank 7", pid, 3)


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
        assert after.await_end(1) == Exited(1, "rank 0", goes.pid, None)
    await_that(lambda: has_ended(grandchildren[0]), "it lives on")
    assert not has_ended(grandchildren[1])


def test_an_adopted_process_is_started_again_under_its_key(keep: Callable[[], Kept]) -> None:
    before = keep()
    first = before.start("rank 0")
    after = keep()
    after.children.adopt_all()
    os.kill(first.pid, signal.SIGKILL)
    after.await_end(1)
    after.numbers = iter([77])
    second = after.start("rank 0")
    assert after.children.table() == [second]
    assert after.written() == [[77, "rank 0", second.pid, ""]]


def test_a_controller_whose_parent_has_ended_before_it_could_ask_for_its_end_ends() -> None:
    code = "from nbcomm.node.processes import parenthood; parenthood.die_with_starter(); print('it lives on')"
    environment = {**os.environ, parenthood.PARENT: str(os.getppid())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


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
        ended = after.await_end(start)
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
    kept.await_end(1)
    assert not lives(kept.home, started.pid)


def test_neither_this_process_nor_none_is_one_of_a_world(kept: Kept) -> None:
    assert not lives(kept.home, os.getpid())
    assert not lives(kept.home, 1 << 30)
