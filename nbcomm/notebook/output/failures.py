"""The ranks' failures as one exception: identical tracebacks once, the smallest group of ranks first."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from ...errors import CellError, CellSyntaxError, CollectiveError, HangError, MismatchError, RankDiedError
from ...protocol import Failure
from ...rank_spec import capital, ends_of, others_stopped, others_were, together
from ...sentences import in_one_line, wrapped
from ...short_repr import COLOUR, shortened, without_addresses
from ..display.displays import label, prefixed

_NAMED = 3
_WHOLE = 4
_ROWS = 64
_FRAME = re.compile(r"^(?: *(?:File |Cell In|-+> *\d|\d+ ).*|.* Traceback \(most recent.*)$", re.MULTILINE)
"""A line of a traceback that says where; the others are code, and the messages of errors."""

_LONGEST = 300
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


_DEATH = RankDiedError.__name__
_IN_ROWS = {error.__name__ for error in (HangError, MismatchError, CollectiveError)}


def death_of(ranks: Sequence[int], causes: Mapping[int, str], without_heal: str = "") -> Failure:
    """Return the failure that ranks whose processes have ended have in common.

    Args:
        ranks: which.
        causes: how each of them has ended.
        without_heal: why they cannot be replaced, and what to do, in sentences; empty where they can be.

    >>> death_of([1], {1: "was killed by SIGKILL"}).message
    'Rank 1 was killed by SIGKILL. Type %distributed heal to put a new process in its place.'
    """
    return dead(f"{_ended(ranks, causes)} {without_heal or f'{healing(ranks)}.'}")


def healing(ranks: Sequence[int]) -> str:
    """Return what to do about dead ranks that can be replaced, without the full stop."""
    places = "new processes in their places" if len(ranks) > 1 else "a new process in its place"
    return f"Type %distributed heal to put {places}"


def _ended(ranks: Sequence[int], causes: Mapping[int, str]) -> str:
    return f"{capital(ends_of(ranks, causes))}."


def dead(sentence: str) -> Failure:
    """Return the failure of who will never answer."""
    return Failure(_DEATH, sentence, wrapped(f"{_DEATH}: {sentence}"))


def with_deaths_together(
    failures: Mapping[int, Failure], causes: Mapping[int, str], without_heal: Callable[[int], str] = lambda _: ""
) -> dict[int, Failure]:
    """Return failures in which the ranks whose processes have ended have one in common, if they have one remedy.

    Args:
        failures: by rank.
        causes: how each dead rank has ended.
        without_heal: returns why a rank cannot be replaced, and what to do: that may be known later than its death.
    """
    died = [rank for rank in failures if rank in causes and _is_death(failures[rank], rank, causes)]
    alike = together(died, [without_heal(rank) for rank in died])
    return {**failures, **{rank: death_of(ranks, causes, how) for how, ranks in alike.items() for rank in ranks}}


def _is_death(failure: Failure, rank: int, causes: Mapping[int, str]) -> bool:
    return failure.name == _DEATH and failure.message.startswith(_ended([rank], causes))


def cell_error(
    failures: Mapping[int, Failure],
    world_ranks: Sequence[int],
    stopped: Collection[int] = (),
    interrupted: Collection[int] = (),
) -> CellError:
    """Make the exception that a failed cell raises in the notebook.

    Only ranks that have failed by themselves count as failed, and are named; of the others it is said how many they
    are. The smallest group comes first, and before it those that have died, and behind all those that were stopped.

    Args:
        failures: what each failed rank raised; at least one.
        world_ranks: all ranks that ran the cell.
        stopped: those of them that were only stopped because others failed.
        interrupted: those that only the user's interrupt has ended.

    >>> failure = Failure("ZeroDivisionError", "division by zero", "Traceback ...")
    >>> str(cell_error({1: failure, 3: failure}, [0, 1, 2, 3]))
    '2 of 4 ranks failed: [1,3] ZeroDivisionError: division by zero'
    >>> str(cell_error({1: failure, 0: Failure("HangError", "…", "")}, [0, 1], stopped=[0]))
    '1 of 2 ranks failed: [1] ZeroDivisionError: division by zero; 1 other was stopped because of it'
    """
    alike = together(sorted(failures), [_bug(failures[rank]) for rank in sorted(failures)])
    others = {*stopped, *interrupted} if len({*stopped, *interrupted}) < len(failures) else set[int]()
    ordered = sorted(
        alike.values(),
        key=lambda ranks: (others.issuperset(ranks), failures[ranks[0]].name != _DEATH, len(ranks), ranks[0]),
    )
    own = [mine for ranks in ordered if (mine := [rank for rank in ranks if rank not in others])]
    named = [row for ranks in own for row in _in_rows(failures, ranks)]
    failed_own = [rank for ranks in own for rank in ranks]
    kinds = together(failed_own, [failures[rank].name for rank in failed_own])
    left_out = [f"and {len(named) - _NAMED} more"] if len(named) > _NAMED else []
    count, total = len(failures) - len(others), len(world_ranks)
    rest = [others_stopped(n, count)] if (n := len(others.difference(interrupted))) else []
    rest += [f"{others_were(n)} interrupted"] if (n := len(others & {*interrupted})) else []
    failed = f"{count} of {total} rank{'s' if total > 1 else ''} failed: "
    tracebacks = {rank: failure.traceback for rank, failure in failures.items()}
    # The displayed traceback has the messages above its last line; the exception has them in its text.
    summary = failed + "; ".join([*(f"{label(ranks)} {name}" for name, ranks in kinds.items()), *rest])
    *first, last = [*named[:_NAMED], *left_out, *rest]
    said = "; ".join([*(part.rstrip(".") for part in first), last])
    return CellError(failed + said, tracebacks, "\n".join(_rendered(failures, ordered)), summary)


def _bug(failure: Failure) -> object:
    """Return what is equal for ranks that failed at the same place, whatever their messages are."""
    body, _ = _apart(failure.traceback, failure.name)
    said = "" if body else without_addresses(failure.message)  # without frames, only the message tells
    return failure.name, said, *_FRAME.findall(COLOUR.sub("", body))


def _in_rows(failures: Mapping[int, Failure], ranks: Sequence[int]) -> list[str]:
    """Return each of these ranks' exceptions in a line; equal ones once."""
    rows = together(ranks, [without_addresses(first_line(failures[rank])) for rank in ranks])
    return [f"{label(those)} {said}" for said, those in rows.items()]


def _rendered(failures: Mapping[int, Failure], groups: Sequence[Sequence[int]]) -> list[str]:
    """Return what is shown of the failures: each traceback once, and a row for each message where they differ."""
    rendered = []
    for i, ranks in enumerate(groups):
        texts = [failures[rank].traceback.rstrip() for rank in ranks]
        texts = texts if len({*texts}) == 1 else [*map(without_addresses, texts)]
        if i >= _WHOLE or not texts[0]:
            rendered += _in_rows(failures, ranks)
            continue
        body, said = texts[0], [_apart(text, failures[ranks[0]].name)[1] for text in texts]
        rows = [prefixed(label(those), text) for text, those in together(ranks, said).items()]
        if len(rows) > 1:
            body, more = _apart(body, failures[ranks[0]].name)[0].rstrip(), len(rows) - _ROWS
            rows[_ROWS:] = [f"(and {more} more messages)\n"] if more > 0 else []
            body += f"\n{_RESET}\n{''.join(rows).rstrip()}"
        rendered.append(f"{_BOLD}{label(ranks)}{_RESET}\n{body}\n{_RESET}")
    if len(groups) > _WHOLE:
        rendered.append("(the other tracebacks are in the exception's `tracebacks`)\n")
    return rendered


def _apart(traceback: str, name: str) -> tuple[str, str]:
    """Return a traceback without the lines of the exception itself at its end, and these."""
    ends = [found.start() for found in re.finditer(rf"\n(?:\x1b\[[\d;]*m)*(?:\w+\.)*{re.escape(name)}\b", traceback)]
    at = ends[-1] if ends else 0
    return traceback[:at], traceback[at:].strip()


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
    message = in_one_line(failure.message) if failure.name in _IN_ROWS else failure.message
    first = shortened(message.strip().partition("\n")[0], _LONGEST)
    return f"{failure.name}: {first}" if first else failure.name
