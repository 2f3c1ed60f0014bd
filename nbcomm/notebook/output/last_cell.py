"""What the last cells have shown, kept in the kernel: a page that is loaded again in mid-cell has missed some of it.

It is what the notebook's file would hold at the end: settled text, displays with their newest values.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ...errors import StateError
from ...faults import Faults
from ...panel.output_views import CellView
from ...rank_spec import named
from ...short_repr import COLOUR
from ..display.area import Area
from ..display.frontends import id_of_running_cell
from .past_cells import size_of

_LETTERS = 4 << 20
"""Characters of one cell that are kept; beyond that the beginning is left out."""

_CELLS = 8
"""The number of cells whose output can be shown again; together they may hold as much as one of them."""

_SENT = 2 << 20
"""Characters that are sent to a page at once: a Jupyter server drops more than 3 MB in three seconds."""

_faults = Faults()
"""Of all cells: what fails in each of them is logged once."""


@dataclass(eq=False)
class _Output:
    name: str  # of its stream; "" for a display
    display_id: str = ""
    texts: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    letters: int = 0

    @property
    def blank(self) -> bool:
        return not self.name and not any(self.data.values())


def _keeping() -> AbstractContextManager[None]:
    return _faults.beside("what it showed could not be kept")


class KeptArea:
    """An area that passes output on to another one, and keeps it.

    Args:
        area: where it is shown.
        letters: the number of characters that are kept; the beginning is dropped first.

    Attributes:
        result: shows the cell's value; it exists only if the other area has it.
    """

    result: Callable[[dict[str, Any], dict[str, Any]], None]

    def __init__(self, area: Area, letters: int = _LETTERS) -> None:
        self.updates, self.comms = area.updates, area.comms
        self._area = area
        self._most = letters
        self._letters = 0
        self._outputs: list[_Output] = []
        self._displays: dict[str, _Output] = {}
        self._cut = self._clears = False
        if callable(getattr(area, "result", None)):
            self.result = self._result

    def stream(self, name: str, text: str) -> None:
        """Show text as written to "stdout" or "stderr"."""
        self._area.stream(name, text)
        with _keeping():
            self._begin()
            if not self._outputs or self._outputs[-1].name != name:
                self._outputs.append(_Output(name))
            self._outputs[-1].texts.append(text)
            self._grow(self._outputs[-1], len(text))

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a MIME bundle."""
        self._area.display(data, metadata, display_id)
        with _keeping():
            self._keep(data, metadata, display_id)

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace what is shown under the ``display_id``."""
        self._area.update(data, metadata, display_id)
        with _keeping():
            output = self._displays.get(display_id)
            if output is not None:
                output.data, output.metadata = data, metadata
                self._grow(output, sum(map(size_of, data.values())) - output.letters)

    def clear(self, *, wait: bool) -> None:
        """Remove all output; with ``wait``, when the next output comes."""
        self._area.clear(wait=wait)
        self._clears = True
        if not wait:
            self._begin()

    def comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """Send a comm's message."""
        self._area.comm(kind, content, metadata, buffers)

    def show_again(self, area: Area) -> bool:
        """Show all that is kept in another area, where it no longer changes; return whether there was anything."""
        shown = self.outputs()
        for output in shown:
            if output["output_type"] == "stream":
                area.stream(output["name"], output["text"])
            else:
                area.display(output["data"], output["metadata"])
        return bool(shown)

    @property
    def size(self) -> int:
        """How many characters are kept."""
        return self._letters

    def outputs(self) -> list[dict[str, Any]]:
        """Return what is kept as a notebook's file has it."""
        kept: list[dict[str, Any]] = []
        if self._cut:
            said = f"(The beginning is missing: only the last {self._most:,} characters are kept.)\n"
            kept.append({"output_type": "stream", "name": "stdout", "text": said})
        for output in self._outputs:
            if output.name:
                kept.append({"output_type": "stream", "name": output.name, "text": "".join(output.texts)})
            elif not output.blank:
                kept.append({"output_type": "display_data", "data": output.data, "metadata": output.metadata})
        return kept

    def _result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._area.result(data, metadata)  # type: ignore[attr-defined]  # see __init__
        with _keeping():
            self._keep(data, metadata)

    def _keep(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        self._begin()
        output = _Output("", display_id, data=data, metadata=metadata)
        self._outputs.append(output)
        if display_id:
            self._displays[display_id] = output
        self._grow(output, sum(map(size_of, data.values())))

    def _begin(self) -> None:
        if self._clears:
            self._clears = self._cut = False
            self._letters = 0
            self._outputs.clear()
            self._displays.clear()

    def _grow(self, output: _Output, more: int) -> None:
        output.letters += more
        self._letters += more
        while self._letters > self._most and len(self._outputs) > 1:
            first = self._outputs.pop(0)
            self._letters -= first.letters
            self._displays.pop(first.display_id, None)
            self._cut = True
        if output.name and output.letters > self._most:  # to half of it: otherwise each further line would cost as much
            rest = "".join(output.texts)[-self._most // 2 :]
            self._letters -= output.letters - len(rest)
            output.texts, output.letters, self._cut = [rest], len(rest), True


class CellRun:
    """One cell on its ranks: what it has shown, and how it ended.

    Args:
        number: as in In[number]; 0 if that is not known.
        ranks: those that ran it.
        area: where it is shown.

    Attributes:
        missed: whether a page lacks its output.
        size: how many characters of its output are kept; 0 before it has ended.
    """

    def __init__(self, number: int, ranks: Sequence[int], area: Area) -> None:
        self._title = f"In [{number}]" if number else "The cell"
        self._number, self._id, self._wall = number, "", time.time()
        with _keeping():
            self._id = id_of_running_cell()
        self._ranks = list(ranks)
        self._area = area
        self._began = time.monotonic()
        self._ended: float | None = None
        self._error: BaseException | None = None
        self.missed, self.size = False, 0

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Note when the cell ends, and with which error: both as the block does."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended = time.monotonic()
            if isinstance(self._area, KeptArea):
                self.size = self._area.size

    @property
    def said(self) -> str:
        """The error that ended it, as it is shown but without colours; "" if none did."""
        return "" if self._error is None else COLOUR.sub("", "\n".join(_rendered(self._error)))

    def show_again(self, area: Area) -> None:
        """Show in another area what the cell has shown, and its errors after that."""
        self.missed = False
        now = time.monotonic()
        how = "has been running for" if self._ended is None else "ended after"
        took = (now if self._ended is None else self._ended) - self._began
        area.stream("stdout", f"{self._title} on {named(self._ranks)} {how} {took:.1f} s. Its output:\n")
        shown = isinstance(self._area, KeptArea) and self._area.show_again(area)
        if self._error is not None:
            area.stream("stderr", "\n".join(_rendered(self._error)) + "\n")
        elif not shown:
            area.stream("stdout", "(nothing)\n")

    def view(self) -> CellView:
        """Return what a page needs to know whether it has missed the output."""
        took = None if self._ended is None else self._ended - self._began
        return CellView(self._number, self._id, self._wall, None if took is None else self._wall + took)

    def outputs(self) -> list[dict[str, Any]]:
        """Return what the notebook's file would have of the cell, its errors included.

        Raises:
            StateError: it is too much for one message.
        """
        kept = self._area if isinstance(self._area, KeptArea) else None
        if kept is not None and kept.size > _SENT:
            raise StateError("This output is too large for a message; type %distributed last in a cell to show it.")
        shown = kept.outputs() if kept is not None else []
        error = self._error
        if error is not None:
            name, lines = type(error).__name__, _rendered(error)
            shown.append({"output_type": "error", "ename": name, "evalue": str(error), "traceback": lines})
        return shown


_SIZE = attrgetter("size")


def remember(ran: deque[CellRun], run: CellRun) -> None:
    """Add a cell that begins to the last ones, and forget old ones if they are too many, or hold too much."""
    ran.append(run)
    while len(ran) > 1 and (len(ran) > _CELLS or sum(map(_SIZE, ran)) > _LETTERS):
        ran.popleft()


def _rendered(error: BaseException) -> list[str]:
    render = getattr(error, "_render_traceback_", None)
    return render() if render is not None else [f"{type(error).__name__}: {error}"]
