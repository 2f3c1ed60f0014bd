"""Exactly once: the numbered messages between the notebook and one rank, whatever breaks on their way.

Each side numbers what it sends, and keeps it until the other side has heard it. Each message says, in a header of its
own, what its sender has heard. After a break the two tell each other how far they have heard, and send the rest again;
what comes a second time is dropped. So nothing is lost, nothing is done twice, and the order is kept::

    rank                                          notebook
    Hello (heard 7, greet me) ──────────────────→ sends again from 8 on
    sends again from 5 on ←────────────────────── Greet (heard 4)

A message without a number (a question about a rank's state and its answer, Hello, Greet) may be lost, or come twice. It
says what was sent before it, or waits to be. A receiver that lacks something of that asks for it, so a loss without a
break is repaired by the next questions.

Processes are replaced on both sides. A notebook has a *session id*, larger than that of each notebook before it, and
a process of a rank has an *incarnation*, a number of its own. A header has both, so a message from before a replacement
is known as such. A new notebook hears again all that no notebook has *acknowledged*: the messages about a cell are kept
until a notebook says that it has all of them, from all ranks.

Nothing here does input or output, or knows a clock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

Frames = Sequence[Any]
"""A message: its encoded struct, then its raw buffers."""


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What stands before each message.

    Attributes:
        session_id: the notebook's; from a rank, that of the last notebook that it has heard, or 0.
        incarnation: the rank's; 0 if the notebook has not heard it yet.
        number: the position of the message among those of its sender to this receiver, from 1; 0 if it has none.
        after: the number of the message before this one; of one without a number, of the last that is kept.
        heard: the number of the last message that the sender of this one has heard.
        acknowledged: from the notebook: no later notebook needs the messages about cells up to this request.
    """

    session_id: int
    incarnation: int
    number: int
    after: int
    heard: int
    acknowledged: int = 0


class Incoming:
    """The messages that one side hears from the other.

    Attributes:
        heard: the number of the last message that was accepted.
        lacking: a message has shown that one before it is missing.
    """

    def __init__(self) -> None:
        self.heard = 0
        self.lacking = False

    def accepts(self, header: Header) -> bool:
        """Return whether a message is the next one; count it, if it has a number."""
        if header.after > self.heard:
            self.lacking = True
            return False
        if header.number and header.number <= self.heard:
            return False  # it came before
        self.heard, self.lacking = header.number or self.heard, False
        return True


class Sent(NamedTuple):
    """A message that is passed on: its number, the number of the one before it, its frames, and whether it asks."""

    number: int
    after: int
    frames: Frames
    asks: bool


@dataclass
class _Kept:
    frames: Frames
    run: int
    size: int
    droppable: bool
    asks: bool = False


class Outgoing:
    """The messages that one side sends to the other, kept as long as they may be needed again. For any thread.

    Args:
        most: bytes of output that are kept for later; beyond, the oldest is dropped.
        gap: makes the message that stands in the place of the dropped output of a cell.
        most_unheard: bytes of output that are kept at most while a notebook is there that has not heard it. If it is
            stopped or too slow for more, what was passed on is dropped, too: it is lost only if the way breaks then.

    Attributes:
        last: the number of the last message that was passed on.
        live: a notebook is there, so output that it has not heard is kept, up to `most_unheard`.
    """

    def __init__(
        self,
        most: float = float("inf"),
        gap: Callable[[int], Frames] | None = None,
        most_unheard: float = float("inf"),
    ) -> None:
        self.last = 0
        self.live = True
        self._most = most
        self._most_unheard = most_unheard
        self._gap = gap
        self._lock = threading.Lock()
        self._number = 0
        self._heard = self._acknowledged = 0
        self._heard_now = 0  # by the present notebook
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._passing: OrderedDict[int, None] = OrderedDict()  # of those, what is kept only until it is heard
        self._gaps: dict[int, int] = {}
        self._output = 0  # bytes that may be dropped

    @property
    def newest(self) -> int:
        """The number of the last message that is kept, passed on or not; what has no number comes behind it."""
        with self._lock:
            return next(reversed(self._kept), 0)

    @property
    def is_full(self) -> bool:
        """Whether more output is kept than a notebook that is there may leave."""
        return self._output > self._most_unheard

    def add(self, frames: Frames, run: int = 0, *, output: bool = False, asks: bool = False) -> None:
        """Send a message, after all earlier ones.

        Args:
            frames: the message.
            run: the cell that it is about, if a later notebook needs it, too.
            output: whether it may be dropped for lack of room.
            asks: whether it is an answer, or is answered soon.
        """
        size = sum(memoryview(frame).nbytes for frame in frames) if output else 0
        with self._lock:
            self._number += 1
            self._kept[self._number] = _Kept(frames, run, size, output, asks)
            if not run:
                self._passing[self._number] = None
            self._output += size
            self._make_room()

    def take_back(self) -> None:
        """Undo the last `add`, whose message was not passed on: another one that belongs to it could not be added."""
        with self._lock:
            if self._number in self._kept and self._number > self.last:
                self._forget(self._number)
                self._number -= 1

    def _make_room(self) -> None:
        """Drop output until there is no more than may be kept; `_lock` is held."""
        while self._output > self._most and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        """Drop the oldest output; return False if none may be dropped."""
        number = next(number for number, kept in self._kept.items() if kept.droppable)
        if number == self._number or (self.live and self._is_awaited(number)):
            return False
        kept = self._kept[number]
        if self._gap is None:
            self._forget(number)
            return True
        self._output -= kept.size
        if earlier := self._gaps.get(kept.run):
            self._forget(earlier)
        self._gaps[kept.run] = number
        self._kept[number] = _Kept(self._gap(kept.run), kept.run, 0, droppable=False)
        return True

    def _is_awaited(self, number: int) -> bool:
        """Tell whether the notebook that is there is to hear this output."""
        return number > (self.last if self._output > self._most_unheard else self._heard_now)

    def take(self) -> list[Sent]:
        """Return what is to be passed on now, in order."""
        taken: list[Sent] = []
        with self._lock:
            for number in reversed([*takewhile(lambda number: number > self.last, reversed(self._kept))]):
                kept = self._kept[number]
                taken.append(Sent(number, self.last, kept.frames, kept.asks))
                self.last = number
        return taken

    def hear(self, heard: int, acknowledged: int = 0) -> None:
        """Forget what the other side has heard, and what no later notebook needs."""
        with self._lock:
            self._heard, self._acknowledged = max(self._heard, heard), max(self._acknowledged, acknowledged)
            self._heard_now = max(self._heard_now, heard)
            while self._passing and (number := next(iter(self._passing))) <= heard:
                self._forget(number)
            while self._kept:
                number, kept = next(iter(self._kept.items()))
                if number > heard or kept.run > acknowledged:
                    break
                self._forget(number)
            self._make_room()

    def _forget(self, number: int) -> None:
        kept = self._kept.pop(number)
        self._output -= kept.size
        self._passing.pop(number, None)
        if self._gaps.get(kept.run) == number:
            del self._gaps[kept.run]

    def rewind(self, heard: int) -> None:
        """Pass on again all behind this number: the way to the other side is new, or a message is missing there."""
        with self._lock:
            self.last = heard

    def begin_again(self) -> None:
        """Pass on all that is kept about cells to a new notebook; only the old one needed the rest."""
        with self._lock:
            for number, kept in list(self._kept.items()):
                if not kept.run or (number <= self._heard and kept.run <= self._acknowledged):
                    self._forget(number)
            self.last = self._heard_now = 0


class RankStream:
    """The rank's end of the stream.

    Args:
        incarnation: of this process.
        out: what this rank sends.

    Attributes:
        session_id: of the present notebook; 0 before there is one.
        acknowledged: no notebook needs the messages about cells up to this request any more.
    """

    def __init__(self, incarnation: int, out: Outgoing) -> None:
        self.session_id = 0
        self.acknowledged = 0
        self.out = out
        self._incarnation = incarnation
        self._into = Incoming()
        self._unknown = False

    @property
    def lacking(self) -> bool:
        """Whether a message of the notebook is missing, or it does not know this process."""
        return self._into.lacking or self._unknown

    def is_new(self, header: Header) -> bool:
        """Tell whether a message is the first of a notebook that is new here; if so, listen to that one only."""
        if header.session_id <= self.session_id or header.incarnation not in (0, self._incarnation):
            return False
        self._into = Incoming()
        self.out.begin_again()
        self.session_id = header.session_id  # last: until then it is new
        return True

    def accepts(self, header: Header) -> bool:
        """Return whether a message is the next one of the present notebook; note what that has heard."""
        if header.session_id < self.session_id:
            return False  # of an earlier notebook
        self._unknown = header.incarnation != self._incarnation
        if header.session_id > self.session_id or header.incarnation not in (0, self._incarnation):
            return False  # for an earlier process
        self._note(header)
        return self._into.accepts(header)

    def greet(self, header: Header) -> bool:
        """Note how far the present notebook has heard, and send the rest again.

        Returns:
            Whether it knows this process; if not, it must hear `Hello` first.
        """
        if header.session_id != self.session_id or header.incarnation != self._incarnation:
            return False
        self._note(header)
        self.out.rewind(header.heard)
        return True

    def _note(self, header: Header) -> None:
        self.acknowledged = max(self.acknowledged, header.acknowledged)
        self.out.hear(header.heard, self.acknowledged)

    def header(self, sent: Sent | None = None, behind: int | None = None) -> Header:
        """Return the header of a message that is sent now.

        Args:
            sent: one that was taken; by default, the message has no number.
            behind: the number of the message behind which that comes; by default the newest, passed on or not.
        """
        if sent is not None:
            return Header(self.session_id, self._incarnation, sent.number, sent.after, self._into.heard)
        return Header(
            self.session_id, self._incarnation, 0, self.out.newest if behind is None else behind, self._into.heard
        )


class NotebookStream:
    """The notebook's end of the stream to one rank.

    Args:
        session_id: of this notebook.
    """

    def __init__(self, session_id: int) -> None:
        self.out = Outgoing()
        self._session_id = session_id
        self._incarnation = 0
        self._past: set[int] = set()
        self._into = Incoming()

    @property
    def lacking(self) -> bool:
        """Whether a message of the rank is missing."""
        return self._into.lacking

    @property
    def incarnation(self) -> int:
        """The present process's; 0 if it has not introduced itself."""
        return self._incarnation

    @property
    def known(self) -> bool:
        """Whether the rank has introduced itself."""
        return self._incarnation != 0

    def meet(self, header: Header) -> bool:
        """Note the header of a `Hello`, and send again what the rank lacks.

        Returns:
            Whether the message is to be delivered: it is not from a process that was replaced.
        """
        if header.incarnation in self._past:
            return False
        if self._incarnation and header.incarnation != self._incarnation:
            self.end()
        self._incarnation = header.incarnation
        self.out.rewind(header.heard if header.session_id == self._session_id else 0)
        return True

    def end(self) -> None:
        """Forget a process that has ended, and what was sent to it, even if it has not introduced itself."""
        if self._incarnation:
            self._past.add(self._incarnation)
        self.out, self._into, self._incarnation = Outgoing(), Incoming(), 0

    def accepts(self, header: Header) -> bool:
        """Return whether a message is the next one of the present process; note what that has heard."""
        if header.session_id != self._session_id or header.incarnation != self._incarnation:
            return False  # it was sent to an earlier notebook, or by an earlier process
        self.out.hear(header.heard)
        return self._into.accepts(header)

    def header(self, sent: Sent | None = None, acknowledged: int = 0) -> Header:
        """Return the header of a message that is sent now: one that was taken, or by default one without a number."""
        number, after = (sent.number, sent.after) if sent is not None else (0, self.out.newest)
        return Header(self._session_id, self._incarnation, number, after, self._into.heard, acknowledged)
