"""A cell with a fake clock and a recorded area, and how to read back what it shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbcomm.notebook.output.cell_options import CellOptions
from nbcomm.notebook.output.cell_output import CellOutput
from nbcomm.protocol import Display, Item, Text

from .recording_area import RecordingArea


class Cell:
    """A cell on some ranks, its clock, and what it shows."""

    def __init__(
        self, ranks: Sequence[int] = range(4), *, updates: bool = True, folder: Path | None = None, **options: Any
    ) -> None:
        self.now = 0.0
        self.area = RecordingArea(updates=updates)
        self.output = CellOutput(ranks, CellOptions(**options), area=self.area, clock=lambda: self.now, folder=folder)

    def write(self, rank: int, text: str, stream: str = "stdout") -> None:
        self.output.feed(rank, [Text(stream, text)])

    def feed(self, rank: int, *items: Item) -> None:
        self.output.feed(rank, list(items))

    def tick(self, seconds: float = 0.1) -> None:
        """Let time pass, rendering ten times a second."""
        end = self.now + seconds - 1e-9
        while self.now < end:
            self.now += min(0.1, seconds)
            self.output.render()

    def close(self) -> list[str]:
        self.output.close()
        return self.area.shown

    @property
    def kinds(self) -> list[str]:
        return [output.get("name", "display") for output in self.area.outputs]


def png(text: str, **options: Any) -> Display:
    return Display({"image/png": text, "text/plain": "<Figure>"}, **options)


def shown_png(text: str) -> str:
    return f"<image/png={text}, text/plain=<Figure>>"


_SHOWN = re.compile(r"\[([\d,-]+)\](?: (.*))?")


def defolded(text: str, rank: int) -> list[str]:
    """One rank's lines, read back from what is shown."""
    lines = []
    for line in text.splitlines():
        match = _SHOWN.fullmatch(line)
        assert match, line
        ranks = set()
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            ranks |= set(range(int(first), int(last or first) + 1))
        if rank in ranks:
            lines.append(match[2] or "")
    return lines
