"""Displays that change after they were shown: their labels, their values, and which ranks share them.

A `SharedDisplay` is one place on the screen for a display that one or more ranks showed. While the ranks that share
it pass through the same values, it shows the newest value that all of them have reached. If they stay
apart, each distinct value is shown with its ranks: text as lines of one output, anything else in an output
of its own, added at the end of the cell's output. ::

    seconds   0      0.05   0.10   0.15   0.35
    rank 0    0 %    10 %   20 %   30 %
    rank 1    0 %           10 %
    shown     [0-1]         [0-1]         [0] 30 %    `PATIENCE` after the last news that they agreed on
              0 %           10 %          [1] 10 %
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from ...protocol import LIVE
from ...rank_spec import fold
from .items import Rich, Version
from .live import new_display_id, text_bundle
from .screen import Screen
from .terminal_lines import plain_text

PATIENCE = 0.25
"""Seconds for which ranks that share a display may differ before it is split."""


def label(ranks: Iterable[int]) -> str:
    """Return the prefix of what these ranks show: ``[0-3]``."""
    return f"[{fold(ranks)}]"


def prefixed(prefix: str, text: str) -> str:
    """Return text after a prefix, with further lines indented to line up, and a newline at the end."""
    if not text:
        return f"{prefix}\n"
    if "\n" in text:
        text = text.replace("\n", "\n" + " " * (len(prefix) + 1))
    return f"{prefix} {text}\n"


def prefixed_block(prefix: str, text: str) -> str:
    r"""Return whole lines, each after a prefix, as `prefixed` returns one.

    >>> prefixed_block("[0]", "a\n\nb\n")
    '[0] a\n[0]\n[0] b\n'
    """
    if text.startswith("\n") or "\n\n" in text:
        return "".join([prefixed(prefix, line) for line in text[:-1].split("\n")])
    return f"{prefix} {text[:-1]}".replace("\n", f"\n{prefix} ") + "\n"


class _Group(NamedTuple):
    ranks: tuple[int, ...]
    value: Version


class _Output:
    """A label and a body; where all is text, the body only."""

    def __init__(self) -> None:
        self.label_id = new_display_id()
        self.body_id = new_display_id()
        self.label = ""
        self.body = b""


class SharedDisplay:
    """One place on the screen, shared by the ranks of ``parts``.

    Attributes:
        patient: it shows nothing before it is asked for the final values.
    """

    def __init__(self, screen: Screen, parts: dict[int, Rich], now: float) -> None:
        self.screen = screen
        self.parts = parts
        self._groups: list[_Group] = []
        self._agreed = now
        self._outputs: list[_Output] = []
        self._text: _Output | None = None
        self._text_shown = ""
        for part in parts.values():
            part.place = self
        # Where nothing can be replaced, of what changes all the time the last value is enough.
        self.patient = not screen.area.updates and min(part.display_id for part in parts.values()).startswith(LIVE)
        self.refresh(now, final=not self.patient)

    def join(self, rank: int, part: Rich) -> None:
        """Let one more rank share the display."""
        self.parts[rank] = part
        part.place = self

    def refresh(self, now: float, *, final: bool = False) -> bool:
        """Show the values that the ranks have now.

        Args:
            now: the time in seconds.
            final: do not wait for ranks that are behind.

        Returns:
            Whether the ranks differ and are waited for: then call again.
        """
        if self.patient and not final:
            return True
        if len({part.current.digest for part in self.parts.values()}) == 1:
            self._show_agreed(self.parts[min(self.parts)].current, now)
            return False
        news = self._newest_that_all_had()
        if news is not None:
            self._show_agreed(news, now)
        if not final and now - self._agreed < PATIENCE:
            return True
        self._show_apart()
        return False

    def _newest_that_all_had(self) -> Version | None:
        """Return the newest value that all ranks have had; None if there is none, or if it is shown."""
        everywhere = set.intersection(*({v.digest for v in part.versions} for part in self.parts.values()))
        first = self.parts[min(self.parts)]
        newest = next((v for v in reversed(first.versions) if v.digest in everywhere), None)
        shown = {group.value.digest for group in self._groups}
        return None if newest is None or newest.digest in shown else newest

    def _show_agreed(self, value: Version, now: float) -> None:
        """Show one value for all ranks, who go on from it."""
        self._agreed = now
        for part in self.parts.values():
            part.forget_before(value)
        self._show([_Group(tuple(sorted(self.parts)), value)])

    def _show_apart(self) -> None:
        """Show what each rank has now."""
        for part in self.parts.values():
            part.forget_before(part.current)
        self._show(self._distinct())

    def _distinct(self) -> list[_Group]:
        ranks: dict[bytes, list[int]] = {}
        values: dict[bytes, Version] = {}
        for rank in sorted(self.parts):
            value = self.parts[rank].current
            ranks.setdefault(value.digest, []).append(rank)
            values[value.digest] = value
        return [_Group(tuple(ranks[digest]), value) for digest, value in values.items()]

    def _show(self, groups: list[_Group]) -> None:
        if groups == self._groups:
            return
        self._groups = groups
        as_text = all(plain_text(group.value.data) is not None for group in groups)
        if as_text and (self._text is not None or not self._outputs):
            self._show_text(groups)
            return
        if self._text is not None:
            # It was text and is now more: what was the text becomes the first label.
            self._outputs.append(self._text)
            self._text.label_id, self._text.body_id = self._text.body_id, ""
            self._text.label = self._text_shown
            self._text = None
        for i, output in enumerate(self._outputs):
            self._show_output(output, groups[i] if i < len(groups) else None)
        for group in groups[len(self._outputs) :]:
            output = _Output()
            self._outputs.append(output)
            output.label, output.body = _label_for(group), group.value.digest
            self.screen.display(text_bundle(output.label), {}, output.label_id)
            self.screen.display(group.value.data, group.value.metadata, output.body_id)

    def _show_text(self, groups: list[_Group]) -> None:
        texts = [(label(group.ranks), plain_text(group.value.data)) for group in groups]
        lines = [prefixed(ranks, text) for ranks, text in texts if text]
        text = "".join(lines).removesuffix("\n")
        if self._text is None:
            self._text = _Output()
            self.screen.display(text_bundle(text), {}, self._text.body_id)
        elif text != self._text_shown:
            self.screen.update(text_bundle(text), {}, self._text.body_id)
        self._text_shown = text

    def _show_output(self, output: _Output, group: _Group | None) -> None:
        text = "" if group is None else _label_for(group)
        if output.label != text:
            output.label = text
            self.screen.update(text_bundle(text), {}, output.label_id)
        digest = b"" if group is None else group.value.digest
        if output.body == digest:
            return
        output.body = digest
        data, metadata = ({}, {}) if group is None else (group.value.data, group.value.metadata)
        if output.body_id:
            self.screen.update(data, metadata, output.body_id)
        elif group is not None:
            output.body_id = new_display_id()
            self.screen.display(data, metadata, output.body_id)


def _label_for(group: _Group) -> str:
    return label(group.ranks) if group.value.data else ""


class DisplayRegistry:
    """The displays that ranks can update: the newest ones of this process, of all cells.

    Args:
        size: the most displays.
        held: bytes that all but the newest may hold.
    """

    def __init__(self, size: int = 1024, held: int = 16 << 20) -> None:
        self._size = size
        self._most = held
        self._held: dict[tuple[int, str], int] = {}
        self._shown: OrderedDict[tuple[int, str], list[Rich]] = OrderedDict()

    def add(self, rank: int, part: Rich) -> None:
        """Remember a display by its rank and its own ``display_id``."""
        key = (rank, part.display_id)
        self._shown.setdefault(key, []).append(part)
        self._shown.move_to_end(key)
        del self._shown[key][:-8]
        self._note(key, part.first)

    def _note(self, key: tuple[int, str], value: Version) -> None:
        """Add the size of a new value; forget the oldest displays if they are too many, or too large."""
        self._held[key] = max(self._held.get(key, 0), value.size)
        while len(self._shown) > 1 and (len(self._shown) > self._size or sum(self._held.values()) > self._most):
            forgotten, _ = self._shown.popitem(last=False)
            del self._held[forgotten]

    def update(self, rank: int, display_id: str, value: Version) -> list[Rich] | None:
        """Give the rank's displays of this id a new value, and return them; None if there are none."""
        parts = self._shown.get((rank, display_id))
        if parts is None:
            return None
        for part in parts:
            part.change(value)
        self._note((rank, display_id), value)
        return parts
