"""The encoding of messages: msgpack, for any content from a user's program."""

from __future__ import annotations

import numbers
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from .nodes import Left, NodeStatus, Order, Poll, Report
from .reports import Done, FromRank
from .requests import ToRank
from .streams import Header

_T = TypeVar("_T")

_DEEPEST = 100
"""Levels of nesting that are kept if not all can be encoded."""

_NO_MESSAGE = (UnicodeDecodeError, RecursionError)
"""What msgspec raises beside its own DecodeError: for invalid text, and for too deep nesting."""

_TIMES = struct.Struct("<dd")
"""When a request began, and how long it took: a frame of its own, or no two ranks' answers would be equal frames."""

_encoder = msgspec.msgpack.Encoder()
_to_rank: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_from_rank: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
_order: msgspec.msgpack.Decoder[Order | Left | Poll] = msgspec.msgpack.Decoder(Order | Left | Poll)
_report: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_status: msgspec.msgpack.Decoder[NodeStatus] = msgspec.msgpack.Decoder(NodeStatus)
_header: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


def encode(message: ToRank | FromRank | Order | Left | Poll | Report | NodeStatus | Header) -> bytes:
    """Encode one message's first frame.

    All that a user's program prints, raises or displays can be encoded: values that msgpack lacks are replaced.
    """
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, TypeError, OverflowError, RecursionError):
        return _encoder.encode(_encodable(message, 0))


def to_frames(message: FromRank, buffers: Sequence[Any] = ()) -> list[Any]:
    """Return the frames of a rank's message."""
    if isinstance(message, Done):
        times = _TIMES.pack(message.began, message.seconds)
        return [encode(structs.replace(message, began=0.0, seconds=0.0)), times, *buffers]
    return [encode(message), *buffers]


def from_frames(message: FromRank, frames: Sequence[Any]) -> tuple[FromRank, Sequence[Any]]:
    """Return a rank's message and its buffers.

    Args:
        message: the decoded first frame.
        frames: the others.

    Raises:
        struct.error: there are not the frames that `to_frames` has made.
    """
    if isinstance(message, Done):
        began, seconds = _TIMES.unpack(frames[0] if frames else b"")
        return structs.replace(message, began=began, seconds=seconds), frames[1:]
    return message, frames


def _encodable(value: Any, depth: int) -> Any:  # noqa: PLR0911 - a table of kinds, one line each
    """Replace surrogate characters, huge integers, unknown objects, and too deep nesting."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, numbers.Integral):
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 64 else str(number)
    if isinstance(value, numbers.Real):
        return float(value)
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, msgspec.Struct):
        return type(value)(*(_encodable(getattr(value, name), depth + 1) for name in value.__struct_fields__))
    if isinstance(value, dict):
        return {_key(key): _encodable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_encodable(item, depth + 1) for item in value]
    return str(value).encode(errors="replace").decode()


def _key(key: Any) -> Any:
    return key if isinstance(key, int | float | bytes | None) else str(key).encode(errors="replace").decode()


def decode_to_rank(frame: bytes | memoryview) -> ToRank:
    """Decode a message of the notebook; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_to_rank, frame)


def decode_from_rank(frame: bytes | memoryview) -> FromRank:
    """Decode a message of a rank; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_from_rank, frame)


def decode_order(frame: bytes | memoryview) -> Order | Left | Poll:
    """Decode an order to a node; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_order, frame)


def decode_report(frame: bytes | memoryview) -> Report:
    """Decode a report of a node; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_report, frame)


def decode_status(frame: bytes | memoryview) -> NodeStatus:
    """Decode the answer of an agent to any process; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_status, frame)


def decode_header(frame: bytes | memoryview) -> Header:
    """Decode the header of a message in a stream; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_header, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[_T], frame: bytes | memoryview) -> _T:
    try:
        return decoder.decode(frame)
    except _NO_MESSAGE as error:
        raise msgspec.DecodeError(str(error)) from error
