"""Equal values have equal hashes, however they were made, and no two others do."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import re
import struct
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.rank.variables.digest import digest, shared
from nbcomm.rank.variables.structure import BLOCK, IncomparableError, blocks, bytes_of


def nan(payload: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0000 | payload))[0]  # type: ignore[no-any-return]


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    weight: Any = None


class Plain:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def typed(code: str) -> Any:
    """What a cell binds to ``f``."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(code, scope)  # noqa: S102 - as a notebook runs a cell
    return scope["f"]


def knot(last: int) -> list[Any]:
    made: list[Any] = [1, last]
    made.insert(1, made)
    return made


def linear(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(2, 3)


def stepped() -> Any:
    model = linear(0)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "columns first": (lambda: np.arange(6).reshape(2, 3), lambda: np.asfortranarray(np.arange(6).reshape(2, 3))),
    "every other": (lambda: torch.arange(5), lambda: torch.arange(10)[::2] // 2),
    "a view": (lambda: torch.arange(12.0)[::3], lambda: torch.tensor([0.0, 3, 6, 9])),
    "turned": (lambda: torch.arange(6).reshape(2, 3).t(), lambda: torch.tensor([[0, 3], [1, 4], [2, 5]])),
    "expanded": (lambda: torch.ones(1).expand(4), lambda: torch.ones(4)),
    "conjugated": (lambda: torch.tensor([1 + 2j]).conj(), lambda: torch.tensor([1 - 2j])),
    "negated": (lambda: torch.tensor([1 + 2j]).conj().imag, lambda: torch.tensor([-2.0])),
    "a parameter": (lambda: torch.nn.Parameter(torch.ones(2)), lambda: torch.ones(2)),
    "with gradient": (lambda: torch.ones(2, requires_grad=True), lambda: torch.ones(2)),
    "filled in another order": (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
    "ordered": (lambda: OrderedDict(a=1, b=2), lambda: OrderedDict(b=2, a=1)),
    "a set": (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}),
    "one object twice": (lambda: [x := "a" * 99, x], lambda: ["a" * 99, "".join(["a"] * 99)]),
    "uncoalesced": (
        lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,)),
        lambda: torch.sparse_coo_tensor([[0]], [3.0], (2,)),
    ),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), lambda: torch.eye(3).to_sparse_csr()),
    "a function on another line": (lambda: typed("def f(x): return x"), lambda: typed("\n\ndef f(x):\n  return x")),
    "a class": (
        lambda: typed("class f:\n  a = 1\n  def g(self): return f"),
        lambda: typed("\nclass f:\n  a=1\n  def g(self): return f"),
    ),
    "a knot": (lambda: knot(2), lambda: knot(2)),
    "a model": (lambda: linear(0), lambda: linear(0)),
    "an optimizer": (stepped, stepped),
    "NaN": (lambda: nan(1), lambda: nan(1)),
    "a generator of random numbers": (lambda: np.random.default_rng(1), lambda: np.random.default_rng(1)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", SAME)
def test_values_that_are_equal(kind: str) -> None:
    one, other = SAME[kind]
    assert digest(one()) == digest(other())


APART: list[list[Any]] = [
    [0, 0.0, -0.0, False, None, "0", b"0", bytearray(b"0"), 0j, "", b"", (), [], {}, set(), frozenset()],
    [nan(0), nan(1), float("inf")],
    [2**64, 2**64 + 1, -(2**64), 10**5000],
    [torch.zeros(2), torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1), torch.zeros(())],
    [torch.zeros(0, 2), torch.zeros(0, 3), np.zeros((0, 3))],
    [torch.tensor(1.0), torch.tensor([1.0]), np.array(1.0), np.float32(1), 1.0],
    [torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.bool)],
    [torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([torch.nan])],
    [[1, [2]], [[1], 2], [1, 2], (1, 2), {1, 2}, deque([1, 2])],
    [["ab"], ["a", "b"], "ab", [b"ab"]],
    [{"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, Counter("a")],
    [Config(), Config(0.2), Config(weight=torch.ones(2)), Config(weight=torch.zeros(2)), Plain(rate=0.1, weight=None)],
    [Slots(1), Slots(2), Colour.RED, Colour.BLUE],
    [linear(0), linear(1), torch.nn.Linear(3, 2)],
    [torch.eye(2).to_sparse(), torch.eye(2), torch.zeros(2, 2).to_sparse()],
    [typed(f"def f({names}): return {value}") for names, value in (("x", "x"), ("x", "x+1"), ("x=1", "x"), ("y", "y"))],
    [typed("class f: a = 1"), typed("class f: a = 2"), typed("class f:\n  def g(self): return 2")],
    [knot(2), knot(3)],
    [np.array([1, None], dtype=object), np.array([1, 2], dtype=object), np.zeros(2, "S0"), np.zeros(2, "M8[s]")],
    [len, sys, torch.float32, torch.float64, re.compile("a"), re.compile("b"), slice(1), range(3)],
    ["x" * 100, "x" * 101, b"x" * 100, bytearray(b"x" * 100), "\ud800" * 100],
]  # fmt: skip


@pytest.mark.parametrize("values", APART)
def test_values_that_are_not(values: list[Any]) -> None:
    hashes = [digest(value) for value in values]
    assert len(set(hashes)) == len(values)
    assert hashes == [digest(value) for value in values], "the same once more"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        ((i for i in ()), "generator"),
        ({"deep": [Plain(lock=threading.Lock())]}, "lock"),
        (torch.empty(3, device="meta"), "meta"),
        (functools.reduce(lambda inner, _: [inner], range(100_000), []), "nested too deep"),
    ],
)
def test_what_cannot_be_compared_says_why(value: Any, why: str) -> None:
    with pytest.raises(IncomparableError, match=why):
        digest(value)


def test_a_class_that_raises_whatever_it_likes_cannot_be_compared() -> None:
    class Rude:
        def __reduce_ex__(self, _: Any) -> Any:
            raise ZeroDivisionError("no")

    with pytest.raises(IncomparableError, match="ZeroDivisionError: no"):
        digest(Rude())


def test_shared_parts_are_looked_at_once() -> None:
    made: list[Any] = [1]
    for _ in range(200):
        made = [made, made]  # 2 ** 200 leaves
    assert digest(made) == digest(made)


@pytest.mark.ranks
def test_another_process_with_another_hash_seed_finds_the_same() -> None:
    kinds = ("a set", "filled in another order", "a class", "a function on another line", "a model")
    code = f"from tests.rank.variables.test_digest import *\nprint([digest(SAME[kind][0]()).hex() for kind in {kinds}])"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, capture_output=True)
    assert run.stdout.decode().strip() == str([digest(SAME[kind][0]()).hex() for kind in kinds])


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple), st.integers(1, 4), st.integers(1, 40), st.booleans())
def test_blocks_are_the_whole_in_order_and_small(shape: tuple[int, ...], width: int, most: int, turned: bool) -> None:
    dtype = {1: np.uint8, 2: np.uint16, 3: np.dtype("S3"), 4: np.int32}[width]
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape[::-1] if turned else shape).astype(dtype)
    array = array.T if turned else array
    parts = [array[place] for place in blocks(array.shape, width, most)]
    assert b"".join(bytes_of(part).tobytes() for part in parts) == array.tobytes()
    assert all(part.nbytes <= max(most, width) for part in parts)


def test_the_bytes_of_a_large_tensor_are_not_copied() -> None:
    tensor = torch.zeros(BLOCK // 2, dtype=torch.float32)
    for place in blocks(tuple(tensor.shape), 4):
        block = tensor[place]
        assert bytes_of(block).ctypes.data == block.data_ptr()


class Placement:
    def __init__(self, dim: int | None) -> None:
        self._dim = dim

    def __str__(self) -> str:
        return "R" if self._dim is None else f"S({self._dim})"

    def is_replicate(self) -> bool:
        return self._dim is None


class Mesh:
    def __init__(self, shape: tuple[int, ...], at: tuple[int, ...]) -> None:
        self.shape, self._at = shape, at

    def get_coordinate(self) -> list[int]:
        return list(self._at)


class Sharded(torch.Tensor):
    """As a DTensor shows itself."""

    device_mesh: Mesh
    placements: tuple[Placement, ...]
    own: torch.Tensor

    def to_local(self) -> torch.Tensor:
        return self.own


Sharded.__tensor_flatten__ = Sharded.to_local  # type: ignore[attr-defined]  # it wraps its own part
Sharded.device_mesh = Sharded.placements = None  # type: ignore[assignment]  # DTensor's class has them


def sharded(own: list[float], at: tuple[int, ...], dims: tuple[int | None, ...] = (None, 0)) -> torch.Tensor:
    made = torch.zeros(4).as_subclass(Sharded)
    made.device_mesh, made.placements, made.own = Mesh((2, 2), at), tuple(map(Placement, dims)), torch.tensor(own)
    return made


@pytest.mark.parametrize("holds", [lambda it: it, lambda it: {"w": it, "n": 1}, lambda it: [torch.ones(1), it]])
def test_a_part_of_a_sharded_value_is_compared_with_its_replicas_only(holds: Callable[[Any], Any]) -> None:
    one, other, replica = (shared(holds(sharded([a, 2.0], at))) for a, at in ((1, (0, 0)), (3, (0, 1)), (1, (1, 0))))
    assert one["digest"] == other["digest"] == replica["digest"]
    assert one["part"] == replica["part"] != other["part"]
    assert one["own"] == replica["own"] != other["own"]
    strayed = shared(holds(sharded([1.5, 2.0], (1, 0))))
    assert (strayed["digest"], strayed["part"]) == (one["digest"], one["part"])
    assert strayed["own"] != one["own"]


def test_another_layout_is_another_value_and_without_a_shard_all_counts() -> None:
    rows, columns = shared(sharded([1.0], (0, 0))), shared(sharded([1.0], (0, 0), (None, 1)))
    assert rows["digest"] != columns["digest"]
    assert list(shared(sharded([1.0], (0, 0), (None, None)))) == ["digest"]
    assert shared(sharded([1.0], (0, 0), (None, None))) == shared(sharded([1.0], (1, 1), (None, None)))
    assert shared(sharded([1.0], (0, 0), (None, None))) != shared(sharded([2.0], (1, 1), (None, None)))
    assert shared([1, "a"]) == {"digest": digest([1, "a"])}
