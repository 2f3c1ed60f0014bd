"""The Communicator on real ranks."""

from __future__ import annotations

import math
import threading
import time
from collections import namedtuple
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nbcomm.cell_names import METHODS
from nbcomm.comm import Communicator
from nbcomm.errors import CollectiveError, MismatchError, OpError
from nbcomm.sentences import in_one_line

from ..worlds import Failed, worlds_of_a_module  # noqa: F401  # the fixture `worlds`

SIZES = [1, 2, 3, 4]
BIG = 300_000  # floats: beyond a head, and beyond what is packed together
Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # the untyped kind is tested


@dataclass
class Batch:
    x: Any
    y: Any


def test_every_name_is_a_public_method():
    assert all(callable(getattr(Communicator, name)) for name in METHODS)


def test_fabrics_names_for_who_and_where():
    comm = Communicator(rank=5, world_size=6, local_rank=1, node_rank=2, local_world_size=2)
    assert (comm.rank, comm.global_rank, comm.world_size, comm.local_rank, comm.node_rank) == (5, 5, 6, 1, 2)
    assert not comm.is_global_zero
    assert comm.device == torch.device("cpu")


# ---- the answers that the reference examples state


def test_the_answers_of_the_references(worlds):
    def on_four(comm):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        comm.all_gather(x, sync_grads=True).sum().backward()
        return comm.all_gather(torch.tensor(10 * comm.rank)), comm.all_reduce(torch.tensor(10 * comm.rank)), x.grad

    def on_three(comm):
        return (
            comm.all_reduce(torch.arange(2) + 1 + 2 * comm.rank),
            comm.all_gather(2.0 * comm.rank),
            comm.broadcast(f"hello from rank {comm.rank}", src=0),
        )

    for gathered, reduced, grad in worlds[4].run(on_four):
        assert torch.equal(gathered, torch.tensor([0, 10, 20, 30]))
        assert torch.equal(reduced, torch.tensor(60))
        assert grad.tolist() == [4.0, 4.0]
    for reduced, gathered, text in worlds[3].run(on_three):
        assert torch.equal(reduced, torch.tensor([9, 12]))
        assert gathered == [0.0, 2.0, 4.0]
        assert text == "hello from rank 0"


def test_nobody_passes_a_barrier_before_the_slowest(worlds):
    def check(comm):
        comm.barrier()
        time.sleep(0.1 * comm.rank)
        arrived = time.monotonic()
        comm.barrier("named")
        return arrived, time.monotonic(), comm.at_barrier

    results = worlds[3].run(check)
    assert min(left for _, left, _ in results) >= max(arrived for arrived, _, _ in results)
    assert {name for *_, name in results} == {None}


def test_a_barrier_that_waits_too_long_names_who_is_missing(worlds):
    def check(comm):
        comm.barrier("loaded", timeout=60)
        if comm.rank != 1:
            comm.barrier("loaded", timeout=3)  # rank 2 has to arrive within it

    results = worlds[3].run(check, fails=True)
    worlds[3].close()  # what is left of such a barrier is not for other tests
    assert results[1] is None
    assert results[0].kind is CollectiveError
    assert "'loaded' of ranks 0-2 timed out after 3 s: rank 1 did not arrive" in results[0].text
    assert results[2].kind is CollectiveError


def test_a_barrier_waits_for_ever_if_that_is_its_limit(worlds):
    def check(comm):
        for timeout in (math.inf, 1e300, timedelta.max, 3):
            comm.barrier(timeout=timeout)
        for timeout in (math.nan, 0, -math.inf, timedelta(0)):
            with pytest.raises(CollectiveError, match="needs a positive timeout"):
                comm.barrier(timeout=timeout)
        return True

    assert worlds[2].run(check) == [True] * 2


# ---- all_gather, type by type


@pytest.mark.parametrize("size", SIZES)
def test_the_shape_laws_of_all_gather(worlds, size):
    def check(comm):
        found = {}
        for shape in [(), (2,), (2, 3), (0,), (0, 3), (BIG,)]:
            data = torch.full(shape, float(comm.rank))
            for mode in ("stack", "cat", "list"):
                got = comm.all_gather(data, mode)
                found[shape, mode] = [tuple(part.shape) for part in got] if mode == "list" else tuple(got.shape)
                parts = got if mode != "cat" else got.reshape(comm.world_size, -1)
                assert all(bool((part == rank).all()) for rank, part in enumerate(parts))
        return found

    for found in worlds[size].run(check):
        for (shape, mode), got in found.items():
            joined = (size * shape[0], *shape[1:]) if shape else (size,)
            assert got == {"stack": (size, *shape), "cat": joined, "list": [shape] * size}[mode]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["stack", "cat", "list"])
def test_what_is_no_tensor_is_gathered_as_a_list_of_exact_values(worlds, size, mode):
    def check(comm, mode):
        data = [
            2**53 + comm.rank,
            2**64,
            12.3456,
            True,
            None,
            f"grüße {comm.rank}",
            b"\xff",
            {comm.rank},
            torch.Size([1]),
        ]
        return [comm.all_gather(value, mode) for value in data]

    for found in worlds[size].run(check, mode):
        assert found == [
            [2**53 + rank for rank in range(size)],
            [2**64] * size,
            [12.3456] * size,
            [True] * size,
            [None] * size,
            [f"grüße {rank}" for rank in range(size)],
            [b"\xff"] * size,
            [{rank} for rank in range(size)],
            [torch.Size([1])] * size,
        ]
        assert all(type(value) is bool for value in found[3])


@pytest.mark.parametrize("size", SIZES)
def test_numpy_arrays_follow_the_laws_of_tensors(worlds, size):
    def check(comm):
        data = np.full((2, 3), comm.rank)
        return comm.all_gather(data), comm.all_gather(data, "cat"), comm.all_gather(np.float32(1.5))

    for stacked, joined, scalars in worlds[size].run(check):
        assert isinstance(stacked, np.ndarray)
        assert (stacked.shape, joined.shape) == ((size, 2, 3), (2 * size, 3))
        assert scalars == [np.float32(1.5)] * size


@pytest.mark.parametrize("size", SIZES)
def test_collections_are_recursed_with_structure_and_type_kept(worlds, size):
    def check(comm):
        leaf = torch.full((2,), float(comm.rank))
        data = {"b": [leaf, comm.rank], "a": Pair(leaf, ("x",)), "d": Batch(leaf, {"n": np.ones(1)}), "e": ()}
        found = {mode: comm.all_gather(data, mode) for mode in ("stack", "cat", "list")}
        for got in found.values():
            assert list(got) == ["b", "a", "d", "e"]
            assert (type(got["a"]), type(got["d"]), type(got["b"])) == (Pair, Batch, list)
            assert got["b"][1] == list(range(comm.world_size))
            assert got["a"].b == (["x"] * comm.world_size,)
            assert got["e"] == ()
        return [tuple(found["stack"]["d"].x.shape), tuple(found["cat"]["b"][0].shape), len(found["list"]["a"].a)]

    assert worlds[size].run(check) == [[(size, 2), (2 * size,), size]] * size


def test_uneven_shapes(worlds):
    def check(comm):
        found = []
        for unit in (1, 100, BIG):  # inside the head, padded, one by one
            data = torch.full((unit * comm.rank, 2), float(comm.rank))
            joined, listed = comm.all_gather(data, "cat"), comm.all_gather(data, "list")
            nested = comm.all_gather({"x": data}, "cat")["x"]
            found.append(
                torch.equal(joined, torch.cat(listed))
                and torch.equal(nested, joined)
                and [part.shape[0] for part in listed] == [unit * rank for rank in range(comm.world_size)]
                and joined.sum().item() == 2 * unit * sum(rank**2 for rank in range(comm.world_size))
            )
        return found

    assert worlds[3].run(check) == [[True] * 3] * 3


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("length", [1, 10_000])
def test_stacking_uneven_shapes_says_on_every_rank_who_sent_what(worlds, nested, length):
    def check(comm, nested, length):
        data = torch.zeros(length * (2 if comm.rank == 1 else 1))
        comm.all_gather({"x": data} if nested else data)

    for result in worlds[3].run(check, nested, length, fails=True):
        assert result.kind is CollectiveError
        assert f"ranks 0,2 a float32 tensor of shape ({length},); rank 1 a float32 tensor of" in in_one_line(
            result.text
        )
        assert "mode='cat'" in result.text
    assert worlds[3].run(lambda comm: comm.all_reduce(1)) == [3] * 3  # and the world goes on


@pytest.mark.parametrize("name", ["dtype", "dict", "none", "keys", "number"])
def test_data_of_different_kinds_is_an_error_on_every_rank(worlds, name):
    def check(comm, name):
        odd = {"dtype": torch.zeros(2).double(), "dict": {"x": 1}, "none": None, "keys": {"y": 1}, "number": 3}[name]
        even = {"x": 1} if name == "keys" else torch.zeros(2)
        return comm.all_gather(odd if comm.rank == 1 else even)

    for result in worlds[3].run(check, name, fails=True):
        assert isinstance(result, Failed)
        assert result.kind is CollectiveError
        assert "ranks 0,2 a" in result.text
        assert "; rank 1 " in in_one_line(result.text)


def test_mode_object_takes_whatever_each_rank_has(worlds):
    mixed = worlds[3].run(lambda comm: comm.all_gather([[0], {"a": 1}, torch.zeros(2)][comm.rank], "object"))
    assert all(got[:2] == [[0], {"a": 1}] and got[2].shape == (2,) for got in mixed)
    assert worlds[2].run(lambda comm: comm.all_gather(["a", 1][comm.rank])) == [["a", 1]] * 2  # leaves may be mixed


def test_an_unknown_mode_names_the_valid_ones(worlds):
    (result,) = worlds[1].run(lambda comm: comm.all_gather(1, "stak"), fails=True)
    assert result.kind is CollectiveError
    assert "'stack', 'cat', 'list' or 'object'" in result.text


# ---- broadcast, scatter, gather, all_to_all


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_brings_any_data_from_any_rank(worlds, size):
    def check(comm):
        src = comm.world_size - 1
        values = [
            {"lr": 0.1, "model": {"w": torch.arange(BIG), "b": torch.ones(2, dtype=torch.bfloat16)}},
            torch.arange(6).view(2, 3).t(),
            torch.tensor(3),
            torch.zeros(0, 2),
            torch.tensor([True, False]),
            torch.tensor([1 + 2j]),
            np.arange(BIG),
            "grüße",
            None,
            2**70,
            Pair(1, Batch(2, [np.float64(3)])),
            lambda x: x + 1,
        ]
        got = [comm.broadcast(value if comm.rank == src else None, src) for value in values]
        assert type(got[10].b) is Batch
        assert got[11](1) == 2
        assert got[0]["lr"] == 0.1
        assert torch.equal(got[0]["model"]["w"], values[0]["model"]["w"])
        assert torch.equal(got[0]["model"]["b"], values[0]["model"]["b"])
        for one, other in zip(got[1:6], values[1:6], strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)
        assert np.array_equal(got[6], values[6])
        assert got[7:11] == values[7:11]
        return True

    assert worlds[size].run(check) == [True] * size


def test_results_share_no_memory_with_the_input_and_can_be_written(worlds):
    def check(comm):
        def changes(call, *, nested):
            x = torch.ones(BIG, requires_grad=True)
            data = {"x": x, "n": np.ones(BIG), "s": torch.ones(2)} if nested else x
            got = call(data)
            flat = [got] if not nested else list(got.values()) if isinstance(got, dict) else list(got[0].values())
            for part in flat:
                for each in part if isinstance(part, list) else [part]:
                    assert not getattr(each, "requires_grad", False)
                    each.__iadd__(5)
            kept = data if not nested else data["x"]
            rest = not nested or (data["n"][0] == 1 and data["s"][0] == 1)
            return bool((kept == 1).all()) and bool(rest)

        calls = [comm.broadcast, comm.all_gather, lambda d: comm.all_gather(d, "list"), comm.all_reduce]
        return [changes(call, nested=nested) for call in calls for nested in (False, True)] + [
            changes(lambda d: comm.scatter([d] * comm.world_size), nested=False),
            changes(lambda d: comm.sendrecv(d, (comm.rank + 1) % 2, (comm.rank + 1) % 2), nested=True),
            changes(lambda d: comm.sendrecv(d, comm.rank, comm.rank), nested=True),
            changes(lambda d: comm.all_to_all([d] * comm.world_size)[0], nested=False),
        ]

    assert [all(found) for found in worlds[2].run(check)] == [True, True]


def test_the_same_tensor_twice_arrives_as_one_and_parameters_as_parameters(worlds):
    def check(comm):
        w = torch.nn.Parameter(torch.ones(2))
        got = comm.broadcast({"a": w, "b": w} if comm.rank == 0 else None)
        return got["a"] is got["b"], isinstance(got["a"], torch.nn.Parameter), got["a"].requires_grad

    assert worlds[2].run(check) == [(True, True, True)] * 2


@pytest.mark.parametrize("size", SIZES)
def test_scatter_gives_each_rank_its_item(worlds, size):
    def check(comm):
        w = comm.world_size
        src = w - 1
        mine = comm.rank == src
        texts = comm.scatter([f"for {rank}" for rank in range(w)] if mine else None, src)
        uneven = comm.scatter([torch.full((rank * 1000,), 1.0) for rank in range(w)] if mine else None, src)
        slices = comm.scatter(torch.arange(w * 2000).view(w, -1) if mine else "ignored", src)
        return texts, tuple(uneven.shape), slices[0].item(), tuple(slices.shape)

    assert worlds[size].run(check) == [(f"for {rank}", (rank * 1000,), rank * 2000, (2000,)) for rank in range(size)]


@pytest.mark.parametrize("items", [[1, 2], [1, 2, 3, 4], 5, "abc", torch.zeros(4)])
def test_scatter_of_another_number_of_items_fails_on_every_rank(worlds, items):
    for result in worlds[3].run(lambda comm: comm.scatter(items if comm.rank == 0 else None), fails=True):
        assert result.kind is CollectiveError
        assert "3 items" in result.text


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.scatter([1, 2] if comm.rank == 0 else None),
        lambda comm: comm.all_to_all([1]),
        lambda comm: comm.reduce_scatter([1, 2]),
        lambda comm: comm.all_reduce(["no number"]),
        lambda comm: comm.scatter([threading.Lock()] * 3 if comm.rank == 0 else None),
        lambda comm: comm.broadcast(threading.Lock()),
    ],
    ids=["scatter", "all_to_all", "reduce_scatter", "all_reduce", "cannot travel", "from one"],
)
def test_a_refusal_is_shown_once(worlds, call):
    def shown(comm):
        """The texts that IPython shows, one below the other: it looks for no circle."""
        try:
            call(comm)
        except CollectiveError as error:
            texts, found = [], error
            while found is not None and len(texts) < 5:
                texts.append(str(found))
                found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
            return texts

    for texts in worlds[3].run(shown):
        assert len(texts) == len(set(texts)) <= 2, texts


@pytest.mark.parametrize("size", SIZES)
def test_gather_collects_on_dst_alone(worlds, size):
    def check(comm):
        dst = comm.world_size - 1
        data = torch.full((1000 * comm.rank,), float(comm.rank))
        found = (
            comm.gather(comm.rank * 10, dst),
            comm.gather({"x": torch.full((BIG,), float(comm.rank))}, dst, mode="stack"),
            comm.gather(data, dst, mode="cat"),
            comm.gather("x" * 1000 * comm.rank, dst),  # texts of which some fit into a head
            comm.gather({"x": data, "name": "x" * (1000 + comm.rank)}, dst),  # none does
        )
        if comm.rank != dst:
            return found
        texts, sizes = [len(text) for text in found[3]], [len(name) for name in found[4]["name"]]
        return found[0], tuple(found[1]["x"].shape), found[2].sum().item(), texts, sizes

    *others, last = worlds[size].run(check)
    ranks = range(size)
    assert others == [(None,) * 5] * (size - 1)
    assert last == (
        [10 * rank for rank in ranks],
        (size, BIG),
        1000 * sum(rank**2 for rank in ranks),
        [1000 * rank for rank in ranks],
        [1000 + rank for rank in ranks],
    )


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_exchanges_items_of_any_kind_and_shape(worlds, size):
    def check(comm):
        w = comm.world_size
        texts = comm.all_to_all([f"{comm.rank} to {other}" for other in range(w)])
        tensors = comm.all_to_all([torch.full((1000 * comm.rank * other,), 1.0 * comm.rank) for other in range(w)])
        slices = comm.all_to_all(torch.full((w, 2), comm.rank))
        return texts, [tuple(t.shape) for t in tensors], [t.tolist() for t in slices]

    assert worlds[size].run(check) == [
        (
            [f"{other} to {rank}" for other in range(size)],
            [(1000 * rank * other,) for other in range(size)],
            [[other, other] for other in range(size)],
        )
        for rank in range(size)
    ]


# ---- reductions

OPS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.double().mean(0),
    "min": lambda x: x.amin(0),
    "max": lambda x: x.amax(0),
    "product": lambda x: x.prod(0),
}
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint16", "bool"]


@pytest.mark.parametrize("size", SIZES)
def test_every_reduction_of_every_dtype_against_one_process(worlds, size):  # noqa: C901  # one table
    def value(rank, dtype):
        return torch.tensor([rank + 1, 2, rank % 2, 0]).to(dtype)

    def check(comm):
        found = {}
        for name in DTYPES:
            data = value(comm.rank, getattr(torch, name))
            for op in OPS:
                found[name, op] = comm.all_reduce(data, op)
            if not data.is_floating_point():
                for op in ("band", "bor", "bxor"):
                    found[name, op] = comm.all_reduce(data, op)
            assert torch.equal(data, value(comm.rank, data.dtype))
        return {key: (got.dtype, got.double()) for key, got in found.items()}  # torch itself cannot pickle uint16

    for found in worlds[size].run(check):
        for (name, op), (result, got) in found.items():
            dtype = getattr(torch, name)
            rows = torch.stack([value(rank, dtype) for rank in range(size)])
            wide = rows.long() if not dtype.is_floating_point else rows.double()
            if op in OPS:
                expected = OPS[op](wide)
            else:
                expected = wide[0]
                for row in wide[1:]:
                    expected = {"band": expected & row, "bor": expected | row, "bxor": expected ^ row}[op]
            kept = dtype
            if op == "mean" and not dtype.is_floating_point:
                kept = torch.float32
            elif dtype == torch.bool and op in ("sum", "product"):
                kept = torch.int64
            assert result == kept, (name, op)
            assert torch.allclose(got, expected.double(), rtol=1e-2), (name, op)


@pytest.mark.parametrize("size", SIZES)
def test_complex_tensors_are_summed_averaged_and_multiplied(worlds, size):
    def check(comm):
        z = torch.tensor([1 + 1j, 2j]) * (comm.rank + 1)
        return (
            comm.all_reduce(z),
            comm.all_reduce(z, "mean"),
            comm.all_reduce(z, "product"),
            comm.reduce_scatter(torch.cat([z[:1]] * comm.world_size)),
        )

    rows = torch.stack([torch.tensor([1 + 1j, 2j]) * (rank + 1) for rank in range(size)])
    for total, mean, product, share in worlds[size].run(check):
        assert torch.allclose(total, rows.sum(0))
        assert torch.allclose(mean, rows.mean(0))
        assert torch.allclose(product, rows.prod(0))
        assert torch.allclose(share, rows.sum(0)[:1])


def test_numbers_are_exact(worlds):
    def check(comm):
        return (
            comm.all_reduce(2**53 + 1),
            comm.all_reduce(2**64 + comm.rank, "max"),
            comm.all_reduce(12.3456, "avg"),
            comm.all_reduce(comm.rank, "mean"),
            comm.all_reduce(True),
            comm.all_reduce([1, 0.5][comm.rank % 2]),
            comm.reduce(3, dst=1),
        )

    results = worlds[4].run(check)
    for found in results:
        assert found[:6] == (4 * (2**53 + 1), 2**64 + 3, pytest.approx(12.3456, abs=1e-15), 1.5, 4, 3.0)
        assert type(found[0]) is int
    assert [found[6] for found in results] == [None, 12, None, None]


def test_a_mean_is_right_though_the_sum_has_no_room(worlds):
    def check(comm):
        whole = np.array([2**24 + 1, -7])  # more than float32 has digits
        return (
            comm.all_reduce(torch.tensor([2**62, -3])).tolist()[1],
            comm.all_reduce(torch.tensor([2**62, -3]), "mean").tolist(),
            comm.all_reduce([torch.tensor(49_984.0).half()], "mean")[0].item(),
            [
                (got.dtype.name, got.tolist())
                for got in (
                    comm.all_reduce(whole, "mean"),
                    comm.scan(whole, "mean"),
                    comm.reduce_scatter(np.concatenate([whole] * comm.world_size), "mean"),
                    comm.all_reduce(np.int32(3), "mean"),
                    comm.all_reduce(np.array(comm.rank == 0), "mean"),
                )
            ],
        )

    exact = ("float64", [2.0**24 + 1, -7.0])
    for found in worlds[3].run(check):
        assert found[:3] == (-9, [2.0**62, -3.0], 49_984.0)
        assert found[3] == [exact, exact, exact, ("float64", 3.0), ("float64", pytest.approx(1 / 3))]


def test_tensors_whose_values_are_not_their_memory_are_refused_with_what_to_pass(worlds):
    def check(comm):
        import warnings

        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        dtensor = distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (2,)), [Shard(0)])
        found = []
        for data in (torch.eye(2).to_sparse(), quantized, dtensor, torch.ones(2, device="meta")):
            for call in (
                comm.all_reduce,
                lambda data: comm.all_reduce({"x": data}),
                lambda data: comm.all_reduce(data, out=data),
                comm.reduce,
                comm.scan,
                comm.reduce_scatter,
            ):
                with pytest.raises(OpError) as caught:
                    call(data)
                found.append(str(caught.value))
        return found, comm.all_reduce(dtensor.full_tensor()).tolist()

    for texts, total in worlds[2].run(check):
        said = [".to_dense()", ".dequantize()", ".full_tensor()", "no values"]
        assert [place for text in texts for place, word in enumerate(said) if word in text] == sorted([0, 1, 2, 3] * 6)
        assert "data['x'].to_dense()" in texts[1]
        assert total == [0, 2, 4, 6]


class Metres(np.ndarray):
    """An array with a unit."""


def test_arrays_that_are_more_than_their_numbers_are_refused_with_what_to_pass(worlds):
    def check(comm):
        masked = np.ma.array([1, 2], mask=[False, comm.rank == 0])
        found = []
        for data in (masked, np.ones(2).view(Metres), np.matrix([1, 2])):
            for call in (
                comm.all_reduce,
                lambda data: comm.all_reduce({"x": data}),
                lambda data: comm.all_reduce(data, out=data),
                comm.reduce,
                comm.scan,
                comm.reduce_scatter,
            ):
                with pytest.raises(OpError) as caught:
                    call(data)
                found.append(str(caught.value))
        sums = comm.all_reduce(masked.filled(0)).tolist(), comm.all_reduce((~masked.mask).astype(int)).tolist()
        kept = [comm.all_gather(masked), comm.all_gather(masked, "cat"), comm.broadcast(masked)]
        return (
            found,
            sums,
            [each.mask.tolist() for each in kept],
            comm.pad_across_ranks(masked[: comm.rank + 1]).tolist(),
        )

    for rank, (texts, sums, masks, padded) in enumerate(worlds[2].run(check)):
        names, remedies = ("MaskedArray", "Metres", "matrix"), (".filled(VALUE)", "np.asarray(", "np.asarray(")
        for place, text in enumerate(texts):
            assert names[place // 6] in text
            assert remedies[place // 6] in text
        assert "data['x'].filled(VALUE), with" in texts[1]
        assert sums == ([2, 2], [2, 1])
        assert masks == [[[False, True], [False, False]], [False, True, False, False], [False, True]]
        assert padded == ([1, 2] if rank else [1, 0])


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_one_nan_makes_the_extreme_nan_as_of_numbers(worlds, op, dtype):
    def check(comm):
        nan, inf = math.nan, math.inf
        rows = [[nan, 1, inf, -inf, inf, 3, nan], [2, nan, nan, nan, inf, 4, nan], [1, 2, 3, 4, inf, 5, nan]]
        for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            mine = [float(number) for number in rows[order[comm.rank]]]
            x = torch.tensor(mine).to(dtype)
            numbers = torch.tensor(comm.all_reduce(mine, op)).to(dtype).float().nan_to_num(7.5).tolist()
            shares = torch.cat(comm.all_gather(comm.reduce_scatter(torch.cat([x, x[:2]]), op), "list"))
            got = [
                *(comm.all_reduce(x, op), comm.all_reduce({"x": x}, op)["x"], comm.all_reduce(x, op, out=x.clone())),
                *(comm.broadcast(comm.reduce(x, op, dst=1), 1), comm.broadcast(comm.scan(x, op), 2), shares[:7]),
            ]
            for each in got:
                assert each.dtype == dtype
                assert each.float().nan_to_num(7.5).tolist() == numbers
        assert all(math.isnan(number) for number in comm.all_reduce(np.array([nan, 1.0]) * comm.rank, op)[:1])
        return comm.all_reduce(torch.empty(0, dtype=dtype), op).shape == (0,)

    assert worlds[3].run(check) == [True] * 3


def test_nested_data_is_reduced_in_place_of_each_leaf(worlds):
    def check(comm):
        r = comm.rank
        leaves = {f"w{i}": torch.full((3, i % 5), float(r + i)) for i in range(200)}
        data = {
            "w": leaves,
            "n": r,
            "p": Pair(np.arange(3) * r, (0.5, torch.tensor(r))),
            "big": Batch(torch.ones(BIG) * r, 1),
        }
        if r == 1:
            data = dict(reversed(data.items()))
        got = comm.all_reduce(data)
        assert all(torch.equal(got["w"][f"w{i}"], torch.full((3, i % 5), 3.0 + 3 * i)) for i in range(200))
        assert list(got) == list(data)
        assert type(got["p"]) is Pair
        assert (got["n"], got["p"].b[0], got["p"].b[1].item(), got["p"].a.tolist()) == (3, 1.5, 3, [0, 3, 6])
        assert got["big"].x[-1] == 3.0
        assert got["big"].y == 3
        owner = {leaf.untyped_storage().data_ptr() for leaf in got["w"].values() if leaf.numel()}
        assert len(owner) == 160  # no two share memory
        return comm.reduce(data, "max", dst=2) is None

    assert worlds[3].run(check) == [True, True, False]


@pytest.mark.parametrize("odd", ["shape", "keys", "text"])
def test_nested_data_that_differs_is_an_error_on_every_rank_that_says_where(worlds, odd):
    def check(comm, odd):
        data = {"a": torch.zeros(2), "b": 1}
        if comm.rank == 1:
            data |= {"shape": {"a": torch.zeros(3)}, "keys": {"c": 1}, "text": {"b": "no"}}[odd]
        return comm.all_reduce(data)

    for rank, result in enumerate(worlds[3].run(check, odd, fails=True)):
        assert result.kind is (OpError if odd == "text" and rank == 1 else CollectiveError)
        place = {"shape": "data['a']", "keys": "data['c']", "text": "data['b'], a str"}[odd]
        assert place in result.text
        assert rank == 1 or "rank 1" in result.text


def test_out_is_written_and_returned(worlds):
    def check(comm):
        x = torch.full((3,), float(comm.rank + 1))
        out, y = torch.zeros(3), x.clone()
        same = comm.all_reduce(x, out=out) is out and comm.all_reduce(y, "mean", out=y) is y
        nested = {"a": torch.zeros(3)}
        same = same and comm.all_reduce({"a": x}, out=nested) is nested
        return same, out.tolist(), y.tolist(), nested["a"].tolist(), x.tolist()

    assert worlds[2].run(check) == [(True, [3.0] * 3, [1.5] * 3, [3.0] * 3, [rank + 1.0] * 3) for rank in range(2)]


@pytest.mark.parametrize("out", [torch.zeros(2), torch.zeros(3, dtype=torch.int64), 1, [torch.zeros(3)]])
def test_an_out_that_does_not_fit_is_refused_before_anything_is_written(worlds, out):
    (result,) = worlds[1].run(lambda comm: comm.all_reduce(torch.ones(3), out=out), fails=True)
    assert result.kind is CollectiveError
    assert "out=" in result.text


def test_an_array_must_hold_the_result_to_be_out(worlds):
    def check(comm):
        refused = []
        for data, op, kind in [(np.ones(2), "sum", int), (np.arange(2), "mean", int), (np.arange(2), "mean", "f4")]:
            with pytest.raises(CollectiveError, match="out= is a") as caught:
                comm.all_reduce(data, op, out=np.zeros(2, kind))
            refused.append(str(caught.value))
        return refused[1], comm.all_reduce(np.arange(2), "mean", out=np.zeros(2)).tolist()

    (found,) = worlds[1].run(check)
    assert "is float64, of the same shape" in found[0]
    assert found[1] == [0.0, 1.0]


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(worlds, size):
    def check(comm):
        w = comm.world_size
        data = torch.arange(2 * w) + comm.rank
        return (
            comm.reduce_scatter(data).tolist(),
            comm.reduce_scatter(data, "mean").tolist(),
            comm.reduce_scatter(data, "max").tolist(),
            comm.reduce_scatter(list(range(w))),
            comm.reduce_scatter([{"x": torch.full((i + 1,), 1.0)} for i in range(w)])["x"].tolist(),
            data.tolist() == list(range(comm.rank, comm.rank + 2 * w)),
        )

    extra = sum(range(size))
    assert worlds[size].run(check) == [
        (
            [2 * rank * size + extra, (2 * rank + 1) * size + extra],
            [2 * rank + extra / size, 2 * rank + 1 + extra / size],
            [2 * rank + size - 1, 2 * rank + size],
            rank * size,
            [float(size)] * (rank + 1),
            True,
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize("data", [torch.zeros(4), torch.tensor(1.0), [1, 2], 3])
def test_reduce_scatter_refuses_what_cannot_be_shared(worlds, data):
    for result in worlds[3].run(lambda comm: comm.reduce_scatter(data), fails=True):
        assert result.kind is CollectiveError
        assert "reduce_scatter" in result.text


# ---- gradients


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
def test_gradients_of_all_reduce_are_those_of_one_process(worlds, op):
    def leaf(rank):
        return torch.tensor([1.0 + rank, 3.0 - rank, 0.0], dtype=torch.float64, requires_grad=True)

    def check(comm, op):
        x, w = leaf(comm.rank), leaf(comm.rank)
        y = comm.all_reduce(x.exp(), op, sync_grads=True)
        (y * (comm.rank + 1)).sum().backward()
        z = comm.all_reduce({"w": w * 2, "n": 1}, op, sync_grads=True)
        z["w"].sum().backward()
        return y.detach(), x.grad, w.grad

    xs, ws = [leaf(rank) for rank in range(3)], [leaf(rank) for rank in range(3)]
    total = OPS[op](torch.stack([x.exp() for x in xs]))
    sum((total * (rank + 1)).sum() for rank in range(3)).backward()
    (OPS[op](torch.stack([w * 2 for w in ws])).sum() * 3).backward()
    for (y, x_grad, w_grad), x, w in zip(worlds[3].run(check, op), xs, ws, strict=True):
        assert torch.allclose(y, total)
        assert torch.allclose(x_grad, x.grad)
        assert torch.allclose(w_grad, w.grad)


@pytest.mark.parametrize("mode", ["stack", "cat", "list"])
def test_gradients_of_all_gather_are_those_of_one_process(worlds, mode):
    def leaf(rank):
        return torch.full((2 if mode == "stack" else rank + 1,), rank + 1.0, requires_grad=True)

    def loss(parts, rank):
        return ((rank + 1) * (torch.cat([part.reshape(-1) for part in parts]) ** 2)).sum()

    def check(comm, mode):
        x = leaf(comm.rank)
        got = comm.all_gather({"x": x, "fixed": torch.ones(1), "text": "t"}, mode, sync_grads=True)
        loss(got["x"] if mode == "list" else [got["x"]], comm.rank).backward()
        return x.grad, got["text"]

    xs = [leaf(rank) for rank in range(3)]
    sum(loss(xs, rank) for rank in range(3)).backward()
    for (grad, text), x in zip(worlds[3].run(check, mode), xs, strict=True):
        assert torch.allclose(grad, x.grad)
        assert text == ["t"] * 3


def test_a_live_loss_may_be_reduced(worlds):
    def check(comm):
        q = torch.tensor([2.0], requires_grad=True)
        loss = q.exp()
        total = comm.all_reduce(loss)
        loss.backward()
        spoiled = q.exp()
        comm.all_reduce(spoiled, out=spoiled)  # asked for, so autograd must at least notice
        try:
            spoiled.backward()
        except RuntimeError as error:
            return total.requires_grad, q.grad.item(), "modified by an inplace operation" in str(error)
        return None

    assert worlds[2].run(check) == [(False, pytest.approx(7.389056), True)] * 2


def test_ranks_that_disagree_about_gradients_are_told(worlds):
    def check(comm):
        return comm.all_gather(torch.ones(2, requires_grad=comm.rank == 0), sync_grads=True)

    for result in worlds[2].run(check, fails=True):
        assert result.kind is CollectiveError
        assert "rank 0 has 1 tensor that requires grad; rank 1 has 0" in in_one_line(result.text)


# ---- from one rank to one other


@pytest.mark.parametrize("size", [2, 3, 4])
def test_send_and_recv_carry_any_data_by_tag_and_from_anyone(worlds, size):
    def check(comm):
        w, r = comm.world_size, comm.rank
        if r == 0:
            from_any = sorted((comm.recv() for _ in range(w - 1)), key=lambda item: item["from"])
            assert all(bool((item["x"] == item["from"]).all()) for item in from_any)
            later = [comm.recv(1, tag=7), comm.recv(1, tag=8)]
            return [item["from"] for item in from_any], later
        comm.send({"from": r, "x": torch.full((BIG if r == 1 else 2,), float(r))}, 0)
        if r == 1:
            comm.send("seven", 0, tag=7)
            comm.send("eight", 0, tag=8)
        return None

    assert worlds[size].run(check)[0] == (list(range(1, size)), ["seven", "eight"])


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_does_not_lock_up(worlds, size):
    def check(comm):
        w, r = comm.world_size, comm.rank
        small = comm.sendrecv(r, (r + 1) % w, (r - 1) % w)
        big = comm.sendrecv(torch.full((BIG,), float(r)), (r + 1) % w, (r - 1) % w)
        return small, big[-1].item()

    assert worlds[size].run(check) == [((rank - 1) % size, float((rank - 1) % size)) for rank in range(size)]


def test_a_rank_is_a_whole_number(worlds):
    def check(comm):
        found = []
        for call in (
            lambda: comm.broadcast(1, 0.0),
            lambda: comm.scatter([1, 2], 0.0),
            lambda: comm.gather(1, 0.0),
            lambda: comm.reduce(1, dst=0.0),
            lambda: comm.send(1, float(1 - comm.rank)),
            lambda: comm.irecv(float(1 - comm.rank)),
            lambda: comm.new_group([0.0, 1.0]),
        ):
            with pytest.raises(CollectiveError) as caught:
                call()
            found.append(str(caught.value))
        return found, comm.broadcast(comm.rank, np.int64(1))

    for texts, value in worlds[2].run(check):
        assert all("a whole number" in text for text in texts[:-1])
        assert "new_group needs different ranks" in texts[-1]
        assert value == 1


def test_a_rank_cannot_send_to_itself_or_to_nobody(worlds):
    for peer in (lambda comm: comm.rank, lambda comm: 9):
        for result in worlds[2].run(lambda comm, peer=peer: comm.send(1, peer(comm)), fails=True):
            assert result.kind is CollectiveError


# ---- groups


def test_groups_take_part_alone_and_src_is_global(worlds):
    def check(comm):
        group = comm.new_group([3, 1])
        if comm.rank not in (1, 3):
            return None
        return (
            comm.all_gather(comm.rank, group=group),
            comm.broadcast(f"from {comm.rank}", src=3, group=group),
            comm.reduce(1, dst=3, group=group),
            comm.scatter(["a", "b"] if comm.rank == 3 else None, src=3, group=group),
            comm.all_reduce(torch.ones(2), group=group).tolist(),
            comm.group_rank(group),
            comm.group_rank(group, 3),
        )

    assert worlds[4].run(check) == [
        None,
        ([1, 3], "from 3", None, "a", [2.0, 2.0], 0, 1),
        None,
        ([1, 3], "from 3", 2, "b", [2.0, 2.0], 1, 1),
    ]


def test_who_is_not_a_member_is_told_who_is(worlds):
    def check(comm):
        group = comm.new_group([0, 2])
        texts = []
        if comm.rank == 1:
            dist.all_reduce(torch.ones(1), group=group)  # for torch it is what its own new_group returns
            for call in (lambda: comm.all_reduce(1, group=group), lambda: comm.group_rank(group)):
                with pytest.raises(CollectiveError) as caught:
                    call()
                texts.append(str(caught.value))
        else:
            for call in (lambda: comm.group_rank(group, 1), lambda: comm.broadcast(1, src=1, group=group)):
                with pytest.raises(CollectiveError) as caught:
                    call()
                texts.append(str(caught.value))
        return texts

    results = worlds[3].run(check)
    assert all("members are ranks 0,2" in text for text in results[1])
    assert "Rank 1 is not a member of this group: its members are ranks 0,2" in results[0][0]
    assert "choose one of 0,2" in results[0][1]


def test_a_device_mesh_of_one_dimension_is_a_group(worlds):
    def check(comm):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(CollectiveError, match="mesh\\['dp'\\], mesh\\['tp'\\]"):
            comm.all_reduce(1, group=mesh)
        return comm.all_gather(comm.rank, group=mesh["tp"]), comm.group_rank(mesh["dp"])

    assert worlds[4].run(check) == [([0, 1], 0), ([0, 1], 0), ([2, 3], 1), ([2, 3], 1)]


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 7], ["0"]])
def test_new_group_refuses_ranks_that_make_no_group(worlds, ranks):
    for result in worlds[2].run(lambda comm: comm.new_group(ranks), fails=True):
        assert result.kind is CollectiveError


@pytest.mark.parametrize("group", ["world", 0, [0, 1]])
def test_what_is_no_group_is_refused(worlds, group):
    for result in worlds[2].run(lambda comm: comm.all_reduce(1, group=group), fails=True):
        assert result.kind is CollectiveError
        assert "group=" in result.text


# ---- around the collectives


def test_a_value_that_cannot_be_pickled_is_an_error_on_every_rank(worlds):
    def check(comm, call):
        mine = (i for i in range(3)) if comm.rank == 1 else 1
        return {
            "broadcast": lambda: comm.broadcast(mine, src=1),
            "scatter": lambda: comm.scatter([1, mine, 1] if comm.rank == 1 else None, src=1),
            "gather": lambda: comm.gather(mine),
            "all_gather": lambda: comm.all_gather(mine),
            "all_to_all": lambda: comm.all_to_all([mine] * 3),
        }[call]()

    for call in ("broadcast", "scatter", "gather", "all_gather", "all_to_all"):
        for result in worlds[3].run(check, call, fails=True):
            assert result.kind is CollectiveError, (call, result)
            assert "cannot pickle 'generator' object" in result.text
    assert worlds[3].run(lambda comm: comm.all_reduce(1)) == [3] * 3


def test_an_unknown_op_is_an_error_that_names_the_valid_ones(worlds):
    for call in ("all_reduce", "reduce", "reduce_scatter"):
        for result in worlds[2].run(lambda comm, call=call: getattr(comm, call)(torch.ones(2), "summ"), fails=True):
            assert result.kind is OpError
            assert "mean (or avg)" in result.text


def test_rank_print_prints_on_the_ranks_that_are_named(worlds):
    def check(comm):
        import contextlib
        import io

        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            comm.rank_print("zero", end=";")
            comm.rank_print("two", ranks=2, end=";")
            comm.rank_print("some", ranks=[0, 1], end=";")
            comm.rank_print("spec", ranks="1-2", end=";")
            comm.rank_print("every", ranks="all", end=";")
        return out.getvalue()

    assert worlds[3].run(check) == ["zero;some;every;", "some;spec;every;", "two;spec;every;"]


@pytest.mark.parametrize("local", [False, True])
def test_rank_zero_first(worlds, local):
    def check(comm, local):
        with comm.rank_zero_first(local):
            began = time.monotonic()
            time.sleep(0.05)
            ended = time.monotonic()
        return began, ended, time.monotonic()

    results = worlds[3].run(check, local)
    assert all(began >= results[0][1] for began, *_ in results[1:])
    assert min(left for *_, left in results) >= max(ended for _, ended, _ in results)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_in_a_block_of_rank_zero_first_leaves_nobody_waiting(worlds, failing):
    def check(comm):
        ran = []
        try:
            with comm.rank_zero_first():
                ran.append(comm.rank)
                if comm.rank == failing:
                    raise ValueError("no disk")  # noqa: TRY301  # the block itself fails
        except (ValueError, CollectiveError) as error:
            return ran, type(error).__name__, str(error)
        return None

    results = worlds[3].run(check)
    for rank, (ran, kind, text) in enumerate(results):
        assert kind == ("ValueError" if rank == failing else "CollectiveError")
        assert rank == failing or f"rank {failing} failed in its block of rank_zero_first: ValueError: no disk" in text
        assert bool(ran) == (failing != 0 or rank == 0)
    assert worlds[3].run(lambda comm: comm.all_reduce(1)) == [3] * 3


def test_no_backward_sync_accumulates_on_ddp_and_fsdp2(worlds):
    def check(comm):
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        def grads(model, weight):
            seen = []
            for enabled in (True, False):
                with comm.no_backward_sync(model, enabled=enabled):
                    model(torch.full((1, 2), float(comm.rank))).sum().backward()
                seen.append(weight())
            return seen

        layer = torch.nn.Linear(2, 1, bias=False)
        ddp = DistributedDataParallel(layer)
        found = grads(ddp, lambda: layer.weight.grad.tolist()[0])
        sharded = torch.nn.Linear(2, 2, bias=False)
        mesh = dist.init_device_mesh("cpu", (2,))
        fully_shard(sharded, mesh=mesh)
        unsynced = grads(
            sharded, lambda: None if sharded.weight.grad is None else sharded.weight.grad.full_tensor().tolist()
        )
        with pytest.raises(CollectiveError, match="Linear is not wrapped"):
            comm.no_backward_sync(torch.nn.Linear(1, 1))
        return found, unsynced

    results = worlds[2].run(check)
    for rank, (found, unsynced) in enumerate(results):
        assert found == [[float(rank)] * 2, [0.5 + 0.5] * 2]
        assert unsynced == [None, [[1.0, 1.0], [1.0, 1.0]]]


def test_to_device_moves_modules_tensors_and_nested_data():
    comm = Communicator(rank=0, world_size=1, device=torch.device("meta"))
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])  # a namedtuple of tensors with a .to
    moved = comm.to_device({"x": [packed, torch.Tensor]})["x"]
    assert type(moved[0]) is type(packed)
    assert moved[0].data.is_meta
    assert moved[1] is torch.Tensor
    module = torch.nn.Linear(1, 1)
    got = comm.to_device({"m": module, "t": (torch.zeros(2), 1), "s": "text", "a": np.zeros(1)})
    assert got["m"] is module
    assert module.weight.device.type == got["t"][0].device.type == "meta"
    assert (got["t"][1], got["s"]) == (1, "text")


# ---- ranks that do different things


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda comm: comm.all_gather(5), lambda comm: comm.any_rank(True)),
        (lambda comm: comm.gather({"x": 1}), lambda comm: comm.all_gather({"x": 1})),
        (lambda comm: comm.all_reduce([1, 2]), lambda comm: comm.scan([1, 2])),
        (lambda comm: comm.all_to_all([1, 2]), lambda comm: comm.all_gather([1, 2])),
        (lambda comm: comm.reduce([1]), lambda comm: comm.all_reduce([1])),
    ],
)
def test_different_collectives_are_told_apart_though_they_begin_alike(worlds, one, other):
    def check(comm):
        return (one if comm.rank == 0 else other)(comm)

    results = worlds[2].run(check, fails=True)
    assert {result.kind for result in results} == {MismatchError}
    assert len({result.text for result in results}) == 1
    assert "rank 0 called" in results[0].text
    assert worlds[2].run(lambda comm: comm.all_reduce(1)) == [2, 2]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda comm: comm.all_reduce(comm.rank, "max" if comm.rank else "sum"), "all_reduce with sum; rank 1"),
        (lambda comm: comm.all_reduce([torch.ones(1)], "max" if comm.rank else "sum"), "all_reduce with sum; rank 1"),
        (lambda comm: comm.reduce(1, dst=comm.rank), "reduce with sum, dst=0; rank 1 called reduce with sum, dst=1"),
        (lambda comm: comm.scan(1, exclusive=comm.rank == 1), "scan with sum; rank 1 called scan with sum, exclusive"),
    ],
)
def test_different_ops_and_arguments_are_told(worlds, call, said):
    for result in worlds[2].run(call, fails=True):
        assert result.kind is MismatchError
        assert said in in_one_line(result.text)
