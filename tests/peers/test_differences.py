"""What nbcomm does otherwise on purpose; each test is a row of docs/differences.md, and each row one of these tests."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from nbcomm.notebook.session.session import Session

from .test_fabric import both

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def test_the_page_lists_exactly_these() -> None:
    named = re.findall(r"`(test_differs_\w+)`", PAGE.read_text())
    assert sorted(named) == sorted(name for name in globals() if name.startswith("test_differs_"))


# ---- from Fabric


def test_differs_sum_is_the_default(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        x = torch.tensor([float(ours.global_rank)])
        return ours._comm.all_reduce(x).item(), ours.all_reduce(x.clone()).item(), real.all_reduce(x.clone()).item()

    assert four.call(check) == [(6.0, 1.5, 1.5)] * 4


def test_differs_results_are_new(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        mine, theirs = torch.ones(1), torch.ones(1)
        ours._comm.all_reduce(mine)
        real.all_reduce(theirs, reduce_op="sum")
        return mine.item(), theirs.item()

    assert four.call(check) == [(1.0, 4.0)] * 4


def test_differs_a_live_loss_is_not_spoiled(four: Session) -> None:
    def check() -> Any:
        grads = []
        for each in both():
            q = torch.tensor([2.0], requires_grad=True)
            loss = q.exp()
            each.all_reduce(loss, reduce_op="sum")
            loss.backward()
            grads.append(round(q.grad.item(), 2))
        return grads

    assert four.call(check) == [[7.39, 29.56]] * 4  # e² is right; Fabric's is four times as much


def test_differs_the_mean_of_integers_is_not_cut(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        x = torch.tensor(ours.global_rank)
        return [
            ours._comm.all_reduce(x, "mean").item(),
            ours.all_reduce(x.clone()).item(),
            real.all_reduce(x.clone()).item(),
        ]

    assert four.call(check) == [[1.5, 1.5, 1]] * 4


def test_differs_large_integers(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        try:
            real.all_gather(2**40)
        except (RuntimeError, OverflowError) as error:
            refused = type(error).__name__
        return ours.all_gather(2**40).tolist(), ours._comm.all_gather(2**80), bool(refused)

    assert four.call(check) == [([2**40] * 4, [2**80] * 4, True)] * 4


def test_differs_numbers_stay_numbers(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        return ours._comm.all_gather(0.1), type(real.all_gather(0.1)).__name__, real.all_gather(0.1)[0].item() == 0.1

    assert four.call(check) == [([0.1] * 4, "Tensor", False)] * 4


def test_differs_texts_are_gathered(four: Session) -> None:
    def check() -> Any:
        ours, real = both()
        text = f"rank {ours.global_rank}"
        return ours._comm.all_gather(text), real.all_gather(text) == text == ours.all_gather(text)

    assert four.call(check) == [([f"rank {rank}" for rank in range(4)], True)] * 4


def test_differs_one_rank_has_the_shapes_of_many(one: Session) -> None:
    def check() -> Any:
        ours, real = both()
        x = torch.ones(2)
        return [tuple(each.all_gather(x).shape) for each in (ours._comm, ours, real)]

    assert one.call(check) == [[(1, 2), (2,), (2,)]]


def test_differs_unknown_reductions_are_named(four: Session) -> None:
    def check() -> Any:
        said = []
        for each in both():
            try:
                each.all_reduce(torch.ones(1), reduce_op="median")
            except Exception as error:  # noqa: BLE001  # whatever it is
                said.append(f"{type(error).__name__}: {error}")
        return said

    mine, theirs = four.call(check)[0]
    assert "OpError: There is no reduction 'median'; write sum, mean" in mine
    assert "AttributeError" in theirs


def test_differs_uneven_shapes(four: Session) -> None:
    def check() -> Any:
        ours, _ = both()
        x = torch.full((ours.global_rank + 1,), float(ours.global_rank))
        try:
            ours.all_gather(x)  # torch and Fabric may end a rank here, so they are not asked
        except Exception as error:  # noqa: BLE001  # whatever it is
            said = str(error)
        return said, len(ours._comm.all_gather(x, "list")), ours._comm.all_gather(x, "cat").tolist()

    for said, count, joined in four.call(check):
        assert "rank 0 a float32 tensor of shape (1,)" in said
        assert "mode='cat' joins uneven lengths" in said
        assert (count, joined) == (4, [0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0])


def test_differs_a_failure_in_rank_zero_first_is_told_to_all(four: Session) -> None:
    def check() -> Any:
        ours, _ = both()
        try:
            with ours.rank_zero_first():
                if ours.global_rank == 0:
                    Path("/no/such/folder").iterdir().__next__()
        except Exception as error:  # noqa: BLE001  # with Fabric the other ranks would wait for ever
            return f"{type(error).__name__}: {error}"
        return ""

    first, *others = four.call(check)
    assert "FileNotFoundError" in first
    assert all("rank 0 failed in its block of rank_zero_first: FileNotFoundError" in other for other in others)


# ---- from Ignite


def test_differs_numbers_are_exact(four: Session) -> None:
    kind = RuntimeError if version("torch").startswith("2.8.") else ValueError

    def check() -> Any:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        try:
            idist.all_reduce(2**63)
        except kind as error:
            refused = str(error)
        mine = [comm.broadcast(12.3456), comm.broadcast(2**24 + 1), comm.all_reduce(2**63)]
        return mine, [idist.broadcast(12.3456), idist.broadcast(2**24 + 1)], "verflow" in refused

    mine, theirs, refused = four.call(check)[0]
    assert mine == [12.3456, 2**24 + 1, 2**65]
    assert theirs == [12.345600128173828, 2.0**24]
    assert refused


def test_differs_texts_of_any_alphabet(four: Session) -> None:
    def check() -> Any:
        import ignite.distributed as idist

        import nbcomm

        try:
            theirs = str(idist.all_gather("grüße"))
        except Exception as error:  # noqa: BLE001  # whatever it is
            theirs = type(error).__name__
        return nbcomm.init().all_gather("grüße 🎉"), theirs

    gathered, theirs = four.call(check)[0]
    assert gathered == ["grüße 🎉"] * 4
    assert "grüße" not in theirs


def test_differs_tensors_are_stacked(four: Session) -> None:
    def check() -> Any:
        import ignite.distributed as idist

        import nbcomm

        x = torch.ones(2, 3)
        return tuple(nbcomm.init().all_gather(x).shape), tuple(idist.all_gather(x).shape)

    assert four.call(check) == [((4, 2, 3), (8, 3))] * 4


def test_differs_there_is_gather(four: Session) -> None:
    def check() -> Any:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        return comm.gather(comm.rank, 2), hasattr(idist, "gather")

    assert four.call(check) == [(None, False), (None, False), ([0, 1, 2, 3], False), (None, False)]


# ---- from accelerate


def test_differs_a_minimum_is_a_minimum(four: Session) -> None:
    def check() -> Any:
        from accelerate.utils import reduce

        import nbcomm

        comm = nbcomm.init()
        x = torch.tensor([float(comm.rank + 1)])
        return comm.all_reduce(x, "min").item(), reduce(x.clone(), "min").item()

    from accelerate import PartialState

    four.call(lambda: PartialState(cpu=True).num_processes)
    assert four.call(check) == [(1.0, 10.0)] * 4


def test_differs_the_tail_is_dropped_by_number(four: Session) -> None:
    def check() -> Any:
        import nbcomm

        comm = nbcomm.init()
        return comm.gather_for_metrics(comm.split(torch.arange(10), pad=True), total=10).tolist()

    assert four.call(check) == [list(range(10))] * 4


# ---- from torch.distributed


def test_differs_bools_are_counted(four: Session) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        flags = torch.tensor([True, comm.rank == 0])
        mine = comm.all_reduce(flags).tolist(), comm.all_reduce(flags, "min").tolist()
        dist.all_reduce(flags)
        return *mine, flags.tolist()

    assert four.call(check) == [([4, 1], [True, False], [True, True])] * 4


def test_differs_every_integer_is_reduced(four: Session) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        x = torch.tensor([comm.rank], dtype=torch.int16)
        try:
            dist.all_reduce(x.clone())
        except Exception as error:  # noqa: BLE001  # whatever it is
            refused = str(error)
        return comm.all_reduce(x).item(), comm.all_reduce(x.to(torch.uint16), "max").item(), refused

    for total, most, refused in four.call(check):
        assert (total, most) == (6, 3)
        assert "Invalid scalar type" in refused


def test_differs_numbers_and_nested_data_are_reduced(four: Session) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        try:
            dist.all_reduce({"x": torch.ones(1), "n": 1})  # type: ignore[arg-type]
        except TypeError as error:
            refused = type(error).__name__
        return comm.all_reduce({"x": torch.ones(1), "n": 1}), refused

    for total, refused in four.call(check):
        assert total == {"x": torch.tensor([4.0]), "n": 4}
        assert refused == "TypeError"
