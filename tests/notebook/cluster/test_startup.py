"""A start's time; what a start does is in tests/world/test_breaking.py and tests/nodes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbcomm.notebook.cluster.start_options import StartOptions
from nbcomm.notebook.cluster.startup import Startup


@pytest.mark.parametrize("queued", [True, False])
def test_the_time_in_a_queue_is_not_the_starts(queued: bool) -> None:
    heard: list[tuple[str, int, int]] = []
    start = Startup(StartOptions(timeout=0.2), cast("Any", None), cast("Any", None), lambda *step: heard.append(step))
    start._n = 4
    nodes = [SimpleNamespace(daemons=0), SimpleNamespace(daemons=0)]

    def await_run(tell: Any, joins: Any) -> bool:
        tell("PBS job 1 waits in the queue")
        assert not joins()
        nodes[1].daemons = 1
        assert joins()
        time.sleep(0.5)
        return queued

    deadline = start._join_by(cast("Any", SimpleNamespace(await_run=await_run)), cast("Any", nodes))
    assert (deadline > time.monotonic()) == queued
    assert deadline == start._deadline
    assert heard == [("PBS job 1 waits in the queue", 0, 4), *[("joining nodes", 0, 4)] * queued]
    assert start._join_by(None, []) == deadline
