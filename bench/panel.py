"""What the panel costs the notebook's kernel."""

from __future__ import annotations

import json
import time

from nbcomm.panel import RankView
from nbcomm.panel.widget import Feed

from .rows import Row, interleaved


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """64 ranks whose memory changes all the time, at 10 updates a second: made and encoded, not sent."""
    feed = Feed({"title": "bench", "backend": "gloo"}, _views(0))
    step = 0

    def update() -> None:
        nonlocal step
        step += 1
        feed.views = _views(step)
        json.dumps(feed.take(step / 10, time.time()))

    (median,) = interleaved(rounds, update)
    return [
        Row("panel, 64 ranks at 10 Hz / 1 % of a core", f"{median * 1e3:.2f} ms an update", median * 10 / 0.01, 1.0)
    ]


def _views(step: int) -> list[RankView]:
    memory = (300 + step) << 20
    return [
        RankView(rank, rank % 8, rank // 8, "host", "cpu", 1000 + rank, "running", 0.0, memory) for rank in range(64)
    ]
