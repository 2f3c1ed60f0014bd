"""#N counts what a cell has made of a group, from 1, as its code does: the same everywhere, whatever ran before."""

from __future__ import annotations

import re

import pytest

from nbcomm.sentences import in_one_line

from .notebook import SESSION, Notebook

CASES = {
    "the first": ("if rank: barrier()", "barrier #1 of the world"),
    "behind calls that torch needs many calls for": (
        "all_gather([torch.ones(999), 'a' * 999])\nall_reduce({'a': 1})\nif rank: barrier()",
        "barrier #3 of the world",
    ),
    "torch's own, between": (
        "dist.all_reduce(torch.ones(2))\nbarrier()\nif rank: dist.broadcast(torch.ones(1), 3)",
        "broadcast #3 of the world",
    ),
    "behind one that torch has refused": (
        "try: dist.all_gather([torch.ones(2)], torch.ones(2))\nexcept Exception: pass\nif rank: barrier()",
        "barrier #1 of the world",
    ),
    "each group alone": (
        "barrier()\ng = new_group([0, 1])\nif rank < 2: all_reduce(1, group=g)\nif rank == 0: all_reduce(2, group=g)",
        "all_reduce #2 of the group of ranks 0-1",
    ),
    "groups": ("new_group([0, 1])\nif rank: new_group([0, 1])", "new_group #2 of the group"),
    "a mismatch": (
        "barrier()\nall_gather([1] * 999)\nall_reduce(torch.ones(1 + rank))",
        "all_reduce #3 of the world is",
    ),
    "groups that differ": ("barrier()\nnew_group([0, 1 + rank % 2])", "new_group #1 of the world is not the same"),
    "messages": (
        "if rank == 0: send(torch.ones(1 << 19), 1); send('b', 1)\nif rank == 1: recv(0); recv(0); recv(0)",
        "recv #3 from rank 0",
    ),
    "messages that differ": (
        (
            "if rank == 0: dist.send(torch.ones(1), 1); dist.send(torch.ones(1), 1)\n"
            "if rank == 1: dist.recv(torch.ones(1), 0); dist.recv(torch.ones(2), 0)"
        ),
        "#2 of the world is not the same on all ranks",
    ),
    "begun": (
        "if rank:\n  a = all_reduce(1, async_op=True); b = all_reduce(2, async_op=True); b.wait()",
        "all_reduce #1",
    ),
}


@pytest.mark.parametrize(("code", "words"), CASES.values(), ids=CASES)
def test_a_learner_finds_the_number_by_counting(four: Notebook, code: str, words: str) -> None:
    told = [in_one_line(four.run(f"%%distributed\n{code}", fails=True).error_text) for _ in range(2)]
    assert all(words in text for text in told), told
    four.run("%%distributed\nfor _ in range(3): barrier()")
    assert words in in_one_line(four.run(f"%%distributed\n{code}", fails=True).error_text), "the groups were not formed"


def test_what_an_earlier_cell_has_begun_has_none(four: Notebook) -> None:
    four.run("%%distributed\nif rank == 0: begun = dist.all_reduce(torch.ones(2), async_op=True)")
    told = in_one_line(four.run("%%distributed -r 0\nbegun.wait()", fails=True).error_text)
    assert "an earlier cell's all_reduce of the world (float32 (2,), sum) can never complete" in told
    assert "begun there in line 2: if rank == 0: begun" in told
    assert "in line 2: begun.wait()" in told


def test_every_place_has_the_same_number(four: Notebook) -> None:
    four.run("%%distributed\nall_reduce(1)\nall_reduce(2)")
    code = "barrier()\nx = all_gather([rank] * 999)\nif rank != 1: all_reduce(torch.ones(2))"
    cell = four.run(f"%%distributed --draw\n{code}", fails=True)
    assert "all_reduce #3 of the world" in cell.error_text
    pictures = re.findall(r"^(\w+)(?: · sum)? · #(\d+):", cell.text, re.MULTILINE)
    assert pictures == [("barrier", "1"), ("all_gather", "2"), ("all_reduce", "3")]
    four.run(f"{SESSION}\nladder, timeline = session._executor.collective_log.story(4)")
    assert four.run("print([(rung.seq, rung.name) for rung in ladder.rungs])").text == (
        "[(1, 'barrier'), (2, 'all_gather'), (3, 'all_reduce')]\n"
    )
    names = "{span.name for spans in timeline.spans.values() for span in spans} - {''}"
    assert "all_reduce #3" in four.run(f"print({names})").text
    four.run("%%distributed --trace numbers.json\nbarrier()\nx = all_gather([rank] * 999)\nbarrier()")
    events = "__import__('json').load(open('numbers.json'))['traceEvents']"
    numbers = f"print(sorted({{e['args']['number'] for e in {events} if e.get('cat') == 'collective'}}))"
    assert four.run(numbers).text == "[1, 2, 3]\n"


def test_while_it_is_waited_for_too(four: Notebook, tmp_path: object) -> None:
    go = f"{tmp_path}/go"
    code = f"import pathlib, time\nbarrier()\nwhile rank == 2 and not pathlib.Path({go!r}).exists(): time.sleep(0.01)"
    four.run("%%distributed\nbarrier()\nbarrier()")
    four.run(f"{SESSION}\nimport threading, time, pathlib")
    look = (
        "def look():\n    global seen\n    seen = set()\n    end = time.monotonic() + 30\n"
        "    while not any('#2' in note for note in seen) and time.monotonic() < end:\n"
        "        seen |= {view.note for view in session.status()}\n        time.sleep(0.05)\n"
        f"    pathlib.Path({go!r}).touch()\n"
        "looks = threading.Thread(target=look)\nlooks.start()"
    )
    four.run(look)
    four.run(f"%%distributed\n{code}\nbarrier()")
    assert "barrier #2" in four.run("looks.join()\nprint(seen)").text
