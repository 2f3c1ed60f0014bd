"""The encoding of messages: msgpack, for any content from a user's program."""

from __future__ import annotations

import numbers
from typing import Any

import msgspec

from .reports import FromRank
from .requests import ToRank

_DEEPEST = 100
"""Levels of nesting that are kept if not all can be encoded."""

_NO_MESSAGE = (UnicodeDecodeError, RecursionError)
"""What msgspec raises beside its own DecodeError: for invalid text, and for too deep nesting."""

_encoder = msgspec.msgpack.Encoder()
_to_rank: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_from_rank: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)


def encode(message: ToRank | FromRank) -> bytes:
    """Encode one message's first frame.

    All that a user's program prints, raises or displays can be encoded: values that msgpack lacks are replaced.
    """
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, TypeError, OverflowError, RecursionError):
        return _encoder.encode(_encodable(message, 0))


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
    try:
        return _to_rank.decode(frame)
    except _NO_MESSAGE as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_from_rank(frame: bytes | memoryview) -> FromRank:
    """Decode a message of a rank; raise `msgspec.DecodeError` for anything else."""
    try:
        return _from_rank.decode(frame)
    except _NO_MESSAGE as error:
        raise msgspec.DecodeError(str(error)) from error
