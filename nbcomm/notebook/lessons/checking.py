"""The check of one puzzle: a learner's function is tried on fresh inputs on every rank, or a cell or number is judged.

All that knows of puzzles runs on the ranks (`nbcomm.lessons.trial`), because it needs torch. It is named here, and what
goes there and comes back is plain data.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ... import rank_spec as rank_specs
from ...errors import CellError
from ...protocol import CallRecord
from ...sentences import wrapped
from ...short_repr import amount
from ..execution import named_calls

TIME = 20.0
"""Seconds that one call of a learner's function may take."""

Course = tuple[str, str] | None
"""The file with a teacher's own puzzles, and its text; None for those of nbcomm."""

NOT_YET = "not yet"
"""The mistake of those who have written nothing yet."""

_OF_OTHERS = "HangError"
"""The error of ranks that wait for one which has failed, or returned: its own error says more."""


_REFUSED_THERE = re.compile(r"Nothing was moved: ranks? [\d,-]+ failed")
"""What a rank says that was ready for a collective which another one has refused."""


class World(named_calls.World, Protocol):
    """What a check needs of a `Session`."""

    def last_cell(self) -> tuple[str, str]:
        """Return the last cell's text, and the error that ended it; see `Commands.last_cell`."""


@dataclass(frozen=True)
class Outcome:
    """What a check has found; true if all is right.

    Attributes:
        puzzle: its name.
        right: whether all is.
        said: what a learner reads.
        mistake: what kind of mistake it is, in a few words; "" if it is none.
    """

    puzzle: str
    right: bool
    said: str
    mistake: str = ""

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        mark = "✓" if self.right else "–" if self.mistake == NOT_YET else "✗"
        return f"{mark} {self.puzzle}: {self.said}"

    def _ipython_display_(self) -> None:
        """Show it as text; a notebook's page and its file have the same."""
        print(wrapped(str(self)))  # noqa: T201 - as its doc says


class About(NamedTuple):
    """A puzzle, as the ranks describe it.

    Attributes:
        name: its name.
        lesson: the title of its lesson.
        kind: what a learner writes: "function", "cell" or "prediction".
        asks: the function as it is called.
        law: what it must do; of a prediction the question.
        hints: shown one at a time.
        trials: how many inputs a function is tried on.
        solved: whether a solution is known.
        number: whether a prediction is to be a number.
    """

    name: str
    lesson: str
    kind: str
    asks: str
    law: str
    hints: list[str]
    trials: int
    solved: bool
    number: bool


class OnRanks:
    """The functions of `nbcomm.lessons` on the ranks of a world.

    Args:
        world: the world.
        course: where the puzzles are.
    """

    def __init__(self, world: World, course: Course) -> None:
        self._world = world
        self._course = course

    def describe(self, name: str | None = None) -> list[About]:
        """Return one puzzle, or all.

        Raises:
            LessonError: there is none of this name.
        """
        (told,), _ = self._call("courses.describe", self._course, name, ranks=self._world.ranks[:1], quiet=True)
        return [About(**each) for each in told]

    def one(self, function: str, name: str, *args: Any) -> Any:
        """Call a function of `trial` on the first rank."""
        (told,), _ = self._call(f"trial.{function}", name, self._course, *args, ranks=self._world.ranks[:1], quiet=True)
        return told

    def all(self, function: str, name: str, seed: int, *, quiet: bool) -> tuple[list[Any], list[list[CallRecord]]]:
        """Call a function of `trial` on all ranks; return also their collectives.

        Raises:
            TimeoutError: it took longer than `TIME`.
        """
        return self._call(f"trial.{function}", name, self._course, seed, quiet=quiet)

    def _call(
        self, function: str, *args: Any, ranks: list[int] | None = None, quiet: bool
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        return named_calls.call(self._world, f"nbcomm.lessons.{function}", args, ranks, TIME, quiet=quiet)


def check_function(ranks: OnRanks, about: About) -> Outcome:
    """Try the learner's function on fresh inputs.

    Raises:
        Interrupted: ■ was pressed.
        LessonError: the puzzle itself is broken.
    """
    seeds = [secrets.randbits(32) for _ in range(about.trials)]
    trials: list[tuple[int, list[dict[str, Any]], list[list[CallRecord]]]] = []
    for seed in seeds:
        try:
            results, calls = ranks.all("attempt", about.name, seed, quiet=bool(trials))
        except TimeoutError:
            said = f"It did not end within {TIME:g} s, and was interrupted."
            return Outcome(about.name, right=False, said=said, mistake="did not end")
        except CellError as error:  # a rank died
            return Outcome(about.name, right=False, said=str(error), mistake="a rank ended")
        wrong = _wrong(about, results)
        if wrong is not None:
            return wrong
        trials.append((seed, results, calls))
    plain = [
        (
            seed,
            [result["result"] for result in results],
            [list(map(_plain, each)) for each in calls],
        )
        for seed, results, calls in trials
    ]
    complaint = ranks.one("judge", about.name, plain)
    if complaint:
        said = f"{rank_specs.capital(complaint)}.\n{about.law}"
        return Outcome(about.name, right=False, said=said, mistake="another way")
    last = trials[-1][2]
    said = f"Right for {len(seeds)} inputs on {len(last)} rank{'s' * (len(last) > 1)}."
    return Outcome(about.name, right=True, said=f"{said} {_compared(ranks, about, last, seeds[-1])}")


def check_cell(ranks: OnRanks, about: About, code: str, said: str) -> Outcome:
    """Judge the last cell."""
    complaint, praise = ranks.one("judge_cell", about.name, code, said)
    if complaint:
        return Outcome(about.name, right=False, said=f"{rank_specs.capital(complaint)}.", mistake="another ending")
    return Outcome(about.name, right=True, said=praise or "The cell ended as it should.")


def check_prediction(ranks: OnRanks, about: About, predicted: str | None, value: Any, cell: tuple[str, str]) -> Outcome:
    """Compare what was predicted with what the run has shown.

    Args:
        ranks: the ranks.
        about: the puzzle.
        predicted: as it was typed; None if nothing was.
        value: of what was typed.
        cell: the last one, and the error that ended it.
    """
    if predicted is None:
        said = f"You have not predicted yet. {about.law}\nType: %distributed predict {about.name} VALUE"
        return Outcome(about.name, right=False, said=said, mistake=NOT_YET)
    found = ranks.one("compare_prediction", about.name, value, *cell)
    if "missing" in found:
        said = f"You predicted {predicted}. Now run the experiment: {found['missing']} is not there yet."
        return Outcome(about.name, right=False, said=said, mistake=NOT_YET)
    because = f"\n{found['because']}" * bool(found["because"])
    if found["right"]:
        return Outcome(
            about.name, right=True, said=f"You predicted {predicted}, and the run shows {found['value']}.{because}"
        )
    said = f"You predicted {predicted}, but the run shows {found['value']}.{because}"
    return Outcome(about.name, right=False, said=said, mistake=f"predicted {predicted}")


def _wrong(about: About, results: Sequence[dict[str, Any]]) -> Outcome | None:
    """Return what is wrong with the results of one trial; None if nothing is."""
    function = about.name

    def outcome(said: str, mistake: str) -> Outcome:
        return Outcome(function, right=False, said=said, mistake=mistake)

    without = [rank for rank, result in enumerate(results) if "missing" in result]
    if without:
        where = "" if len(without) == len(results) else f" on {rank_specs.named(without)}"
        said = f"Write {about.asks} in a %%distributed cell; it is not there{where} yet. {about.law}"
        return outcome(said, NOT_YET)
    raised = {rank: result for rank, result in enumerate(results) if "raised" in result}
    if raised:
        own = {rank: result for rank, result in raised.items() if not _is_of_others(result)} or raised
        first = next(iter(own.values()))
        ranks = [rank for rank, result in own.items() if result["raised"] == first["raised"]]
        kind = first["kind"]
        if kind == _OF_OTHERS:
            return outcome(f"It can never end.\n{first['raised']}", "can never end")
        return outcome(f"It raised an error on {rank_specs.named(ranks)}.\n{first['raised']}", f"raised {kind}")
    wrong = {rank: result for rank, result in enumerate(results) if result["wrong"]}
    if not wrong:
        return None
    rank, result = next(iter(wrong.items()))
    call = f"{function}({result['given']})"
    said = f"Wrong on {rank_specs.named(sorted(wrong))}. For {call} on rank {rank}, {result['wrong']}.\n{about.law}"
    return outcome(said, "another result")


def _is_of_others(result: dict[str, Any]) -> bool:
    """Whether a rank has raised an error that has its cause on another one."""
    return result["kind"] == _OF_OTHERS or bool(_REFUSED_THERE.match(result["raised"]))


def _compared(ranks: OnRanks, about: About, calls: Sequence[Sequence[CallRecord]], seed: int) -> str:
    """Return what the learner's function has cost, beside the best that is known."""
    yours = _cost(calls)
    if not about.solved:
        return f"Yours: {yours}."
    _, best = ranks.all("solve", about.name, seed, quiet=True)
    known = _cost(best)
    return f"Yours: {yours}; the best known is the same." if known == yours else f"Yours: {yours}; best known: {known}."


def _plain(record: CallRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "nbytes": record.nbytes,
        "peer": record.peer,
        "began": record.began,
        "ended": record.ended,
    }


def _cost(calls: Sequence[Sequence[CallRecord]]) -> str:
    """Return how often the busiest rank has called what, and with how many bytes, in words."""
    busiest = max(calls, key=lambda each: (len(each), sum(record.nbytes for record in each)))
    if not busiest:
        return "no collective"
    counts = Counter(record.name for record in busiest)
    words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{words}, {amount(sum(record.nbytes for record in busiest))}"
