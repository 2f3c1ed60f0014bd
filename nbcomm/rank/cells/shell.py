"""IPython's shell on a rank: what a cell raises, and the value of its last expression, go to the notebook.

These are methods of its class, as those of any kernel: what a user sets in their place on the shell
(``rich.traceback.install()``, ``ip.showtraceback = …``) stays for later cells, and ``del`` takes it back.
"""

from __future__ import annotations

import ast
import linecache
import sys
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Protocol

from ipykernel.compiler import XCachingCompiler
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type

from ...protocol import Result
from ...reserve import Reserve


class Cells(Protocol):
    """What knows of the request that runs: each method says whether it has taken what it was given."""

    def take_interrupt(self, error: BaseException | None) -> bool:
        """Take the error with which the code of a cell has ended, if that is ■."""

    def take_error(self, kind: type[BaseException], value: BaseException, lines: list[str]) -> bool:
        """Take an error as it is shown."""

    def take_result(self, result: Result) -> bool:
        """Take the value of a cell's last expression."""

    def showing(self) -> AbstractContextManager[None]:
        """Return a context in which an error is made into text."""

    def shown_error(self) -> tuple[str, str, str] | None:
        """Return the name, message and text of the last error of the cell that runs; None if none runs."""


class _ResultHook(ZMQShellDisplayHook):
    """The display hook that hands the value of a cell's last expression to the notebook."""

    def compute_format_data(self, result: Any) -> Any:
        """Return a value in all formats, as far as there are: torch imports modules for that."""
        with self.shell.reserve.if_needed():  # type: ignore[union-attr]  # it has a shell
            return super().compute_format_data(result)

    def write_output_prompt(self) -> None:
        """Write no Out[n] in a cell: the notebook has its own."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Take the result in all its formats."""
        cells = self.shell.cells  # type: ignore[union-attr]  # it has a shell
        if cells is None or not cells.take_result(Result(format_dict, md_dict or {})):
            super().write_output_prompt()
            super().write_format_data(format_dict, md_dict)


_TIMED = ("<timed exec>", "<timed eval>", "<magic-timeit>")
"""The file names that ``%time`` and ``%timeit`` give what they compile."""


class _PageCompiler(XCachingCompiler):
    """The compiler of cells whose lines have the numbers that the page shows beside them.

    Code objects, tracebacks, warnings, breakpoints, `inspect` and the verdicts agree on a line, because empty lines
    stand in what is compiled, and in what `linecache` quotes, where the page has lines that the rank does not get.

    Attributes:
        above: for a text that is about to be compiled, how many lines stand above it on the page.
    """

    def __init__(self) -> None:
        super().__init__()
        self.above: dict[str, int] = {}

    # ipykernel puts its process id into a cell's file name: the same warning would differ between ranks.
    get_code_name = CachingCompiler.get_code_name

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Let tracebacks quote a text, and return its file name."""
        return super().cache(self._placed(transformed_code), number, raw_code)

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Parse a text; what a magic times has a file name of its own, which nobody has lines for."""
        placed = self._placed(source)
        if filename == "<unknown>" and source in self.above:
            lines = [f"{line}\n" for line in placed.splitlines()]
            linecache.cache.update({name: (len(placed), None, lines, name) for name in _TIMED})
        return super().ast_parse(placed, filename, symbol)

    def _placed(self, text: str) -> str:
        return "\n" * self.above.get(text, 0) + text


_NOTHING = nullcontext()


class RankShell(ZMQInteractiveShell):
    """The shell of one rank. Cells of ipyparallel run in it, too, as in its own engines.

    Attributes:
        cells: what takes results and errors; None before the first cell.
        reserve: the descriptors with which errors and values are shown.
    """

    displayhook_class = Type(_ResultHook)
    cells: Cells | None = None
    _known: tuple[str, str] | None = None
    _page: tuple[str, int] | None = None

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{**keywords, "compiler_class": _PageCompiler})  # the kernel names another one
        self.reserve = Reserve()

    def begin_page(self, code: str, above: int) -> None:
        """Count the lines of a cell as its page does, until `end_page`.

        Args:
            code: the cell.
            above: how many lines stand above it.
        """
        self._page = code, above

    def end_page(self) -> None:
        """Count lines as IPython does."""
        self._page = None
        self._above.clear()

    @property
    def _above(self) -> dict[str, int]:
        return getattr(self.compile, "above", {})  # a cell may have set another compiler

    def run_transformed(self, code: str, transformed: str) -> Any:
        """Run a cell without await; what IPython asks itself first, what it becomes, is answered once.

        It would transform and compile each cell a second time, which is a sixth of a small cell's work.
        """
        self._known = code, transformed
        try:
            return self.run_cell(code, store_history=True)
        finally:
            self._known = None

    def transform_cell(self, raw_cell: str) -> str:
        """Return a cell in Python."""
        if self._known is not None and self._known[0] == raw_cell:
            return self._known[1]
        code: str = super().transform_cell(raw_cell)
        if self._page is not None:
            cell, above = self._page
            frame = sys._getframe(1)  # noqa: SLF001 - the only way to see which line calls
            found = above if raw_cell == cell else _of_magic(frame, raw_cell, self.user_ns)
            if found is not None:
                self._above[code] = found + blank_lines(raw_cell)
        return code

    def should_run_async(self, raw_cell: str, **keywords: Any) -> bool:
        """Return whether a cell awaits something."""
        known, self._known = self._known, None
        text = keywords.get("transformed_cell")
        if known is not None and known == (raw_cell, text):
            return False
        if text is not None and "await" not in text and "async" not in text:
            return False  # IPython would compile it to see that
        return super().should_run_async(raw_cell, **keywords)

    def showtraceback(self, *args: Any, **keywords: Any) -> None:
        """Show the error that was just raised, unless it is told elsewhere."""
        error = sys.exc_info()[1]
        ended = self.cells is not None and (keywords.get("running_compiled_code") or isinstance(error, SystemExit))
        if not ended or not self.cells.take_interrupt(error):  # type: ignore[union-attr]
            showing = self.cells.showing() if self.cells is not None else _NOTHING
            with self.reserve.if_needed(), showing:  # the lines of its source are read, which may take long
                super().showtraceback(*args, **keywords)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        if self.cells is None:  # in a startup file: no front end is there yet
            InteractiveShell._showtraceback(self, etype, evalue, stb)  # noqa: SLF001 - the one that prints
        elif not self.cells.take_error(etype, evalue, stb):
            super()._showtraceback(etype, evalue, stb)

    def show_usage_error(self, exc: BaseException) -> None:
        """Show that a magic was not understood; in a cell once, as its error."""
        if self.cells is None or not self.cells.take_error(type(exc), exc, [f"{type(exc).__name__}: {exc}"]):
            super().show_usage_error(exc)

    def _format_exception_for_storage(self, exception: BaseException, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Return what IPython keeps of an error for ``%notebook``: it would make the same traceback a second time."""
        shown = self.cells.shown_error() if self.cells is not None else None
        if shown is None:
            return super()._format_exception_for_storage(exception, *args, **keywords)  # type: ignore[no-any-return]
        return {"ename": shown[0], "evalue": shown[1], "traceback": shown[2].splitlines()}

    def _tee(self, channel: str) -> AbstractContextManager[None]:  # type: ignore[override]  # noqa: ARG002
        """Keep nothing that is printed, which IPython does for ``%notebook``: the notebook already has it."""
        return _NOTHING

    def ask_exit(self) -> None:
        """Say what ends a rank: ``exit`` does not."""
        sys.stderr.write("exit and quit do not end a rank; type %distributed stop in a cell of its own.\n")


def blank_lines(cell: str) -> int:
    """Return how many empty lines a cell begins with: IPython removes them."""
    return cell[: len(cell) - len(cell.lstrip())].count("\n")


def _of_magic(frame: FrameType | None, text: str, scope: dict[str, Any]) -> int | None:
    """Return how many lines stand above a text that a magic of a cell compiles, as ``%%time``; None for any other text.

    Args:
        frame: where it is about to be compiled.
        text: what the magic has got.
        scope: the namespace of the cells.
    """
    within: tuple[str, str] | None = None
    while frame is not None:
        if frame.f_globals is scope:
            return None if within is None else frame.f_lineno - (text != within[1])
        if within is None and frame.f_code in _MAGICS:
            within = frame.f_locals["line"], frame.f_locals.get("cell", "")
            if text != within[1] and text not in within[0]:
                return None
        frame = frame.f_back
    return None


_MAGICS = (InteractiveShell.run_line_magic.__code__, InteractiveShell.run_cell_magic.__code__)


# Libraries tell a notebook from a terminal by the name of the shell's class: rich, tqdm, and what is copied everywhere.
RankShell.__name__, RankShell.__module__ = ZMQInteractiveShell.__name__, ZMQInteractiveShell.__module__
