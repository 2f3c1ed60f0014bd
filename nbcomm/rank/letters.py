"""The rank's letters: which of the notebook's are taken, and what is sent to it when. No input or output happens here.

`link` carries them. What is sent exactly once waits in the stream (`protocol.streams`) until the notebook has greeted
this rank on the present connection. *Words* (`Hello`, the answers about the rank's state) have no number, and are lost
where there is no connection.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ..protocol import Greet, Hello, StatusReply, ToRank
from ..protocol.codec import to_frames
from ..protocol.framing import ANSWER, OTHER
from ..protocol.streams import Frames, Header, Outgoing, RankStream

_GONE_AFTER = 5.0
"""Seconds without a greeted connection after which the notebook has gone: an agent that died is replaced before."""


class SaysHello(Protocol):
    """Makes the `Hello` of this moment."""

    def __call__(self, *, asks: bool) -> Hello:
        """Return it; ``asks``: the rank wants a `Greet`."""


class Leaving(NamedTuple):
    """A letter that is sent now: its header, its frames, and the kind of message for the agent."""

    header: Header
    frames: Frames
    kind: int


class Letters:
    """The rank's end of the stream, the words, and who was greeted.

    `say` and `tell` are for any thread, the rest is for the link's thread.

    Args:
        life: the number of this process.
        out: what is sent exactly once.
        hello: makes a `Hello`.
        meet: is called for a notebook that is new here, before anything of it is answered.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        life: int,
        out: Outgoing,
        hello: SaysHello,
        meet: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._stream = RankStream(life, out)
        self._hello = hello
        self._meet = meet
        self._clock = clock
        self._words: deque[Hello | StatusReply] = deque()
        self._greeted = False  # on this connection
        self._there_at = float("-inf")  # when the notebook was there last

    @property
    def settled(self) -> int:
        """No notebook needs the messages about cells up to this request any more."""
        return self._stream.settled

    @property
    def greeted(self) -> bool:
        """Whether what was said leaves at once."""
        return self._greeted

    def say(self, frames: Frames, run: int = 0, *, output: bool = False, asks: bool = False) -> None:
        """Send a message exactly once; the arguments are those of `Outgoing.add`."""
        self._out.add(frames, run, output=output, asks=asks)

    def tell(self, word: Hello | StatusReply) -> None:
        """Send a message that may be lost, behind all that was said before."""
        self._words.append(word)

    def connect(self) -> None:
        """Begin again on another connection: nobody knows yet what was lost with the one before."""
        self._greeted = False
        self.tell(self._hello(asks=True))

    def hear(self, header: Header, message: ToRank | None) -> bool:
        """Take note of a message of the notebook.

        Args:
            header: its header.
            message: None if it cannot be decoded.

        Returns:
            Whether it is the next one in the stream, and is to be done.
        """
        is_new, lacked = self._stream.is_new(header), self._stream.lacking
        if is_new:
            self._greeted = False
            self._there_at = self._clock()
            self._meet()
        if isinstance(message, Greet):
            self._greeted = self._stream.greet(header) or self._greeted
            if message.asks or not self._greeted:
                self.tell(self._hello(asks=not self._greeted))
            return False
        accepted = self._stream.accepts(header)
        if is_new:
            self.tell(self._hello(asks=True))
        elif self._stream.lacking and not (lacked and header.number):
            self.tell(self._hello(asks=False))
        return accepted

    def leaving(self, *, connected: bool) -> Iterator[Leaving]:
        """Return what is to be sent now, in order.

        Args:
            connected: whether there is a connection; without one, words are lost.
        """
        greeted = self._greeted and connected
        if greeted:
            self._there_at = self._clock()
        self._out.live = greeted or self._clock() - self._there_at < _GONE_AFTER
        # What was said before these words is taken now; what another thread says from now on does not come before them.
        words = [self._words.popleft() for _ in range(len(self._words))]
        if greeted:
            for sent in self._out.take():
                yield Leaving(self._stream.header(sent), sent.frames, ANSWER if sent.asks else OTHER)
        if connected:
            behind = self._out.last if greeted else self._out.newest
            for word in words:
                kind = ANSWER if isinstance(word, StatusReply) else OTHER
                yield Leaving(self._stream.header(behind=behind), to_frames(word), kind)
