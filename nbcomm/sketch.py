"""Values in few characters, for pictures: what can be shown of them fairly, and what was left out.

Tensors and arrays are known by what they have (``dtype``, ``shape``, ``tolist``), so nothing is imported for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

_NUMBERS = 4
"""So many numbers of a row are shown; of a longer one the first three and the last."""

_TEXT = 28
_NODES = 3
_BITS = 4096


def sketch(value: Any, depth: int = 3) -> str:
    """Write a value in few characters; what is left out shows as "…", and a tensor's size is said then.

    >>> sketch(6), sketch(0.1 + 0.2), sketch("a" * 40)
    ('6', '0.3', "'aaaaaaaaaaaaaaaaaaaaaaaaa…'")
    >>> sketch([1, 2, 3, 4, 5, 6]), sketch({"lr": 0.1})
    ('[1 2 3 … 6] of 6', '{lr: 0.1}')
    """
    try:
        return _sketch(value, depth)
    except Exception:  # noqa: BLE001 - a user's own class may raise whatever it likes
        return f"<{type(value).__name__}>"


def _sketch(value: Any, depth: int) -> str:
    if hasattr(type(value), "tolist") and hasattr(type(value), "shape"):
        return _array(value)
    if isinstance(value, dict | list | tuple) and value and not depth:
        return "{…}" if isinstance(value, dict) else "[…]"
    if isinstance(value, dict):
        parts = [f"{_cut(_plain(key))}: {sketch(item, depth - 1)}" for key, item in islice(value.items(), _NODES)]
        return _cut("{" + ", ".join([*parts, *(["…"] if len(value) > _NODES else [])]) + "}")
    if isinstance(value, list | tuple):
        return _cut(_row(value, depth - 1))
    return _plain(value) if isinstance(value, bool | int | float | complex | None) else _cut(_text(value))


def _array(value: Any) -> str:
    shape = tuple(value.shape)
    count = 1
    for length in shape:
        count *= length
    if not shape:
        return _cut(_plain(value.tolist()))
    if count == 0:
        return f"empty {_times(shape)}"
    if count <= _NUMBERS + 1:
        shown = [_plain(number) for number in value.reshape(-1).tolist()]
    else:  # number by number: a large array whose rows do not follow each other would be copied to be flat
        shown = [_plain(_at(value, place).tolist()) for place in (*range(_NUMBERS - 1), count - 1)]
        shown.insert(-1, "…")
    size = "" if len(shape) == 1 and count <= _NUMBERS + 1 else f" of {_times(shape)}"
    return f"[{' '.join(shown)}]{size}"


def _at(value: Any, place: int) -> Any:
    """The element at a place of the flat array, from 0."""
    index: list[int] = []
    for length in reversed(tuple(value.shape)):
        place, at = divmod(place, length)
        index.insert(0, at)
    return value[tuple(index)]


def _row(values: list[Any] | tuple[Any, ...], depth: int) -> str:
    if len(values) <= _NUMBERS + 1:
        return f"[{' '.join(sketch(item, depth) for item in values)}]"
    first = " ".join(sketch(item, depth) for item in values[: _NUMBERS - 1])
    return f"[{first} … {sketch(values[-1], depth)}] of {len(values)}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, complex):
        return f"{value:.3g}"
    if isinstance(value, int) and value.bit_length() > _BITS:  # Python refuses to write it, or takes seconds
        return f"a number of {value.bit_length():,} bits"
    text = str(value)
    return text if len(text) <= 12 or not isinstance(value, int) else f"{text[:4]}…{text[-4:]}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= _TEXT - 2 else f"{value[: _TEXT - 3]!r}"[:-1] + "…'"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    return " ".join(repr(value)[: 8 * _TEXT].split())


def _cut(text: str) -> str:
    return shortened(text, 2 * _TEXT)


def shortened(text: str, most: int) -> str:
    """The beginning of a text that is too long.

    >>> shortened("abcdef", 4), shortened("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def clipped(text: str, most: int) -> str:
    r"""The beginning and the end of a text that is too long, and how much is left out between them.

    >>> clipped("abcdefgh", 4), clipped("abcd", 4)
    ('ab\n… (4 characters are left out) …\ngh', 'abcd')
    """
    if len(text) <= most:
        return text
    half = most // 2
    colours = "\x1b[0m" if "\x1b" in text[:half] else ""
    return f"{text[:half]}{colours}\n… ({len(text) - 2 * half:,} characters are left out) …\n{text[-half:]}"


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def leaves(value: Any, depth: int = 6) -> Iterator[Any]:
    """The leaves of lists, tuples and dicts."""
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, depth - 1)
    else:
        yield value


def size_of(value: Any) -> int:
    """The bytes of the tensors and arrays in a value; numbers count 8, and what is neither counts nothing.

    >>> size_of([1, 2.5, {"a": True}])
    24
    """
    total = 0
    for leaf in leaves(value):
        if isinstance(leaf, bool | int | float):
            total += 8
        elif isinstance(leaf, bytes | bytearray):
            total += len(leaf)
        else:
            total += getattr(leaf, "nbytes", 0)
    return total
