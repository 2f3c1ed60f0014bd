"""What a user may have meant, added below the error of a cell.

IPython knows nothing of ranks, and a rank nothing of the notebook: neither can say that `rank` is undefined here, that
a magic is on the wrong line, or that a variable exists, but in the other place.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ...cell_names import ALL
from ...errors import CellError
from ...faults import Faults
from ...rank_spec import named
from ...short_repr import shortened
from .routing import Auto

_THERE = ALL - {"torch", "dist"}
_OURS = ("distributed", "local")
_THEIRS = {"nbcomm", "rank", "ranks", "dist", "world"}
"""What is typed in place of ``%%distributed``: the name of the package, and what other extensions say."""
_MAGIC = re.compile(r"\s*(%%?)(\w+)")
_MISPLACED = re.compile(r"\s*%%(distributed|local)\b")
_UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")
_LONGEST = 40


def hint(code: str, error: BaseException, *, local: bool = False) -> str:
    r"""Return what to do about the error of a cell that ran in the notebook itself; empty if nothing is known.

    Args:
        code: the cell, as it was typed.
        error: how it ended.
        local: whether ``%%local`` has kept it here.

    >>> hint("all_reduce(1)", NameError("name 'all_reduce' is not defined", name="all_reduce"))
    'all_reduce exists only on the ranks: put %%distributed on the first line of this cell.'
    >>> hint("import os\n%%distributed\nrank", UsageError("Line magic function `%%distributed` not found."))
    '%%distributed must be on the first line of a cell: move it above "import os".'
    """
    if isinstance(error, NameError):
        if error.name not in _THERE:
            return ""
        remedy = "remove %%local from" if local else "put %%distributed on the first line of"
        return f"{error.name} exists only on the ranks: {remedy} this cell."
    lines = code.strip("\n").splitlines()
    if isinstance(error, UsageError):  # IPython's
        return _misplaced(lines) or _misspelt(code)
    return _misplaced(lines[:1]) if isinstance(error, IndentationError) else ""


def _misplaced(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        found = _MISPLACED.match(line)
        if found is None or (number == 0 and line.startswith("%%")):
            continue
        above = next((text.strip() for text in lines[:number] if text.strip()), "")
        if not above:
            return f"%%{found[1]} must be at the start of its line: remove what is before it."
        return f'%%{found[1]} must be on the first line of a cell: move it above "{shortened(above, _LONGEST)}".'
    return ""


def _misspelt(code: str) -> str:
    found = _MAGIC.match(code)
    if found is None or found[2] in _OURS:
        return ""
    word = found[2].lower()
    near = ["distributed"] if word in _THEIRS else difflib.get_close_matches(word, _OURS, 1, 0.75)
    return f"Did you mean {found[1]}{near[0]}?" if near else ""


def for_ranks(error: CellError, here: Mapping[str, Any], holders: Callable[[str], list[int]]) -> str:
    """Return what to do about a cell that failed on ranks for lack of a name that others have; otherwise empty.

    Args:
        error: how it failed.
        here: the notebook's variables.
        holders: says which ranks have a variable of a name.
    """
    found = _UNKNOWN.search(str(error))
    if found is None or found[1].startswith("_"):
        return ""
    name = found[1]
    ranks = holders(name)
    if ranks:
        only = f"Only {named(ranks)} {'has' if len(ranks) == 1 else 'have'} a variable {name}"
        sent = f"{name} = broadcast({name} if rank == {ranks[0]} else None, {ranks[0]})"
        return f"{only}: set it on all ranks, or send it to them by {sent}."
    if name in ALL:
        return f"The next cell has nbcomm's {name} again."  # it was deleted in this one
    if name not in here:
        return ""
    if isinstance(here[name], ModuleType):
        return f"The notebook has imported {name}, but the ranks have not: import it in a %%distributed cell."
    return f"The notebook has a variable {name}, but the ranks do not: copy it to them with %distributed push {name}."


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
    def suggesting(self, holders: Callable[[str], list[int]] = lambda _: []) -> Iterator[None]:
        """Let the error of a cell that ranks run end with what to do about it.

        Args:
            holders: says which ranks have a variable of a name.
        """
        try:
            yield
        except CellError as error:
            with self._faults.beside("a hint could not be shown"):
                error.suggest(for_ranks(error, self._shell.user_ns, holders))
            raise

    def _look(self, result: Any) -> None:
        with self._faults.beside("a hint could not be shown"):
            error = result.error_before_exec or result.error_in_exec
            said = hint(result.info.raw_cell, error, local=self._routing.on) if error is not None else ""
            if said:
                sys.stderr.write(f"nbcomm: {said}\n")
