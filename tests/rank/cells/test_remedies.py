"""What a rank says of an error that it can explain."""

from __future__ import annotations

import linecache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.comm import Communicator
from nbcomm.rank.cells.namespace import cell_names
from nbcomm.rank.cells.remedies import remedies


def told(code: str, **own: Any) -> list[str]:
    """What is said of a cell, which fails, on rank 1 of 2."""
    comm = Communicator(rank=1, world_size=2)
    hidden = cell_names(comm)
    shell = SimpleNamespace(
        user_ns={**hidden, **own}, user_ns_hidden=hidden, history_manager=SimpleNamespace(input_hist_parsed=[code])
    )
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(keepends=True), "<cell>")
    try:
        exec(compile(code, "<cell>", "exec"), shell.user_ns)  # noqa: S102 - as a rank runs a cell
    except Exception as error:  # noqa: BLE001 - whatever the cell raises
        return remedies(error, shell)
    finally:
        del linecache.cache["<cell>"]
    pytest.fail("the cell has not failed")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rank()", "rank is a value, and no function: write rank, without parentheses."),
        ("x = 1 + world_size()", "world_size is a value, and no function"),
        ("device()", "device is a value, and no function"),
        (
            "for one in world_size: pass",
            "world_size is a number; range(world_size) counts all ranks.",
        ),
        ("[one for one in rank]", "rank is a number; range(world_size) counts"),
        ("comm.allreduce(1)", "comm has no allreduce; did you mean comm.all_reduce?"),
        ("comm.Get_rank()", "comm has no Get_rank; did you mean comm.rank?"),
        ("dist.allreduce(1)", "dist has no allreduce; did you mean dist.all_reduce?"),
        ("fabric.allreduce(1)", "fabric has no allreduce; did you mean fabric.all_reduce?"),
        ("from nbcomm import all_reduce", "all_reduce needs no import: cells have it by its name."),
        ("raise AssertionError('Torch not compiled with CUDA enabled')", "there is no GPU: write device, which is cpu"),
    ],
)
def test_an_error_that_only_a_rank_understands_is_explained(code: str, said: str) -> None:
    (sentence,) = told(code)
    assert sentence.startswith(said)


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "x = 3\nx()",
        "for one in 3: pass",
        "comm.frobnicate",
        "dist.frobnicate",
        "torch.allreduce",
        "from nbcomm import frobnicate",
        "raise TypeError('x')",
        "rank = 3\nrank()",
    ],
)
def test_the_users_own_errors_are_left_alone(code: str) -> None:
    assert told(code) == []


def test_torch_function_for_tensors_has_a_sister_for_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise TypeError("Invalid function argument. Expected parameter `tensor` of type torch.Tensor\n but got int.")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    assert told("dist.all_reduce(5)") == [
        "dist.all_reduce takes tensors only; all_reduce, without dist., takes any data, and returns the result."
    ]


def test_an_await_of_a_result_is_to_be_left_out() -> None:
    code = "async def cell():\n    await rank_print(1)\nimport asyncio\nasyncio.run(cell())"
    assert told(code) == ["rank_print returns its result once it is there: leave await out."]


def test_processes_that_a_cell_spawns_are_told_of() -> None:
    spawn = ModuleType("torch.multiprocessing.spawn")
    exec("def start(): raise RuntimeError('terminated')", vars(spawn))  # noqa: S102 - frames tell their module by its name
    (said,) = told("start()", start=spawn.start)
    assert said.startswith(
        "the cell already runs once on each rank: call the function itself, with rank, in place of mp."
    )


def test_a_gpu_is_not_denied_to_a_rank_that_has_one() -> None:
    comm = Communicator(rank=0, world_size=1, device=torch.device("cuda", 0))
    shell = SimpleNamespace(user_ns={"comm": comm}, user_ns_hidden={})
    assert remedies(RuntimeError("No CUDA GPUs are available"), shell) == []


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_an_error_after_which_cuda_does_nothing_more_names_heal(said: str) -> None:
    (sentence,) = told("raise error", error=RuntimeError(said))
    assert sentence.startswith("CUDA does nothing more in this process after ")
    assert "type %distributed heal 1 in a cell of its own" in sentence


def test_of_a_full_gpu_it_is_told_what_may_keep_memory() -> None:
    (sentence,) = told("raise error", error=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert "_ and Out keep results of cells" in sentence
    assert told("raise error", error=RuntimeError("CUDA error: invalid argument")) == []
