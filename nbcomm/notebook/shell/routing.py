"""Where a cell runs: on the ranks, or in the notebook's own process.

With auto on, a user's cell without a magic goes to the ranks, as if it began with ``%%distributed``. That is done to
the text, where IPython lets extensions change it: history, completeness and errors stay IPython's own.

The text does not show whether a cell is a user's: code that runs here may call ``run_cell`` too (``%run file.ipy``, an
extension's hook), and front ends send code of their own. So a cell is a user's if it was requested from outside (a
request to the kernel, a terminal's prompt), goes into the history, and has not begun: after that, running code causes
any transform.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

from IPython.core.inputtransformer2 import leading_indent
from IPython.core.interactiveshell import InteractiveShell

from ...faults import Faults
from ...sentences import wrapped

_STEERS = re.compile(
    r"\?{0,2}%distributed\b"
    r"|\?{1,2}%%(?:distributed|local)\b|%%(?:distributed|local)\?"  # asks for their help
    r"|%(?:re|un)?load_ext\s+nbcomm\b"
)
_LEAVES = re.compile(r"(?:exit|quit)(?:\s*\(\s*\))?\s*;?")
_MARK = re.compile(r"%%(distributed|local)\b")
_MARKS = ("%%distributed", "%%local", "%distributed")


class Kind(Enum):
    """What the text of a cell says about where it runs."""

    NOTHING = "it is empty, or comments only"
    STEERING = "its first line steers nbcomm, or leaves IPython: it runs here, whatever auto is"
    LOCAL = "%%local: the rest runs here"
    DISTRIBUTED = "%%distributed: the rest runs on ranks"
    PLAIN = "any other: it runs on all ranks if auto is on, else here"


def kind_of(lines: Sequence[str]) -> tuple[Kind, int]:
    """Return what a cell says about where it runs, and the index of the line that says so: its first line of code.

    ``%%distributed`` has to be the first line, as every cell magic; above ``%%local`` there may be comments.
    """
    commented = False
    for index, line in enumerate(lines):
        text = line.strip()
        if not text or text.startswith("#"):
            commented |= bool(text)
            continue
        if _STEERS.match(text) or (_LEAVES.fullmatch(text) and not any(map(str.strip, lines[index + 1 :]))):
            return Kind.STEERING, index
        mark = _MARK.match(text)
        if mark is None:
            return Kind.PLAIN, index
        if mark[1] == "local":
            return Kind.LOCAL, index
        # Below a comment IPython does not recognize it, and says so: here, once.
        return (Kind.STEERING if commented else Kind.DISTRIBUTED), index
    return Kind.NOTHING, len(lines)


def part_for_ranks(code: str, *, plain: bool = False) -> tuple[str, int] | None:
    r"""Return the part of a cell that goes to the ranks, and where it begins; None if the cell runs here.

    It changes nothing and sends nothing, so that it can be called at each key: for completion and inspection.

    Args:
        code: the cell as it is typed, perhaps incomplete.
        plain: whether a cell without a magic goes to the ranks.

    >>> part_for_ranks("%%distributed -r 0\nx = rank")
    ('x = rank', 19)
    >>> part_for_ranks("x = rank", plain=True)
    ('x = rank', 0)
    >>> part_for_ranks("%%local\nx = 1", plain=True)
    """
    lines = code.splitlines(keepends=True)
    kind, index = kind_of(lines)
    if kind is Kind.DISTRIBUTED and lines[index].endswith(("\n", "\r")):
        offset = sum(map(len, lines[: index + 1]))
        return code[offset:], offset
    if kind is not Kind.PLAIN or not plain:
        return None
    first = lines[index].strip()
    # "%dis" may become a line that runs here; its completions are found here.
    unfinished = index == len(lines) - 1 and any(mark.startswith(first) for mark in _MARKS)
    return None if unfinished else (code, 0)


def lines_above(page: str, code: str) -> int:
    r"""Return how many lines of a cell stand above the part of it that goes to the ranks.

    Args:
        page: the cell as it was typed.
        code: that part, as IPython passes it on: without what it removes above it, and perhaps less indented.

    >>> lines_above("\n%%distributed -r 0\nx = rank\nx\n", "x = rank\nx\n")
    2
    >>> lines_above("x = rank", "x = rank\n")
    0
    """
    lines, below = ([line.strip() for line in text.rstrip().split("\n")] for text in (page, code))
    above = len(lines) - len(below)
    return above if above >= 0 and lines[above:] == below else 1  # a program has run it, with the magic above it


class _Asked:
    """A request from outside; once it has begun, no further cell is a user's. A program's request has begun at once."""

    def __init__(self, *, begun: bool) -> None:
        self.begun = begun


_asked: ContextVar[_Asked | None] = ContextVar("nbcomm_asked", default=None)
"""Each context has its own, and Python wants the variable at the top of a module: an object's is never freed."""


class Auto:
    """The transform of one shell's cells.

    Attributes:
        on: whether a plain cell goes to the ranks.
    """

    has_side_effects = True
    """IPython omits such a transform when it checks whether a text is a complete cell."""

    def __init__(self, shell: InteractiveShell, *, on: bool = False) -> None:
        self.on = on
        self._shell = shell
        self._replaced: tuple[Any, str, Any, Any] | None = None

    def __call__(self, lines: list[str]) -> list[str]:
        """Change the lines of a cell, so that it runs where it should."""
        kind, index = kind_of(lines)
        if kind is Kind.LOCAL:
            return _without_mark(lines, index)
        asked = _asked.get()
        if kind is Kind.PLAIN and self.on and asked is not None and not asked.begun:
            return ["%%distributed\n", *lines]
        return lines

    def install(self) -> None:
        """Add the transform to the shell, and notice requests from outside."""
        shell, kernel = self._shell, getattr(self._shell, "kernel", None)
        shell.input_transformers_cleanup.append(self)
        shell.events.register("pre_execute", _begin)
        if kernel is None:
            self._replace(shell, "run_cell", _of_terminal)
        else:
            self._replace(kernel, "do_execute", _of_kernel)

    def remove(self) -> None:
        """Leave the shell as it was before `install`; plain cells stay here."""
        shell, self.on = self._shell, False
        if self in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.remove(self)
            shell.events.unregister("pre_execute", _begin)
        if self._replaced is None:
            return
        owner, name, ours, before = self._replaced
        if vars(owner).get(name) is not ours:
            return  # another wrapper is around it; there it does no harm
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    def _replace(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        ours = around(getattr(owner, name))
        self._replaced = owner, name, ours, vars(owner).get(name)
        setattr(owner, name, ours)


# ── the text ────────────────────────────────────────────────────────────────────────────────────────


def takes(line: str) -> bool:
    """Return whether the text after ``%%local`` is more than a comment."""
    return bool(line.strip()) and not line.strip().startswith("#")


def _without_mark(lines: list[str], index: int) -> list[str]:
    """Return the cell below ``%%local``, as any cell of IPython; its lines keep their numbers, for tracebacks."""
    if takes(lines[index].strip().removeprefix("%%local")):
        return lines[index:]  # the magic of that name refuses it
    above, below = [*lines[:index], "\n"], lines[index + 1 :]
    while below and not below[0].strip():
        above.append(below.pop(0))
    below = list(leading_indent(below))
    # A cell magic is one only in the first line.
    return below if below and below[0].startswith("%%") else above + below


# ── whose cell it is ────────────────────────────────────────────────────────────────────────────────


_faults = Faults()


def _say(note: str) -> None:
    sys.stderr.write(wrapped(f"nbcomm: {note}\n"))


@contextmanager
def _asking(*, for_person: bool) -> Iterator[None]:
    token = _asked.set(_Asked(begun=not for_person))
    try:
        yield
    finally:
        _asked.reset(token)


def _begin() -> None:
    """Note that a cell's own code is about to run."""
    asked = _asked.get()
    if asked is not None:
        asked.begun = True


def _of_kernel(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``do_execute``: code that front ends send by themselves is silent, or kept out of the history."""

    @functools.wraps(execute)
    async def do_execute(code: str, silent: bool, store_history: bool = True, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - ipykernel's
        with ExitStack() as block:
            with _faults.beside("whose cell it is could not be noted", _say):  # else the front end would wait for ever
                block.enter_context(_asking(for_person=store_history and not silent))
            reply = execute(code, silent, store_history, *args, **kwargs)
            return await reply if inspect.isawaitable(reply) else reply

    return do_execute


def _of_terminal(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``run_cell``, which a terminal's prompt calls, and which running code may call too."""

    @functools.wraps(run)
    def run_cell(raw_cell: str, store_history: bool = False, silent: bool = False, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - IPython's
        if _asked.get() is not None:  # running code calls it
            return run(raw_cell, store_history, silent, *args, **kwargs)
        with ExitStack() as block:
            with _faults.beside("whose cell it is could not be noted", _say):
                block.enter_context(_asking(for_person=store_history and not silent))
            return run(raw_cell, store_history, silent, *args, **kwargs)

    return run_cell
