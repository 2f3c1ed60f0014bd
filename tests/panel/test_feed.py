"""When the panel speaks to the browser, and what it says; with the test's own clock."""

from __future__ import annotations

import dataclasses
import itertools
import json

from nbcomm.analysis.story import Past, Rung, Span, abridged
from nbcomm.panel import JobView, Ladder, RankView, Timeline
from nbcomm.panel.feed import BARS, Feed, most_different, packed_ladder, packed_timeline

CALL = ("all_reduce #12", "line 3: all_reduce(x)", 8)
META = {"id": "ab", "title": "w", "backend": "gloo"}


def world(*states: str, pid: int = 100, memory: int = 0, since: float = 5.0) -> list[RankView]:
    return [RankView(i, pid=pid + i, state=state, since=since, memory=memory) for i, state in enumerate(states)]


def ladder(*marks: str) -> Ladder:
    return Ladder(rungs=(Rung(12, "all_reduce", "line 3: all_reduce(x)", marks),))


def timeline(seconds: float, *, running: bool = True, ranks: int = 2, cell: int = 4) -> Timeline:
    spans = (Span("compute", 0.0, seconds / 2), Span("waiting", seconds / 2, seconds, *CALL))
    return Timeline(cell, seconds, running, dict.fromkeys(range(ranks), spans), "rank 1 came last")


def test_the_first_message_is_a_keyframe_with_everything() -> None:
    feed = Feed(META, world("idle", "running"))
    assert feed.take(0.0, wall=1000.0) == {
        "kind": "snapshot",
        "version": 1,
        "now": 1000.0,
        "meta": META,
        "headline": None,
        "useful": None,
        "ranks": [(0, 0, 0, "", "cpu", 100, False), (1, 0, 0, "", "cpu", 101, False)],
        "rows": [("idle", 5.0, 0, 0, 0, "", ""), ("running", 5.0, 0, 0, 0, "", "")],
        "ladder": None,
        "timeline": None,
        "past": [],
        "job": None,
    }


def test_then_only_what_changed() -> None:
    feed = Feed(META, world("idle", "idle"))
    feed.take(0.0, wall=1000.0)
    feed.put(world("idle", "running"), None)
    message = feed.take(0.2, wall=1000.2)
    assert message is not None
    assert (message["kind"], message["version"], list(message["rows"])) == ("delta", 2, ["1"])
    assert feed.take(0.4, wall=1000.4) is None


def test_a_new_headline_alone_is_news_and_so_is_its_end() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), "healing rank 0")
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["headline"] == "healing rank 0"
    assert message["rows"] == {}
    feed.put(world("idle"), None)
    assert feed.take(0.4, wall=0.0) is not None


def test_what_the_buttons_would_do_is_news_when_it_changes() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), None, useful=["stop"])
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["useful"] == ["stop"]
    feed.put(world("idle"), None, useful=["stop"])
    assert feed.take(0.4, wall=0.0) is None
    assert feed.keyframe(0.0)["useful"] == ["stop"]


def test_a_keyframe_every_two_seconds_even_with_no_news() -> None:
    feed = Feed(META, world("idle"))
    kinds = [message and message["kind"] for message in (feed.take(tick / 10, wall=0.0) for tick in range(45))]
    assert [tick for tick, kind in enumerate(kinds) if kind] == [0, 20, 40]
    assert set(kinds) == {None, "snapshot"}


def test_a_new_process_needs_a_keyframe_at_once() -> None:
    feed = Feed(META, world("dead"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle", pid=200), None)
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["kind"] == "snapshot"


def test_a_trembling_memory_is_no_news() -> None:
    feed = Feed(META, world("idle", memory=300 << 20))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle", memory=(300 << 20) + 8192), None)
    assert feed.take(0.2, wall=0.0) is None


def test_never_more_than_ten_messages_a_second() -> None:
    feed = Feed(META, world("idle"))
    sent = []
    for tick in range(1000):  # a watcher that runs wild, at 1 kHz
        now = tick / 1000
        feed.put(world("idle", since=now), None)
        if feed.wait(now) <= 0 and feed.take(now, wall=0.0):
            sent.append(now)
    assert len(sent) == 10


def test_a_ladder_that_changed_travels_and_one_that_did_not_does_not() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), None, ladder=ladder("arrived", "missing"))
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["ladder"] == ["world", [[12, "all_reduce", "line 3: all_reduce(x)", "am"]]]
    feed.put(world("running"), None, ladder=ladder("arrived", "missing"))
    message = feed.take(0.4, wall=0.0)
    assert message is not None
    assert "ladder" not in message
    feed.put(world("idle"), None)
    message = feed.take(2.5, wall=0.0)
    assert message is not None
    assert message["ladder"][1]


def test_an_empty_ladder_takes_the_old_one_away() -> None:
    feed = Feed(META, world("idle"))
    feed.put(world("idle"), None, ladder=ladder("done"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), None, ladder=Ladder())
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["ladder"] == ["world", []]


def test_a_running_timeline_travels_once_a_second_and_its_end_at_once() -> None:
    feed = Feed(META, world("idle"))
    feed.put(world("idle"), None, timeline=timeline(0.1))
    sent = []
    for tick in range(18):
        feed.put(world("idle"), None, timeline=timeline(0.1 + tick / 10))
        message = feed.take(tick / 10, wall=0.0)
        if message is not None:
            sent.append((tick, message["timeline"][1]))
    assert sent == [(0, 0.1), (10, 1.1)]
    feed.put(world("idle"), None, timeline=timeline(1.9, running=False))
    message = feed.take(1.8, wall=0.0)
    assert message is not None
    assert message["timeline"][:3] == [4, 1.9, False]


def test_another_cells_timeline_travels_at_once() -> None:
    feed = Feed(META, world("idle"))
    feed.put(world("idle"), None, timeline=timeline(1.0, cell=4))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), None, timeline=timeline(0.1, cell=5))
    message = feed.take(0.1, wall=0.0)
    assert message is not None
    assert message["timeline"][0] == 5


PACKED = [0.5, [["all_reduce #12", 8, "line 3: all_reduce(x)"]]]  # the part that was waiting; the calls


def test_a_bar_is_its_totals_and_its_stretches() -> None:
    packed = packed_timeline(timeline(2.0))
    assert packed is not None
    assert packed[4:] == [2, [[rank, [1.0, 1.0, 0.0], 0.0, [0, 1.0, -1, 1, 2.0, 0]] for rank in (0, 1)], *PACKED]


def test_of_many_ranks_those_that_waited_least_and_longest_have_bars() -> None:
    waits = {rank: [1.0, float(rank % 10), 0.0] for rank in range(20)}
    chosen = most_different(waits)
    assert len(chosen) == BARS
    assert {0, 10, 9, 19} <= set(chosen)
    assert most_different({1: [0.0] * 3, 0: [1.0] * 3}) == [0, 1]


def test_where_no_rank_waited_the_quickest_and_the_slowest_have_bars() -> None:
    took = {rank: [float(rank * 7 % 20), 0.0001 * (rank == 5), 0.0] for rank in range(20)}
    times = sorted(took[rank][0] for rank in most_different(took))
    assert times == [0, 1, 2, 3, 16, 17, 18, 19]


def test_a_bar_of_many_stretches_is_abridged_without_gaps_and_keeps_its_shape() -> None:
    fine = [Span("compute", i / 1000, (i + 1) / 1000) for i in range(900)]
    fine += [Span("compute" if i % 2 else "waiting", i / 1000, (i + 1) / 1000) for i in range(900, 1000)]
    short = abridged(fine, 96)
    assert len(short) < 100
    assert (short[0].start, short[-1].end) == (0.0, 1.0)
    assert all(a.end == b.start for a, b in itertools.pairwise(short))
    assert short[0].kind == "compute"
    assert short[0].end > 0.8


def test_an_abridged_stretch_of_one_call_keeps_its_name_and_one_of_several_does_not() -> None:
    fine = [Span("waiting", 0.0, 0.5, *CALL), Span("compute", 0.5, 0.75)]
    fine += [Span("waiting", 0.75 + i / 400, 0.75 + (i + 1) / 400, f"barrier #{i}") for i in range(100)]
    short = abridged(fine, 4)
    assert [(span.kind, span.name, span.nbytes) for span in short] == [
        ("waiting", "all_reduce #12", 8),
        ("compute", "", 0),
        ("waiting", "", 0),
    ]


def test_an_ended_timeline_is_packed_once() -> None:
    feed = Feed(META, world("idle"))
    feed.put(world("idle"), None, timeline=timeline(2.0, running=False))
    first, second = feed.keyframe(0.0)["timeline"], feed.keyframe(2.0)["timeline"]
    assert first is second
    feed.put(world("idle"), None, timeline=timeline(3.0, running=False))
    assert feed.keyframe(4.0)["timeline"][1] == 3.0


def test_the_last_cells_are_news_when_one_has_ended() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), None, past=(Past(4, 2.0, 0.5, 1), Past(5, 0.01, 0.0)))
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["past"] == [[4, 2.0, 0.5, 1], [5, 0.01, 0.0, -1]]
    feed.put(world("running"), None)
    message = feed.take(0.4, wall=0.0)
    assert message is not None
    assert "past" not in message
    assert feed.keyframe(1.0)["past"]


def test_a_job_is_news_when_it_is_prolonged_and_not_while_its_time_passes() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    for now, job, sent in (
        (0.2, JobView("Slurm job 12", 60.0), ["Slurm job 12", 60.0]),
        (0.4, JobView("Slurm job 12", 60.0), None),
        (0.6, JobView("Slurm job 12", 3600.0), ["Slurm job 12", 3600.0]),
        (0.8, None, None),
        (1.0, JobView("Slurm job 12", None), ["Slurm job 12", None]),
    ):
        feed.put(world("idle"), None, job=job)
        message = feed.take(now, wall=now)
        assert (message and (message["kind"], message["job"])) == (sent and ("delta", sent))
    assert feed.keyframe(1.2)["job"] == ["Slurm job 12", None]


def test_what_is_unknown_travels_too() -> None:
    packed = packed_ladder(Ladder("ranks 0-1", (Rung(1, "x", "", ("from a later version", "out")),)))
    assert packed == ["ranks 0-1", [[1, "x", "", "--"]]]
    assert json.loads(json.dumps(packed_timeline(Timeline(1, 0.0, running=True, spans={0: ()})))) is not None


def test_what_is_on_a_gpu_is_a_part_of_a_ranks_row() -> None:
    (view,) = world("idle")
    feed = Feed(META, [dataclasses.replace(view, on_gpu="torch has 1.0 GiB")])
    snapshot = feed.take(0.0, wall=0.0)
    assert snapshot is not None
    assert snapshot["rows"] == [("idle", 5.0, 0, 0, 0, "", "", "torch has 1.0 GiB")]
