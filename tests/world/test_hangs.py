"""A wait that can never end is ended, with the reason; the next cell works, and so does whatever was made before."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from nbcomm.sentences import in_one_line

from .notebook import Notebook, with_ranks

PREPARE = """\
%%distributed
import copy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
torch.manual_seed(0)
pair, mesh = new_group([0, 1]), init_device_mesh("cpu", (4,))
spread = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
fsdp = fully_shard(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), mesh=mesh)
kept = rank * 10

def train(model):
    model.zero_grad()
    model(torch.ones(2, 4) * (rank + 1)).sum().backward()
    return all(bool(p.grad.isfinite().all() if hasattr(p.grad, "isfinite") else True) for p in model.parameters())

train(ddp), train(fsdp)
"""

EVERYTHING = """\
%%distributed
grads = [torch.empty(4, 4) for _ in range(4)]
works = train(ddp), train(fsdp)
dist.all_gather(grads, ddp.module.weight.grad)
(*works, all(torch.equal(g, grads[0]) for g in grads), all_reduce(1), kept == rank * 10,
 all_reduce(1, group=pair) if rank < 2 else 2, spread.redistribute(placements=[Replicate()]).to_local().sum().item())
"""


@pytest.fixture(scope="module")
def prepared(four: Notebook) -> Notebook:
    """A world whose ranks hold a subgroup, a mesh, a DTensor, a DDP and an FSDP model."""
    four.run(PREPARE)
    return four


CASES = {
    "skip": (
        "if rank != 1: dist.all_reduce(torch.ones(4))",
        ["all_reduce #", "float32 (4,), sum", "line 2:", "ranks 0,2-3 wait in it", "rank 1 has finished the cell"],
    ),
    "raise": (
        "if rank == 0: raise ValueError('boom')\ndist.barrier()",
        ["barrier #", "rank 0 failed (ValueError: boom)"],
    ),
    "comm": ("if rank: all_reduce({'a': 1})", ["all_reduce #", "rank 0 has finished"]),
    "object": ("if rank: dist.all_gather_object([None] * 4, 'x')", ["rank 0 has finished"]),
    "recv": ("if rank == 2: dist.recv(torch.ones(3), 1)", ["recv #1 from rank 1", "rank 1 has finished"]),
    "anyone": ("if rank == 2: recv(None)", ["recv", "from any rank", "no rank can send it"]),
    "send": ("if rank == 2: dist.send(torch.ones(3), 1, tag=7)", ["send #1 to rank 1", "tag 7"]),
    "async": ("w = dist.all_reduce(torch.ones(3), async_op=True) if rank else None\nif w: w.wait()", ["line 3:"]),
    "cycle": (
        "if rank == 0: all_reduce(1, group=pair)\nelse: barrier()",
        ["the group of ranks 0-1", "rank 1 waits in barrier"],
    ),
    "crossed": (
        "if rank < 2: dist.send(torch.ones(1), 1 - rank); dist.recv(torch.ones(1), 1 - rank)",
        ["send #1 to rank 1", "rank 1 waits in send #1"],
    ),
    "two lanes": (
        (
            "a = irecv((rank - 1) % 4); b = irecv((rank + 1) % 4)\na.wait(); b.wait()\n"
            "send(1, (rank + 1) % 4); send(1, (rank - 1) % 4)"
        ),
        ["irecv #1 from rank 3", "rank 3 waits in irecv #1 from rank 2", "line 3: a.wait(); b.wait()"],
    ),
    "a lane that waits for another": (
        "if rank == 2: a = irecv(1); b = irecv(3); c = irecv(); c.wait()\nif rank == 3: send(1, 2)",
        ["irecv #1 from rank 1", "rank 1 has finished the cell"],
    ),
    "new_group": ("if rank: new_group([0, 1, 2, 3])", ["new_group #", "rank 0 has finished"]),
    "split_group": (
        "if rank: split_group(rank % 2)",
        ["split_group #", "rank 0 has finished", "Every rank of the world must call split_group"],
    ),
    "ddp backward": (
        "loss = ddp(torch.ones(1, 4)).sum()\nif rank: loss.backward()",
        ["all_reduce #", "line 3: if rank: loss"],
    ),
    "ddp made": ("if rank: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))", ["rank 0 has finished"]),
    "fsdp forward": ("if rank: fsdp(torch.ones(1, 4))", ["all_gather_into_tensor #", "rank 0 has finished"]),
    "fsdp backward": ("loss = fsdp(torch.ones(1, 4)).sum()\nif rank: loss.backward()", ["rank 0 has finished"]),
    "dtensor": ("if rank: spread.redistribute(placements=[Replicate()]).to_local().sum()", ["rank 0 has finished"]),
    "functional": (
        (
            "import torch.distributed._functional_collectives as f\n"
            "f.reduce_scatter_tensor(torch.ones(4), 'sum', 0, mesh) + 0\n"  # gloo never says that it has ended
            "if rank: f.all_reduce(torch.ones(2), 'sum', mesh) + 0"
        ),
        ["all_reduce #", "rank 0 has finished"],
    ),
    "some ranks wait in Python": (
        "if rank == 3: dist.barrier(group=None)\nif rank == 1: dist.recv(torch.ones(1), 3)",
        ["rank 3 waits in barrier"],
    ),
}


@pytest.mark.parametrize(("code", "words"), CASES.values(), ids=CASES)
def test_a_hopeless_cell_ends_with_the_verdict_and_everything_still_works(
    prepared: Notebook, code: str, words: list[str]
) -> None:
    # Usually 0.3 s; without a verdict it would be half an hour.
    cell = prepared.run(f"%%distributed\n{code}", fails=True)
    assert "HangError" in cell.error_text
    told = in_one_line(cell.error_text)
    for word in words:
        assert word in told
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


SPOKEN = {
    "object": (
        "x = {'a': 1}\nif rank != 1:\n    all_gather(x)",
        ["all_gather of the world (a dict)", "in line 4: all_gather(x)"],
    ),
    "tensor": (
        "if rank: all_gather(torch.ones(3))",
        ["all_gather of the world (float32 (3,))", "in line 2: if rank: all_gat"],
    ),
    "reduced": (
        "if rank: reduce_scatter(torch.ones(4))",
        ["reduce_scatter of the world (float32 (4,), sum)", "in line 2: if"],
    ),
    "root": (
        "if rank: broadcast([1])",
        ["broadcast of the world (a list, src 0)", "in line 2: if rank: broadcast([1])"],
    ),
    "send": ("if rank == 2: send({}, 1)", ["send to rank 1 (a dict)", "in line 2: if rank == 2: send({}, 1)"]),
    "recv": ("if rank == 2: recv(1)", ["recv from rank 1", "in line 2: if rank == 2: recv(1)"]),
    "torch's objects": (
        "if rank: dist.all_gather_object([None] * 4, {})",
        ["all_gather_object of the world", "in line 2: if rank: dist.all_gather_object([None] * 4, {})"],
    ),
    "built of others": ("if rank: any_rank(True)", ["any_rank of the world", "in line 2: if rank: any_rank(True)"]),
    "as a context": (
        "if rank:\n    with rank_zero_first(): pass",
        ["rank_first of the world", "in line 3: with rank_zero_first("],
    ),
    "fabric": (
        "if rank: fabric.all_gather({'a': 1})",
        ["all_gather of the world", "in line 2: if rank: fabric.all_gather("],
    ),
    "begun": (
        "if rank:\n    h = all_gather({'a': 1}, async_op=True)\n    h.wait()",
        [
            "all_gather of the world (a dict)",
            "begun in line 3: h = all_gather({'a': 1}, async_op=True), in line 4: h.wait()",
        ],
    ),
    "torch's begun": (
        "if rank:\n    w = dist.all_reduce(torch.ones(3), async_op=True)\n    w.wait()",
        [
            "(float32 (3,), sum) can never complete",
            "begun in line 3: w = dist.all_reduce(torch.ones(3), async_op=True), in line 4: w.wait()",
        ],
    ),
    "irecv": (
        "if rank == 2:\n    h = irecv(1)\n    h.wait()",
        ["irecv from rank 1", "begun in line 3: h = irecv(1), in line 4: h"],
    ),
    "behind another": (
        "if rank == 2:\n    a = irecv(1)\n    h = irecv()\n    h.wait()",
        ["irecv from rank 1", "begun in line 3: a = irecv(1), in line 5: h"],
    ),
    "isend": (
        "if rank == 2:\n    h = isend({'a': 1}, 1)\n    h.wait()",
        ["isend to rank 1 (a dict)", "begun in line 3: h = isend({'a': 1}, 1), in line 4: h.wait()"],
    ),
}


@pytest.mark.parametrize(("code", "words"), SPOKEN.values(), ids=SPOKEN)
def test_the_verdict_names_what_the_cell_called_and_not_what_torch_was_called_with(
    four: Notebook, code: str, words: list[str]
) -> None:
    cell = four.run(f"%%distributed\n{code}", fails=True)
    told = re.sub(r" #\d+", "", in_one_line(cell.error_text))
    assert all(word in told for word in words), told
    assert "uint8" not in cell.error_text
    assert "HangError" in cell.error_text


def test_a_cell_that_catches_the_verdict_still_ends(prepared: Notebook) -> None:
    # What a cell does when it hears the verdict is its own affair for a moment, whichever way it came to hear.
    code = """\
        %%distributed
        import time
        try:
            if rank: barrier()
        except Exception as error:
            time.sleep(0.15)
            print(type(error).__name__)
            time.sleep(60)
        """
    for _ in range(5):
        cell = prepared.run(textwrap.dedent(code), fails=True)
        assert cell.text.startswith("[1-3] HangError\n")
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("dist.all_gather([torch.empty(2 + (rank == 0))] * 4, torch.ones(2))", "invalid tensor size"),
        (
            "if rank == 0: dist.send(torch.ones(4)[::2], 1)\nif rank == 1: dist.recv(torch.ones(2), 0)",
            "has to be contiguous",
        ),
    ],
    ids=["collective", "message"],
)
def test_whoever_waits_for_a_call_that_torch_has_refused_hears_the_verdict(
    prepared: Notebook, code: str, words: str
) -> None:
    cell = prepared.run(f"%%distributed\n{code}", fails=True)
    assert "rank 0 failed (RuntimeError" in cell.error_text
    assert words in cell.error_text
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_a_call_that_torch_has_refused_can_be_made_again(prepared: Notebook) -> None:
    # The rank that is refused has not come there: its next call is the one that meets the others'.
    code = """\
        %%distributed
        def twice(call, wrong, right):
            try:
                if rank == 0: call(wrong)
            except RuntimeError:
                print("refused")
            call(right)
        right = [torch.empty(2) for _ in range(4)]
        twice(lambda out: dist.all_gather(out, torch.ones(2)), [torch.empty(3)] * 4, right)
        if rank < 2: twice(lambda x: dist.recv(x, 0) if rank else dist.send(x, 1), torch.ones(4)[::2], torch.ones(2))
        (sum(right).tolist(), all_reduce(1))
        """
    cell = prepared.run(textwrap.dedent(code))
    assert cell.lines == ["[0] refused", "[0] refused", "[0-3] ([4.0, 4.0], 4)"]


def test_a_message_that_a_refused_receive_did_not_take_meets_no_later_one(prepared: Notebook) -> None:
    code = "if rank == 0: dist.send(torch.ones(2), 1)\nif rank == 1: dist.recv(torch.ones(4)[::2])"
    assert "has to be contiguous" in prepared.run(f"%%distributed\n{code}", fails=True).error_text
    code = "x = torch.full((2,), 5.0)\nif rank == 0: dist.send(x, 1)\nif rank == 1: dist.recv(x.zero_(), 0)\nx.tolist()"
    assert prepared.run(f"%%distributed\n{code}").text == "[0-3] [5.0, 5.0]\n"


@pytest.mark.parametrize("model", ["ddp", "fsdp"])
def test_a_module_whose_backward_ends_alike_on_all_ranks_begins_anew(prepared: Notebook, model: str) -> None:
    # All have issued the same, so nothing but the module tells that something was left half done.
    begin = f"%%distributed\nx = torch.ones(2, 4, requires_grad=True)\nloss = {model}(x).sum()\n"
    cell = prepared.run(f"{begin}_ = x.register_hook(lambda _: 1 / 0)\nloss.backward()", fails=True)
    assert "[0-3] ZeroDivisionError" in cell.text + cell.error_text
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"
    wait = "import time\ndef wait(_):\n    print('on', flush=True)\n    time.sleep(60)\n"
    prepared.interrupted(f"{begin}{wait}_ = x.register_hook(wait)\nloss.backward()", once="[0-3] on")
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_a_hang_while_a_ddp_model_is_frozen_is_survived(prepared: Notebook) -> None:
    prepared.run("%%distributed\n_ = ddp.requires_grad_(False)")
    assert "HangError" in prepared.run("%%distributed\nif rank: barrier()", fails=True).error_text
    assert prepared.run("%%distributed\nddp.requires_grad_(True) is ddp").text == "[0-3] True\n"
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_ranks_that_still_compute_are_ended_with_those_that_wait_in_vain(prepared: Notebook) -> None:
    cell = prepared.run(
        "%%distributed\nimport time\nif rank == 0: time.sleep(60)\nif rank == 1: barrier(group=pair)\n"
        "if rank == 2: dist.recv(torch.ones(1), 3)",
        fails=True,
    )
    assert cell.error_text.count("HangError") >= 1
    assert "recv #1 from rank 3" in cell.error_text
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_a_rank_that_begins_only_after_the_verdict_is_ended_too(prepared: Notebook) -> None:
    prepared.run("%%distributed -r 2\nimport asyncio, time\nasyncio.get_running_loop().call_later(0.1, time.sleep, 6);")
    prepared.run("import time\ntime.sleep(1)")
    cell = prepared.run(
        "%%distributed\nimport time\nif rank in (0, 3): barrier()\nif rank == 1: 1 / 0\nif rank == 2: time.sleep(300)",
        fails=True,
    )
    assert "1 of 4 ranks failed: [1] ZeroDivisionError; 3 others were stopped because of it" in cell.error_text
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("all_reduce(1)", "[0-3] 4\n"),
        (
            (
                "if rank == 0: a, b = irecv(1), irecv(2); print(a.wait(), b.wait())\n"
                "if rank == 1: send(recv(2), 0)\n"
                'if rank == 2: send("x", 1); send("y", 0)'
            ),
            "[0] x y\n",
        ),
    ],
    ids=["a collective", "two receives under way"],
)
def test_a_wait_that_may_still_end_is_shown_and_left_alone(
    prepared: Notebook, tmp_path: Path, calls: str, text: str
) -> None:
    go = tmp_path / "go"
    wait = "while rank == 2 and not go.exists(): time.sleep(0.01)"
    code = f"import pathlib, time; go = pathlib.Path({str(go)!r})\n{wait}\n{calls}"
    cell = prepared.submit(f"%%distributed\n{code}")
    try:
        prepared.until(lambda: f"waiting for rank 2, at line 3: {wait}" in cell.text, 60, "not shown", cell)
    finally:
        go.touch()
    prepared.finish(cell)
    assert cell.error is None
    assert cell.text == text


def test_who_waits_for_a_limited_time_gets_a_timeout_and_no_verdict(prepared: Notebook) -> None:
    code = """\
        %%distributed
        if rank == 0:
            late = irecv(1)
            try: late.wait(4)
            except TimeoutError as error: print(error)
        """
    cell = prepared.run(textwrap.dedent(code))
    assert cell.text == "[0] It did not complete within 4 s, and is still running.\n"
    assert prepared.run("%%distributed\nif rank == 1: send(7, 0)\nif rank == 0: print(late.wait())").text == "[0] 7\n"


def test_what_was_issued_ahead_may_be_waited_for_by_a_later_cell(prepared: Notebook) -> None:
    prepared.run("%%distributed\nx = torch.ones(2)\nif rank == 0: w = dist.all_reduce(x, async_op=True)")
    prepared.run("%%distributed\nif rank: w = dist.all_reduce(x, async_op=True)\n_ = w.wait()")
    assert prepared.run("%%distributed\nx.tolist()").text == "[0-3] [4.0, 4.0]\n"


def test_a_thread_that_ends_behind_its_rank_hides_no_hang(prepared: Notebook) -> None:
    late = "import threading, time\ndef later(): time.sleep(1.5)\n"
    code = "if rank == 1: threading.Thread(target=later).start()\nelse: barrier()"
    cell = prepared.run(f"%%distributed\n{late}{code}", fails=True)
    assert "can never complete" in cell.error_text


@pytest.mark.parametrize("begin", ["lost = irecv(3)", "lost = irecv()", "lost = dist.irecv(torch.ones(1), src=3)"])
def test_a_receive_that_an_earlier_cell_has_begun_hides_no_hang(prepared: Notebook, begin: str) -> None:
    prepared.run(f"%%distributed\nif rank == 0: {begin}")
    cell = prepared.run("%%distributed\nif rank == 1: raise ValueError('mine')\nbarrier()", fails=True)
    assert "can never complete" in cell.error_text
    assert "mine" in cell.error_text


def test_a_thread_of_a_cell_may_still_free_who_waits(prepared: Notebook) -> None:
    code = """\
        %%distributed
        import threading, time
        def late():
            time.sleep(2)
            dist.barrier()
        if rank == 0: threading.Thread(target=late).start()
        elif rank == 1: threading.Timer(2, dist.barrier).start()
        else: dist.barrier()
        """
    prepared.run(textwrap.dedent(code))
    prepared.run(
        "%%distributed\nif rank < 2:\n  for t in threading.enumerate():\n"
        "    if getattr(t, '_target', None) is late or isinstance(t, threading.Timer): t.join()"
    )
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_a_thread_that_waits_in_vain_while_its_rank_joins_it_is_named(prepared: Notebook) -> None:
    code = """\
        %%distributed
        import asyncio, concurrent.futures, threading
        def body():
            barrier()
        if rank == 0:
            t = threading.Thread(target=body, name="mine")
            t.start()
            t.join()
        if rank == 1:
            pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="pool")
            await asyncio.get_running_loop().run_in_executor(pool, body)
        """
    cell = prepared.submit(textwrap.dedent(code))
    prepared.until(lambda: "(mine)" in cell.text and "(pool_0)" in cell.text, 60, "not shown", cell)
    said = re.sub(r" #\d+", "", cell.text)
    prepared.interrupt()
    prepared.finish(cell)
    vain = "ranks 2-3 have finished the cell, so it waits forever: press ■ to end the cell"
    assert said == (
        f"waiting for a thread of rank 0 (mine), which waits in barrier of the world (line 4: barrier()): {vain}; "
        f"waiting for a thread of rank 1 (pool_0), which waits in barrier of the world (line 4: barrier()): {vain}\n"
    )
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


def test_a_thread_that_is_joined_and_may_still_go_on_is_left_alone(prepared: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""\
        %%distributed
        import pathlib, queue, threading, time; go = pathlib.Path({str(go)!r})
        got = queue.Queue()
        if rank == 0:
            threading.Thread(target=lambda: got.put(all_reduce(1))).start()
            print(got.get())
        else:
            while rank == 1 and not go.exists(): time.sleep(0.01)
            all_reduce(1)
        """
    cell = prepared.submit(textwrap.dedent(code))
    try:
        prepared.until(lambda: "waiting for a thread of rank 0" in cell.text, 60, "not shown", cell)
        assert "is still at line 8" in cell.text
        assert "waits forever" not in cell.text
    finally:
        go.touch()
    prepared.finish(cell)
    assert cell.text == "[0] 4\n"
    assert cell.error is None


MISMATCHES = {
    "shape": ("dist.all_reduce(torch.ones(2 + (rank == 2)))", ["rank 2 called all_reduce(float32 (3,), sum)"]),
    "dtype": ("dist.all_reduce(torch.ones(2, dtype=torch.float64 if rank else torch.float32))", ["float64", "float32"]),
    "op": ("dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)", ["max", "sum"]),
    "collective": (
        "x = torch.ones(2)\ndist.broadcast(x, 0) if rank == 3 else dist.all_reduce(x)",
        ["broadcast", "all_reduce"],
    ),
    "src": ("dist.broadcast(torch.ones(2), int(rank == 1))", ["src 1", "src 0"]),
    "subgroup": ("if rank < 2: dist.all_reduce(torch.ones(2 + rank), group=pair)", ["the group of ranks 0-1"]),
    "backward against collective": (
        "loss = ddp(torch.ones(1, 4)).sum()\nloss.backward() if rank else all_reduce(torch.ones(9))",
        ["all_reduce(float32 (9,), sum)"],
    ),
    "message": (
        "if rank == 0: dist.send(torch.ones(3), 1)\nif rank == 1: dist.recv(torch.ones(2), 0)",
        ["send of float32 (3,)"],
    ),
    "splits": (
        "n = 2 if rank else 1\ndist.all_to_all_single(torch.empty(4 * n), torch.ones(4 * n))",
        ["all_to_all_single"],
    ),
    "groups": ("dist.new_group([0, 1] if rank else [0, 2])", ["new_group([0, 1])", "new_group([0, 2])"]),
}


@pytest.mark.parametrize(("code", "words"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_mismatch_raises_the_same_sentence_on_all_ranks_and_ends_no_process(
    prepared: Notebook, code: str, words: list[str]
) -> None:
    pids = prepared.run("%%distributed\nimport os\nos.getpid()").text
    cell = prepared.run(f"%%distributed\n{code}", fails=True)
    assert "MismatchError" in cell.error_text
    for word in words:
        assert word in cell.error_text
    sentences = {
        line.partition("MismatchError: ")[2]
        for line in cell.error_text.splitlines()
        if line.startswith("MismatchError")
    }
    assert len(sentences) == 1
    assert prepared.run("%%distributed\nimport os\nos.getpid()").text == pids
    assert prepared.run(EVERYTHING).text == "[0-3] (True, True, True, 4, True, 2, 28.0)\n"


UNSEEN = """\
%%distributed
def lose():
    import gc
    from nbcomm.rank.collectives.fingerprints import FingerprintBoard
    page, = [found for found in gc.get_objects() if type(found) is FingerprintBoard]
    (page._folder / f"board{rank}").unlink()

if rank == 1: lose()
"""


def test_a_receive_from_anyone_finds_and_misses_also_a_rank_whose_page_nobody_sees(tmp_path: Path) -> None:
    with with_ranks(tmp_path, 3) as notebook:
        notebook.run(UNSEEN)
        notebook.run("%%distributed\nif rank: barrier()", fails=True)  # the groups are formed anew, and pages opened
        for src, dst in ((1, 2), (0, 1), (0, 2)):
            call = f"%%distributed\nif rank == {src}: send('x', {dst})\nif rank == {dst}: print(recv())"
            assert notebook.run(call).text == f"[{dst}] x\n"
        waits = "%%distributed\nif rank == 1: send('x', 0)\nif rank == 0: recv(), recv()"
        assert "no rank can send it any more" in notebook.run(waits, fails=True).error_text
        waits = "%%distributed\nimport time\nif rank == 2: print('on'); recv()\nif rank == 0: time.sleep(60)"
        notebook.interrupted(waits)
        assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-2] 3\n"
