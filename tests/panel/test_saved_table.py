"""What stays in a saved notebook, and the words that JavaScript shares."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nbcomm import rank_spec
from nbcomm.analysis import story
from nbcomm.analysis.story import Past, Rung, Span
from nbcomm.panel import JobView, Ladder, RankView, Timeline, feed, saved_table, words

CASES: dict[str, list[Any]] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
NOW = time.mktime((2026, 3, 1, 14, 3, 17, 0, 0, -1))


class Cells(HTMLParser):
    """The cells of a table, row by row, and every tag that was seen."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert "style" not in dict(attrs), "GitHub strips styles"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", ["duration", "remaining", "amount", "brief"])
def test_numbers_are_written_as_in_javascript(name: str) -> None:
    for given, expected in CASES[name]:
        assert getattr(words, name)(given) == expected


def test_the_sentence_and_the_fold_are_those_of_javascript() -> None:
    for given, expected in CASES["fold"]:
        assert rank_spec.fold(given) == expected
    for given, expected in CASES["named"]:
        assert words.named(given) == expected
    assert [[letter, story.MARKS[mark], story.WORDS[mark]] for mark, letter in feed._LETTERS.items()] == CASES["marks"]
    for case in CASES["sentence"]:
        views = [
            RankView(i, state=state, since=since, note=note, error=error[0] if error else "")
            for i, (state, since, note, *error) in enumerate(case["ranks"])
        ]
        assert words.sentence(views, case["now"]) == case["says"]


def ladder(*columns: str) -> Ladder:
    """One letter for each rank: d(one), a(rrived), m(issing), o(ther), f(ailed), - (out)."""
    marks = {letter: mark for mark, letter in feed._LETTERS.items()}
    return Ladder(
        rungs=tuple(
            Rung(seq, "all_reduce", f"line {seq}: all_reduce(x)", tuple(marks[letter] for letter in column))
            for seq, column in enumerate(columns, 1)
        )
    )


def test_what_is_wrong_in_a_ladder_is_said_as_in_javascript() -> None:
    for columns, expected in CASES["ladder_line"]:
        assert words.ladder_line(ladder(*columns)) == expected
    assert words.ladder_line(None) == ""


def test_who_is_to_blame_is_that_of_javascript_and_stands_in_the_table() -> None:
    for case in CASES["blames"]:
        views = [RankView(i, state=state, since=since) for i, (state, since) in enumerate(case["ranks"])]
        given = {str(rank): text for rank, text in words.blames(views, ladder(*case["rungs"]), case["now"]).items()}
        assert given == case["says"]
    views = [RankView(i, state="failed" if i < 2 else "idle") for i in range(3)]
    lines = saved_table.table_text(views, "w", ladder=ladder("ffm"), now=NOW).splitlines()
    assert lines[5].split("  ")[-1] == "did not reach all_reduce #1"


def test_a_sentence_that_is_the_ladders_is_not_said_twice() -> None:
    views = [RankView(i, state="failed" if i < 2 else "idle") for i in range(3)]
    hang = ladder("ffm")
    for written in (saved_table.table_text, saved_table.table_html):
        assert (
            written(views, "w", words.ladder_line(hang), ladder=hang, now=NOW).count("did not reach all_reduce #1;")
            == 1
        )


def test_the_table_tells_all_of_each_rank() -> None:
    views = [
        RankView(0, 0, 0, "ant", "cuda:0", 41, "running", NOW - 12, 300 << 20, 3 << 30, 80 << 30),
        RankView(1, 0, 1, "bee", "cuda:0", 42, "dead", NOW - 90_000, 0, 0, 80 << 30, "was killed\nby SIGKILL"),
    ]
    yesterday = "2026-02-28 13:03:17 (25 h 0 min)"
    expected = [
        ["rank", "local", "node", "device", "pid", "memory", "device memory", "state", "since", "note"],
        ["0", "0", "0 (ant)", "cuda:0", "41", "300 MiB RSS", "3.0 GiB of 80.0 GiB", "running", "14:03:05 (12 s)", ""],
        ["1", "0", "1 (bee)", "cuda:0", "42", "–", "– of 80.0 GiB", "dead", yesterday, "was killed by SIGKILL"],
    ]
    assert Cells(saved_table.table_html(views, "w", backend="nccl", now=NOW)).rows == expected
    title, headline, *lines = saved_table.table_text(views, "w", backend="nccl", now=NOW).splitlines()
    assert title == "w · 2 nodes · nccl"
    assert headline == "rank 1 was killed by SIGKILL · running for 12 s on rank 0"
    for line, cells in zip(lines, expected, strict=True):
        assert line.split() == " ".join(cells).split()


def test_what_a_gpu_has_is_told_of_each_rank_on_it() -> None:
    told = words.on_gpu("NVIDIA H200", 3 << 30, 4 << 30, [1])
    view = RankView(
        0, device="cuda:0", state="idle", since=NOW, device_memory=9 << 30, device_total=139 << 30, on_gpu=told
    )
    (columns, (row,)) = saved_table._table([view], None, NOW)
    assert dict(zip(columns, row, strict=True))["GPU"] == (
        "torch 3.0 GiB, reserved 4.0 GiB · NVIDIA H200, shared with rank 1"
    )
    assert words.on_gpu("", 0, 0, [1]) == ""


def test_what_is_unknown_everywhere_has_no_column_and_one_machine_no_name() -> None:
    text = saved_table.table_text([RankView(0, host="secret", state="idle", since=NOW)], "w", now=NOW)
    assert "device memory" not in text
    assert "note" not in text
    assert "secret" not in text


def test_what_is_left_of_a_jobs_time_is_said_as_in_javascript_and_stands_in_the_first_line() -> None:
    views = [RankView(0, state="idle", since=NOW)]
    for case in CASES["job_line"]:
        assert words.job_line(JobView("Slurm job 12", case["ends"]), case["now"]) == case["says"]
        job = JobView("Slurm job 12", case["ends"] and NOW + case["ends"] - case["now"])
        text = saved_table.table_text(views, "w", backend="gloo", job=job, now=NOW)
        assert text.splitlines()[0] == f"w · 1 node · gloo · {case['says']}"
        page = saved_table.table_html(views, "w", backend="gloo", job=job, now=NOW)
        assert page.startswith(f"<div><b>w</b> · 1 node · gloo · {case['says']}</div>")
    assert saved_table.table_text(views, "w", now=NOW).splitlines()[0] == "w · 1 node"


def test_the_headline_can_be_given() -> None:
    views = [RankView(0, state="idle")]
    assert saved_table.table_text(views, "w", "checkpointing", now=NOW).splitlines()[1] == "checkpointing"
    assert "<div>As of 2026-03-01 14:03:17, when this copy was made: checkpointing</div>" in saved_table.table_html(
        views, "w", "checkpointing", now=NOW
    )


def test_nothing_of_the_users_becomes_markup() -> None:
    evil = "<script>alert(1)</script>"
    views = [RankView(i, i, i, evil, evil, 1, "failed", NOW, note=evil) for i in range(2)]
    page = saved_table.table_html(views, evil, evil, backend=evil, job=JobView(evil, None), now=NOW)
    assert "script" not in Cells(page).tags


def test_each_error_is_there_once_with_its_ranks() -> None:
    views = [RankView(i, state="failed", since=NOW, error="ValueError:\n  boom" if i else "") for i in range(3)]
    assert saved_table.table_text(views, "w", now=NOW).splitlines()[-1] == "ranks 1-2: ValueError: boom"
    assert "<div>ranks 1-2: <code>ValueError: boom</code></div>" in saved_table.table_html(views, "w", now=NOW)


def test_a_long_error_is_cut() -> None:
    views = [RankView(0, state="failed", since=NOW, error="x" * 5000)]
    assert len(saved_table.table_text(views, "w", now=NOW)) < 600


def test_a_hang_leaves_its_ladder_and_what_went_well_does_not() -> None:
    views = [RankView(i, state="idle", since=NOW) for i in range(3)]
    assert "all_reduce" not in saved_table.table_text(views, "w", ladder=ladder("ddd", "ddd"), now=NOW)
    text = saved_table.table_text(views, "w", ladder=ladder("ddd", "aam"), now=NOW)
    assert text.splitlines()[-6:] == [
        "rank 2 has not reached all_reduce #2; ranks 0-1 wait in it",
        "rank  #1 all_reduce  #2 all_reduce",
        "0     ●              ◐",
        "1     ●              ◐",
        "2     ●              ○",
        "● done · ◐ waits in it · ○ not reached",
    ]
    page = saved_table.table_html(views, "w", ladder=ladder("ddd", "aam"), now=NOW)
    assert Cells(page).rows[-1] == ["2", "●", "○"]
    assert '<th scope="row">2</th>' in page


def test_of_many_ranks_those_that_stand_alike_share_a_row() -> None:
    views = [RankView(i, state="idle", since=NOW) for i in range(32)]
    text = saved_table.table_text(views, "w", ladder=ladder("d" * 30 + "-d", "a" * 30 + "-m"), now=NOW)
    assert [line.split() for line in text.splitlines()[-3:-1]] == [["0-29", "●", "◐"], ["31", "●", "○"]]


def test_how_long_a_cell_took_is_said_as_in_javascript() -> None:
    for case in CASES["took"]:
        whole, part = case["seconds"], case["seconds"] * (1 - case["waiting"])
        spans = {0: (Span("compute", 0.0, part), Span("waiting", part, whole))}
        assert words.took(Timeline(4, whole, running=False, spans=spans, sentence=case["sentence"])) == case["says"]


def test_whom_the_others_wait_for_again_and_again_is_said_as_in_javascript_and_stands_in_the_table() -> None:
    for late, says in CASES["past_line"]:
        past = [Past(cell, 1.0, 0.5, None if rank < 0 else rank) for cell, rank in enumerate(late)]
        assert words.past_line(past) == says
    views = [RankView(0, state="idle", since=NOW)]
    for written in (saved_table.table_text, saved_table.table_html):
        assert "rank 2 in 3 of the last 5 cells" in written(views, "w", past=past, now=NOW)


def test_who_came_last_is_said_under_the_table() -> None:
    timeline = Timeline(3, 2.0, running=False, spans={}, sentence="rank 2 came last in 5 of 6 collectives")
    views = [RankView(0, state="idle", since=NOW)]
    assert saved_table.table_text(views, "w", timeline=timeline, now=NOW).endswith(
        "rank 2 came last in 5 of 6 collectives"
    )
    assert "<div>rank 2 came last" in saved_table.table_html(views, "w", timeline=timeline, now=NOW)


def test_of_many_ranks_those_of_a_node_that_do_the_same_share_a_row() -> None:
    ranks = [
        RankView(
            rank,
            local_rank=rank % 8,
            node_rank=rank // 8,
            host="ab"[rank // 8],
            device=f"cuda:{rank % 8}",
            pid=100 + rank,
            state="dead" if rank == 11 else "idle",
            since=NOW - rank,
            memory=(40 + rank // 8 * rank) << 20,
            pss=True,
            note="was killed by SIGKILL" if rank == 11 else "",
        )
        for rank in range(16)
    ]
    columns, *_ = saved_table._table(ranks, None, NOW)
    assert columns == ["rank", "local", "node", "device", "pid", "memory", "state", "since", "note"]
    assert len(saved_table._table(ranks, None, NOW)[1]) == 16
    more = RankView(16, node_rank=2, host="c", pid=7, state="idle", since=NOW)
    _, rows = saved_table._table([*ranks, more], None, NOW)
    assert [[*row[:7], row[8]] for row in rows] == [
        ["0-7", "0-7", "0 (a)", "cuda:0-7", "", "40 MiB PSS", "idle", ""],
        ["8-10,12-15", "0-2,4-7", "1 (b)", "cuda:0-2,4-7", "", "48 MiB PSS to 55 MiB PSS", "idle", ""],
        ["11", "3", "1 (b)", "cuda:3", "111", "51 MiB PSS", "dead", "was killed by SIGKILL"],
        ["16", "0", "2 (c)", "cpu", "7", "–", "idle", ""],
    ]
    assert rows[1][7] == "14:03:02 (15 s)"
