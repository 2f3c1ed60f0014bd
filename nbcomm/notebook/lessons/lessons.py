"""What a learner types: checks, hints, predictions, and how far all is."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from ...errors import LessonError
from .checking import (
    NOT_YET,
    About,
    Course,
    OnRanks,
    Outcome,
    World,
    check_cell,
    check_function,
    check_prediction,
)
from .progress import Done, Progress, of_this_learner


class Lessons:
    """The puzzles of one course on the ranks of a world, and what this learner has done with them.

    Args:
        world: the world.
        file: a teacher's own puzzles; "" for those of nbcomm.
        progress: the learner's file; by default the usual one.

    Raises:
        LessonError: the file cannot be read.
    """

    def __init__(self, world: World, file: str = "", progress: Progress | None = None) -> None:
        self._world = world
        self._ranks = OnRanks(world, _course_in(file))
        self._prefix = f"{Path(file).stem}/" if file else ""
        self._progress = of_this_learner() if progress is None else progress

    def check(self, name: str) -> Outcome:
        """Check one puzzle; see `Commands.check`."""
        about = self._about(name)
        if about.kind == "function":
            outcome = check_function(self._ranks, about)
        elif about.kind == "cell":
            outcome = check_cell(self._ranks, about, *self._world.last_cell())
        else:
            predicted = self._done(name).predicted
            outcome = check_prediction(self._ranks, about, predicted, _value(predicted or ""), self._world.last_cell())
        own = "" if outcome.right or about.kind != "function" else _defined_here(name)
        if own and outcome.mistake == NOT_YET:
            return Outcome(name, outcome.right, f"{outcome.said}\n{own}", outcome.mistake)
        if outcome.mistake == NOT_YET or (about.kind == "prediction" and self._done(name).tries):
            return outcome  # nothing was tried; and a prediction is compared as often as one likes, and counts once
        trouble = self._note(name, right=outcome.right, **({"mistake": outcome.mistake} if outcome.mistake else {}))
        said = "\n".join(filter(None, (outcome.said, own, trouble, self._offered(about, outcome))))
        return Outcome(name, outcome.right, said, outcome.mistake)

    def hint(self, name: str) -> str:
        """Return the next hint of a puzzle; behind the last one, that one again."""
        about, shown = self._about(name), self._done(name).hints
        if not about.hints:
            return f"There are no hints for {name}."
        number = min(shown + 1, len(about.hints))
        trouble = self._note(name, hint=number)
        left = len(about.hints) - number
        more = f"{left} more" if left else "it is the last"
        return "\n".join(filter(None, (f"Hint {number} for {name} ({more}): {about.hints[number - 1]}", trouble)))

    def predict(self, name: str, typed: str) -> str:
        """Lock a prediction, or say why not; the first one stays."""
        about = self._about(name)
        if about.kind != "prediction":
            raise LessonError(f"{name} is no prediction: write its {about.kind}, and type %distributed check {name}.")
        if typed.strip() in ("", "..."):
            return f"{about.law} Type what you predict: %distributed predict {name} VALUE"
        before = self._done(name).predicted
        if before is not None:
            return (
                f"You predicted {before}, and a prediction stays. Run the experiment, then: %distributed check {name}"
            )
        if about.number and not _is_number(_value(typed)):
            return (
                f"{typed} is no number, and was not taken. Type one, such as 2, 0.5, 3/7 or 1e6: "
                f"%distributed predict {name} VALUE"
            )
        late = "missing" not in self._ranks.one("compare_prediction", name, None, *self._world.last_cell())
        trouble = self._note(name, predicted=typed, **({"late": True} if late else {}))
        after = " The experiment has run already: predict the next one before it." * late
        return "\n".join(
            filter(None, (f"You predict {typed}.{after} After the run: %distributed check {name}", trouble))
        )

    def overview(self) -> str:
        """Return all puzzles by lesson, with what was done."""
        lines, lesson = [], None
        all_done = self._progress.read()
        found = self._ranks.describe()
        widest = max((len(about.name) for about in found), default=0)
        for about in found:
            if about.lesson != lesson:
                lesson = about.lesson
                lines.append(lesson)
            done = all_done.get(self._prefix + about.name, Done())
            lines.append(f"  {_mark(about, done)} {about.name:{widest}}  {_told(about, done)}".rstrip())
        solved = sum(bool(all_done.get(self._prefix + about.name, Done()).solved) for about in found)
        return "\n".join([*lines, f"{solved} of {len(found)} are right."])

    def _about(self, name: str) -> About:
        (about,) = self._ranks.describe(name)
        return about

    def _done(self, name: str) -> Done:
        return self._progress.of(self._prefix + name)

    def _note(self, name: str, **what: Any) -> str:
        return self._progress.note(self._prefix + name, **what)

    def _offered(self, about: About, outcome: Outcome) -> str:
        """Name the hints, once somebody has needed more than one try."""
        done = self._done(about.name)
        if outcome.right or about.kind == "prediction" or done.tries < 2 or done.hints >= len(about.hints):
            return ""
        return f"A hint: %distributed check {about.name} --hint"


def _defined_here(name: str) -> str:
    """Say so if a function was defined last in a cell that ran in the notebook's own process."""
    shell = get_ipython()
    if shell is None or not callable(shell.user_ns.get(name)):
        return ""
    cells = reversed(shell.user_ns.get("In", ()))  # as they were run: a magic is a call there, in one line
    last = next((cell for cell in cells if f"def {name}(" in cell), "")
    if not re.search(rf"(?m)^def {name}\(", last):
        return ""
    return f"The notebook itself has a {name}, which no rank can see: write %%distributed above it, and run it again."


def _mark(about: About, done: Done) -> str:
    if done.solved:
        return "✓"
    if about.kind == "prediction":
        return "≠" if done.mistakes else "…" if done.predicted is not None else "–"
    return "✗" if done.tries else "–"


def _told(about: About, done: Done) -> str:
    parts = []
    if done.predicted is not None:
        parts.append(f"predicted {done.predicted}")
    elif done.tries:
        parts.append(f"{done.tries} {'try' if done.tries == 1 else 'tries'}")
    if done.hints:
        parts.append(f"{done.hints} {'hint' if done.hints == 1 else 'hints'}")
    return ", ".join(parts) or about.asks


def _value(typed: str) -> Any:
    """Return the literal that was typed, or the number that a sum, a fraction or a percentage is; else the text."""
    try:
        percent = typed.rstrip().removesuffix("%")
        tree = ast.parse(percent.strip(), mode="eval").body
        if percent != typed.rstrip():
            return _number(tree) / 100
        with suppress(ValueError):
            return ast.literal_eval(tree)
        return _number(tree)
    except (ValueError, SyntaxError, MemoryError, RecursionError, ArithmeticError):
        return typed


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _number(tree: ast.expr) -> float:
    """Return what a calculation with numbers amounts to.

    Raises:
        ValueError: there is something else in it.
        ArithmeticError: it has no result.
    """
    match tree:
        case ast.Constant(value=int() | float() as value) if _is_number(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return math.pow(_number(left), _number(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_number(left), _number(right))
    raise ValueError


def _course_in(file: str) -> Course:
    if not file:
        return None
    try:
        return file, Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LessonError(f"The puzzles in {file} cannot be read: {error}.") from None
