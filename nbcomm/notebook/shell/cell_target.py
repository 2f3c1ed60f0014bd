"""The part of a cell being typed that is for ranks, and for which."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import routing
from .arguments import cell_parser, split
from .parser import Helped, UsageError

_AROUND = re.compile(r"\s*(?:%%(?:time|timeit|capture|prun)\b[^\n]*\n\s*)+(?=%%distributed\b)")
"""Cell magics that run the rest as a cell."""

_FIRST_LINE = re.compile(r"\s*%%distributed\b([^\n]*)")


class Part(NamedTuple):
    """Code for ranks.

    Attributes:
        code: as the ranks will get it.
        offset: where in the cell it begins, in characters.
        ranks: the SPEC after ``-r``; None for all.
        world: the name after ``--world``; often empty.
    """

    code: str
    offset: int
    ranks: str | None = None
    world: str = ""


def part_for_ranks(code: str, *, plain: bool = False) -> Part | None:
    r"""Return the part of a cell that runs on ranks; None if all of it runs in the notebook.

    A first line that is incomplete, or wrong, is used as far as it is understood.

    Args:
        code: the cell as it is typed.
        plain: whether a cell without a magic goes to the ranks.

    >>> part_for_ranks("%%distributed -r 2\nx.")
    Part(code='x.', offset=19, ranks='2', world='')
    >>> part_for_ranks("%%time\n%%distributed\nx.").offset
    21
    >>> part_for_ranks("x.") is None
    True
    """
    around = _AROUND.match(code)
    start = around.end() if around is not None else 0
    found = routing.part_for_ranks(code[start:], plain=plain)
    if found is None:
        return None
    part, offset = found
    first = _FIRST_LINE.match(code, start) if offset else None
    return Part(part, start + offset, *(_addressees(first[1]) if first is not None else ()))


def _addressees(line: str) -> tuple[str | None, str]:
    parser = cell_parser()
    vars(parser)["print_help"] = lambda *_: None  # the line was not run yet
    try:
        known, _ = parser.parse_known_args(split(line))
    except (Helped, UsageError):
        return None, ""
    return known.ranks, known.world
