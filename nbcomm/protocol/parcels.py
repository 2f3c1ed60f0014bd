"""Letters and parcels: several messages in one, in which equal frames travel once.

A *letter* is one message to or from a rank, or the agent of its node. Between the notebook and an agent, letters travel
in parcels: one ZMQ multipart that begins with a list of its letters. Ranks often say the same, so a parcel holds each
frame once, however many letters have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

HEAD = 0
"""The number of the node on the notebook's machine."""

ITSELF = -1
"""In the place of a rank: the message is to the agent, or from it."""

NO_HEADER = b""
"""The header of such a message: it is of no stream."""

_LARGEST = 1 << 16
"""Bytes of the largest frame that is compared with others by its content."""


class Letter(NamedTuple):
    """One message.

    Attributes:
        rank: to or from which rank; `ITSELF` for the agent.
        header: an encoded `streams.Header`.
        frames: the encoded message, and its raw buffers.
        asks: whether the rank answers it soon, or this is such an answer: the agent waits a moment for the others'.
    """

    rank: int
    header: bytes
    frames: Sequence[Any]
    asks: bool = False


class _Address(msgspec.Struct, array_like=True, frozen=True):
    """What a parcel's list says of one letter; ``frames`` are positions in the parcel."""

    rank: int
    header: bytes
    frames: list[int]
    asks: bool = False


def name_of(node: int) -> str:
    """Return the name of a node's agent on the link."""
    return f"node{node}"


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[_Address]] = msgspec.msgpack.Decoder(list[_Address])


def pack(letters: Iterable[Letter]) -> list[Any]:
    """Return the frames of a parcel with these letters, in this order."""
    parcel: list[Any] = [b""]
    letters = list(letters)  # they keep the frames, so no identity is given twice
    by_identity: dict[int, int] = {}
    by_content: dict[bytes, int] = {}
    addresses = []
    for letter in letters:
        places = []
        for frame in letter.frames:
            place = by_identity.get(id(frame))
            if place is None:
                content = frame if isinstance(frame, bytes) and len(frame) <= _LARGEST else None
                place = by_content.get(content) if content is not None else None
                if place is None:
                    place = len(parcel)
                    parcel.append(frame)
                    if content is not None:
                        by_content[content] = place
                by_identity[id(frame)] = place
            places.append(place)
        addresses.append(_Address(letter.rank, letter.header, places, letter.asks))
    parcel[0] = _encoder.encode(addresses)
    return parcel


def unpack(parcel: Sequence[Any]) -> list[Letter]:
    """Return the letters of a parcel.

    Args:
        parcel: its frames, as `pack` made them: bytes, memoryviews or ZMQ frames.

    Raises:
        msgspec.DecodeError: it is no parcel.
    """
    if not parcel:
        raise msgspec.DecodeError("A parcel has at least one frame.")
    try:
        addresses = _decoder.decode(memoryview(parcel[0]))
    except RecursionError as error:  # too deep nesting, where a later version may have another field
        raise msgspec.DecodeError(str(error)) from error
    letters = []
    for address in addresses:
        if not all(0 < place < len(parcel) for place in address.frames):
            raise msgspec.DecodeError("A parcel lacks a frame of a letter.")
        letters.append(Letter(address.rank, address.header, [parcel[place] for place in address.frames], address.asks))
    return letters
