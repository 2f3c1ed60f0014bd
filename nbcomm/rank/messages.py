"""The rank's messages: which of the notebook's are taken, and what is sent to it when. No input or output happens here.

`link` carries them. What is sent exactly once waits in the stream (`protocol.streams`) until the notebook has greeted
this rank on the present connection, and takes it (`protocol.chunks`). *Notifications* (`Hello`, the answers about the
rank's state) have no number, and are lost where there is no connection. `Hello` is said again until it is answered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..protocol import Greet, Hello, StatusReply, ToRank
from ..protocol.chunks import Piece, Receiving, Sending
from ..protocol.codec import to_frames
from ..protocol.streams import Frames, Header, Outgoing, RankStream

_AGAIN = 1.0
"""Seconds after which a notebook that has not greeted is told `Hello` again: either word may have been lost."""

_GONE_AFTER = 5.0
"""Seconds without a greeted connection after which the notebook has gone; and so it has if it takes nothing."""


class SaysHello(Protocol):
    """Makes the `Hello` of this moment."""

    def __call__(self, *, asks: bool) -> Hello:
        """Return it; ``asks``: the rank wants a `Greet`."""


class Leaving(NamedTuple):
    """A message that is sent now, or a part of it: its header, and its frames."""

    header: Header
    frames: Frames


class Messages:
    """The rank's end of the stream, the notifications, and who was greeted.

    `send` and `notify` are for any thread, the rest is for the link's thread.

    Args:
        incarnation: the number of this process.
        out: what is sent exactly once.
        hello: makes a `Hello`.
        meet: is called for a notebook that is new here, before anything of it is answered.
        clock: returns the time in seconds.

    Attributes:
        heard: the number of the last message that the present notebook is known to have heard.
        connection: the number of the one that is known here.
    """

    def __init__(
        self,
        incarnation: int,
        out: Outgoing,
        hello: SaysHello,
        meet: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._incarnation = incarnation
        self._stream = RankStream(incarnation, out)
        self._sending, self._receiving = Sending(), Receiving()
        self.heard = 0
        self._hello = hello
        self._meet = meet
        self._clock = clock
        self._notifications: deque[Hello | StatusReply] = deque()
        self.connection = 0
        self._greeted = False  # on this connection
        self._asked_at = float("inf")  # when it was told `Hello` last
        self._met = 0  # the session id of the notebook that `meet` was called for
        self._there_at = float("-inf")  # when the notebook was there last, and took what it got

    @property
    def acknowledged(self) -> int:
        """No notebook needs the messages about cells up to this request any more."""
        return self._stream.acknowledged

    @property
    def newest(self) -> int:
        """The number of the last message that was sent and is kept."""
        return self._out.newest

    def send(self, frames: Frames, run: int = 0, *, output: bool = False, asks: bool = False) -> None:
        """Send a message exactly once; the arguments are those of `Outgoing.add`."""
        self._out.add(frames, run, output=output, asks=asks)

    def notify(self, notification: Hello | StatusReply) -> None:
        """Send a message that may be lost, behind all that was sent before."""
        self._notifications.append(notification)

    def connect(self, number: int) -> None:
        """Begin again on another connection: nobody knows yet what was lost with the one before."""
        self._greeted = False
        self._sending.clear()
        self._receiving.clear()
        self._ask()
        self.connection = number  # last: until then it is tried again

    def _ask(self) -> None:
        """Say `Hello`, and want to be greeted."""
        self._asked_at = self._clock()
        self.notify(self._hello(asks=True))

    def arrive(self, piece: Piece, frames: Sequence[Any]) -> Sequence[Any] | None:
        """Take what has come: a header, and what stands behind it.

        Returns:
            The frames of a message that is complete now and can be heard.

        Raises:
            msgspec.DecodeError: it is no part of a message.
        """
        if (piece.session_id, piece.incarnation) == (self._stream.session_id, self._incarnation):
            self.heard = max(self.heard, piece.heard)
            self._sending.hear(piece.heard, 0 if frames else piece.at)
            self._there_at = self._clock()
        if not frames:
            self._stream.accepts(piece)
            return None
        return self._receiving.take(piece, frames)

    def hear(self, header: Header, message: ToRank | None) -> bool:
        """Take note of a message of the notebook.

        Args:
            header: its header.
            message: None if it cannot be decoded.

        Returns:
            Whether it is the next one in the stream, and is to be done.
        """
        self._stream.is_new(header)
        is_new, lacked = self._stream.session_id != self._met, self._stream.lacking
        if is_new:
            self._greeted, self.heard = False, 0
            self._sending.clear()
            self._there_at = self._clock()
            self._meet()
            self._met = self._stream.session_id  # last: until then it is tried again
        if isinstance(message, Greet):
            if self._stream.greet(header):
                self._greeted = True
                self._sending.clear()
            if message.asks or not self._greeted:
                self.notify(self._hello(asks=not self._greeted))
            return False
        accepted = self._stream.accepts(header)
        if is_new:
            self._ask()
        elif self._stream.lacking and not (lacked and header.number):
            self.notify(self._hello(asks=False))
        return accepted

    def leaving(self, *, connected: bool) -> Iterator[Leaving]:
        """Return what is to be sent now, in order.

        Args:
            connected: whether there is a connection; without one, notifications are lost.
        """
        greeted = self._greeted and connected
        now = self._clock()
        if greeted and self._sending.idle:
            self._there_at = now
        is_there = now - self._there_at < _GONE_AFTER
        if connected and not self._greeted and now - self._asked_at >= _AGAIN:
            self._ask()
        self._out.live = is_there or (greeted and not self._out.is_full)
        if connected and (taken := self._receiving.due()) is not None:
            said = self._stream.header(behind=0)
            yield Leaving(Piece(said.session_id, said.incarnation, 0, 0, said.heard, at=taken), [])
        # What was sent before these is taken now; what another thread sends from now on does not come before them.
        notifications = [self._notifications.popleft() for _ in range(len(self._notifications))]
        for taking in (False, True) if greeted else ():  # the rest of something large, and what was sent meanwhile
            if taking and self._sending.idle:
                self._sending.add(self._out.take())
            for header, frames in self._sending.leaving(self._stream.header):
                yield Leaving(header, frames)
        if connected and not (greeted and not self._sending.idle):
            behind = self._out.last if greeted else self._out.newest
            for notification in notifications:
                yield Leaving(self._stream.header(behind=behind), to_frames(notification))
        elif connected:  # they do not come before what was said before
            self._notifications.extendleft(reversed(notifications))
