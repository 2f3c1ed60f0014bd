"""The ranks' failures as one exception: identical tracebacks once, the smallest group of ranks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import CellError
from ...protocol import Failure
from ...short_repr import shortened
from ..display.displays import label

_NAMED = 3
_WHOLE = 4
_LONGEST = 300
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


def cell_error(failures: Mapping[int, Failure], world_ranks: Sequence[int]) -> CellError:
    """Make the exception that a failed cell raises in the notebook.

    The smallest group comes first: if one rank fails by itself and the others fail because of it, that one is what to
    read.

    Args:
        failures: what each failed rank raised; at least one.
        world_ranks: all ranks that ran the cell.

    >>> failure = Failure("ZeroDivisionError", "division by zero", "Traceback ...")
    >>> str(cell_error({1: failure, 3: failure}, [0, 1, 2, 3]))
    '2 of 4 ranks failed: [1,3] ZeroDivisionError: division by zero'
    """
    groups: dict[Failure, list[int]] = {}
    for rank in sorted(failures):
        groups.setdefault(failures[rank], []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[1][0]))
    named = [f"{label(ranks)} {first_line(failure)}" for failure, ranks in ordered[:_NAMED]]
    kinds = [f"{label(ranks)} {failure.name}" for failure, ranks in ordered[:_NAMED]]
    more = [f"and {len(ordered) - _NAMED} more"] if len(ordered) > _NAMED else []
    total = len(world_ranks)
    failed = f"{len(failures)} of {total} rank{'s' if total > 1 else ''} failed: "
    rendered = []
    for i, (failure, ranks) in enumerate(ordered):
        if i < _WHOLE and failure.traceback:
            rendered.append(f"{_BOLD}{label(ranks)}{_RESET}\n{failure.traceback.rstrip()}\n{_RESET}")
        else:
            rendered.append(f"{_BOLD}{label(ranks)}{_RESET} {first_line(failure)}")
    if len(ordered) > _WHOLE:
        rendered.append("(the other tracebacks are in the exception's `tracebacks`)\n")
    tracebacks = {rank: failure.traceback for rank, failure in failures.items()}
    # The displayed traceback has the messages above its last line; the exception has them in its text.
    summary = failed + "; ".join(kinds + more)
    return CellError(failed + "; ".join(named + more), tracebacks, "\n".join(rendered), summary)


def first_line(failure: Failure) -> str:
    """Return an exception in one line of limited length."""
    first = shortened(failure.message.strip().partition("\n")[0], _LONGEST)
    return f"{failure.name}: {first}" if first else failure.name
