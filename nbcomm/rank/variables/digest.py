"""Short hashes of values: equal where the values' bytes are.

Data is hashed in place, block by block: a tensor of many gigabytes needs no copy in memory, and an interrupt can come
in between. The hash does not depend on where a value is stored: it is the same on each device.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from .structure import (
    BLOCK,
    IncomparableError,
    ValueParts,
    blocks,
    bytes_of,
    data_of,
    dtype_of,
    is_plain,
    name_of,
    parts_of,
)

_SIZE = 16

_SHORT = 64
"""A longer text is hashed by itself, and never copied whole."""


def digest(value: Any) -> bytes:
    """Hash a value.

    -0.0 and 0.0 differ, and so do 1 and 1.0; a NaN equals itself if its bits do. The order in which a dict or a set was
    filled makes no difference; of a module its parameters and buffers count, of a function its code.

    Raises:
        IncomparableError: the value cannot be looked into.
    """
    return _hashed(value, _Digester())


def shared(value: Any) -> dict[str, Any]:
    """Hash a value so that ranks can compare it that have parts of it.

    Returns:
        ``digest``: of what all ranks have alike, such as how parts are laid out; where something is sharded also
        ``part``: which parts this rank has, in words, and ``own``: the hash of all, these parts included.

    Raises:
        IncomparableError: the value cannot be looked into.
    """
    digester = _Digester(parts=False)
    alike = {"digest": _hashed(value, digester)}
    part = "; ".join(sorted(digester.places))
    return {**alike, "part": part, "own": digest(value)} if part else alike


def _hashed(value: Any, digester: _Digester) -> bytes:
    try:
        return digester.of(value)
    except IncomparableError:
        raise
    except RecursionError as error:
        raise IncomparableError("it is nested too deep") from error
    except Exception as error:
        raise IncomparableError(f"{type(error).__name__}: {error}") from error


class _Digester:
    def __init__(self, *, parts: bool = True) -> None:
        self.places: set[str] = set()
        self._parts = parts
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, so that no other object gets its id
        self._open: dict[int, int] = {}

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if is_plain(value):
            return hashlib.blake2b(_PLAIN[kind](value), digest_size=_SIZE).digest()
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # it contains itself
            return b"inside %d" % (len(self._open) - self._open[id(value)])
        self._open[id(value)] = len(self._open)
        made = self._of_row(value) if kind in (list, tuple) else self._of_any(value)
        del self._open[id(value)]
        self._known[id(value)] = value, made
        return made

    def _of_row(self, values: Any) -> bytes:
        """Hash a list or tuple; numbers in long ones are hashed directly, for speed."""
        hasher = _hasher(name_of(type(values)), len(values))
        for value in values:
            write = _PLAIN.get(type(value))
            if write is None:
                hasher.update(b"\0")
                hasher.update(self.of(value))
            else:
                hasher.update(write(value))
        return hasher.digest()

    def _of_any(self, value: Any) -> bytes:
        data = data_of(value)
        if data is None:
            return self._of_parts(parts_of(value))
        shape = tuple(data.shape)
        what = "tensor" if type(data).__module__ == "torch" else "array"
        hasher = _hasher(f"{what} {dtype_of(data)} {shape}", 0)
        for place in blocks(shape, data.dtype.itemsize):
            hasher.update(bytes_of(data[place]).data)
        return hasher.digest()

    def _of_parts(self, parts: ValueParts) -> bytes:
        if parts.place:
            self.places.add(parts.place)
            if not self._parts:
                return _hasher(parts.kind, 0).digest()
        hashes = [self.of(label) + self.of(item) for label, item in parts.items]
        hasher = _hasher(parts.kind, len(hashes))
        for one in hashes if parts.ordered else sorted(hashes):
            hasher.update(one)
        return hasher.digest()


def _hasher(kind: str, length: int) -> hashlib.blake2b:
    hasher = hashlib.blake2b(digest_size=_SIZE)
    hasher.update(_text(kind))
    hasher.update(_whole(length))
    return hasher


def _whole(number: int) -> bytes:
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"i%d:%b" % (len(raw), raw)


def _text(text: str) -> bytes:
    if len(text) <= _SHORT:
        raw = text.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(raw), raw)
    hasher = hashlib.blake2b(digest_size=_SIZE)
    for start in range(0, len(text), BLOCK):
        hasher.update(text[start : start + BLOCK].encode("utf-8", "surrogatepass"))
    return b"S" + hasher.digest()


def _raw(tag: bytes, raw: bytes | bytearray) -> bytes:
    if len(raw) <= _SHORT:
        return b"%b%d:%b" % (tag, len(raw), bytes(raw))
    return tag.upper() + hashlib.blake2b(raw, digest_size=_SIZE).digest()


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    int: _whole,
    bool: lambda value: b"T" if value else b"F",
    float: lambda value: b"f" + struct.pack("<d", value),
    complex: lambda value: b"c" + struct.pack("<dd", value.real, value.imag),
    str: _text,
    bytes: lambda value: _raw(b"b", value),
    bytearray: lambda value: _raw(b"a", value),
    type(None): lambda _: b"N",
    type(...): lambda _: b"E",
    type(NotImplemented): lambda _: b"I",
}
