"""What a teacher writes: a puzzle, which states a law for a function, a cell or a number that a learner writes."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .compare import difference, shown
from .draw import Draw


@dataclass(frozen=True)
class Collective:
    """One call that needed other ranks, as a rank made it.

    Attributes:
        name: "all_reduce", "isend".
        nbytes: of the data that the rank brought.
        peer: the other rank of a send or receive.
        began: by the rank's clock, in seconds; so is ``ended``, 0 if that is not known.
    """

    name: str
    nbytes: int = 0
    peer: int | None = None
    began: float = 0.0
    ended: float = 0.0

    @property
    def sends(self) -> bool:
        """Whether it sends a message to one other rank."""
        return self.name in _SENDS

    @property
    def is_message(self) -> bool:
        """Whether it sends or receives one."""
        return self.sends or self.name in _RECEIVES


_SENDS = frozenset({"send", "isend", "sendrecv"})
_RECEIVES = frozenset({"recv", "irecv"})


@dataclass(frozen=True)
class Trial:
    """What happened when the ranks called the learner's function once.

    Attributes:
        given: the arguments of each rank.
        results: what each rank's function has returned; empty unless the puzzle collects them.
        calls: of each rank, in the order in which it made them.
    """

    given: Sequence[tuple[Any, ...]]
    results: Sequence[Any]
    calls: Sequence[Sequence[Collective]]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.calls)

    def counts(self, rank: int) -> Counter[str]:
        """Return how often a rank has called each collective."""
        return Counter(call.name for call in self.calls[rank])

    def brought(self, rank: int) -> int:
        """Return how many bytes a rank has brought to its collectives."""
        return sum(call.nbytes for call in self.calls[rank])

    def only(self, **allowed: int) -> str:
        """Say what is wrong unless each rank has called just these, each so often; "" if nothing is."""
        for rank in range(self.size):
            found = self.counts(rank)
            if found != Counter(allowed):
                return f"rank {rank} called {told(found)}, where {told(Counter(allowed))} is asked for"
        return ""

    def only_messages(self, asked: str = "only messages are asked for") -> str:
        """Say what is wrong if a rank has called anything but sends and receives; "" if none has.

        Args:
            asked: what to say of what it should have called.
        """
        for rank, calls in enumerate(self.calls):
            others = sorted({call.name for call in calls if not call.is_message})
            if others:
                return f"rank {rank} called {', '.join(others)}, where {asked}"
        return ""


def told(counts: Counter[str]) -> str:
    """Return how often each collective was called, in words.

    >>> told(Counter(all_gather=1, broadcast=4)), told(Counter())
    ('1 all_gather and 4 broadcast', 'no collective')
    """
    words = [f"{count} {name}" for name, count in sorted(counts.items()) if count]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]])) or "no collective"


@dataclass(frozen=True)
class Cell:
    """The last cell that ran on the ranks.

    Attributes:
        code: its text, without the line with ``%%distributed``.
        said: the error that ended it, in words: the verdict, if it could never end; "" if it ended well.
    """

    code: str
    said: str

    @property
    def lines(self) -> int:
        """How many lines it has that are neither blank nor a comment."""
        lines = (line.strip() for line in self.code.splitlines())
        return sum(bool(line) and not line.startswith("#") for line in lines)


class UnusableError(Exception):
    """What a learner's function has returned cannot be used as the puzzle does; the message says why."""


def usable_function(result: Any, what: str = "the result") -> Callable[..., Any]:
    """Return a function that the learner's function has returned.

    Args:
        result: it.
        what: what it is called, if it is only a part of the result.

    Raises:
        UnusableError: it is none.
    """
    if not callable(result):
        raise UnusableError(f"{what} is {shown(result)}, where a function is right")
    return result  # type: ignore[no-any-return]


def usable_items(result: Any, *what: str) -> Sequence[Any]:
    """Return a tuple that the learner's function has returned.

    Args:
        result: it.
        what: what each item of it is.

    Raises:
        UnusableError: it is none, or has another length.
    """
    if not isinstance(result, (tuple, list)) or len(result) != len(what):
        raise UnusableError(f"the result is {shown(result)}, where {', '.join(what[:-1])} and {what[-1]} are right")
    return result


class Puzzle:
    """What all puzzles have. Write one of `FunctionPuzzle`, `CellPuzzle` and `Prediction`.

    A subclass's docstring is its law, which a learner reads. All methods run on the ranks, never in the notebook.

    Attributes:
        name: how a learner names it, in ``%distributed check NAME``.
        hints: shown one at a time, to those who ask.
        kind: what a learner writes for it: "function", "cell" or "prediction".
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    hints: ClassVar[Sequence[str]] = ()

    @classmethod
    def law(cls) -> str:
        """Return the law in words."""
        return " ".join((inspect.getdoc(cls) or "").split())


class FunctionPuzzle(Puzzle):
    """A function that a learner writes in a cell, and the law that it must obey on every rank.

    Its name is the function's.

    Attributes:
        asks: the function as it is called: "gather_all(value)".
        trials: how many inputs it is tried on.
        collects: whether `complaint` gets the results of all ranks: for a law that `right` cannot state for each alone.
        solution: the code of a cell that solves it. What it calls is shown as the best that is known, and it never is.
    """

    kind = "function"
    asks: ClassVar[str] = ""
    trials: ClassVar[int] = 20
    collects: ClassVar[bool] = False
    solution: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Name it."""
        super().__init_subclass__()
        cls.name = cls.asks.partition("(")[0]

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return the arguments that a rank's function gets.

        Args:
            draw: draws what this rank gets.
            shared: draws what is alike on all ranks; every rank must draw the same of it, in the same order.
            rank: whose they are.
            size: how many ranks there are.
        """
        raise NotImplementedError

    def arguments(self, given: tuple[Any, ...]) -> str:
        """Return what a learner reads of the arguments with which the function was called.

        Args:
            given: the arguments of a rank.
        """
        return ", ".join(map(shown, given))

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Call the learner's function; a puzzle may call it more than once, and return all results.

        Args:
            function: the learner's.
            given: the arguments of this rank.
        """
        return function(*given)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return what the function must return on a rank, computed in one process; `ANYTHING` where that is free.

        Args:
            given: the arguments of all ranks.
            rank: which one returns it.
        """
        raise NotImplementedError

    def complaint(self, trial: Trial) -> str:
        """Return what is wrong with how the ranks came to right results, or with these together; "" if nothing is."""
        return ""


class CellPuzzle(Puzzle):
    """A cell that must end as the law says: with this verdict, say. The last cell is looked at."""

    kind = "cell"

    def complaint(self, cell: Cell) -> str:
        """Return what is wrong with the cell, in words; "" if nothing is."""
        raise NotImplementedError

    def praise(self, cell: Cell) -> str:
        """Return what a learner reads of a cell that is right: how short it is, say."""
        return ""


class Prediction(Puzzle):
    """What a learner predicts before an experiment; the docstring is the question.

    It is typed once, with ``%distributed predict NAME VALUE``, and stays. A check compares it with what the run showed.

    Attributes:
        because: what is shown after the comparison.
        number: whether a number is asked for; nothing else is then taken for a prediction.
    """

    kind = "prediction"
    because: ClassVar[str] = ""
    number: ClassVar[bool] = False

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what the run has shown.

        Args:
            variables: of rank 0, after the experiment.
            cell: the last one.

        Raises:
            KeyError: the experiment has not run yet, which the learner is told, with the text: a variable that is
                missing, say.
        """
        raise NotImplementedError

    def accepts(self, predicted: Any, shown: Any) -> bool:
        """Return whether a prediction is right.

        Args:
            predicted: a number, a text, or any literal of Python's, as it was typed.
            shown: what the run has shown.
        """
        return not difference(predicted, shown)
