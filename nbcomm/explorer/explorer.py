"""The explorer: choose a collective and an algorithm, and watch it, predict it or break it.

Like the panel it is a widget without a view: the notebook displays and stores a plain table in a ``div`` with a class
of its own, and the widget's JavaScript draws the live explorer over it. So a saved notebook that is opened without a
kernel shows the table, and never "Error displaying widget".

All plans, algorithms, costs, spellings and sentences are made here: the browser sends the choices, and draws the
answer. Both the choices and the answer are in the widget's state, which a page reads again after a reload.
"""

from __future__ import annotations

import functools
import html
import secrets
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CollectiveError, NbcommError
from ..frontend.viewless import close_widget, in_kernel, open_widget
from ..number_ops import PAIRS
from ..pictures.picture import Picture
from ..pictures.plan import REDUCING, Cell, Plan, made_up, plan
from . import faults
from .algorithms import ALGORITHMS, Simulation, run
from .simulation import Cost, Stage, Transfer
from .spelling import LIBRARIES, NONE, spell

_HERE = Path(__file__).parent

LEAST, MOST = 2, 16
"""The least and the most ranks that can be chosen."""

_DIGITS = 512
"""Bits of a number that a user may predict; a longer number comes from a cell."""

MODES = ("stack", "cat", "list")
VIEWS = ("watch", "predict", "break")

NO_CELL = "No cell has been drawn yet, or it is no longer known; run a cell with %%distributed --draw."

recent: list[Plan] = []
"""Plans of the collectives of the last drawn cell, in order."""

_open: deque[Any] = deque(maxlen=8)
"""The newest explorers' widgets; a notebook that makes many must not keep them all."""


def remember(plans: Sequence[Plan]) -> None:
    """Set the plans that the explorers' button "from my cell" offers."""
    recent[:] = plans


def explore(name: str = "all_reduce", *, n: int = 4, steps: Sequence[Plan] | None = None) -> None:
    """Show the explorer in the running cell.

    Args:
        name: the collective to begin with.
        n: the number of ranks, 2 to 16.
        steps: plans of real calls, the first of which is shown; by default the button "from my cell" offers those of
            the last drawn cell.

    Raises:
        CollectiveError: the collective does not exist, or ``n`` is out of range.
    """
    if name not in ALGORITHMS:
        raise CollectiveError(f"The explorer has no {name!r}; choose one of {', '.join(ALGORITHMS)}.")
    if not LEAST <= n <= MOST:
        raise CollectiveError(f"The explorer shows {LEAST} to {MOST} ranks, not {n}.")
    explorer = Explorer(Choices(name, n, own=0 if steps else None), steps)
    bundle = explorer.bundle()
    if not in_kernel():
        sys.stdout.write(bundle["text/plain"] + "\n")
        return
    from IPython.display import display

    widget = open_widget(_HERE / "js" / "explorer.js", lambda: explorer.last)
    widget.on_msg(functools.partial(_heard, explorer))
    if len(_open) == _open.maxlen:
        close_widget(_open.popleft())
    _open.append(widget)
    display(bundle, raw=True)  # type: ignore[no-untyped-call,unused-ignore]


@dataclass(frozen=True)
class Choices:
    """The user's choices.

    Attributes:
        name: the collective.
        n: the number of ranks.
        op: the op of a reduction.
        src: the rank that gives.
        dst: the rank that gets.
        mode: the mode of all_gather.
        exclusive: whether a scan is exclusive.
        algorithm: one of `ALGORITHMS`.
        view: one of `VIEWS`.
        how: the way in which it is broken: one of `faults.BREAKS`.
        rank: the rank that breaks it.
        own: the index of a plan "from my cell"; None for example values.
    """

    name: str = "all_reduce"
    n: int = 4
    op: str = "sum"
    src: int = 0
    dst: int = 0
    mode: str = "stack"
    exclusive: bool = False
    algorithm: str = "ring"
    view: str = "watch"
    how: str = "absent"
    rank: int = 1
    own: int | None = None

    def fitted(self, plans: int) -> Choices:
        """Return the nearest valid choices, because one changed choice can make another invalid."""
        some = ALGORITHMS[self.name]
        hows = faults.breaks_of(self.name)
        n = min(max(self.n, LEAST), MOST)
        return replace(
            self,
            n=n,
            src=min(self.src, n - 1),
            dst=min(self.dst, n - 1),
            rank=min(self.rank, n - 1),
            algorithm=self.algorithm if self.algorithm in some else some[0],
            how=self.how if self.how in hows else hows[0],
            own=self.own if self.own is not None and 0 <= self.own < plans else None,
        )


_KNOWN: dict[str, Sequence[Any]] = {
    "name": tuple(ALGORITHMS),
    "op": tuple(PAIRS),
    "mode": MODES,
    "algorithm": tuple(dict.fromkeys(a for some in ALGORITHMS.values() for a in some)),
    "view": VIEWS,
    "how": tuple(faults.BREAKS),
}


def read(message: Any) -> Choices | None:
    """Return the choices in a message from the browser; None if it has no valid ones, and then nothing may change."""
    if not isinstance(message, dict) or message.get("kind") != "choose" or not isinstance(message.get("choices"), dict):
        return None
    given = {key: value for key, value in message["choices"].items() if key in Choices.__dataclass_fields__}
    for key, value in given.items():
        if key in _KNOWN:
            good = isinstance(value, str) and value in _KNOWN[key]
        elif key == "exclusive":
            good = isinstance(value, bool)
        else:
            number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**6
            good = number or (key == "own" and value is None)
        if not good:
            return None
    return Choices(**given)


class Explorer:
    """The state of one explorer; the widget is only its link to the browser.

    Args:
        choices: the first choices.
        plans: the plans that "from my cell" offers; None for those that `remember` set.

    Attributes:
        last: the newest answer.
        shown: the plan of that answer.
    """

    def __init__(self, choices: Choices, plans: Sequence[Plan] | None = None) -> None:
        self.id = secrets.token_hex(4)
        self._plans = plans
        self.last = self._answer(choices, None)

    @property
    def plans(self) -> Sequence[Plan]:
        """The plans that "from my cell" offers; a copy, because a kernel with subshells answers while a cell runs."""
        return tuple(recent if self._plans is None else self._plans)

    def hear(self, message: Any) -> dict[str, Any] | None:
        """Answer a message from the browser; return None if it is not understood, and then change nothing."""
        choices = read(message)
        if choices is None:
            return None
        self.last = self._answer(choices, message.get("asked"))
        return self.last

    def bundle(self) -> dict[str, str]:
        """Return what the notebook's file keeps. It has classes, not an id: JupyterLab removes ids."""
        answer = self.last
        rows = [
            (f"rank {rank}", *(_texts(answer[side][place]) or "–" for side in ("before", "after")))
            for place, rank in enumerate(answer["ranks"])
        ]
        plain = [answer["title"], answer["law"]]
        plain += [f"  {rank}: {before} → {after}" for rank, before, after in rows]
        cells = "".join(
            '<tr><th scope="row">{}</th><td>{}</td><td>{}</td></tr>'.format(*map(html.escape, row)) for row in rows
        )
        table = (
            f"<table><caption>{html.escape(answer['title'])}: {html.escape(answer['law'])}</caption>"
            '<thead><tr><th scope="col">rank</th><th scope="col">before</th><th scope="col">after</th></tr></thead>'
            f"<tbody>{cells}</tbody></table>"
        )
        image = Picture(self.shown).bundle
        return {
            **image,
            "text/html": f'<div class="nbcomm-explorer nbcomm-explorer-{self.id}">{image["text/html"]}{table}</div>',
            "text/plain": "\n".join(plain),
        }

    def _answer(self, choices: Choices, asked: Any) -> dict[str, Any]:
        """Return all that the browser draws."""
        plans = self.plans
        asked_own, choices = choices.own, choices.fitted(len(plans))
        own = None if choices.own is None else plans[choices.own]
        sentence = NO_CELL if asked_own is not None and not plans else ""  # else another plan is chosen, or none
        try:
            shown, done = _own(own, choices) if own else _made_up(choices)
        except NbcommError as error:  # the op is not defined for these numbers
            sentence = str(error)
            shown, done = plan(choices.name, n=choices.n), None
        self.shown = shown
        return {
            "kind": "run",
            "id": self.id,
            "asked": asked if isinstance(asked, int | str) else None,
            "choices": asdict(choices),
            "options": _options(choices, plans),
            "sentence": sentence,
            "title": shown.title,
            "law": shown.law + _mode_words(choices, own),
            "notes": list(shown.notes),
            "ranks": list(shown.ranks),
            "before": [_cells(shown.before[rank]) for rank in shown.ranks],
            "after": [_cells(map(_whole, shown.after[rank])) for rank in shown.ranks],
            "run": _told(done or _at_once(shown), shown.ranks),
            "spelling": [] if own else _spelled(choices),
            "broken": None if own else _broken(choices),
        }


# ── what is shown ───────────────────────────────────────────────────────────────────────────────────


def _made_up(choices: Choices) -> tuple[Plan, Simulation]:
    values = made_up(choices.name, choices.n)
    how = {"op": choices.op, "src": choices.src, "dst": choices.dst, "exclusive": choices.exclusive}
    shown = plan(choices.name, values, mode=choices.mode, **how)  # type: ignore[arg-type]
    return shown, run(choices.name, choices.algorithm, values, **how)  # type: ignore[arg-type]


def _own(own: Plan, choices: Choices) -> tuple[Plan, Simulation | None]:
    """Return a real call's plan, and its run if its values are numbers and the algorithm gives the same result."""
    some = ALGORITHMS.get(own.name, ())
    values = [_numbers([cell.value for cell in own.before[rank]]) for rank in own.ranks]
    how: dict[str, Any] = {name: getattr(own.how, name) for name in ("op", "src", "dst", "exclusive")}
    if own.name not in REDUCING and own.name != "all_gather":
        return own, None  # if only one rank brings data, or each rank brings some for each, the plan lacks values
    if not some or own.missing or any(not given for given in values):
        return own, None
    algorithm = choices.algorithm if choices.algorithm in some else some[0]
    brought = values if own.name == "reduce_scatter" else [given[0] for given in values if given]
    try:
        done = run(own.name, algorithm, brought, ranks=own.ranks, **how)
    except (NbcommError, TypeError, ValueError):
        return own, None
    got = {rank: [cell.text for cell in cells] for rank, cells in done.result.items()}
    return own, done if got == {rank: [cell.text for cell in own.after[rank]] for rank in own.ranks} else None


def _numbers(values: Sequence[Any]) -> list[Any] | None:
    """Return the values if they are numbers, or lists or arrays of numbers; else None."""
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in values]

    def good(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return bool(value) and all(map(good, value))
        return isinstance(value, int | float)

    return plain if all(map(good, plain)) else None


def _at_once(shown: Plan) -> Simulation:
    """Return a plan as a run of one step, for when its algorithm is not known."""
    pairs = sorted({(flow.src, flow.dst, flow.place) for flow in shown.flows if flow.src != flow.dst})
    adds = shown.name in REDUCING
    messages = tuple(Transfer(src, dst, (place,), adds) for src, dst, place in pairs)
    most = max((len(cells) for cells in (*shown.before.values(), *shown.after.values())), default=0)
    stage = Stage("what the call did", messages, {rank: _filled(shown.after[rank], most) for rank in shown.ranks})
    start = {rank: _filled(shown.before[rank], most) for rank in shown.ranks}
    labels = tuple(f"item {slot}" for slot in range(most)) if most > 1 else ("data",)
    return Simulation(shown.name, "", "", ("", ""), labels, start, (stage,), dict(shown.after), ())


def _filled(cells: Sequence[Cell | None], length: int) -> tuple[Cell | None, ...]:
    return (*cells, *[None] * (length - len(cells)))


def _mode_words(choices: Choices, own: Plan | None) -> str:
    if own or choices.name != "all_gather":
        return ""
    return {
        "stack": "; stacked: one tensor with a row for each rank",
        "cat": "; concatenated to one tensor",
        "list": "; as a list",
    }[choices.mode]


# ── as plain data for the browser ───────────────────────────────────────────────────────────────────


def _options(choices: Choices, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the options for these choices; an empty list is not shown."""
    name = choices.name
    return {
        "name": list(ALGORITHMS),
        "op": list(PAIRS) if name in REDUCING else [],
        "src": name in ("broadcast", "scatter"),
        "dst": name in ("gather", "reduce"),
        "mode": list(MODES) if name == "all_gather" else [],
        "exclusive": name == "scan",
        "algorithm": list(ALGORITHMS[name]),
        "how": [[how, faults.BREAKS[how]] for how in faults.breaks_of(name)],
        "own": [f"{number}. {each.title or each.name}" for number, each in enumerate(plans, 1)],
        "ranks": [LEAST, MOST],
    }


def _whole(cell: Cell) -> Cell:
    """Write a number with all its digits, because a prediction is compared with all of them."""
    number = type(cell.value) is int and cell.value.bit_length() < _DIGITS
    return replace(cell, text=str(cell.value)) if number else cell


def _cells(cells: Iterable[Cell | None]) -> list[dict[str, Any] | None]:
    return [None if cell is None else {"text": cell.text, "sources": list(cell.sources)} for cell in cells]


def _texts(cells: Sequence[dict[str, Any] | None]) -> str:
    return ", ".join(cell["text"] for cell in cells if cell)


def _told(done: Simulation, ranks: Sequence[int]) -> dict[str, Any]:
    """Pack a run, with only the changes of each stage: in full, 16 ranks and 240 steps would be a megabyte."""
    before = done.start
    stages = []
    for number, stage in enumerate(done.stages):
        changes = [
            [place, slot, *_cells([cell])]
            for place, rank in enumerate(ranks)
            for slot, cell in enumerate(stage.state[rank])
            if cell is not before[rank][slot] and (cell != before[rank][slot])
        ]
        before = stage.state
        messages = [[m.src, m.dst, list(m.chunks), m.adds] for m in stage.messages]
        cost = _cost(done.costs[number]) if done.costs else None
        stages.append({"name": stage.name, "messages": messages, "changes": changes, "cost": cost})
    return {
        "title": done.title,
        "formula": list(done.formula),
        "labels": list(done.labels),
        "start": [_cells(done.start[rank]) for rank in ranks],
        "stages": stages,
        "cost": _cost(done.cost) if done.algorithm else None,
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "steps": cost.steps,
        "messages": cost.messages,
        **{key: f"{float(getattr(cost, key)):.4g}" for key in ("busiest", "received", "total")},
    }


def _spelled(choices: Choices) -> list[dict[str, Any]]:
    lines = spell(
        choices.name,
        op=choices.op,
        src=choices.src,
        dst=choices.dst,
        mode=choices.mode if choices.name == "all_gather" else None,
        exclusive=choices.exclusive,
    )
    return [
        {"library": LIBRARIES[key], "line": line, "there": not line.startswith(NONE)} for key, line in lines.items()
    ]


def _broken(choices: Choices) -> dict[str, Any]:
    call = faults.BrokenCall(
        choices.name, choices.n, choices.op, choices.src, choices.dst, choices.mode, choices.exclusive
    )
    return asdict(faults.broken(call, choices.how, choices.rank))


# ── the widget ──────────────────────────────────────────────────────────────────────────────────────


def _heard(explorer: Explorer, widget: Any, message: Any, _buffers: Any) -> None:
    answer = explorer.hear(message)
    if answer is not None:
        widget.send(answer)
