"""The head's client, which holds the world: with a real node, and with a fake daemon that says what the test wants."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from nbcomm.errors import StateError
from nbcomm.launch import head
from nbcomm.launch.head import Head
from nbcomm.launch.launchers import daemon_process
from nbcomm.launch.link import Link
from nbcomm.protocol import (
    Claim,
    NodeHello,
    Obeyed,
    Shutdown,
    Started,
)
from nbcomm.world_dir import WorldDir

from ..node.served import PATIENCE, Served, await_that, daemon_of, has_ended
from .scripted import READY, Scripted

# ── the hold ──


def test_a_world_that_is_held_cannot_be_taken_and_is_not_disturbed(served: Served) -> None:
    child = served.engine()
    heard = len(served.client.heard)
    with pytest.raises(StateError, match=rf"^This world is in use by the notebook of process {os.getpid()}\.$"):
        Head(WorldDir(served.home.path), running=True)
    assert child.is_running()
    served.client.wait_for_ends(PATIENCE)
    assert [type(report) for report in served.client.heard[heard:]] == [Obeyed]
    assert served.engine("rank 1").is_running()


def test_a_world_that_has_ended_cannot_be_taken(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"^The world nowhere has ended\.$"):
        Head(WorldDir(tmp_path / "nowhere"), running=True)


def test_one_that_cannot_start_its_zygote_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError("no process is left")

    monkeypatch.setenv("NBCOMM_WARM", "0")  # a seed of an earlier test would fork one
    home, before = WorldDir.create(), set(threading.enumerate())
    descriptors = psutil.Process().num_fds()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with pytest.raises(BlockingIOError, match="no process is left"):
            Head(home)
    assert not set(threading.enumerate()) - before
    assert not home.path.exists()
    gc.collect()  # the error's traceback held the client
    await_that(lambda: psutil.Process().num_fds() <= descriptors, "descriptors are left")


def test_who_releases_a_world_lets_another_take_it(served: Served) -> None:
    child = served.engine()
    session_id = served.client.link._session_id
    served.client.release()
    served.client.release()
    second = served.attach()
    assert second.processes["rank 0"].pid == child.pid
    assert second.link._session_id > session_id
    assert served.engine("rank 1").is_running()
    served.client.signal("rank 0", signal.SIGKILL)
    assert second.exits.get(timeout=PATIENCE).pid == child.pid


def test_a_daemon_that_greets_while_the_link_is_made_is_claimed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowLink(Link):
        """One that has been greeted before its maker has it."""

        def __init__(self, *args: Any) -> None:
            began = time.monotonic()
            super().__init__(*args)
            await_that(lambda: self.heard() > began, "nobody greets")
            time.sleep(0.1)  # the report is on its way

    served.engine()
    monkeypatch.setattr(head, "Link", SlowLink)
    assert served.attach().daemons == 1


def test_a_world_is_taken_up_where_nothing_can_be_written(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    served.engine()  # or the world would end with its notebook
    lease = served.client.lease
    served.client.set_lease(lease)
    monkeypatch.setattr("nbcomm.world_dir.private_file", full)
    another = served.attach()
    another.set_lease(lease)
    with pytest.raises(OSError, match="No space left"):
        another.set_lease(lease + 1.0)


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────


def test_shutdown_tells_the_node_and_waits_until_it_is_done(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    done = scripted.later(lambda: scripted.client.shutdown(timeout=PATIENCE))
    assert isinstance(scripted.take(Shutdown), Shutdown)
    assert done.empty()
    scripted.home.remove()
    done.get(timeout=PATIENCE)
    assert not scripted.client.link._thread.is_alive()


def test_a_shutdown_is_repeated_to_the_next_daemon(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    done = scripted.later(lambda: scripted.client.shutdown(timeout=PATIENCE))
    first = scripted.take(Shutdown)
    scripted.replace()
    scripted.daemon.report(NodeHello(2, 0))
    assert isinstance(scripted.take(Claim), Claim)
    assert scripted.take(Shutdown) == first
    scripted.home.remove()
    done.get(timeout=PATIENCE)


@pytest.mark.parametrize("attached", [False, True])
def test_where_it_was_killed_shutdown_ends_what_it_left(
    served: Served, monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    child = served.engine()
    client = served.attach() if attached else served.client
    served.kill_daemon()
    served.home.write_children(b"[]")  # as where nothing could be written down
    assert child.is_running()
    waits, has_ended_within = list[float](), client._has_ended

    def noting(timeout: float) -> bool:
        waits.append(timeout)
        return has_ended_within(timeout)

    monkeypatch.setattr(client, "_has_ended", noting)
    client.shutdown(timeout=3.0)
    assert 0.0 < sum(waits) <= 3.0, "longer than that nobody is waited for"
    await_that(lambda: has_ended(child), "it lives on")  # its memory is gone, the rest follows
    assert not served.home.path.exists()
    assert daemon_of(served.home) is None


def test_a_fence_that_fails_does_not_keep_the_notebook_from_its_end(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_process.sys, "executable", "/nowhere/python")
    scripted.greet(1, READY)
    scripted.client.shutdown(timeout=0.1)
    assert not scripted.home.path.exists()


def test_shutdown_harms_no_process_that_has_the_pid_of_a_rank(scripted: Scripted) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            scripted.home.write_children(msgspec.json.encode([(9, "rank 9", stranger.pid, "")]))
            scripted.greet(1, READY, Started(9, "rank 9", stranger.pid))
            scripted.client.shutdown(timeout=0.1)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_what_is_released_is_held_by_nobody_and_heard_no_more(served: Served) -> None:
    child, _ = served.engine("rank 0"), served.engine("rank 1")
    client = served.client
    client.release()
    assert not client.link._thread.is_alive()
    other = WorldDir(served.home.path)
    assert other.hold()
    other.let_go()
    child.kill()
    assert client.exits.empty()
