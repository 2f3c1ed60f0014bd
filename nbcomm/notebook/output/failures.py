"""The ranks' failures as one exception: identical tracebacks once, the smallest group of ranks first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...analysis.verdict import plural
from ...errors import CellError, CellSyntaxError, RankDiedError
from ...protocol import Failure
from ...rank_spec import capital, named, together
from ...short_repr import shortened, without_addresses
from ..display.displays import label

_NAMED = 3
_WHOLE = 4
_LONGEST = 300
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


_DEATH = RankDiedError.__name__


def death_of(ranks: Sequence[int], cause: str, without_heal: str = "") -> Failure:
    """Return the failure of ranks whose processes have ended alike.

    Args:
        ranks: which.
        cause: how they have ended.
        without_heal: why they cannot be replaced, and what to do, in sentences; empty where they can be.

    >>> death_of([1], "was killed by SIGKILL").message
    'Rank 1 was killed by SIGKILL. Type %distributed heal to put a new process in its place.'
    """
    if without_heal:
        return dead(f"{_ended(ranks, cause)} {without_heal}")
    places = "new processes in their places" if len(ranks) > 1 else "a new process in its place"
    return dead(f"{_ended(ranks, cause)} Type %distributed heal to put {places}.")


def _ended(ranks: Sequence[int], cause: str) -> str:
    return f"{capital(named(ranks))} {plural(cause) if len(ranks) > 1 else cause}."


def dead(sentence: str) -> Failure:
    """Return the failure of who will never answer."""
    return Failure(_DEATH, sentence, f"{_DEATH}: {sentence}")


def with_deaths_together(
    failures: Mapping[int, Failure], causes: Mapping[int, str], without_heal: Callable[[int], str] = lambda _: ""
) -> dict[int, Failure]:
    """Return failures in which the ranks whose processes have ended alike have one in common.

    Args:
        failures: by rank.
        causes: how each dead rank has ended.
        without_heal: returns why a rank cannot be replaced, and what to do: that may be known later than its death.
    """
    died = [rank for rank in failures if rank in causes and _is_death(failures[rank], rank, causes[rank])]
    alike = together(died, [(causes[rank], without_heal(rank)) for rank in died])
    return {
        **failures,
        **{rank: death_of(ranks, cause, remedy) for (cause, remedy), ranks in alike.items() for rank in ranks},
    }


def _is_death(failure: Failure, rank: int, cause: str) -> bool:
    return failure.name == _DEATH and failure.message.startswith(_ended([rank], cause))


def cell_error(failures: Mapping[int, Failure], world_ranks: Sequence[int]) -> CellError:
    """Make the exception that a failed cell raises in the notebook.

    The smallest group comes first: if one rank fails by itself and the others fail because of it, that one is what to
    read. Before it come those that have died.

    Args:
        failures: what each failed rank raised; at least one.
        world_ranks: all ranks that ran the cell.

    >>> failure = Failure("ZeroDivisionError", "division by zero", "Traceback ...")
    >>> str(cell_error({1: failure, 3: failure}, [0, 1, 2, 3]))
    '2 of 4 ranks failed: [1,3] ZeroDivisionError: division by zero'
    """
    alike: dict[Failure, list[int]] = {}
    for rank in sorted(failures):
        alike.setdefault(_without_addresses(failures[rank]), []).append(rank)
    groups = [(_common(key, [failures[rank] for rank in ranks]), ranks) for key, ranks in alike.items()]
    ordered = sorted(groups, key=lambda group: (group[0].name != _DEATH, len(group[1]), group[1][0]))
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


def _without_addresses(failure: Failure) -> Failure:
    """Return a failure that is equal for ranks whose texts differ in addresses of objects only."""
    return msgspec.structs.replace(
        failure, message=without_addresses(failure.message), traceback=without_addresses(failure.traceback)
    )


def _common(key: Failure, failures: Sequence[Failure]) -> Failure:
    """Return what is shown of ranks that failed alike."""
    return failures[0] if all(failure == failures[0] for failure in failures) else key


def syntax_error(failures: Mapping[int, Failure], ran: Sequence[int]) -> CellSyntaxError | None:
    """Return the exception for a cell that could be compiled on none of its ranks, if that is why it has failed.

    Only a rank can tell: IPython takes ``pip list``, and a user may have given it a syntax of his own.

    Args:
        failures: what each failed rank raised.
        ran: the ranks to which the cell was sent.
    """
    told = {failures.get(rank) for rank in ran}
    failure = told.pop() if len(told) == 1 else None
    if failure is None or failure.name != CellSyntaxError.__name__:
        return None
    return CellSyntaxError(failure.message, failure.traceback)


def first_line(failure: Failure) -> str:
    """Return an exception in one line of limited length."""
    first = shortened(failure.message.strip().partition("\n")[0], _LONGEST)
    return f"{failure.name}: {first}" if first else failure.name
