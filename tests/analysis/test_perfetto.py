"""A cell as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nbcomm.analysis import perfetto
from nbcomm.errors import SpecError
from nbcomm.protocol import Done, RankPlacement

from .calls import step


def test_a_trace_has_a_track_for_each_rank_with_waits_apart(tmp_path: Path) -> None:
    members = {"members": [0, 1], "nbytes": 10**6}
    answers = {
        0: Done(1, 3.0, began=100.0, steps=[step("all_reduce", 1, 100.5, 102.0, **members)]),
        1: Done(1, 2.5, began=100.1, steps=[step("all_reduce", 1, 101.5, 102.0, **members)]),
    }
    places = [RankPlacement(rank, 2, rank, 2, 0, 1, "cpu", "gloo", 1) for rank in range(2)]
    file = tmp_path / "trace.json"
    assert perfetto.write(file, places, 5, "all_reduce(x)", answers) == 1
    events = json.loads(file.read_text())["traceEvents"]
    names = {(e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert names == {(0, "rank 0 (cpu)"), (1, "rank 1 (cpu)")}
    own = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert own == [
        ("cell 5", 0.0, 3e6),
        ("all_reduce", 5e5, 1.5e6),
        ("waiting", 5e5, 1e6),
        ("transfer", 1.5e6, 5e5),
    ]
    [call] = [e["args"] for e in events if e["name"] == "all_reduce" and e["tid"] == 1]
    assert call["bytes"] == 10**6
    assert call["algorithm bandwidth (GB/s)"] == 0.002
    assert call["bus bandwidth (GB/s)"] == 0.002


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^The trace needs a file's name, such as trace\.json\.$"):
        perfetto.check(" ")
    with pytest.raises(SpecError, match="is a folder"):
        perfetto.check(str(tmp_path))
    with pytest.raises(SpecError, match=f"There is no folder '{tmp_path / 'no'}' for the trace"):
        perfetto.check(str(tmp_path / "no" / "t.json"))
    assert perfetto.check(str(tmp_path / "t.json")) == tmp_path / "t.json"


def test_all_of_a_trace(tmp_path: Path) -> None:
    call = {"members": [0, 1, 2], "line": "line 1: all_reduce(x)"}
    message = {"members": [0, 1, 2], "tag": 7}
    answers = {
        0: Done(
            4,
            3.0,
            began=100.0,
            dropped=2,
            steps=[
                step("all_reduce", 1, 100.5, 102.0, nbytes=10**6, **call),
                step("send", 1, 102.25, 102.5, kind="send", peer=1, nbytes=4, **message),
            ],
        ),
        1: Done(
            4,
            2.5,
            began=100.5,
            dropped=-1,
            steps=[
                step("all_reduce", 1, 101.5, 102.0, nbytes=3 * 10**6, **call),
                step("recv", 1, 102.0, 102.5, kind="recv", peer=0, **message),
                step("barrier", 2, 102.75, failed=True, nbytes=10**6, members=[0, 1, 2]),
            ],
        ),
        2: Done(4, 2.5, began=100.5, steps=[step("all_reduce", 1, 101.0, 102.0, **call)]),
        3: Done(4, 0.0),  # it died
    }
    places = [
        RankPlacement(rank, 4, rank % 2, 2, rank // 2, 2, "cuda:0" if rank else "cpu", "gloo", 1) for rank in range(4)
    ]
    file = tmp_path / "trace.json"
    assert perfetto.write(file, places, 5, "all_reduce(x)", answers) == 3
    told = json.loads(file.read_text())
    events = told.pop("traceEvents")
    assert told == {"displayTimeUnit": "ms", "otherData": {"cell": 5, "dropped": 2}}
    named = [event for event in events if event["ph"] == "M"]
    assert named == [event for rank in range(4) for event in names(rank)]

    def told_of(seq: int, ranks: list[int], **more: Any) -> dict[str, Any]:
        unknown = {"line": "", "bytes": 0, "failed": False, "missing": []}
        bandwidths = {"algorithm bandwidth (GB/s)": 0.0, "bus bandwidth (GB/s)": 0.0}
        return {"number": seq, "ranks": ranks, **unknown, **bandwidths, **more}

    reduced = told_of(1, [0, 1, 2], line="line 1: all_reduce(x)")
    reduced |= {"algorithm bandwidth (GB/s)": 0.006, "bus bandwidth (GB/s)": 0.008}  # 3 MB in half a second
    alone = told_of(2, [0, 1, 2], bytes=10**6, failed=True, missing=[0, 2])
    code = {"code": "all_reduce(x)"}
    assert [event for event in events if event["ph"] != "M"] == [
        {"name": name, "cat": kind, "ph": "X", "ts": ts, "dur": dur, "pid": rank // 2, "tid": rank, "args": args}
        for name, kind, ts, dur, rank, args in [
            ("cell 5", "cell", 0.0, 3e6, 0, code),
            ("cell 5", "cell", 0.5e6, 2.5e6, 1, code),
            ("cell 5", "cell", 0.5e6, 2.5e6, 2, code),
            ("all_reduce", "collective", 0.5e6, 1.5e6, 0, reduced | {"bytes": 10**6}),
            ("waiting", "waiting", 0.5e6, 1e6, 0, {}),
            ("transfer", "transfer", 1.5e6, 0.5e6, 0, {}),
            ("all_reduce", "collective", 1.5e6, 0.5e6, 1, reduced | {"bytes": 3 * 10**6}),
            ("transfer", "transfer", 1.5e6, 0.5e6, 1, {}),
            ("all_reduce", "collective", 1e6, 1e6, 2, reduced),
            ("waiting", "waiting", 1e6, 0.5e6, 2, {}),
            ("transfer", "transfer", 1.5e6, 0.5e6, 2, {}),
            ("send", "collective", 2.25e6, 0.25e6, 0, told_of(1, [0, 1], bytes=4)),
            ("recv", "collective", 2e6, 0.5e6, 1, told_of(1, [0, 1])),
            ("barrier", "collective", 2.75e6, 0.25e6, 1, alone),
            ("waiting", "waiting", 2.75e6, 0.25e6, 1, {}),
        ]
    ]


def names(rank: int) -> list[dict[str, Any]]:
    """The node's name, the track's, and its place."""
    track = {"ph": "M", "pid": rank // 2, "tid": rank}
    device = "cuda:0" if rank else "cpu"
    return [
        {"name": "process_name", "ph": "M", "pid": rank // 2, "args": {"name": f"node {rank // 2}"}},
        {"name": "thread_name", **track, "args": {"name": f"rank {rank} ({device})"}},
        {"name": "thread_sort_index", **track, "args": {"sort_index": rank}},
    ]


def test_times_have_a_tenth_of_a_microsecond_and_the_transfer_lasts_until_the_last_has_ended(tmp_path: Path) -> None:
    both = {"members": [0, 1], "nbytes": 1234567}
    answers = {
        0: Done(1, 2.0, began=1.0, steps=[step("broadcast", 1, 4 / 3, 5 / 3, **both)]),
        1: Done(1, 2.0, began=1.0, steps=[step("broadcast", 1, 5 / 3, 2.0, **both)]),
    }
    file = tmp_path / "trace.json"
    assert perfetto.write(file, [], 5, "", {}) == 0
    places = [RankPlacement(rank, 2, rank, 2, 0, 1, "cpu", "gloo", 1) for rank in range(2)]
    assert perfetto.write(file, places, 5, "", answers) == 1
    own = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X" and event["tid"] == 0]
    assert [(event["name"], event["ts"], event["dur"]) for event in own] == [
        ("cell 5", 0.0, 2e6),
        ("broadcast", 333333.3, 333333.3),
        ("waiting", 333333.3, 333333.3),
    ]
    assert own[1]["args"]["algorithm bandwidth (GB/s)"] == own[1]["args"]["bus bandwidth (GB/s)"] == 0.003704
