"""``--draw`` and ``--trace`` in a real notebook: what is shown is what the ranks really had."""

from __future__ import annotations

import base64
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from nbcomm.rank_spec import parse
from nbcomm.torch_versions import limits

from .notebook import Cell, Notebook, comes_last

_orders = pytest.mark.skipif("ascending" in limits(version("torch")), reason=limits(version("torch")))


def pictures(cell: Cell) -> list[str]:
    """The words of each picture; each has its SVG in its page, too."""
    words = []
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            (drawn,) = re.findall('data:image/svg.xml;base64,([^"]*)', data["text/html"])
            ET.fromstring(base64.b64decode(drawn))  # noqa: S314 - our own
            words.append(data["text/plain"])
    return words


def lanes(words: str) -> list[str]:
    return [line for line in words.splitlines() if line.startswith("rank ") and ": " in line]


MOVES = {
    "broadcast": ('broadcast({"lr": 0.1} if rank == 1 else None, src=1)', ["–", "{lr: 0.1}"], "{lr: 0.1}"),
    "scatter": ("scatter([10, 20, 30, 40] if rank == 0 else None)", ["10 | 20 | 30 | 40", "–"], "20"),
    "gather": ("gather(rank * 10, dst=1)", ["0", "10"], "0 | 10 | 20 | 30"),
    "all_gather": ("all_gather(torch.tensor(10 * rank))", ["0", "10"], "0 | 10 | 20 | 30"),
    "all_gather cat": (
        "all_gather(torch.arange(2) + rank, 'cat')",
        ["[0 1]", "[1 2]"],
        "[0 1] | [1 2] | [2 3] | [3 4]",
    ),
    "all_gather cat, uneven": (
        "all_gather(torch.full(([2, 1, 1, 0][rank],), rank), 'cat')",
        ["[0 0]", "[1]"],
        "[0 0 1 2]",
    ),
    "reduce": ("reduce(torch.tensor([rank, 1]), dst=1)", ["[0 1]", "[1 1]"], "[6 4]"),
    "all_reduce": ("all_reduce(rank + 1, 'mean')", ["1", "2"], "2.5"),
    "reduce_scatter": (
        "reduce_scatter(torch.arange(4) + rank)",
        ["[0] | [1] | [2] | [3]", "[1] | [2] | [3] | [4]"],
        "[10]",
    ),
    "all_to_all": (
        "all_to_all([rank * 10 + i for i in range(4)])",
        ["0 | 1 | 2 | 3", "10 | 11 | 12 | 13"],
        "1 | 11 | 21 | 31",
    ),
    "scan": ("scan(rank + 1)", ["1", "2"], "3"),
    "sendrecv": ("sendrecv(rank, (rank + 1) % 4, (rank - 1) % 4)", ["0", "1"], "0"),
    "torch's own": ("t = torch.ones(2) * rank; dist.all_reduce(t, dist.ReduceOp.MAX)", ["[0 0]", "[1 1]"], "[3 3]"),
    "torch's own, flat": (
        "t = torch.zeros(4); dist.all_to_all_single(t, torch.arange(4.) + 10 * rank)",
        ["[0] | [1] | [2] | [3]", "[10] | [11] | [12] | [13]"],
        "[1] | [11] | [21] | [31]",
    ),
    "torch's own, uneven": (
        "n = [1 + rank % 2, 2 - rank % 2] * 2; t = 10 * rank + torch.arange(6); dist.all_to_all_single(t * 0, t, n, n)",
        ["[0] | [1 2] | [3] | [4 5]", "[10 11] | [12] | [13 14] | [15]"],
        "[1 2] | [12] | [21 22] | [32]",
    ),
    "torch's own, to one": ("t = torch.tensor([rank]); dist.reduce(t, 1)", ["[0]", "[1]"], "[6]"),
    "waited for later": ("h = all_reduce(rank, async_op=True); h.wait()", ["0", "1"], "6"),
}


@pytest.mark.parametrize("name", MOVES)
def test_the_values_before_and_after_are_the_ranks_own(four: Notebook, name: str) -> None:
    code, before, after = MOVES[name]
    [words] = pictures(four.run(f"%%distributed --draw\n{code};"))
    shown = lanes(words)
    assert shown[0].startswith(f"rank 0: {before[0]} → ")
    assert shown[1] == f"rank 1: {before[1]} → {after}"


def test_long_values_show_where_the_ranks_differ(four: Notebook) -> None:
    code = "x = torch.zeros(1000)\nx[500] = 7 * (rank == 2)\nall_reduce(x, 'max')\nall_gather(x)\ndist.all_reduce(x);"
    cell = four.run(f"%%distributed --draw\n{code}")
    same, odd, all_have = "[… 0 at 500 …] of 1000", "[… 7 at 500 …] of 1000", "[0 0 0 … 0] of 1000"
    reduced, gathered, torchs = map(lanes, pictures(cell))
    assert reduced == [f"rank {rank}: {odd if rank == 2 else same} → {all_have}" for rank in range(4)]
    assert gathered[1] == f"rank 1: {same} → {same} | {same} | {odd} | {same}"
    assert torchs[2] == f"rank 2: {odd} → {all_have}"


def test_large_tensors_have_their_size_below(four: Notebook) -> None:
    code = "all_reduce(torch.zeros(256, 1024))\nreduce_scatter(torch.zeros(8, 2))\ndist.all_reduce(torch.ones(9));"
    reduced, scattered, torchs = pictures(four.run(f"%%distributed --draw\n{code}"))
    assert "\neach value: 256×1024 float32, 1 MiB\n" in reduced
    assert "each value" not in scattered, "all of it is shown"
    assert "\neach value: 9 float32, 36 B\n" in torchs


def test_each_collective_has_its_picture_in_order_after_what_was_printed(four: Notebook) -> None:
    cell = four.run("%%distributed --draw\nprint('hello')\nx = all_reduce(rank)\nbarrier()\nbroadcast(x)")
    assert [words.partition(" ·")[0].partition(":")[0] for words in pictures(cell)] == [
        "all_reduce",
        "barrier",
        "broadcast",
    ]
    assert "line 3: x = all_reduce(rank)" in pictures(cell)[0]
    assert cell.text.startswith("[0-3] hello\n")


def test_a_group_has_its_own_ranks_and_a_message_two(four: Notebook) -> None:
    four.run("%%distributed\npair = new_group([1, 3])")
    [words] = pictures(four.run("%%distributed --draw\nif rank in (1, 3): all_reduce(rank, group=pair)"))
    assert lanes(words) == ["rank 1: 1 → 4", "rank 3: 3 → 4"]
    code = "if rank == 2: send({'a': 1}, 0)\nif rank == 0: recv(2)"
    [words] = pictures(four.run(f"%%distributed --draw\n{code}"))
    assert lanes(words) == ["rank 2: {a: 1} → –", "rank 0: – → {a: 1}"]


@_orders
def test_a_groups_ranks_are_in_its_own_order(four: Notebook) -> None:
    four.run("%%distributed\nbackwards = split_group(0, key=-rank)")
    cell = four.run("%%distributed --draw\nbroadcast(rank + 5, group=backwards)\ngather(rank, group=backwards)")
    given, got = pictures(cell)
    assert lanes(given) == ["rank 3: – → 5", "rank 2: – → 5", "rank 1: – → 5", "rank 0: 5 → 5"]
    assert lanes(got) == ["rank 3: 3 → –", "rank 2: 2 → –", "rank 1: 1 → –", "rank 0: 0 → 3 | 2 | 1 | 0"]
    assert ("src 0" in given, "dst 0" in got) == (True, True)


@_orders
def test_a_division_shows_the_group_that_each_rank_goes_to(four: Notebook) -> None:
    code = 'parts = split_group("even" if rank % 2 == 0 else None if rank == 1 else "odd", -rank)'
    [words] = pictures(four.run(f"%%distributed --draw\n{code}"))
    assert words.startswith("split_group · #")
    assert lanes(words) == [
        "rank 0: 'even' → [2 0]",
        "rank 1: None → –",
        "rank 2: 'even' → [2 0]",
        "rank 3: 'odd' → [3]",
    ]
    part = "split_group(rank % 2, group=parts if rank != 1 else None)"
    [words] = pictures(four.run(f"%%distributed --draw\nx = {part}"))
    assert lanes(words) == ["rank 0: 0 → [0 2]", "rank 1: 1 → [1]", "rank 2: 0 → [0 2]", "rank 3: 1 → [3]"]


def test_who_comes_late_is_named(four: Notebook) -> None:
    code = comes_last(2, "dist.barrier(async_op=True)", "drawn")
    [words] = pictures(four.run(f"%%distributed --draw{code}"))
    assert "\nrank 2 came last, " in words


def test_a_hang_is_drawn_with_the_one_who_never_came(four: Notebook) -> None:
    cell = four.run("%%distributed --draw\nif rank != 2: all_reduce(rank)", fails=True)
    assert "HangError" in cell.error_text
    assert "all_reduce #" in cell.error_text
    [words] = pictures(cell)
    # A slow rank may have been on its way yet, for rank 2 would never come.
    missing = re.search(r"^ranks? ([\d,-]+) did not arrive\.$", words, re.MULTILINE)
    assert missing is not None, words
    assert 2 in parse(missing[1], 4)
    assert lanes(words)[2] == "rank 2: did not arrive"
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


@pytest.mark.parametrize(
    ("odd", "code", "note"),
    [
        (2, "all_reduce(torch.ones(3 + (rank == 2)))", "It failed on ranks 0-3."),
        (0, "all_reduce(torch.ones(3)) if rank else broadcast(1)", "Rank 0 called broadcast in its place."),
    ],
)
def test_ranks_that_disagree_are_in_one_picture(four: Notebook, odd: int, code: str, note: str) -> None:
    # The others call before: when it is found, a rank that has not called yet is stopped.
    first = f"import time\nbarrier()\nif rank == {odd}: time.sleep(1)"
    cell = four.run(f"%%distributed --draw\n{first}\n{code}", fails=True)
    assert "MismatchError" in cell.error_text
    [_, words] = pictures(cell)
    assert words.startswith("all_reduce · sum")
    assert note in words
    assert "did not arrive" not in words


def test_hundreds_are_not_drawn_and_nothing_is_said_to_be_nothing(four: Notebook) -> None:
    cell = four.run("%%distributed --draw\nfor i in range(300): all_reduce(i)")
    assert len(pictures(cell)) == 12
    assert "… and 288 more, which are not drawn." in cell.text
    assert "nothing to draw" in four.run("%%distributed --draw\n1;").text


def test_what_cannot_be_drawn_is_run_all_the_same(four: Notebook) -> None:
    odd = "class Odd:\n    def __repr__(self): raise RuntimeError('no')\n"
    [words] = pictures(four.run(f"%%distributed --draw\n{odd}broadcast(Odd());"))
    assert lanes(words)[1] == "rank 1: – → <Odd>"
    cell = four.run("%%distributed --draw\nall_reduce(1, 2, 3, 4, 5, 6)", fails=True)
    assert "TypeError" in cell.error_text
    cell = four.run("%%distributed --draw\nall_reduce(rank, 'median')", fails=True)
    assert "OpError" in cell.error_text


def test_drawing_changes_no_result(four: Notebook) -> None:
    code = "x = torch.ones(3) * rank\nall_reduce(x, out=x); all_gather({'a': x, 'b': [rank]}, 'object')"
    drawn, plain = four.run(f"%%distributed --draw\n{code}"), four.run(f"%%distributed\n{code}")
    assert plain.text.startswith("[0-3] [")
    assert drawn.text.startswith(plain.text)


def test_an_interrupt_leaves_the_picture_of_what_was_done(four: Notebook) -> None:
    cell = four.submit("%%distributed --draw\nall_reduce(1)\nprint('waiting', flush=True)\nwhile True: pass")
    four.until(lambda: "waiting" in cell.text, 20, "It did not begin:", cell)
    four.interrupt()
    four.finish(cell, 20)
    assert "KeyboardInterrupt" in cell.error_text
    assert pictures(cell)[0].startswith("all_reduce")


# ── the trace ──


def read(four: Notebook, name: str) -> list[dict[str, Any]]:
    folder = four.run("import os; print(os.getcwd())").text.strip()
    found: list[dict[str, Any]] = json.loads(Path(folder, name).read_text())["traceEvents"]
    return found


def test_a_trace_has_each_collective_of_each_rank(four: Notebook) -> None:
    code = comes_last(3, "dist.all_reduce(x := torch.ones(250_000), async_op=True)", "traced")
    cell = four.run(f"%%distributed --trace cell.json{code}y = all_reduce(x)")
    assert "written to cell.json" in cell.text
    assert "https://ui.perfetto.dev" in cell.text
    events = read(four, "cell.json")
    calls = [event for event in events if event.get("cat") == "collective"]
    for rank in range(4):
        own = [event for event in calls if event["tid"] == rank]
        assert [event["name"] for event in own] == ["all_reduce", "all_reduce"]
        assert [event["args"]["bytes"] for event in own] == [1_000_000] * 2
        assert all(event["args"]["bus bandwidth (GB/s)"] > 0 for event in own)
    waits = [event for event in events if event["name"] == "waiting"]
    assert {event["tid"] for event in waits if event["dur"] > 700_000} >= {0, 1, 2}
    late = min(event["ts"] for event in calls if event["tid"] == 3)
    assert not [event for event in waits if event["tid"] == 3 and event["ts"] == late]


def test_a_message_is_one_call_with_the_bytes_of_what_the_sender_brought(four: Notebook) -> None:
    code = """
right, left, x = (rank + 1) % 4, (rank - 1) % 4, torch.ones(3000)
sent, coming = isend(x, right), irecv(left)
sent.wait(), coming.wait()
sent = isend(x, right)
recv(left), sent.wait()
dist.send(x, right) if rank % 2 else dist.recv(x.clone(), left)
dist.recv(x.clone(), left) if rank % 2 else dist.send(x, right)
sendrecv(x, right, left);"""
    four.run(f"%%distributed --trace messages.json{code}")
    for rank in range(4):
        own = [
            event for event in read(four, "messages.json") if event.get("cat") == "collective" and event["tid"] == rank
        ]
        brought = sorted((event["name"], event["args"].get("bytes", 0)) for event in own)
        sent = [("isend", 12_000)] * 2 + [("send", 12_000), ("sendrecv", 12_000)]
        assert brought == sorted([*sent, *[("recv", 0)] * 3])


def test_what_torch_waits_for_in_cpp_has_an_end_too(four: Notebook) -> None:
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))\n"
        "model(torch.ones(2, 64)).sum().backward()\n"
        "import time; time.sleep(1.5)  # what torch tells, it tells on a thread of its own"
    )
    four.run(f"%%distributed --trace ddp.json\n{code}", timeout=60)
    events = [event for event in read(four, "ddp.json") if event.get("ph") == "X"]
    [cell] = [event for event in events if event["name"].startswith("cell") and event["tid"] == 1]
    last = [event for event in events if event["tid"] == 1 and event["name"] == "all_reduce"][-1]
    assert last["ts"] + last["dur"] < cell["ts"] + cell["dur"] - 100_000
    assert last["args"]["bytes"] == 4 * (64 * 64 + 64)


ENDS_LATE = """
import threading
held, number = threading.Event(), torch.tensor([rank])
known = dist.distributed_c10d._get_default_store()
if rank:
    known.wait(["rank 0 listens"])
work = dist.all_reduce(number, async_op=True)
if not rank:
    work.get_future().add_done_callback(lambda _: held.wait(30))
    known.set("rank 0 listens", "1")
_ = work.get_future().wait()  # as DDP and functional collectives wait, in C++
"""


def test_a_result_is_drawn_before_its_handle_has_ended(four: Notebook) -> None:
    """Gloo ends a handle's future first, then calls back, then ends the handle: here a callback holds rank 0 up."""
    try:
        [words] = pictures(four.run("%%distributed --draw" + ENDS_LATE))
        assert lanes(words) == [f"rank {rank}: [{rank}] → [6]" for rank in range(4)]
    finally:
        four.run("%%distributed\nheld.set()")


def test_a_result_in_a_bucket_that_the_next_backward_fills_is_its_own(four: Notebook) -> None:
    steps = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))\n"
        "for step in range(1, 5):\n"
        "    model.zero_grad()\n"
        "    model(torch.full((1, 1), 4.0 * step)).sum().backward()"
    )
    found = [words for words in pictures(four.run(f"%%distributed --draw\n{steps}")) if words.startswith("all_reduce")]
    assert len(found) == 4
    for step, words in enumerate(found, 1):
        for rank, lane in enumerate(lanes(words)):  # on a busy machine, it may be gone before anybody could look
            assert lane in (f"rank {rank}: [{step}] → [{4 * step}]", f"rank {rank}: [{step}] → –")


MESSAGES = {
    "the receiver first": "received = dist.irecv(number); tell('waits'); received.wait()",
    "the sender first": "know('sent'); dist.recv(number)",
    "nbcomm's own": "tell('waits'); recv(None)",
}


@pytest.mark.parametrize("receive", MESSAGES.values(), ids=MESSAGES)
def test_a_message_from_anybody_is_drawn_whoever_came_first(four: Notebook, receive: str) -> None:
    code = f"""
known, number, case = dist.distributed_c10d._get_default_store(), torch.tensor([0.0]), {receive!r}
def tell(what): known.set(case + what, "1")
def know(what): known.wait([case + what])
if rank == 0:
    if "waits" in case: know("waits")
    sent = dist.isend(number + 7, 1) if "dist" in case else send(7, 1)
    tell("sent")
    if sent: sent.wait()
if rank == 1:
    {receive}
"""
    [words] = pictures(four.run("%%distributed --draw" + code))
    assert words.startswith("send · src 0 · dst 1")
    value = "[7]" if "dist" in receive else "7"
    assert lanes(words) == [f"rank 0: {value} → –", f"rank 1: – → {value}"]


def test_a_bad_file_is_refused_and_nothing_runs(four: Notebook) -> None:
    four.run("%%distributed\nran = 0")
    cell = four.run("%%distributed --trace no/such/folder/t.json\nran = 1", fails=True)
    assert "There is no folder" in cell.error_text
    assert four.run("%%distributed\nran").text == "[0-3] 0\n"


def test_a_cell_that_fails_leaves_its_trace(four: Notebook) -> None:
    cell = four.run("%%distributed --trace failed.json\nall_reduce(1)\nassert rank != 1", fails=True)
    assert "written to failed.json" in cell.text
    assert len({event["tid"] for event in read(four, "failed.json") if event.get("cat") == "collective"}) == 4


def test_a_picture_that_cannot_be_made_costs_the_picture_not_the_answer(four: Notebook) -> None:
    spoil = "import nbcomm.rank.collectives.call_values as it\nplain, it.Drawn.finish_late = it.Drawn.finish_late, None"
    four.run(f"%%distributed\n{spoil}")
    assert "[0-3] 6\n" in four.run("%%distributed --draw\nall_reduce(rank)", timeout=20).text
    four.run("%%distributed\nit.Drawn.finish_late = plain")
    assert pictures(four.run("%%distributed --draw\nall_reduce(rank)"))


def test_a_cell_that_made_more_than_is_kept_says_so(four: Notebook) -> None:
    text = four.run("%%distributed --draw\nfor _ in range(600): barrier()").text
    assert text == "Nothing is drawn: this cell made 88 more collectives than are kept. Draw one with fewer.\n"
