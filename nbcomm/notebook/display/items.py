"""What a rank shows, split into the pieces that are compared, folded and shown."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import msgspec

from ...short_repr import without_addresses

VIEW = "application/vnd.jupyter.widget-view+json"
"""The MIME type of a widget's view."""

_DEEPEST = 100
"""Levels of nesting that are kept if the value is nested too deeply."""

_VERSIONS = 16 << 20
"""Bytes that one display's values may take on which the ranks have not agreed, beside the current one."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Line(NamedTuple):
    """One line of text, or the several lines of one text-only result. Equal lines fold."""

    stream: str
    text: str


class Block(NamedTuple):
    """Whole lines of text, as they came; they are taken apart when somebody asks for one of them."""

    stream: str
    text: str
    size: int  # how many

    def lines(self) -> list[Line]:
        """Return its lines."""
        return lines_of(self.stream, self.text[:-1].split("\n"))


_make_line = partial(tuple.__new__, Line)


def lines_of(stream: str, texts: Iterable[str]) -> list[Line]:
    """Return lines of a stream; at a third of the time that `Line` takes for each."""
    return list(map(_make_line, zip(repeat(stream), texts, strict=False)))


class Version(NamedTuple):
    """A value of a display: its MIME bundle, a digest that identifies it, and its size in bytes."""

    digest: bytes
    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int = 0


def version(data: dict[str, Any], metadata: dict[str, Any]) -> Version:
    """Digest a MIME bundle, so that byte-identical bundles are equal and images are compared once.

    Bundles are also equal if only an object's address differs in the text that stands for the richer kinds.
    Values that JSON does not have are replaced first: anything that a cell displays can be digested and shown.
    """
    bundle: tuple[Any, Any] = data, metadata
    try:
        bundle = msgspec.to_builtins(bundle, str_keys=True, builtin_types=(bytes,), enc_hook=repr)
        encoded = _encoder.encode(_compared(*bundle))
    except (TypeError, ValueError, OverflowError, RecursionError):
        bundle = _plain(data), _plain(metadata)
        encoded = _encoder.encode(_compared(*bundle))
    return Version(hashlib.blake2b(encoded, digest_size=16).digest(), bundle[0], bundle[1], len(encoded))


def _compared(data: Any, metadata: Any) -> tuple[Any, Any]:
    text = data.get("text/plain")
    return {**data, "text/plain": without_addresses(text)} if isinstance(text, str) else data, metadata


def _plain(value: Any, depth: int = 0) -> Any:
    """Replace what `msgspec` does not accept: keys such as tuples, lone surrogates, huge integers, deep nesting."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return value
    if isinstance(value, dict | list | tuple | set | frozenset) and depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return str(value).encode(errors="replace").decode()


def _key(key: Any) -> str:
    """Return a key as JSON has it: ``true`` and ``null``, and all else as Python writes it."""
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key).encode(errors="replace").decode()


class Place(Protocol):
    """The place of displays that ranks share; see `displays.SharedDisplay`."""

    @property
    def screen(self) -> Any:
        """The `Screen` that it is on."""

    def join(self, rank: int, part: Rich) -> None:
        """Add another rank that shows the same there."""

    def refresh(self, now: float, *, final: bool = False) -> bool:
        """Show what has changed; return whether there may be more to show later."""


class Rich:
    """One rank's display that is more than text, or that has a ``display_id``.

    Folding compares what was shown first; ``versions`` are its values since the ranks last agreed, the current one
    last. ``place`` is its place on the screen, once it has one.
    """

    __slots__ = ("display_id", "first", "place", "versions")

    def __init__(self, first: Version, display_id: str = "") -> None:
        self.first = first
        self.display_id = display_id
        self.versions: deque[Version] = deque([first], maxlen=64)
        self.place: Place | None = None

    @property
    def fixed(self) -> bool:
        """Whether it cannot be moved on the screen once it is shown, since it may change there."""
        return bool(self.display_id)

    @property
    def current(self) -> Version:
        """Its value now."""
        return self.versions[-1]

    def forget_before(self, value: Version) -> None:
        """Drop the values before the first that is this one; the current one stays in any case."""
        while len(self.versions) > 1 and self.versions[0].digest != value.digest:
            self.versions.popleft()

    def change(self, value: Version) -> None:
        """Add a new value; keep as many of the earlier ones as are not too large together."""
        self.versions.append(value)
        size = sum(version.size for version in self.versions)
        while size > _VERSIONS and len(self.versions) > 1:
            size -= self.versions.popleft().size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Rich)
            and self.first.digest == other.first.digest
            and bool(self.display_id) == bool(other.display_id)
        )

    def __hash__(self) -> int:
        return hash(self.first.digest)


class View(Rich):
    """One rank's view of a widget. Ranks that show widgets of one ``kind`` at the same place share a block."""

    __slots__ = ("model",)

    def __init__(self, first: Version, model: str, kind: str) -> None:
        super().__init__(Version(b"view of " + kind.encode(), first.data, first.metadata))
        self.model = model

    @property
    def fixed(self) -> bool:
        """Whether it cannot be moved on the screen once it is shown: it shares its place with other ranks' views."""
        return True


Piece = Line | Rich


def size_of(piece: Piece) -> int:
    """Return roughly how much a piece holds, in characters or bytes."""
    return len(piece.text) if isinstance(piece, Line) else piece.first.size


class FoldedItem:
    """Pieces that are shown once, with the ranks that agree on them.

    ``parts`` are the ranks' own `Rich` objects. ``forced``: it was shown before all ranks had reported, and ranks may
    still join it.
    """

    __slots__ = ("forced", "parts", "piece", "ranks")

    def __init__(self, ranks: tuple[int, ...], piece: Piece, parts: dict[int, Rich], *, forced: bool = False) -> None:
        self.ranks = ranks
        self.piece = piece
        self.parts = parts
        self.forced = forced

    def __repr__(self) -> str:
        return f"FoldedItem({self.ranks}, {self.piece!r})"

    def entries(self) -> list[FoldedItem]:
        """Return it as the one entry that it is."""
        return [self]


class FoldedBlock(NamedTuple):
    """Many lines that the same ranks agree on."""

    ranks: tuple[int, ...]
    block: Block

    def entries(self) -> list[FoldedItem]:
        """Return one entry for each line."""
        return [FoldedItem(self.ranks, line, {}) for line in self.block.lines()]


class FoldedLines(NamedTuple):
    """Many lines in their order, each with the ranks that agree on it."""

    pairs: Sequence[tuple[tuple[int, ...], Line]]

    def lines(self) -> Iterable[tuple[tuple[int, ...], Line]]:
        """Return the lines in their order, each with its ranks."""
        return self.pairs

    @property
    def last(self) -> tuple[int, ...]:
        """The last line's ranks."""
        return self.pairs[-1][0]

    def entries(self) -> list[FoldedItem]:
        """Return one entry for each line."""
        return [FoldedItem(ranks, line, {}) for ranks, line in self.pairs]


class FoldedRows(NamedTuple):
    """Many lines, row by row: each column has lines of the same ranks, equally many of all."""

    ranks: Sequence[tuple[int, ...]]
    columns: Sequence[Sequence[Line]]

    def lines(self) -> Iterable[tuple[tuple[int, ...], Line]]:
        """Return the lines in their order, each with its ranks."""
        return chain.from_iterable(zip(self.ranks, row, strict=True) for row in zip(*self.columns, strict=True))

    @property
    def last(self) -> tuple[int, ...]:
        """The last line's ranks."""
        return self.ranks[-1]

    def entries(self) -> list[FoldedItem]:
        """Return one entry for each line."""
        return [FoldedItem(ranks, line, {}) for ranks, line in self.lines()]


Folded = FoldedItem | FoldedBlock | FoldedLines | FoldedRows
