"""IPython's shell on a rank: what a cell raises, and the value of its last expression, go to the notebook.

These are methods of its class, as those of any kernel: what a user sets in their place on the shell
(``rich.traceback.install()``, ``ip.showtraceback = …``) stays for later cells, and ``del`` takes it back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQInteractiveShell
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

    def error_text(self) -> str | None:
        """Return the last error of the cell that runs, as it is shown; None if none runs."""


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


class RankShell(ZMQInteractiveShell):
    """The shell of one rank. Cells of ipyparallel run in it, too, as in its own engines.

    Attributes:
        cells: what takes results and errors; None before the first cell.
        reserve: the descriptors with which errors and values are shown.
    """

    displayhook_class = Type(_ResultHook)
    cells: Cells | None = None
    _known: tuple[str, str] | None = None

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.reserve = Reserve()

    @contextmanager
    def transformed(self, code: str, transformed: str) -> Iterator[None]:
        """Answer what IPython asks itself first in the block: what a cell without await becomes; once.

        It would transform and compile each cell a second time, which is a sixth of a small cell's work.
        """
        self._known = code, transformed
        try:
            yield
        finally:
            self._known = None

    def transform_cell(self, raw_cell: str) -> str:
        """Return a cell in Python."""
        if self._known is not None and self._known[0] == raw_cell:
            return self._known[1]
        return super().transform_cell(raw_cell)  # type: ignore[no-any-return]

    def should_run_async(self, raw_cell: str, **keywords: Any) -> bool:
        """Return whether a cell awaits something."""
        known, self._known = self._known, None
        if known is not None and known == (raw_cell, keywords.get("transformed_cell")):
            return False
        return super().should_run_async(raw_cell, **keywords)

    def showtraceback(self, *args: Any, **keywords: Any) -> None:
        """Show the error that was just raised, unless it is told elsewhere."""
        error = sys.exc_info()[1]
        ended = self.cells is not None and (keywords.get("running_compiled_code") or isinstance(error, SystemExit))
        if not ended or not self.cells.take_interrupt(error):  # type: ignore[union-attr]
            with self.reserve.if_needed():  # the lines of its source are read
                super().showtraceback(*args, **keywords)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        if self.cells is None or not self.cells.take_error(etype, evalue, stb):
            super()._showtraceback(etype, evalue, stb)

    def show_usage_error(self, exc: BaseException) -> None:
        """Show that a magic was not understood; in a cell once, as its error."""
        if self.cells is None or not self.cells.take_error(type(exc), exc, [f"{type(exc).__name__}: {exc}"]):
            super().show_usage_error(exc)

    def _format_exception_for_storage(self, exception: BaseException, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Return what IPython keeps of an error for ``%notebook``: it would make the same traceback a second time."""
        text = self.cells.error_text() if self.cells is not None else None
        if text is None:
            return super()._format_exception_for_storage(exception, *args, **keywords)  # type: ignore[no-any-return]
        return {"ename": type(exception).__name__, "evalue": str(exception), "traceback": text.splitlines()}

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002
        """Keep nothing that is printed, which IPython does for ``%notebook``: the notebook already has it."""
        yield

    def ask_exit(self) -> None:
        """Say what ends a rank: ``exit`` does not."""
        sys.stderr.write("exit and quit do not end a rank; type %distributed stop in a cell of its own.\n")


# Libraries tell a notebook from a terminal by the name of the shell's class: rich, tqdm, and what is copied everywhere.
RankShell.__name__, RankShell.__module__ = ZMQInteractiveShell.__name__, ZMQInteractiveShell.__module__
