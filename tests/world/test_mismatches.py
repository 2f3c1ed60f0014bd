"""What is refused since ranks do different things, in which words, and what only looks different and is not refused."""

from __future__ import annotations

import re
import time

import pytest

from nbcomm.sentences import in_one_line

from .notebook import Notebook

PATIENT = "%%distributed\nfrom nbcomm.rank.collectives import fingerprints\nfingerprints._PATIENCE = 30"
"""However busy the machine is: all ranks come in the end, and nobody waits longer than for that."""


def refused(notebook: Notebook, code: str) -> str:
    """The sentence that a cell ends with, the same on all ranks that have one; without the place in the group."""
    cell = notebook.run(f"%%distributed\n{code}", timeout=60, fails=True)
    found = set(re.findall(r"^MismatchError: ((?:.+\n)+)", cell.error_text, re.MULTILINE))
    assert len(found) == 1, cell.error_text
    return re.sub(r" #\d+", "", in_one_line(found.pop().strip()))


# ── who must make the same groups ───────────────────────────────────────────────────────────────────

HALVES = "halves = new_group([0, 1]), new_group([2, 3])\nmine = halves[rank // 2]"
ALONE = "own, _ = dist.new_subgroups(group_size=1, group=mine)"
USED = """\
%%distributed
x = torch.tensor(rank)
dist.all_reduce(x, group=own)
(x.item() == rank, dist.get_process_group_ranks(own) == [rank], all_reduce(1, group=mine), all_reduce(1))
"""


def test_halves_of_the_world_may_divide_themselves_into_single_ranks(four: Notebook) -> None:
    four.run(f"%%distributed\n{HALVES}\n{ALONE}")
    assert four.run(USED).text == "[0-3] (True, True, 2, 4)\n"
    # They share a name in torch; formed anew, none of them is taken for another.
    refused(four, "dist.all_reduce(torch.ones(1 + rank))")
    assert four.run(USED).text == "[0-3] (True, True, 2, 4)\n"


@pytest.mark.parametrize(
    "lists",
    [
        "[0, 1] if rank else [0, 2]",
        "[0, 1] if rank < 2 else [2, 3]",  # in torch, ranks 0 and 2 meet under one name: the sum is wrong, or none
        "[0, 1] if rank < 2 else [rank]",
        "[0] if rank == 0 else [0, 1, 2]",
        "[0, 3] if rank == 3 else [rank]",
    ],
)
def test_groups_whose_members_would_wait_for_each_other_or_be_mixed_up_are_refused(four: Notebook, lists: str) -> None:
    sentence = refused(four, f"dist.new_group({lists})\nall_reduce(1)")
    assert sentence.startswith("new_group of the world is not the same on all ranks: ")
    said = {str(eval(lists, {"rank": rank})) for rank in range(4)}  # noqa: S307 - it is written above
    assert any(f"called new_group({members}), line 2" in sentence for members in said)
    assert four.run("%%distributed\nall_reduce(1, group=new_group([0, 1, 2, 3]))").text == "[0-3] 4\n"


def test_who_is_in_no_group_with_a_rank_may_name_others(four: Notebook) -> None:
    """Torch hands it nothing, and nobody waits for it."""
    four.run("%%distributed\npair = dist.new_group([1] if rank == 3 else [1, 2])")
    code = "%%distributed\nall_reduce(1, group=pair) if rank in (1, 2) else 2"
    assert four.run(code).text == "[0-3] 2\n"


# ── a process that a cell forks ─────────────────────────────────────────────────────────────────────

FORKED = """\
%%distributed
import os, signal, warnings
told = ""
if rank == 1:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of each fork beside threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            {call}
        except BaseException as error:
            os.write(write, f"{{type(error).__name__}}: {{error}}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe: told = pipe.read()
    os.waitpid(child, 0)
told
"""


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_reduce(torch.ones(7))",
        "barrier()",
        "all_reduce(1, async_op=True).wait()",
        "dist.send(torch.ones(3), 0)",
        "dist.new_group([1])",
    ],
)
def test_what_a_forked_child_calls_is_refused_and_nobody_elses_matter(four: Notebook, call: str) -> None:
    told = four.run(FORKED.format(call=call), timeout=60).text
    assert "CollectiveError: This process was forked from rank 1 and is not a rank itself" in told
    assert 'the method "spawn"' in told
    code = "%%distributed\nx = torch.ones(2)\ndist.all_reduce(x)\nif rank == 1: dist.send(x, 0)\n"
    code += (
        "if rank == 0: dist.recv(x, 1)\n(x.tolist(), all_reduce(1), all_reduce(1, group=dist.new_group([0, 1, 2, 3])))"
    )
    assert four.run(code).text == "[0-3] ([4.0, 4.0], 4, 4)\n"


def test_a_forked_child_may_make_a_world_of_its_own(four: Notebook) -> None:
    alone = (
        'dist.destroy_process_group(); os.environ["MASTER_PORT"] = "0"; '
        'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1); '
        "x = torch.ones(1); dist.all_reduce(x, group=dist.new_group([0])); os.write(write, str(x.item()).encode())"
    )
    assert four.run(FORKED.format(call=alone), timeout=60).text == "[0,2-3] ''\n[1] '1.0'\n"
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


# ── in which words ──────────────────────────────────────────────────────────────────────────────────

SENTENCES = {
    "objects": (
        "x = {'a': 1}\nif rank == 2: all_reduce(torch.ones(2))\nelse: all_gather(x)",
        (
            "all_gather of the world is not the same on all ranks: ranks 0-1,3 called all_gather of a dict, line 4; "
            "rank 2 called all_reduce(float32 (2,), sum), line 3. No rank continued past it."
        ),
    ),
    "a tensor": (
        "dist.barrier() if rank == 0 else all_gather(torch.ones(rank))",
        (
            "barrier of the world is not the same on all ranks: rank 0 called barrier(), line 2; rank 1 called "
            "all_gather of float32 (1,), line 2; rank 2 called all_gather of float32 (2,), line 2; rank 3 called "
            "all_gather of float32 (3,), line 2. No rank continued past it."
        ),
    ),
    "torch's objects": (
        "if rank < 2:\n  dist.all_gather_object([None] * 4, 'x')\nelse:\n  dist.all_reduce(torch.ones(2))",
        (
            "all_gather_object of the world is not the same on all ranks: ranks 0-1 called all_gather_object, line 3; "
            "ranks 2-3 called all_reduce(float32 (2,), sum), line 5. No rank continued past it."
        ),
    ),
    "torch's own": (
        "def step(x):\n  dist.all_reduce(x)\nstep(torch.ones(3 if rank == 3 else 2))",
        (
            "all_reduce of the world is not the same on all ranks: ranks 0-2 called all_reduce(float32 (2,), sum), "
            "line 3; rank 3 called all_reduce(float32 (3,), sum), line 3. No rank continued past it."
        ),
    ),
    "one call, two kinds": (
        "broadcast(1, src=int(rank == 3))",
        (
            "broadcast of the world is not the same on all ranks: ranks 0-2 called broadcast of an int (src 0), "
            "line 2; rank 3 called broadcast of an int (src 1), line 2. No rank continued past it."
        ),
    ),
    "message": (
        "if rank == 0: dist.send(torch.ones(3), 1)\nif rank == 1: dist.recv(torch.ones(2), 0)",
        (
            "send of the world is not the same on all ranks: rank 0 called send of float32 (3,), line 2; rank 1 called "
            "recv of float32 (2,), line 3. No rank continued past it."
        ),
    ),
    "received from anyone": (
        "if rank == 0: dist.send(torch.ones(3), 1)\nif rank == 1: dist.recv(torch.ones(2))",
        (
            "send of the world is not the same on all ranks: rank 0 called send of float32 (3,), line 2; rank 1 called "
            "recv of float32 (2,), line 3. No rank continued past it."
        ),
    ),
    "begun": (
        "if rank == 0: barrier()\nelse:\n  h = all_gather({'a': 1}, async_op=True)\n  h.wait()",
        (
            "barrier of the world is not the same on all ranks: rank 0 called barrier, line 2; ranks 1-3 called "
            "all_gather of a dict, line 4. No rank continued past it."
        ),
    ),
    "torch's begun": (
        "if rank: dist.barrier()\nelse:\n  w = dist.all_reduce(torch.ones(3), async_op=True)\n  w.wait()",
        (
            "all_reduce of the world is not the same on all ranks: rank 0 called all_reduce(float32 (3,), sum), "
            "line 4; ranks 1-3 called barrier(), line 2. No rank continued past it."
        ),
    ),
}


@pytest.mark.parametrize(("code", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_all_ranks_are_named_with_what_their_cells_called_every_time(four: Notebook, code: str, sentence: str) -> None:
    four.run(PATIENT)
    for _ in range(5):
        assert refused(four, code) == sentence


def test_for_a_rank_that_does_not_come_nobody_waits_long(four: Notebook) -> None:
    four.run(PATIENT.replace("30", "0.2"))
    began = time.monotonic()
    sentence = refused(four, "import time\nif rank == 3: time.sleep(60)\ndist.all_reduce(torch.ones(1 + rank))")
    assert time.monotonic() - began < 50  # that rank sleeps for longer
    assert "rank 0 called all_reduce(float32 (1,), sum), line 4" in sentence
    assert "rank 3" not in sentence


# What torch refuses before anything moves: on all ranks, the lists are of wrong shapes; or on rank 0 alone.
REFUSED = """\
lists = [torch.empty(2), torch.empty(3 if {where} else 2), torch.empty(2), torch.empty(2)]
try: dist.all_gather(lists, torch.ones(2))
except RuntimeError as error: print(type(error).__name__)
"""


def test_a_call_that_torch_refuses_on_all_ranks_is_as_if_it_had_not_been(four: Notebook) -> None:
    for _ in range(8):
        assert four.run(f"%%distributed\n{REFUSED.format(where='True')}all_reduce(1)").lines == [
            "[0-3] RuntimeError",
            "[0-3] 4",
        ]
        assert four.run(f"%%distributed\n{REFUSED.format(where='True')}").text == "[0-3] RuntimeError\n"
        assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n", "in a later cell"


def test_where_torch_refuses_one_rank_alone_that_goes_on_the_difference_is_told(four: Notebook) -> None:
    late = f"import time\nif rank == 0: time.sleep(0.5)\n{REFUSED.format(where='rank == 0')}"  # the others wait in it
    error = four.run(f"%%distributed\n{late}all_reduce(1)", fails=True).error_text
    rows = "  rank 0 called all_reduce of an int, line 7\n  ranks 1-3 called all_gather(float32 (2,)), line 5\n"
    assert rows in error
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
    assert four.run(f"%%distributed\n{late}").lines == ["[0] RuntimeError", "[1-3] HangError"]
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_after_an_interrupt_anywhere_in_a_collective_all_ranks_count_alike(four: Notebook) -> None:
    for moment in range(12):
        cell = four.submit("%%distributed\nwhile True: all_reduce(1)")
        time.sleep(0.1 + moment * 0.007)
        four.interrupt()
        four.finish(cell)
        assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


# ── who alone has failed in a call ──────────────────────────────────────────────────────────────────

ALONE_IN_ERROR = """%%distributed
out, given = torch.ones(4), torch.ones(4)
receives = [0, 2, 1, 1] if rank == 0 else [1, 1, 1, 1]  # nothing from itself, to whom it sends one
"""


@pytest.mark.parametrize("ends", ["fails", "goes on", "has caught it"])
def test_who_waits_in_a_call_that_has_failed_on_another_rank_gets_a_verdict(four: Notebook, ends: str) -> None:
    # Gloo refuses this call when the others may have sent already.
    call = "dist.all_to_all_single(out, given, receives, [1, 1, 1, 1])"
    code = {
        "fails": call,
        "goes on": f"try: {call}\nexcept RuntimeError as error: print(error)\nall_reduce(1)",
        "has caught it": f"try: {call}\nexcept RuntimeError as error: print(error)",
    }[ends]
    cell = four.run(ALONE_IN_ERROR + code, timeout=60, fails=ends != "has caught it")
    shown = cell.text + cell.error_text
    said = "rank 0 failed (RuntimeError: " if ends == "fails" else "rank 0 has failed in it"
    assert said in shown
    assert "can never complete" in shown
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
