"""The outputs of past cells, which may yet grow: background threads print, and displays are updated.

What a cell has shown stays in memory with its output. So outputs are forgotten, the oldest first, where there are too
many, or where they hold too much; what still comes for one that is forgotten is shown nowhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from ...protocol import Display, Item, Result, Text

_Output = TypeVar("_Output")

_CELLS = 200
"""How many are kept."""

_LETTERS = 16 << 20
"""How much all but the last may hold, in letters."""

_OBJECTS = 8
"""How much more Python takes for numbers, lists and dicts than they take on the link."""

_encoder = msgspec.msgpack.Encoder()


class PastOutputs(Generic[_Output]):
    """Outputs by their request, the present one among them.

    Args:
        cells: how many are kept.
        letters: how much text and data, in letters, all but the last may hold.
    """

    def __init__(self, cells: int = _CELLS, letters: int = _LETTERS) -> None:
        self._cells = cells
        self._letters = letters
        self._outputs: OrderedDict[int, _Output] = OrderedDict()
        self._held: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, request: int, output: _Output) -> None:
        """A cell begins; this is when others are forgotten."""
        self._outputs[request] = output
        self._held[request] = 0
        while len(self._outputs) > 1 and (len(self._outputs) > self._cells or sum(self._held.values()) > self._letters):
            forgotten, _ = self._outputs.popitem(last=False)
            del self._held[forgotten]

    def get(self, request: int) -> _Output | None:
        """The output of a request; None if it has none, or is forgotten."""
        return self._outputs.get(request)

    def note(self, request: int, items: Iterable[Item]) -> None:
        """Some more was shown in it."""
        if request in self._held:
            self._held[request] += sum(map(_letters, items))


def _letters(item: Item) -> int:
    if isinstance(item, Text):
        return len(item.text)
    if isinstance(item, Display | Result):
        return sum(map(size_of, item.data.values()))
    return 0


def size_of(value: Any) -> int:
    """How much a part of a MIME bundle holds, in letters."""
    return len(value) if isinstance(value, str | bytes) else _OBJECTS * len(_encoder.encode(value))
