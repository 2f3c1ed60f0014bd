"""What the agent needs to ask its ranks what they do, in the notebook's name.

A question has a place in the stream from the notebook to the rank: it shows the rank what it lacks, and which of its
messages the notebook has heard. So the agent keeps the header of the last message that the notebook has sent to each
rank, and asks with that. Before a rank has one, it is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from ...protocol import Poll, StatusRequest
from ...protocol.codec import decode_header, encode
from ...protocol.parcels import Letter
from ...protocol.streams import Header


class Polls:
    """The headers of the notebook's last messages, by rank."""

    def __init__(self) -> None:
        self._headers: dict[int, bytes] = {}

    def note(self, letter: Letter) -> None:
        """Keep the header of a letter to a rank."""
        self._headers[letter.rank] = letter.header

    def forget(self, rank: int) -> None:
        """Forget a rank whose process has ended: the next one has heard nothing."""
        self._headers.pop(rank, None)

    def clear(self) -> None:
        """Forget all: the notebook is another one, or greets all ranks."""
        self._headers.clear()

    def letters(self, poll: Poll, ranks: Iterable[int]) -> Iterator[Letter]:
        """Return the questions to these ranks."""
        frame = encode(StatusRequest(poll.question))
        for rank in ranks:
            with suppress(KeyError, msgspec.DecodeError):  # a newer notebook may have another header
                last = decode_header(self._headers[rank])
                word = Header(last.epoch, last.life, 0, last.number or last.after, last.heard, last.settled)
                yield Letter(rank, encode(word), [frame], asks=True)
