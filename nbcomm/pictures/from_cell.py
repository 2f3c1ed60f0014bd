"""The pictures of a cell that ran with ``--draw``: each collective, with the ranks' real values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.matching import MatchedCall, matched_calls
from ..cell_names import SPELLED
from ..protocol import CallRecord
from ..rank_spec import capital, named
from ..short_repr import told_apart
from .description import lateness
from .plan import DRAWN, Cell, How, Plan, assemble, sizes, sources_of

_LINE = 90
"""The most characters of a cell's line below its picture."""

MOST = 12
"""The most collectives of a cell that are drawn."""


def plans(
    steps: Mapping[int, Sequence[CallRecord]], dropped: Mapping[int, int] | None = None
) -> tuple[list[Plan], str]:
    """Plan the pictures of a cell.

    Args:
        steps: the recorded calls of each rank.
        dropped: how many earlier calls of each rank were not kept; less than 0 if that is not known.

    Returns:
        The plans in the order of the cell, and sentences about what is not drawn; often empty.
    """
    found = [matched for matched in matched_calls(steps) if SPELLED.get(matched.name, matched.name) in DRAWN]
    known = [matched for matched in found if all(step.how is not None for step in matched.steps.values())]
    dropped = dropped or {}
    more = max([0, *dropped.values()])
    untold = sorted(rank for rank, number in dropped.items() if number < 0)
    since = {rank: own[0].began if own else 0.0 for rank, own in steps.items() if dropped.get(rank)}
    since.update(dict.fromkeys(untold, float("inf")))
    made = [_plan(matched, [rank for rank in since if matched.began < since[rank]]) for matched in known[:MOST]]
    rest = [f"What {named(untold)} did is not known: nbcomm failed to report it."] if untold else []
    if made:
        left = len(found) - len(made) + more
        return made, " ".join([*([f"… and {left} more, which are not drawn."] if left else []), *rest])
    others = sorted({step.name for own in steps.values() for step in own})
    if more:
        rest.insert(0, f"Nothing is drawn: this cell made {more} more collectives than are kept. Draw one with fewer.")
    elif found:
        rest.insert(0, f"Nothing is drawn: the values of this cell's {_counted(found)} could not be kept.")
    elif others:
        rest.insert(0, f"Nothing is drawn: there is no picture of {', '.join(others)}.")
    return [], " ".join(rest) or "This cell made no collective, so there is nothing to draw."


def _counted(met: Sequence[MatchedCall]) -> str:
    return f"{len(met)} collectives" if len(met) > 1 else met[0].name


def _plan(matched: MatchedCall, unknown: Sequence[int]) -> Plan:
    ranks, how, name = matched.members, _how(matched), SPELLED.get(matched.name, matched.name)
    brought = {rank: step.before or [] for rank, step in matched.steps.items()}
    # If shares differ in length, no rank knew where one ends and the next begins.
    uneven = len({step.how.get("each") for step in matched.steps.values() if step.how}) > 1
    given = {rank: _got(step, whole=uneven) for rank, step in matched.steps.items()}
    had, got = _told_apart(brought), _told_apart(given)
    before = {rank: _cells(texts, [(rank,)]) for rank, texts in had.items()}
    after = {rank: _cells(texts, sources_of(name, rank, ranks, how)) for rank, texts in got.items()}
    nothing = dict.fromkeys(ranks, ())
    plan = assemble(name, ranks, how, {**nothing, **before}, {**nothing, **after})
    since = matched.began
    arrivals = {rank: step.began - since for rank, step in matched.steps.items()}
    missing = [rank for rank in matched.missing if rank not in unknown]
    unknown = [rank for rank in matched.missing if rank in unknown]
    plan = replace(plan, arrivals=arrivals, missing=tuple(missing))
    failed = [rank for rank, step in matched.steps.items() if step.failed]
    others = matched.others.items()
    notes = [
        *sizes(brought, given),
        matched.line if len(matched.line) <= _LINE else matched.line[: _LINE - 1] + "…",
        f"{named(missing)} did not arrive." if missing else "" if unknown else lateness(plan),
        f"What {named(unknown)} did there is not kept." if unknown else "",
        *(f"{capital(named(ranks))} called {other} in its place." for other, ranks in others),
        f"It failed on {named(failed)}." if failed else "",
    ]
    title = f"{plan.title.replace(name, matched.name, 1)} · #{matched.number}"
    return replace(plan, title=title, notes=tuple(note for note in notes if note))


def _got(step: CallRecord, *, whole: bool) -> Sequence[str]:
    texts: Sequence[str] = step.after or []
    return (step.how or {}).get("whole", texts) if whole else texts


def _how(matched: MatchedCall) -> How:
    said = [(rank, step.how) for rank, step in matched.steps.items() if step.how]
    how = said[0][1] if said else {}
    first = matched.members[0]
    pairs: tuple[tuple[int, int], ...] = ()
    if matched.name == "sendrecv":
        pairs = tuple((rank, each["dst"]) for rank, each in said if "dst" in each)
    src, dst = (matched.members if matched.name == "send" else (how.get("src", first), how.get("dst", first)))[:2]
    return How(
        op=how.get("op", "sum"),
        src=src,
        dst=dst,
        mode=how.get("mode", "stack"),
        exclusive=bool(how.get("exclusive", False)),
        pairs=pairs,
        groups=tuple(sorted({tuple(each["made"]) for _, each in said if each.get("made")})),
    )


def _cells(texts: Sequence[str], sources: Sequence[tuple[int, ...]]) -> tuple[Cell, ...]:
    """Make cells with their sources; a single value that combines the data of several ranks has all their sources."""
    if len(texts) == len(sources):
        return tuple(Cell(text, whose, _number(text)) for text, whose in zip(texts, sources, strict=True))
    everyone = tuple(sorted({rank for whose in sources for rank in whose}))
    return tuple(Cell(text, sources[0] if len(sources) == 1 else everyone, _number(text)) for text in texts)


def _told_apart(rows: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
    """Shorten the values of all ranks so that they fit and still show where they differ."""
    short = iter(told_apart([text for row in rows.values() for text in row]))
    return {rank: [next(short) for _ in row] for rank, row in rows.items()}


def _number(text: str) -> Any:
    """Return the number, or the row of numbers, that a text shows in full; else None."""
    if text.startswith("[") and text.endswith("]"):
        row = [_number(word) for word in text[1:-1].split()]
        return row if row and None not in row else None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
