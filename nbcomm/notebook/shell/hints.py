"""What a user may have meant, added below the error of a cell.

IPython knows nothing of ranks, and a rank nothing of the notebook: neither can say that `rank` is undefined here, that
a magic is on the wrong line, or that a variable exists, but in the other place.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ...cell_names import ALL, imported_from_us, meant
from ...errors import CellError, StateError
from ...faults import Faults
from ...rank_spec import capital, named, said_of
from ...sentences import wrapped
from ...short_repr import shortened
from ..session import registry
from .routing import Auto

Holders = Callable[[str], list[int]]
"""Says which ranks have a variable of a name."""

_IMPORTED = {"torch", "dist"}
_OURS = ("distributed", "local")
_THEIRS = {"nbcomm", "rank", "ranks", "dist", "world"}
"""What is typed in place of ``%%distributed``: the name of the package, and what other extensions say."""
_RANK = re.compile(r"\s*%%ranks?[ \t]+\[?([\d,:! -]+)")
_MAGIC = re.compile(r"\s*(%%?)(\w+)")
_APART = re.compile(r"\s*(%%?)\s+(distributed|local)\b")
_ONE_SIGN = re.compile(r"\s*%distributed[ \t]*\n")
_MISPLACED = re.compile(r"\s*%%(distributed|local)\b")
_UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")
_TWO = "begin it with %%distributed, with two percent signs"
_LONGEST = 40


def hint(code: str, error: BaseException | None, *, local: bool = False, holders: Holders = lambda _: []) -> str:
    r"""Return what to do about a cell that ran in the notebook itself; empty if nothing is known.

    Args:
        code: the cell, as it was typed.
        error: how it ended, if it failed.
        local: whether ``%%local`` has kept it here.
        holders: of the world that cells run on.

    >>> hint("all_reduce(1)", NameError("name 'all_reduce' is not defined", name="all_reduce"))
    'all_reduce exists only on the ranks: put %%distributed on the first line of this cell.'
    >>> hint("import os\n%%distributed\nrank", UsageError("Line magic function `%%distributed` not found."))
    '%%distributed must be on the first line of a cell: move it above "import os".'
    """
    lines = code.strip("\n").splitlines()
    below = [line for line in lines[1:] if line.strip() and line.lstrip()[0] not in "%!#"]
    if _ONE_SIGN.match(code) and below and (error is None or isinstance(error, NameError)):
        return f"What is below %distributed runs in the notebook. For a cell that runs on the ranks, {_TWO}."
    if isinstance(error, NameError):
        return _of_name(
            error.name or "", holders, "remove %%local from" if local else "put %%distributed on the first line of"
        )
    if isinstance(error, ImportError):
        imported = imported_from_us(error)
        return f"{imported} is not imported: %%distributed cells have it by its name." if imported else ""
    if isinstance(error, UsageError):  # IPython's
        return _misplaced(lines) or _misspelt(code)
    return _misplaced(lines[:1]) if isinstance(error, IndentationError) else ""


def _of_name(name: str, holders: Holders, first_line: str) -> str:
    """Return what to do about a name that the notebook does not know."""
    if name in _IMPORTED:
        return f"The ranks have imported {name}, but the notebook has not: {first_line} this cell, or import it here."
    if name in ALL:
        return f"{name} exists only on the ranks: {first_line} this cell."
    ranks = holders(name) if name else []
    if ranks:
        have = capital(said_of(ranks, f"has a variable {name}"))
        return (
            f"{have}, but the notebook does not: {first_line} this cell, or copy the value here with "
            f"%distributed pull {name}."
        )
    near = meant(name) if name else ""
    return f"Did you mean {near}? It exists only on the ranks: {first_line} this cell." if near else ""


def _misplaced(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        found = _MISPLACED.match(line)
        if found is None or (number == 0 and line.startswith("%%")):
            continue
        magic, above = f"%%{found[1]}", [text.strip() for text in lines[:number] if text.strip()]
        if not above:
            return f"{magic} must be at the start of its line: remove what is before it."
        must = f"{magic} must be on the first line of a cell"
        if any(text.startswith(("%", "!")) for text in above):  # they belong here, and not on the ranks
            return f"{must}. What is above it has run: put {magic}, with what is below it, into a cell of its own."
        return f'{must}: move it above "{shortened(above[0], _LONGEST)}".'
    return ""


def _misspelt(code: str) -> str:
    apart = _APART.match(code)
    if apart is not None:
        return f"Write {apart[1]}{apart[2]}, without a blank."
    found = _MAGIC.match(code)
    if found is None or found[2] in _OURS:
        return ""
    word = found[2].lower()
    if (spec := _RANK.match(code)) is not None:
        return f"Did you mean %%distributed -r {spec[1].replace(' ', '')}?"
    near = ["distributed"] if word in _THEIRS else difflib.get_close_matches(word, _OURS, 1, 0.75)
    return f"Did you mean {found[1]}{near[0]}?" if near else ""


def for_ranks(error: CellError, here: Mapping[str, Any], holders: Holders, left: Callable[[], str] = str) -> str:
    """Return what to do about a cell that failed on ranks for lack of a name that others have; otherwise empty.

    Args:
        error: how it failed.
        here: the notebook's variables.
        holders: of the world.
        left: tells of other ranks that may have it, and how to reach them; empty if there are none.
    """
    found = _UNKNOWN.search(str(error))
    if found is None or found[1].startswith("_"):
        return ""
    name = found[1]
    ranks = holders(name)
    if ranks:
        only = f"Only {said_of(ranks, f'has a variable {name}')}"
        sent = f"{name} = broadcast({name} if rank == {ranks[0]} else None, {ranks[0]})"
        remedy = f"set it on all ranks, or send it to them by {sent}"
        if len(ranks) > 1:  # what they have may differ, and a broadcast would overwrite it
            remedy = "set it on the other ranks, too"
        # A script, which has no variables of cells, may fail where they exist.
        return "" if {*error.ranks} <= {*ranks} else f"{only}: {remedy}."
    if name in ALL:
        return f"The next cell has nbcomm's {name} again."  # it was deleted in this one
    if name not in here:
        return f"Did you mean {near}?" if (near := meant(name)) else left()
    if isinstance(here[name], ModuleType):
        return f"The notebook has imported {name}, but the ranks have not: import it in a %%distributed cell."
    return f"The notebook has a variable {name}, but the ranks do not: copy it to them with %distributed push {name}."


def unpushed(names: Sequence[str], here: Mapping[str, Any], holders: Holders) -> str:
    """Return why names cannot be pushed, and what to do; empty if the notebook has them all.

    Args:
        names: as they were typed.
        here: the notebook's variables.
        holders: of the world.
    """
    name = next((name for name in names if name not in here), "")
    if not name:
        return ""
    if "=" in name:
        return f"push copies variables, and {name} is none: set it in the notebook first. Nothing was pushed."
    if not name.isidentifier():
        return f"push takes the names of variables, and {name} is an expression: bind it to a name. Nothing was pushed."
    said = f"{name} is not defined in the notebook"
    ranks, near = holders(name), difflib.get_close_matches(name, [one for one in here if one[:1] != "_"], 1, 0.7)
    if ranks:
        return f"{said}, but on {named(ranks)}: %distributed pull {name} copies it from there. Nothing was pushed."
    return f"{said}; did you mean {near[0]}? Nothing was pushed." if near else f"{said}; nothing was pushed."


def unpulled(names: Sequence[str], here: Mapping[str, Any], holders: Holders) -> str:
    """Return what to do about names that could not be pulled; empty if ranks have them all. See `unpushed`."""
    name = next((name for name in names if not holders(name)), "")
    if not name:
        return ""
    if not name.isidentifier():
        return f"pull takes the names of variables: bind {name} to one in a %%distributed cell."
    if name in here:
        return f"The notebook has a variable {name}: %distributed push {name} copies it to the ranks."
    return "%distributed who lists the variables of the ranks."


def of_ranks(world: str, name: str) -> list[int]:
    """Return which ranks of a world have a variable of this name, as far as they say so at once."""
    try:
        return registry.current(world).holders(name)
    except StateError:
        return []


class Hints:
    """The hints below the errors of a shell's cells.

    Args:
        shell: the shell of the cells.
        routing: decides where plain cells run.
    """

    def __init__(self, shell: InteractiveShell, routing: Auto) -> None:
        self._shell = shell
        self._routing = routing
        self._faults = Faults()

    def install(self) -> None:
        """Show hints from now on."""
        self._shell.events.register("post_run_cell", self._look)

    def remove(self) -> None:
        """Show no more hints."""
        with suppress(ValueError):
            self._shell.events.unregister("post_run_cell", self._look)

    @contextmanager
    def suggesting(self, holders: Holders = lambda _: [], left: Callable[[], str] = str) -> Iterator[None]:
        """Let the error of a cell that ranks run end with what to do about it.

        Args:
            holders: of the world.
            left: tells of other ranks that may have it; see `for_ranks`.
        """
        try:
            yield
        except CellError as error:
            with self._faults.beside("a hint could not be shown"):
                error.suggest(for_ranks(error, self._shell.user_ns, holders, left))
            raise

    def _look(self, result: Any) -> None:
        with self._faults.beside("a hint could not be shown"):
            error = result.error_before_exec or result.error_in_exec
            code = result.info.raw_cell
            said = hint(code, error, local=self._routing.on, holders=partial(of_ranks, ""))
            if said:
                sys.stderr.write(wrapped(f"nbcomm: {said}\n"))
