"""Values in few characters, for pictures, with a mark for what is left out.

Tensors and arrays are recognised by their attributes (``dtype``, ``shape``, ``tolist``), so nothing is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import Any

_NUMBERS = 4
"""How many numbers of a row are shown; of a longer row the first three and the last."""

_TEXT = 28
_NODES = 3
_BITS = 4096
_MANY, _LONG = 1024, 1000
"""The most entries, and the most characters of a text, that `detailed` writes of a value."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What a terminal takes for a change of colour."""

_ADDRESS = re.compile(r"(?<= at 0x)[0-9a-fA-F]+(?=>|, file \")")
"""As objects and functions have it, and code objects."""

_NEXT = "\x1f"
"""The separator of such a value's entries: the unit separator, which no repr of Python contains."""

_SIZE = "\x1e"
"""What stands before the size of a large array, behind its entries: the record separator, for the same reason."""


def sketch(value: Any, depth: int = 3) -> str:
    """Write a value in few characters; "…" stands for what is left out, and a tensor's size is added then.

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


def detailed(value: Any, most: int = _MANY) -> str:
    """Write enough of a value to distinguish it from others; `told_apart` then shortens it.

    Behind a large array is its size, for `sized`.

    Args:
        value: any object.
        most: the number of its entries that are read.
    """
    try:
        return _detailed(value, max(most, _NUMBERS + 2))
    except Exception:  # noqa: BLE001 - a user's own class may raise whatever it likes
        return sketch(value)


def _detailed(value: Any, most: int) -> str:
    if isinstance(value, dict) and len(value) > _NODES:
        return _dict_of([_entry(key, item) for key, item in islice(value.items(), most)], len(value) > most)
    if isinstance(value, str):
        return repr(value[:_LONG])
    if hasattr(type(value), "tolist") and hasattr(type(value), "shape"):
        shape = tuple(value.shape)
        count = math.prod(shape)
        if not shape or count <= _NUMBERS + 1:
            return _array(value)
        size = _size(value, shape)
        entries = [_plain(number) for number in _first(value, min(count, most - 1))]
        last = _plain(_at(value, count - 1).tolist())
    elif isinstance(value, list | tuple) and len(value) > _NUMBERS + 1:
        shape, count, size = (len(value),), len(value), ""
        entries = [sketch(item, 2) for item in value[: most - 1]]
        last = sketch(value[-1], 2)
    else:
        return sketch(value)
    if count > len(entries) + 1:
        entries.append("…")
    if count > most - 1:
        entries.append(last)
    return f"[{_NEXT.join(entries)}] of {_times(shape)}{size}"


def _size(array: Any, shape: tuple[int, ...]) -> str:
    size = getattr(array, "nbytes", None)
    return f"{_SIZE}{_times(shape)} {str(array.dtype).rpartition('.')[2]}{f', {amount(size)}' if size else ''}"


def sized(text: str) -> tuple[str, str]:
    """Split a text of `detailed` into what it shows, and the size of a large array: shape, dtype and bytes.

    >>> import numpy
    >>> sized(detailed(numpy.zeros((2, 3))))[1], sized(detailed([0] * 6))[1]
    ('2×3 float64, 48 B', '')
    """
    shown, _, size = text.partition(_SIZE)
    return shown, size


def _entry(key: Any, item: Any) -> str:
    return f"{_cut(_plain(key))}: {sketch(item, 2)}"


def _dict_of(entries: list[str], more: bool) -> str:  # noqa: FBT001 - of one caller
    return "{" + _NEXT.join([*entries, *(["…"] if more else [])]) + "}"


def _first(value: Any, count: int) -> list[Any]:
    """Return the first elements of the flattened array; few more than these are copied."""
    while len(value.shape) > 1 and math.prod(value.shape[1:]) >= count:
        value = value[0]
    rest = math.prod(value.shape[1:])
    found: list[Any] = value[: -(-count // rest)].reshape(-1)[:count].tolist()
    return found


def told_apart(texts: Sequence[str]) -> list[str]:
    """Write texts of `detailed` in few characters: their beginning, or where they first differ if that is further on.

    >>> told_apart([detailed([0] * 6), detailed([0, 0, 0, 0, 7, 0])])
    ['[… 0 at 4 …] of 6', '[… 7 at 4 …] of 6']
    >>> told_apart(["'" + "the same beginning, and then " + end + "'" for end in ("this", "that")])
    ["'… then this'", "'… then that'"]
    """
    texts = [sized(text)[0] for text in texts]
    parts = [_entries(text) for text in texts]
    kinds = [(text[0], len(entries)) if entries else None for text, entries in zip(texts, parts, strict=True)]
    # Rows of the same length are compared with each other, and so are all values that are not rows.
    places = {kind: _differ([own for own, its in zip(parts, kinds, strict=True) if its == kind]) for kind in {*kinds}}
    short = [
        _around(text, entries, places[kind]) if entries else text
        for text, entries, kind in zip(texts, parts, kinds, strict=True)
    ]
    return fitted(short, 2 * _TEXT, quoted=_TEXT)


def _entries(text: str) -> list[str]:
    return text[1:].rpartition("]" if text[0] == "[" else "}")[0].split(_NEXT) if _NEXT in text else []


def _differ(rows: Sequence[Sequence[str]]) -> int:
    """Return the first place at which rows of the same length differ; 0 if they do not differ."""
    return next((place for place, found in enumerate(zip(*rows, strict=True)) if len({*found}) > 1), 0)


def _around(text: str, entries: list[str], place: int) -> str:
    if text.startswith("{"):
        shown = entries[:_NODES] if place < _NODES else ["…", entries[place]]
        more = ["…"] if place + 1 < len(entries) else []
        return "{" + ", ".join([*shown, *more]) + "}"
    size = text.rpartition("]")[2]
    if place < _NUMBERS - 1 or place == len(entries) - 1:
        return f"[{' '.join(entries[: _NUMBERS - 1])} … {entries[-1]}]{size}"
    shape = [int(length) for length in size.removeprefix(" of ").split("×")]
    return f"[… {entries[place]} at {','.join(map(str, _index(shape, place)))} …]{size}"


def fitted(texts: Sequence[str], most: int, *, quoted: int | None = None) -> list[str]:
    """Shorten texts that are too long: at their end, or at their beginning if they differ only further on.

    Args:
        texts: texts that are shown side by side.
        most: characters of a text.
        quoted: characters of a text in quotes; ``most`` by default.
    """

    def room(text: str) -> int:
        return quoted if quoted is not None and text[:1] in ("'", '"') else most

    long = {text for text in texts if len(text) > room(text)}
    same = len(commonprefix([*long])) if len(long) > 1 else 0  # noqa: RUF071 - of any texts, not of paths
    return [_fit(text, room(text), same) if text in long else text for text in texts]


def _fit(text: str, most: int, same: int) -> str:
    """Shorten a text; its first ``same`` characters are common to all texts, so they may be left out."""
    quote = text[0] if text[0] in ("'", '"') else ""
    if same > most - 4:
        # From the beginning of a word, if one is near enough that the difference is still shown.
        word = next((at for at in range(max(1, same - min(8, most // 3)), same) if not text[at].isalnum()), same - 1)
        text = f"{quote}…{text[word:]}"
    return text if len(text) <= most else f"{text[: most - 1 - len(quote)].rstrip(' …')}…{quote}"


def _array(value: Any) -> str:
    shape = tuple(value.shape)
    count = math.prod(shape)
    if not shape:
        return _cut(_plain(value.tolist()))
    if count == 0:
        return f"empty {_times(shape)}"
    if count <= _NUMBERS + 1:
        shown = [_plain(number) for number in value.reshape(-1).tolist()]
    else:  # number by number: to flatten a large array that is not contiguous would copy it
        shown = [_plain(_at(value, place).tolist()) for place in (*range(_NUMBERS - 1), count - 1)]
        shown.insert(-1, "…")
    size = "" if len(shape) == 1 and count <= _NUMBERS + 1 else f" of {_times(shape)}"
    return f"[{' '.join(shown)}]{size}"


def _at(value: Any, place: int) -> Any:
    """Return the element at a place of the flattened array, counted from 0."""
    return value[tuple(_index(value.shape, place))]


def _index(shape: Sequence[int], place: int) -> list[int]:
    index: list[int] = []
    for length in reversed(tuple(shape)):
        place, at = divmod(place, length)
        index.insert(0, at)
    return index


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
    text = _seen(str(value))
    return text if len(text) <= 12 or not isinstance(value, int) else f"{text[:4]}…{text[-4:]}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= _TEXT - 2 else f"{value[: _TEXT - 3]!r}"[:-1] + "…'"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    return " ".join(_seen(repr(value)[: 8 * _TEXT]).split())


def _seen(text: str) -> str:
    """Remove a terminal's colours and replace other unprintable characters, which a picture's XML may not hold."""
    plain = COLOUR.sub("", text)
    if plain.isprintable():
        return plain
    return "".join(
        " " if each.isspace() else each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in plain
    )


def _cut(text: str) -> str:
    return shortened(text, 2 * _TEXT)


def shortened(text: str, most: int) -> str:
    """Return a text, cut to its beginning if it is too long.

    >>> shortened("abcdef", 4), shortened("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def without_addresses(text: str) -> str:
    """Return a text in which Python's default texts of objects have no addresses, which say nothing of a value.

    >>> without_addresses("[<A object at 0x7f10>] at 0x7f10")
    '[<A object at 0x…>] at 0x7f10'
    """
    return _ADDRESS.sub("…", text) if " at 0x" in text else text


def clipped(text: str, most: int) -> str:
    r"""Return a text; if it is too long, only its beginning and end, and how much is left out between them.

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
    """Yield the leaves of nested lists, tuples and dicts; below ``depth`` levels, collections count as leaves."""
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, depth - 1)
    else:
        yield value


def size_of(value: Any) -> int:
    """Return the bytes of the tensors, arrays and bytes in a value; a number counts 8, other objects 0.

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


def amount(size: int) -> str:
    """Write bytes in the unit that fits.

    >>> amount(24), amount(1536), amount(256 << 20)
    ('24 B', '1.5 KiB', '256 MiB')
    """
    if size < 1 << 10:
        return f"{size} B"
    number, units = float(size), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = ""
    while number >= 1023.95 and (following := next(units, "")):
        number, unit = number / 1024, following
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"
