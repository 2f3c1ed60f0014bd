"""Messages that could not be taken whole, for lack of memory: which they were, and what is said instead of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from .chunks import Lost
from .codec import decode_from_rank, from_frames, to_frames
from .common import Failure
from .output import Text
from .reports import Done, FromRank, IntrospectReply, Output

_INTEGERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""The first byte of an integer in msgpack, and how many follow; one below 0x80 is the number itself."""

_LONGEST = 31
"""Bytes of the longest text whose length stands in its first byte, as with the name of each message."""

_start: msgspec.msgpack.Decoder[tuple[str, int]] = msgspec.msgpack.Decoder(tuple[str, int])


def bytes_lost(frames: Sequence[Any]) -> int:
    """Return how many bytes of a message's frames were not taken; 0 if it is whole."""
    return sum(frame.size for frame in frames if isinstance(frame, Lost))


def begins_with(frame: Any) -> tuple[str, int]:
    """Return the name of a message, and its first field, which mostly is the number of the request that it is about.

    Args:
        frame: the encoded message, or what is known of its beginning.

    Returns:
        The name and the number; "" and 0 if they cannot be read.
    """
    start = frame.start if isinstance(frame, Lost) else bytes(memoryview(frame)[:64])
    name = 3 if start[:1] == b"\xdc" else 1  # after the array's length
    number = name + 1 + (start[name] & _LONGEST if len(start) > name else 0)
    after = number + 1 + (_INTEGERS.get(start[number], 0) if len(start) > number else 0)
    try:
        return _start.decode(b"\x92" + start[name:after])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", 0


def failure(text: str) -> Failure:
    """Return the failure of a request that could not be transferred."""
    return Failure("TransferError", text, f"TransferError: {text}")


def request_lost(rank: int, size: int) -> Failure:
    """Return the failure of a request for which its rank had not enough memory."""
    return failure(
        f"Rank {rank} had not enough memory for the {size:,} bytes of this request, which was not done. The variables "
        "of the rank are kept. Delete what is not needed there, or send less at once."
    )


def answer_lost(rank: int, size: int) -> Failure:
    """Return the failure of a request whose answer did not get into the notebook's process."""
    return failure(
        f"The answer of rank {rank} is lost: the notebook had not enough memory for its {size:,} bytes. The variables "
        "of the rank are kept. Ask for less at once."
    )


def instead(rank: int, frames: Sequence[Any]) -> list[Any]:
    """Return the frames that are delivered instead of a message of a rank that has lost some.

    A message that nobody waits for is left out: what stands there cannot be decoded.
    """
    size = bytes_lost(frames)
    name, number = begins_with(frames[0])
    message: FromRank | None = None
    if name == "Done":
        done = Done(number, broken=True, dropped=-1)  # unless it is known not to be
        if not isinstance(frames[0], Lost):
            with suppress(MemoryError, msgspec.DecodeError, struct.error, TypeError):
                known, _ = from_frames(decode_from_rank(frames[0]), frames[1:])
                done = known if isinstance(known, Done) else done
        message = structs.replace(done, blob=None, failure=done.failure or answer_lost(rank, size))
    elif name == "Output":
        message = Output(number, [Text("stderr", f"({size:,} bytes of output are lost: not enough memory)\n")])
    elif name == "IntrospectReply":
        message = IntrospectReply(number, {})
    return to_frames(message) if message is not None else [b""]
