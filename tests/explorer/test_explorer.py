"""The explorer's side in the kernel: every choice gets an answer, and a message that is none changes nothing."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import pytest

from nbcomm.errors import CollectiveError
from nbcomm.explorer import explorer as module
from nbcomm.explorer.algorithms import ALGORITHMS
from nbcomm.explorer.explorer import Choices, Explorer, explore, remember
from nbcomm.number_ops import PAIRS
from nbcomm.pictures.plan import REDUCING, plan


class FakeWidget:
    """What the explorer needs of a widget."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(json.loads(json.dumps(message)))


def choose(explorer: Explorer, asked: Any = "q", **choices: Any) -> dict[str, Any]:
    widget = FakeWidget()
    module._heard(explorer, widget, {"kind": "choose", "asked": asked, "choices": choices}, [])
    [answer] = widget.sent
    return answer


def state(answer: dict[str, Any], step: int | None = None) -> list[list[str]]:
    """What explorer.js makes of an answer: the texts that every rank has after a step."""
    rows = [[cell and cell["text"] for cell in row] for row in answer["run"]["start"]]
    for stage in answer["run"]["stages"][:step]:
        for place, slot, cell in stage["changes"]:
            rows[place][slot] = cell and cell["text"]
    return rows


@pytest.fixture
def explorer() -> Explorer:
    return Explorer(Choices())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_choice_gives_a_plan(explorer: Explorer, name: str) -> None:
    for n, algorithm, op in product((2, 5, 16), ALGORITHMS[name], PAIRS if name in REDUCING else ("sum",)):
        for hub, exclusive, mode in ((0, False, "stack"), (n - 1, True, "cat"), (1, False, "list")):
            asked = {"name": name, "n": n, "algorithm": algorithm, "op": op, "src": hub, "dst": hub}
            answer = choose(explorer, **asked, exclusive=exclusive, mode=mode)
            assert answer["sentence"] == ""
            assert answer["asked"] == "q"
            assert asked.items() <= answer["choices"].items()
            assert answer["run"]["cost"] == (answer["run"]["stages"] or [{"cost": None}])[-1]["cost"]
            assert len(answer["spelling"]) == 4
            assert answer["law"]


def test_the_last_state_is_what_the_plan_gives(explorer: Explorer) -> None:
    answer = choose(explorer, name="all_gather", algorithm="recursive doubling", n=6)
    assert state(answer) == [["10", "20", "30", "40", "50", "60"]] * 6
    answer = choose(explorer, name="all_reduce", algorithm="ring", n=4, op="mean")
    assert state(answer) == [["2.5"] * 4] * 4
    assert state(answer, 0) == [[str(rank)] * 4 for rank in (1, 2, 3, 4)]
    assert answer["run"]["cost"] == {"steps": 6, "messages": 24, "busiest": "1.5", "received": "1.5", "total": "6"}


def test_a_prediction_is_compared_with_all_digits(explorer: Explorer) -> None:
    answer = choose(explorer, name="all_reduce", op="product", n=16)
    assert {cell["text"] for [cell] in answer["after"]} == {str(math.factorial(16))}
    assert set(state(answer)[0]) == {"2092…8000"}


@pytest.mark.parametrize("how", module.faults.BREAKS)
def test_every_way_to_break_it_gives_a_sentence(explorer: Explorer, how: str) -> None:
    for name in ALGORITHMS:
        answer = choose(explorer, name=name, how=how, rank=3, view="break")
        assert answer["choices"]["how"] in {value for value, _ in answer["options"]["how"]}
        assert answer["broken"]["text"].endswith((".", "has finished the cell"))


def test_what_another_choice_leaves_behind_is_fitted(explorer: Explorer) -> None:
    answer = choose(explorer, name="scatter", n=99, algorithm="ring", src=50, dst=20, rank=16, how="op", own=4)
    chosen = answer["choices"]
    assert (chosen["n"], chosen["src"], chosen["dst"], chosen["rank"]) == (16, 15, 15, 15)
    assert (chosen["algorithm"], chosen["how"], chosen["own"]) == ("naive", "absent", None)
    assert choose(explorer, n=0)["choices"]["n"] == 2


@pytest.mark.parametrize(
    "message",
    [
        None,
        "choose",
        [],
        {},
        {"kind": "run", "choices": {}},
        {"kind": "choose"},
        {"kind": "choose", "choices": []},
        *(
            {"kind": "choose", "choices": {key: value}}
            for key, values in {
                "name": ["magic", 3, None, ["all_reduce"], {}],
                "op": ["median", None],
                "n": ["4", 4.0, True, None, -1, 10**9],
                "src": [-1, "0", None],
                "mode": ["heap"],
                "exclusive": ["yes", 1],
                "algorithm": ["magic"],
                "view": [""],
                "how": ["burn"],
                "own": [-1, "0", 1.5],
            }.items()
            for value in values
        ),
    ],
)
def test_a_bad_message_changes_nothing(explorer: Explorer, message: Any) -> None:
    before = json.dumps(explorer.last)
    widget = FakeWidget()
    module._heard(explorer, widget, message, [])
    assert widget.sent == []
    assert json.dumps(explorer.last) == before


def test_a_message_may_hold_what_a_later_version_knows(explorer: Explorer) -> None:
    assert choose(explorer, name="scan", colour="red")["choices"]["name"] == "scan"
    assert choose(explorer, asked={"no": "text"})["asked"] is None


def test_the_newest_answer_is_in_the_widgets_state(explorer: Explorer) -> None:
    answer = choose(explorer, name="gather", dst=2, view="predict")
    assert json.loads(json.dumps(explorer.last)) == answer


def test_an_answer_is_small_enough_to_travel(explorer: Explorer) -> None:
    for name, some in ALGORITHMS.items():
        for algorithm in some:
            assert len(json.dumps(choose(explorer, name=name, n=16, algorithm=algorithm))) < 150_000, (name, algorithm)


def test_from_my_cell_are_the_plans_that_are_remembered(explorer: Explorer) -> None:
    try:
        remember([plan("all_reduce", [3, 4, 5], op="max"), plan("broadcast", ["a", "b"], src=1)])
        assert choose(explorer)["options"]["own"] == ["1. all_reduce · max", "2. broadcast · src 1"]
        answer = choose(explorer, own=0, algorithm="tree")
        assert answer["title"] == "all_reduce · max"
        assert state(answer) == [["5"]] * 3
        assert answer["run"]["cost"]["steps"] == 4
        assert answer["broken"] is None
        assert answer["spelling"] == []
        told = choose(explorer, own=1)
        assert told["run"]["cost"] is None
        assert [stage["name"] for stage in told["run"]["stages"]] == ["what the call did"]
        assert state(told) == [["'b'"], ["'b'"]]
        remember([plan("barrier")])  # the next cell made fewer
        fewer = choose(explorer, own=1)
        assert (fewer["choices"]["own"], fewer["sentence"]) == (None, "")
        remember([])
        none = choose(explorer, own=1)
        assert (none["choices"]["own"], none["sentence"]) == (None, module.NO_CELL)
        assert choose(explorer)["sentence"] == ""
    finally:
        remember([])


@pytest.mark.parametrize("algorithm", ["naive", "ring", "tree", "recursive doubling"])
def test_own_numbers_are_carried_out(algorithm: str) -> None:
    real = [
        plan("all_reduce", [[1.0, 2.0], [3.0, 4.0]], op="mean"),
        plan("reduce", [1, 2, 3], dst=7, ranks=[2, 5, 7], src=2),
        plan("scan", [1, 2, 3], exclusive=True),
        plan("all_gather", [1, 2, 3]),
        plan("reduce_scatter", [[1, 2], [3, 4]]),
        plan("all_reduce", ["a", "b"], op="max"),
        plan("sendrecv", [1, 2, 3]),
        plan("barrier", n=3),
    ]
    explorer = Explorer(Choices(own=0), real)
    carried = []
    for number, each in enumerate(real):
        answer = choose(explorer, own=number, algorithm=algorithm)
        assert answer["ranks"] == list(each.ranks)
        assert [[cell["text"] for cell in row] for row in answer["after"]] == [
            [cell.text for cell in each.after[rank]] for rank in each.ranks
        ]
        carried.append(answer["run"]["cost"] is not None)
    assert carried == [True] * 5 + [False] * 3


def test_what_is_stored_is_a_plain_table(explorer: Explorer) -> None:
    bundle = Explorer(Choices("gather", 3, algorithm="naive")).bundle()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    assert bundle["text/html"].count("<tr>") == 4
    for forbidden in ("<script", "style=", " id="):
        assert forbidden not in bundle["text/html"]
    assert bundle["text/plain"].splitlines()[2] == "  rank 0: 10 → 10, 20, 30"
    nasty = plan("broadcast", ["<script>", 1])
    assert "&lt;script&gt;" in Explorer(Choices(own=0), [nasty]).bundle()["text/html"]


def test_outside_of_a_notebook_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    explore("scan", n=3)
    assert capsys.readouterr().out.splitlines()[0] == "scan · sum"


def test_what_cannot_be_shown_is_a_sentence() -> None:
    with pytest.raises(CollectiveError, match=r"The explorer has no 'magic'; choose one of barrier, "):
        explore("magic")
    with pytest.raises(CollectiveError, match="The explorer shows 2 to 16 ranks, not 17"):
        explore(n=17)


@pytest.mark.ranks
def test_what_is_imported_stays_light() -> None:
    import subprocess
    import sys

    code = "import sys, nbcomm.explorer.explorer as e; print({'torch', 'anywidget'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
