"""What is measured, and said of it: with ranks whose times are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nbcomm.analysis.bandwidth import rate
from nbcomm.charts.grid import Grid
from nbcomm.durations import short
from nbcomm.errors import SpecError
from nbcomm.measures.memory import KINDS
from nbcomm.measures.times import OPS as MEASURED
from nbcomm.notebook.measures import bench, drawing
from nbcomm.notebook.measures.bench import OPS, Bench, pairs
from nbcomm.protocol import CallRecord

ALPHA, BETA = 1e-4, 1e-9


class World:
    """Ranks on which each function takes the time that it should.

    Attributes:
        asked: which functions were called, with what.
        interrupted: at which size Ctrl-C is pressed.
    """

    def __init__(self, count: int = 4, answers: dict[str, list[Any]] | None = None, interrupted: int = 0) -> None:
        self.ranks = [*range(count)]
        self.asked: list[tuple[Any, ...]] = []
        self.answers = answers or {}
        self.interrupted = interrupted

    def trial(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        ranks: list[int] | None = None,
        limit: float = 0.0,
        *,
        quiet: bool,
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        name = function.__name__.removeprefix("nbcomm.measures.")
        self.asked.append((name, *args))
        chosen = self.ranks if ranks is None else ranks
        return [(self._answer(name, rank, *args), None) for rank in chosen], []

    def _answer(self, name: str, rank: int, *args: Any) -> Any:
        if name in self.answers:
            return self.answers[name][rank]
        if name == "times.of_copy":
            return args[0] * BETA / 10
        size, repeats = args[1:]
        if size == self.interrupted:
            raise KeyboardInterrupt
        if name == "times.of_message":
            return (ALPHA + BETA * size) * (1 + args[0][1])
        # The last rank takes longest; the others, and one of the repeats, do not count.
        return [(ALPHA + BETA * size) * (1 if rank == self.ranks[-1] else 0.5), *[1.0] * (repeats < 0)] * repeats


def test_what_can_be_measured_is_what_ranks_measure() -> None:
    assert {*OPS} == {*MEASURED}


def test_the_costs_are_found_and_said() -> None:
    made = bench.bench(World(), "all_reduce", 4 << 20)
    assert [size for size, _ in made.times] == [1 << power for power in range(10, 23, 2)]
    assert made.cost.alpha == pytest.approx(ALPHA)
    assert made.cost.beta == pytest.approx(BETA)
    size, seconds = made.times[-1]
    assert made.bandwidths()[-1] == pytest.approx((size / seconds / 1e9, 1.5 * size / seconds / 1e9))
    words = repr(made)
    assert words.startswith("all_reduce on 4 ranks:\n")
    assert "A call takes α = 100 µs, and moves 1.0 GB/s (1/β) of what each rank brings." in words
    assert "Up to 97.7 KiB (α/β) most of the time is α" in words
    assert "A copy of 4 MiB in memory takes 419 µs: this call takes 10 times as long." in words
    assert "interrupted" not in words
    (_, last) = made.bandwidths()[-1]
    assert f">{last:.1f} GB/s</text>" in made.svg
    assert made.svg.count("B/s</text>") == len(made.times)


def test_each_rank_gets_a_part_of_the_same_size() -> None:
    made = bench.bench(World(3), "reduce_scatter", 5000)
    assert [size for size, _ in made.times] == [1032, 4104]


def test_a_slow_size_is_measured_seldom_and_a_fast_one_often() -> None:
    world = World()
    bench.bench(world, "all_reduce", 64 << 20)
    repeats = [asked[3] for asked in world.asked if asked[0] == "times.of_op"]
    assert repeats[0] == 3
    assert max(repeats) == 50
    assert 3 <= repeats[-1] <= 12


def test_an_interrupt_leaves_what_there_is() -> None:
    made = bench.bench(World(interrupted=64 << 10), "all_reduce")
    assert [size for size, _ in made.times] == [1 << 10, 4 << 10, 16 << 10]
    assert not made.complete
    assert "It was interrupted: larger sizes are not measured." in repr(made)
    with pytest.raises(KeyboardInterrupt):
        bench.bench(World(interrupted=4 << 10), "all_reduce")


@pytest.mark.parametrize(
    ("count", "op", "most", "said"),
    [
        (4, "allreduce", 1 << 20, "allreduce cannot be measured. Choose broadcast, "),
        (1, "all_reduce", 1 << 20, "one rank moves nothing"),
        (4, "all_reduce", 100, "Measure up to 4 KiB at least"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_nothing_is_run(count: int, op: str, most: int, said: str) -> None:
    world = World(count)
    with pytest.raises(SpecError, match=said):
        bench.bench(world, op, most)
    assert world.asked == []


def test_where_bytes_cost_nothing_no_speed_is_made_up() -> None:
    made = Bench("barrier", 2, [(1024, 1e-4), (4096, 1e-4), (16384, 0.9e-4)], 0.0, complete=True)
    assert "any speed" in repr(made)
    assert "α/β" not in repr(made)


def test_each_two_ranks_have_a_time_and_a_speed() -> None:
    world = World(3)
    time, speed = pairs(world)
    assert isinstance(time, Grid)
    assert repr(time).splitlines() == [
        "Time of a message of 1 KiB:",
        "with rank 0 1 2",
        "rank 0: – 202 µs 303 µs",
        "rank 1: 202 µs – 303 µs",
        "rank 2: 303 µs 303 µs –",
    ]
    assert "rank 0: – 456 MB/s 304 MB/s" in repr(speed)
    assert sorted({asked[1] for asked in world.asked}) == [(0, 1), (0, 2), (1, 2)]
    with pytest.raises(SpecError, match="no pairs"):
        pairs(World(1))


@pytest.mark.parametrize("slow", [(0, 3), (1, 2)])
@pytest.mark.parametrize("written", [short, rate])
def test_a_slow_pair_is_marked(slow: tuple[int, int], written: Callable[[float], str]) -> None:
    each = (1e-4, 5e-4) if written is short else (1e9, 2e5)
    found = {pair: each[pair == slow] for pair in itertools.combinations(range(4), 2)}
    made = bench._table(range(4), "Pairs", found, written)
    marked = {(int(one), other) for one, own in made.boxes.items() for other, box in enumerate(own) if "▲" in box.text}
    assert marked == {slow, slow[::-1]}
    told = {short: "500 µs", rate: "200 kB/s"}[written]
    assert made.boxes[f"{slow[0]}"][slow[1]].text == f"▲ {told}"
    assert made.notes[0].startswith("▲ takes 2 times as long as the quickest quarter of the pairs, or longer: ranks ")


def test_a_rank_that_is_slow_with_each_other_one_is_marked_and_where_all_are_alike_nothing_is() -> None:
    found = {pair: 1e-4 * (3 if 2 in pair else 1) for pair in itertools.combinations(range(3), 2)}
    assert [box.text for box in bench._table(range(3), "Pairs", found, short).boxes["2"]] == ["▲ 300 µs"] * 2 + [""]
    alike = bench._table(range(3), "Pairs", dict.fromkeys(found, 1e-4), short)
    assert "▲" not in repr(alike)
    assert alike.notes == []


def test_a_slow_collective_has_a_speed_and_is_compared_in_times() -> None:
    made = Bench("all_reduce", 2, [(1024, 0.05), (4096, 0.06), (16384, 0.08)], 1e-6, complete=True)
    assert "MB/s" not in repr(made)
    assert "20 kB/s" in repr(made)
    assert "this call takes 80,000 times as long." in repr(made)


def test_memory_has_a_bar_for_each_rank() -> None:
    told = {"weights": 1024, "gradients": 0, "other tensors": 512}
    world = World(2, {"memory.by_kind": [told, {**told, "other tensors": 0}]})
    made = drawing.draw(world, "memory", ["model", "x"])
    assert repr(made).splitlines() == [
        "Memory of model, x:",
        "rank 0: weights 1 KiB, other tensors 512 B; 1.5 KiB in all",
        "rank 1: weights 1 KiB; 1 KiB in all",
        "No gradients: no backward() of a module among them has run since zero_grad().",
        "No optimizer: no optimizer among them has made a step, or it keeps nothing, as SGD without momentum.",
        "No activations: no result is among them whose backward() has not run yet.",
    ]
    assert world.asked == [("memory.by_kind", ["model", "x"])]
    nothing = World(1, {"memory.by_kind": [{"weights": 0, "buffers": 0}]})
    words = repr(drawing.draw(nothing, "memory"))
    assert "rank 0: nothing; 0 B in all" in words
    assert "No weights: no module with parameters is among them." in words


def test_kinds_of_memory_that_need_a_reason_are_among_those_that_are_measured() -> None:
    assert {*drawing._WHY} <= {*KINDS}


def test_samples_show_who_gets_them_twice_and_which_nobody_gets() -> None:
    told = [[[0, 1, 1], [0, 1]], [[2, 0, 4], [2, 0]]]
    made = drawing.draw(World(2, {"samples.epochs": told}), "samples", ["loader"], epochs=2)
    assert repr(made).splitlines() == [
        "Who gets which sample of loader:",
        "sample 0 1 2 3 4",
        "epoch 0: 0-1 0² 1 – 1",
        "epoch 1: 0-1 0 1 – –",
        "In each box are the ranks that get the sample; ² more than once.",
        "Epoch 0: twice or more: 0-1; nobody gets: 3.",
        "Epoch 1: twice or more: 0; nobody gets: 3-4.",
    ]


def test_epochs_that_are_all_the_same_are_told_and_of_many_samples_the_first_are_drawn() -> None:
    told = [[[*range(0, 100, 2)]] * 3, [[*range(1, 100, 2)]] * 3]
    made = drawing.draw(World(2, {"samples.epochs": told}), "samples", ["loader"])
    assert made.notes[1:] == [
        "Every epoch is the same: is set_epoch missing?",
        "Of 100 samples the first 40 are drawn.",
    ]


def test_samples_that_were_not_all_read_are_not_counted_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_READ", 2)
    made = drawing.draw(World(1, {"samples.epochs": [[[0, 1]]]}), "samples", ["loader"], epochs=1)
    assert made.notes[-1] == "Of each rank's samples only the first 2 were read."


def part(start: tuple[int, int], size: tuple[int, int], shape: tuple[int, ...] = (4, 8), more: int = 0) -> list[Any]:
    whole = (shape[0], shape[1] if len(shape) > 1 else 1)
    return [{"name": "w", "shape": [*shape], "whole": whole, "start": start, "size": size, "how": "", "more": more}]


def test_ranks_with_the_same_part_share_it_and_one_without_a_part_has_none() -> None:
    told = [part((0, 0), (2, 8), more=3), part((2, 0), (2, 8)), part((0, 0), (2, 8)), part((4, 0), (0, 8))]
    made = drawing.draw(World(4, {"shards.parts": told}), "shards", ["w"])
    assert repr(made).splitlines()[1:] == [
        "w, 4 × 8",
        "  ranks 0,2: rows 0-1, columns 0-7",
        "  rank 1: rows 2-3, columns 0-7",
        "… and 3 more tensors.",
    ]


def test_a_rank_with_another_shape_is_named() -> None:
    told = [part((0, 0), (4, 8)), part((0, 0), (5, 8), (5, 8))]
    made = drawing.draw(World(2, {"shards.parts": told}), "shards", ["w"])
    assert made.notes == ["It has another shape on rank 1, and is not drawn there."]


@pytest.mark.parametrize(
    ("what", "names", "epochs", "said"),
    [
        ("step", [], 3, "step cannot be drawn. Choose memory, samples, shards; .* %%distributed --chart step"),
        ("shards", [], 3, "Name one value whose shards are drawn"),
        ("samples", ["a", "b"], 3, "Name one value whose samples are drawn"),
        ("samples", ["a"], 0, "Draw 1 to 20 epochs."),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_run(
    what: str, names: list[str], epochs: int, said: str
) -> None:
    world = World()
    with pytest.raises(SpecError, match=said):
        drawing.draw(world, what, names, epochs)
    assert world.asked == []
