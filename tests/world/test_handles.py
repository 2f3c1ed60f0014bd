"""What a cell begins and leaves: a later cell waits for it; a verdict and an interrupt end it."""

from __future__ import annotations

import pytest

from .notebook import Notebook

NEXT = "%%distributed\nall_reduce(1), all_gather({'n': rank})['n']"
GOOD = "[0-3] (4, [0, 1, 2, 3])\n"


@pytest.fixture(scope="module")
def notebook(four: Notebook) -> Notebook:
    """A world of four ranks."""
    return four


def test_a_later_cell_waits_for_what_an_earlier_one_began(notebook: Notebook) -> None:
    notebook.run("%%distributed\nbegun = all_gather({'n': rank}, async_op=True) if rank else None")
    notebook.run("%%distributed -r 1-3\nprint(begun.done())")
    seen = notebook.run("%%distributed\nif rank == 0: begun = all_gather({'n': 0}, async_op=True)\nbegun.wait()['n']")
    assert seen.text == "[0-3] [0, 1, 2, 3]\n"
    assert notebook.run(NEXT).text == GOOD


def test_threads_of_earlier_cells_need_no_rank_of_the_present_one(notebook: Notebook) -> None:
    thread = (
        "import threading\ngo, log = threading.Event(), []\ndef work():\n    go.wait()\n"
        "    try: log.append((all_reduce(1), dist.all_reduce(x := torch.ones(1)), int(x)))\n"
        "    except Exception as error: log.append(error)\n"
        "going = threading.Thread(target=work)\ngoing.start()\n"
    )
    notebook.run(f"%%distributed\n{thread}")
    notebook.run("%%distributed -r 1-3\ngo.set()")
    assert notebook.run("%%distributed -r 0\ngo.set(); going.join(); log").text == "[0] [(4, None, 4)]\n"
    assert notebook.run("%%distributed\ngoing.join(); log").text == "[0-3] [(4, None, 4)]\n"
    look = (  # as `%distributed who` and the status do
        "import gc\nfrom nbcomm.rank.groups.world import World\n"
        "(world,) = [each for each in gc.get_objects() if isinstance(each, World)]\n"
        "with world.by_itself(): go.set(); going.join()\nlog"
    )
    assert notebook.run(f"%%distributed\n{thread}{look}").text == "[0-3] [(4, None, 4)]\n"
    # A thread of a pool may be older than the cell that it works for.
    notebook.run("%%distributed\nimport asyncio\nawait asyncio.to_thread(all_reduce, 1)")
    refused = notebook.run("%%distributed -r 0\nawait asyncio.to_thread(all_reduce, 1)", fails=True)
    assert "needs ranks 1-3 too" in refused.error_text


def test_a_wait_for_what_cannot_end_is_hopeless(notebook: Notebook) -> None:
    cell = notebook.run(
        "%%distributed\nbegun = all_gather({'n': rank}, async_op=True) if rank else None\nif rank: begun.wait()",
        timeout=20,
        fails=True,
    )
    assert "HangError: all_gather" in cell.error_text
    assert "rank 0 has finished the cell" in cell.error_text
    assert "line 4: if rank: begun.wait()" in cell.error_text or "line 3: if rank: begun.wait()" in cell.error_text
    assert notebook.run(NEXT).text == GOOD
    late = notebook.run("%%distributed -r 1-3\nbegun.wait()", fails=True)  # it says so ever after
    assert "can never complete" in late.error_text


def test_a_receive_that_nobody_answers_is_hopeless(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\nif rank == 1: irecv(2).wait()", timeout=20, fails=True)
    assert "recv #1 from rank 2" in cell.error_text
    assert "rank 2 has finished the cell" in cell.error_text
    assert notebook.run(NEXT).text == GOOD


def test_an_interrupt_ends_a_wait_and_the_next_cell_is_good(notebook: Notebook) -> None:
    code = "import time\nbegun = broadcast({'x': 1}, async_op=True) if rank else None\nprint('on')\n"
    notebook.interrupted(f"%%distributed\n{code}begun.wait() if rank else time.sleep(60)")
    assert notebook.run(NEXT).text == GOOD
    late = notebook.run("%%distributed -r 1-3\nbegun.wait()", fails=True)
    assert "start it again" in late.error_text


def test_what_has_not_begun_when_groups_are_formed_anew_is_refused(notebook: Notebook) -> None:
    notebook.run(
        "%%distributed\nif rank: begun = [all_gather({'n': rank}, async_op=True) for _ in range(3)]\n"
        "if rank: barrier(group=None)",
        timeout=20,
        fails=True,
    )
    assert notebook.run(NEXT).text == GOOD
    late = notebook.run(
        "%%distributed -r 1-3\nfor one in begun:\n    try: one.wait()\n"
        "    except Exception as error: print(type(error).__name__)"
    )
    assert late.text.count("Error") == 3
    assert notebook.run(NEXT).text == GOOD


def test_a_large_message_that_nobody_takes_hides_no_verdict(notebook: Notebook) -> None:
    cell = notebook.run(
        "%%distributed\nif rank == 0: going = isend(torch.ones(8_000_000), 1)\nif rank > 1: barrier(group=None)",
        timeout=20,
        fails=True,
    )
    assert "barrier #" in cell.error_text
    assert notebook.run(NEXT).text == GOOD


def test_a_cell_may_begin_on_some_ranks_only_within_a_group(notebook: Notebook) -> None:
    notebook.run("%%distributed\npair = new_group([0, 1])")
    seen = notebook.run("%%distributed -r 0,1\nall_gather({'n': rank}, async_op=True, group=pair).wait()['n']")
    assert seen.text == "[0-1] [0, 1]\n"
    refused = notebook.run("%%distributed -r 0,1\nall_gather({'n': rank}, async_op=True)", fails=True)
    assert "needs ranks 2-3 too" in refused.error_text


def test_everything_new_is_there_by_name(notebook: Notebook) -> None:
    code = """\
%%distributed
with rank_first(1):
    pass
half = split_group(rank // 2)
@one_rank_only(2)
def who(): return rank
(all_gather(rank, group=half), any_rank(rank == 3), all_ranks(rank < 3), who(), split(range(10)),
 pad_across_ranks(torch.ones(rank)).shape, gather_for_metrics(split(torch.arange(6), pad=True), 6).tolist())
"""
    lines = notebook.run(code).lines
    assert lines[0] == "[0] ([0, 1], True, False, None, range(0, 3), torch.Size([3]), [0, 1, 2, 3, 4, 5])"
    assert lines[2] == "[2] ([2, 3], True, False, 2, range(6, 8), torch.Size([3]), [0, 1, 2, 3, 4, 5])"


def test_a_group_is_split_as_under_torchrun(notebook: Notebook) -> None:
    code = (
        "half = dist.group.WORLD.split_group([0, 1])\nhalf is None or (half.size(), all_reduce(rank + 1, group=half))"
    )
    assert notebook.run(f"%%distributed\n{code}").text == "[0-1] (2, 3)\n[2-3] True\n"
    # It is formed anew as any other.
    hangs = notebook.run("%%distributed\nif rank == 0: all_reduce(1, group=half)", fails=True)
    assert "HangError" in hangs.error_text
    again = "again = dist.group.WORLD.split_group([1, 0])\n"
    assert notebook.run(
        f"%%distributed\n{again}half and (all_reduce(1, group=half), all_reduce(1, group=again), half == again)"
    ).text.startswith("[0-1] (2, 2, False)\n")
    wrong = notebook.run("%%distributed\ndist.group.WORLD.split_group([0, 4])", fails=True)
    assert "split_group needs different ranks of a group of 4, not [0, 4]." in wrong.error_text


def test_members_of_a_group_share_a_store(notebook: Notebook) -> None:
    notebook.run("%%distributed\nstore = dist.group.WORLD.get_group_store()\nif rank == 1: store.set('word', 'hello')")
    assert notebook.run("%%distributed\nstore.get('word').decode()").text == "[0-3] 'hello'\n"


def test_groups_of_other_worlds_are_not_joined(notebook: Notebook) -> None:
    code = "dist.group.WORLD.merge_remote_group(dist.HashStore(), 8)"
    refused = notebook.run(f"%%distributed\n{code}", fails=True)
    assert "CollectiveError: merge_remote_group adds ranks that are not in this world" in refused.error_text
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
