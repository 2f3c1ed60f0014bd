"""Sets of ranks as text: ``"0-2,5"`` ↔ ``{0, 1, 2, 5}``; and the beginnings of sentences about ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from .errors import SpecError
from .sentences import rows

_Text = TypeVar("_Text", bound=Hashable)

_EXAMPLES = "write 0, 0,2, 0-3, 0:8:2, !1 or all"
_NUMBER = re.compile(r"[0-9]{1,18}")
_DASH = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_SLICE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})(?::([0-9]{1,18}))?")


def parse(spec: str, world_size: int) -> list[int]:
    """Return the ranks that a rank SPEC selects in a world; the text is never evaluated as Python.

    A spec is the union of its comma-separated parts, less the parts that begin with ``!``; a spec of ``!``
    parts only starts from all ranks. ``a-b`` includes b; ``a:b:step`` excludes b, as slices do.

    Args:
        spec: the user's text.
        world_size: number of ranks in the world, at least 1.

    Returns:
        The ranks, ascending, each once; never empty.

    Raises:
        SpecError: malformed, out of range, or no rank is left.

    >>> parse("0-2,5", 8), parse("0:8:2", 8), parse("!1", 4)
    ([0, 1, 2, 5], [0, 2, 4, 6], [0, 2, 3])
    """
    parts = [part.strip() for part in spec.split(",")]
    if not all(parts):
        raise SpecError(f"The ranks {spec!r} contain an empty part; {_EXAMPLES}.")
    taken = [_one(part.removeprefix("!").strip(), spec, world_size) for part in parts]
    chosen: set[int] = set() if any(not part.startswith("!") for part in parts) else set(range(world_size))
    for part, ranks in zip(parts, taken, strict=True):
        if not part.startswith("!"):
            chosen |= ranks
    for part, ranks in zip(parts, taken, strict=True):
        if part.startswith("!"):
            chosen -= ranks
    if not chosen:
        raise SpecError(f"The ranks {spec!r} select no rank; {_valid(world_size)}.")
    return sorted(chosen)


def _one(part: str, spec: str, world_size: int) -> set[int]:
    """Return the ranks of one comma-separated part, without its ``!``."""
    if part == "all":
        return set(range(world_size))
    if _NUMBER.fullmatch(part):
        return _checked(range(int(part), int(part) + 1), spec, world_size)
    if match := _DASH.fullmatch(part):
        first, last = map(int, match.groups())
        if first > last:
            raise SpecError(f"The ranks {spec!r} count down from {first} to {last}; write {last}-{first}.")
        return _checked(range(first, last + 1), spec, world_size)
    if match := _SLICE.fullmatch(part):
        start, stop, step = (int(text) if text else None for text in match.groups())
        if step == 0:
            raise SpecError(f"The ranks {spec!r} have a step of 0; a step is at least 1.")
        return _checked(range(start or 0, world_size if stop is None else stop, step or 1), spec, world_size)
    raise SpecError(f"The ranks {spec!r} are invalid at {part!r}; {_EXAMPLES}.")


def _checked(ranks: range, spec: str, world_size: int) -> set[int]:
    if ranks and ranks[-1] >= world_size:
        raise SpecError(f"Rank {ranks[-1]} (in {spec!r}) does not exist; {_valid(world_size)}.")
    return set(ranks)


def checked(ranks: Iterable[int], world_size: int) -> list[int]:
    """Return the ranks, ascending, each once.

    Raises:
        SpecError: there are none, or one is not in the world.
    """
    chosen = sorted(set(ranks))
    if not chosen:
        raise SpecError(f"The list of ranks is empty; {_valid(world_size)}.")
    unknown = [rank for rank in chosen if not 0 <= rank < world_size]
    if unknown:
        do = "do" if len(unknown) > 1 else "does"
        raise SpecError(f"{capital(named(unknown))} {do} not exist; {_valid(world_size)}.")
    return chosen


def _valid(world_size: int) -> str:
    return f"valid ranks are {fold(range(world_size))}" if world_size > 1 else "the only valid rank is 0"


def fold(ranks: Iterable[int]) -> str:
    """Write ranks in short form, runs of two or more joined by a dash.

    >>> fold([0, 1, 2, 3]), fold([3, 1]), fold([0, 1, 5])
    ('0-3', '1,3', '0-1,5')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def together(ranks: Iterable[int], texts: Iterable[_Text]) -> dict[_Text, list[int]]:
    """Group ranks by their text, or texts, and return the ranks of each, in the order of first appearance.

    >>> together([0, 1, 2], ["a dict", "an int", "a dict"])
    {'a dict': [0, 2], 'an int': [1]}
    """
    holders: dict[_Text, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        holders.setdefault(text, []).append(rank)
    return holders


def by_rank(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Write each rank's text, with ranks of the same text folded together.

    >>> by_rank([0, 1, 2], ["a dict", "an int", "a dict"])
    'ranks 0,2 a dict; rank 1 an int'
    """
    return "; ".join(f"{named(who)} {text}" for text, who in together(ranks, texts).items())


def rows_by_rank(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Write each rank's text in a row, with ranks of the same text folded together; see `by_rank`."""
    return "\n".join(rows(f"{named(who)} {text}" for text, who in together(ranks, texts).items()))


def capital(text: str) -> str:
    """Return the text with its first letter in upper case; unlike `str.capitalize`, leave the rest as it is.

    >>> capital("ranks 0-2 have ended by SIGKILL"), capital("")
    ('Ranks 0-2 have ended by SIGKILL', '')
    """
    return f"{text[:1].upper()}{text[1:]}"


def named(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2,5``."""
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {fold(ranks)}"


def plural(clause: str) -> str:
    """Turn the end of a sentence about one rank into the plural: ``was killed`` → ``were killed``."""
    verb, _, rest = clause.partition(" ")
    verb = {"has": "have", "was": "were", "is": "are", "does": "do", "waits": "wait"}.get(verb, verb)
    return f"{verb} {rest}" if rest else verb


def said_of(ranks: Sequence[int], clause: str, name: Callable[[Sequence[int]], str] = named) -> str:
    """Say of ranks what the end of a sentence says of one: every text about a dead rank is made here.

    >>> said_of([1], "was killed by SIGKILL"), said_of([1, 3], "was killed by SIGKILL")
    ('rank 1 was killed by SIGKILL', 'ranks 1,3 were killed by SIGKILL')
    """
    return f"{name(ranks)} {plural(clause) if len(ranks) > 1 else clause}"


def ends_of(ranks: Iterable[int], causes: Mapping[int, str]) -> str:
    """Describe how each of some dead ranks has ended, those that ended alike together.

    >>> ends_of([1, 2, 3], {1: "was killed by SIGKILL", 2: "ended with exit code 3", 3: "was killed by SIGKILL"})
    'ranks 1,3 were killed by SIGKILL and rank 2 ended with exit code 3'
    """
    ranks = list(ranks)
    alike = together(ranks, [causes[rank] for rank in ranks])
    return listed([said_of(who, cause) for cause, who in alike.items()])


def others_stopped(others: int, culprits: int) -> str:
    """Say that ranks were stopped because others of their cell failed.

    >>> others_stopped(15, 1), others_stopped(1, 2)
    ('15 others were stopped because of it', '1 other was stopped because of them')
    """
    return f"{others_were(others)} stopped because of {'it' if culprits == 1 else 'them'}"


def others_were(count: int) -> str:
    """Begin a sentence about some other ranks: ``1 other was``, ``15 others were``."""
    return "1 other was" if count == 1 else f"{count} others were"


def listed(clauses: Sequence[str]) -> str:
    """Join clauses to one: ``a, b and c``; before the "and" stands a comma if one of them has one itself.

    >>> listed(["ranks 1,3 died", "rank 2 left"]), listed(["rank 1 was lost with a, which is silent", "rank 2 left"])
    ('ranks 1,3 died and rank 2 left', 'rank 1 was lost with a, which is silent, and rank 2 left')
    """
    if len(clauses) < 2:
        return "".join(clauses)
    last = ", and " if any(", " in clause for clause in clauses) else " and "
    return f"{', '.join(clauses[:-1])}{last}{clauses[-1]}"
