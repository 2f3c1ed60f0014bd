"""Whether gloo's worker threads rest is told by the system."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path

import pytest

from nbcomm.torch_internals.gloo_threads import await_workers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which thread runs")


def test_it_waits_as_long_as_one_runs_and_no_longer_than_it_may() -> None:
    def run() -> None:
        Path("/proc/thread-self/comm").write_text("pt_gloo_runloop")
        begun.set()
        while not enough.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # without the GIL
        done.append(True)

    begun, enough, done = threading.Event(), threading.Event(), []
    worker = threading.Thread(target=run)
    worker.start()
    begun.wait()
    try:
        assert not await_workers(0.05)
        assert not done
    finally:
        enough.set()
    assert await_workers(60)
    assert done
    worker.join()


def test_one_that_waits_for_work_is_at_rest() -> None:
    def wait() -> None:
        Path("/proc/thread-self/comm").write_text("pt_gloo_runloop")
        begun.set()
        enough.wait()

    begun, enough = threading.Event(), threading.Event()
    worker = threading.Thread(target=wait)
    worker.start()
    begun.wait()
    try:
        assert await_workers(30)
    finally:
        enough.set()
        worker.join()


def test_where_the_system_does_not_tell_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("nbcomm.torch_internals.gloo_threads._TASKS", tmp_path / "nowhere")
    assert await_workers(30)
