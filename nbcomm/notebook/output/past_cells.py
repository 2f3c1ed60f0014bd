"""The outputs of past cells, which may still grow: background threads print, and displays are updated.

What a cell has shown stays in memory with its output. So outputs are forgotten, the oldest first, if they are too many
or hold too much; later output of a forgotten one is not shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from ...protocol import Display, Item, Result, Text

_Output = TypeVar("_Output")

_CELLS = 200
"""The number of outputs that are kept."""

_LETTERS = 16 << 20
"""The most that all but the last may hold, in characters."""

_OBJECTS = 8
"""The factor by which numbers, lists and dicts are larger in Python than on the link."""

_encoder = msgspec.msgpack.Encoder()


class PastOutputs(Generic[_Output]):
    """Outputs by their request, the current one among them.

    Args:
        cells: how many are kept.
        letters: how much text and data, in characters, all but the last may hold.
    """

    def __init__(self, cells: int = _CELLS, letters: int = _LETTERS) -> None:
        self._cells = cells
        self._letters = letters
        self._outputs: OrderedDict[int, _Output] = OrderedDict()
        self._held: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, request: int, output: _Output) -> None:
        """Add the output of a cell that begins, and forget old ones."""
        self._outputs[request] = output
        self._held[request] = 0
        while len(self._outputs) > 1 and (len(self._outputs) > self._cells or sum(self._held.values()) > self._letters):
            forgotten, _ = self._outputs.popitem(last=False)
            del self._held[forgotten]

    def get(self, request: int) -> _Output | None:
        """Return the output of a request; None if it has none, or is forgotten."""
        return self._outputs.get(request)

    def note(self, request: int, items: Iterable[Item]) -> None:
        """Add the size of further items that were shown in it."""
        if request in self._held:
            self._held[request] += sum(map(_letters, items))


def _letters(item: Item) -> int:
    if isinstance(item, Text):
        return len(item.text)
    if isinstance(item, Display | Result):
        return sum(map(size_of, item.data.values()))
    return 0


def size_of(value: Any) -> int:
    """Return the size of a part of a MIME bundle, in characters."""
    return len(value) if isinstance(value, str | bytes) else _OBJECTS * len(_encoder.encode(value))
