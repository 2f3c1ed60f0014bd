"""The encoding of messages: msgpack, for any content from a user's program."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from .chunks import Piece
from .nodes import NodeStatus, Order, Report
from .reports import Done, FromRank, StatusReply
from .requests import ToRank
from .streams import Header
from .transit import OwnPart, apart, together

_T = TypeVar("_T")

_DEEPEST = 100
"""Levels of nesting that are kept if not all can be encoded."""

_NO_MESSAGE = (UnicodeDecodeError, RecursionError)
"""What msgspec raises beside its own DecodeError: for invalid text, and for too deep nesting."""


class _Own(msgspec.Struct, array_like=True, frozen=True):
    """What is one rank's own in a message: a frame of its own, or no two ranks' answers would be equal frames.

    Attributes:
        began: when a request began; 0 if the message is no answer.
        seconds: how long it took.
        steps: what is its own in its calls.
    """

    began: float = 0.0
    seconds: float = 0.0
    steps: OwnPart | None = None


_encoder = msgspec.msgpack.Encoder()
_to_rank: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_from_rank: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
_order: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_report: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_status: msgspec.msgpack.Decoder[NodeStatus] = msgspec.msgpack.Decoder(NodeStatus)
_piece: msgspec.msgpack.Decoder[Piece] = msgspec.msgpack.Decoder(Piece)
_own: msgspec.msgpack.Decoder[_Own] = msgspec.msgpack.Decoder(_Own)


def encode(message: ToRank | FromRank | Order | Report | NodeStatus | Header | _Own) -> bytes:
    """Encode one message's first frame, or what is one rank's own in it.

    All that a user's program prints, raises or displays can be encoded: values that msgpack lacks are replaced.
    """
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, TypeError, OverflowError, RecursionError):
        return _encoder.encode(_encodable(message, 0))


def to_frames(message: FromRank, buffers: Sequence[Any] = ()) -> list[Any]:
    """Return the frames of a rank's message."""
    if isinstance(message, Done):
        doing, shared, own = apart(message.doing, message.steps)
        alike = structs.replace(message, began=0.0, seconds=0.0, doing=doing, steps=[], shared=shared)
        return [encode(alike), encode(_Own(message.began, message.seconds, own)), *buffers]
    if isinstance(message, StatusReply):
        doing, shared, own = apart(message.doing, message.steps)
        if shared is not None:
            return [encode(structs.replace(message, doing=doing, steps=[], shared=shared)), encode(_Own(steps=own))]
    return [encode(message), *buffers]


def from_frames(message: FromRank, frames: Sequence[Any]) -> tuple[FromRank, Sequence[Any]]:
    """Return a rank's message and its buffers.

    Args:
        message: the decoded first frame; it may be other ranks', too, and is not changed.
        frames: the others.

    Raises:
        msgspec.DecodeError: there are not the frames that `to_frames` has made.
    """
    if isinstance(message, Done):
        own = _decoded(_own, frames[0] if frames else b"")
        if message.shared is None:  # most cells: this is done for each rank
            return structs.replace(message, began=own.began, seconds=own.seconds), frames[1:]
        doing, steps = together(message.doing, message.shared, own.steps)
        whole = structs.replace(message, began=own.began, seconds=own.seconds, doing=doing, steps=steps, shared=None)
        return whole, frames[1:]
    if isinstance(message, StatusReply) and message.shared is not None:
        own = _decoded(_own, frames[0] if frames else b"")
        doing, steps = together(message.doing, message.shared, own.steps)
        return structs.replace(message, doing=doing, steps=steps, shared=None), frames[1:]
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


def decode_order(frame: bytes | memoryview) -> Order:
    """Decode an order to a node; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_order, frame)


def decode_report(frame: bytes | memoryview) -> Report:
    """Decode a report of a node; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_report, frame)


def decode_status(frame: bytes | memoryview) -> NodeStatus:
    """Decode the answer of a daemon to any process; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_status, frame)


def decode_piece(frame: bytes | memoryview) -> Piece:
    """Decode a header as it travels, with what part stands behind it; raise `msgspec.DecodeError` for anything else."""
    return _decoded(_piece, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[_T], frame: bytes | memoryview) -> _T:
    try:
        return decoder.decode(frame)
    except _NO_MESSAGE as error:
        raise msgspec.DecodeError(str(error)) from error
