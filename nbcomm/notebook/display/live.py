"""The end of a cell's output that may still change: text and displays that wait for other ranks, shown meanwhile.

It is a column of frames. A frame is an output for text and, below it, one for a display; the text's last line is the
display's label. What a rank shows late gets its place by updates of these outputs. A display stays in its frame if it
can: to move it costs its bytes once more, and a script in it would run again. So frames are left blank for ranks that
may still show something above it, and large displays are moved seldom.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

if TYPE_CHECKING:
    from .area import Area
    from .items import Version

BYTES_PER_SECOND = 250_000
"""Bytes of updates, in text or moved displays: a Jupyter server drops output above 1 MB/s."""

_BLANK = 8
"""The most blank frames, with those of the cell that stayed blank: front ends cut long outputs."""


def text_bundle(text: str) -> dict[str, Any]:
    """Return a MIME bundle of text. An empty text is an empty bundle, for which a notebook draws nothing."""
    return {"text/plain": text} if text else {}


def new_display_id() -> str:
    """Return a unique display_id."""
    return f"nbcomm-{uuid4().hex}"


class ScreenPicture:
    """A display that does not change once it is shown, and its label.

    Args:
        label: of its ranks.
        value: what is displayed.
        room: how many other displays may still appear directly above it.
    """

    __slots__ = ("_above", "_frame", "label", "room", "value")

    def __init__(self, label: str, value: Version, room: int = 0) -> None:
        self.label = label
        self.value = value
        self.room = room
        self._above = ""
        self._frame: _Frame | None = None

    def settle(self, frame: _Frame, above: str) -> None:
        """Settle the display in this frame, below this text and its label."""
        self._frame, self._above = frame, above

    def stand(self, area: Area) -> None:
        """Show the label alone, so that it can change; the display comes below it."""
        self._frame = _Frame()
        self._frame.write(area, self.label)

    def relabel(self, area: Area, label: str) -> None:
        """Change the label: more ranks show the same."""
        self.label = label
        if self._frame is not None:
            self._frame.write(area, self._above + label)


class _Frame:
    """An output for text and one for a display. The last frame gets its output for a display only when it needs one."""

    __slots__ = ("_body_id", "_text", "_text_id", "digest")

    def __init__(self) -> None:
        self._text_id = self._body_id = ""
        self._text = ""
        self.digest = b""  # of the display; empty if there is none

    @property
    def blank(self) -> bool:
        """Whether it shows nothing."""
        return not self._text and not self.digest

    def write(self, area: Area, text: str) -> int:
        """Show this text; return how many characters were sent."""
        if not self._text_id:
            identity = new_display_id()
            area.display(text_bundle(text), {}, identity)
            self._text_id = identity  # it is there now: if that fails, the next time displays it, and updates nothing
        elif text == self._text:
            return 0
        else:
            area.update(text_bundle(text), {}, self._text_id)
        self._text = text
        return 1 + len(text)

    def draw(self, area: Area, value: Version | None, *, last: bool) -> None:
        """Show this display, or none."""
        digest, data, metadata = (b"", {}, {}) if value is None else value[:3]
        if self._body_id:
            if digest != self.digest:
                area.update(data, metadata, self._body_id)
        elif value is not None or not last:
            identity = new_display_id()
            area.display(data, metadata, identity)
            self._body_id = identity
        self.digest = digest


class _Content(NamedTuple):
    """The content of one frame."""

    above: str
    picture: ScreenPicture | None

    @property
    def text(self) -> str:
        return self.above + self.picture.label if self.picture is not None else self.above.removesuffix("\n")

    @property
    def digest(self) -> bytes:
        return self.picture.value.digest if self.picture is not None else b""


class Live:
    """The part of the screen that may still change.

    Args:
        area: where it is.
        clock: the time in seconds.
        blank: how many frames above it have stayed blank.

    Attributes:
        blank: how many frames have stayed blank by now.
        settled: what is above all that may change, lines with their streams and displays.
        tail: what may change, text and displays.
        chars: of the settled lines.
        opened: when it was opened.
    """

    def __init__(self, area: Area, clock: Callable[[], float], blank: int = 0) -> None:
        self.blank = blank
        self.settled: list[tuple[str, str] | ScreenPicture] = []
        self.tail: Sequence[str | ScreenPicture] = ()
        self.chars = 0
        self.opened = clock()
        self._area = area
        self._clock = clock
        self._frames: list[_Frame] = []
        self._pending: Counter[bytes] = Counter()  # the displays that are shown and not settled
        self._next_move = 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing that may still change is shown."""
        return not self._frames

    @property
    def holds(self) -> bool:
        """Whether displays are shown that are not settled."""
        return bool(self._pending)

    def write(self, stream: str, text: str) -> None:
        """Settle a line."""
        self.settled.append((stream, text))
        self.chars += len(text)

    def settle(self, picture: ScreenPicture) -> None:
        """Settle a display, which may be shown already."""
        self.settled.append(picture)
        self._pending -= Counter([picture.value.digest])

    def refresh(self) -> int:
        """Show everything at its place; return how many characters were sent."""
        contents = _contents([*self.settled, *self.tail])
        there = [frame.digest for frame in self._frames]
        staying = _staying([content.digest for content in contents], there)
        moved = _moved(contents, staying, there)
        now = self._clock()
        in_order = not moved or now >= self._next_move
        if in_order:
            self._next_move = max(self._next_move, now + moved / BYTES_PER_SECOND)
        else:  # new content is visible at once, below the rest
            contents = _as_shown(contents, there)
            staying = _staying([content.digest for content in contents], there)
        places, sent = self._fill(contents, staying)
        if in_order:
            self._seal(contents, places)
        self._pending = Counter(frame.digest for frame in self._frames if frame.digest)
        return sent

    def end(self) -> list[tuple[str, str]]:
        """Keep what is settled and remove the rest; return the lines that are to be shown as streams below."""
        pictures = [i for i, part in enumerate(self.settled) if isinstance(part, ScreenPicture)]
        below = pictures[-1] + 1 if pictures else 0
        lines = cast("list[tuple[str, str]]", self.settled[below:])
        stay = next((i for i, (stream, _) in enumerate(lines) if stream != "stdout"), len(lines))
        contents = _contents(self.settled[: below + stay])
        staying = _staying([content.digest for content in contents], [frame.digest for frame in self._frames])
        places, _ = self._fill(contents, staying)
        self._seal(contents, places)
        self.blank += sum(frame.blank for frame in self._frames)
        return lines[stay:]

    def _fill(self, contents: list[_Content], staying: dict[int, int]) -> tuple[list[int], int]:
        """Put contents into frames, some where they are; return their places, and the number of characters sent."""
        places: list[int] = []
        kept = sorted(staying)
        for i, content in enumerate(contents):
            at = places[-1] + 1 if places else 0
            if i in staying:
                at = staying[i]
                kept.pop(0)
            elif content.picture is not None:
                most = staying[kept[0]] - (kept[0] - i) if kept else at + max(0, _BLANK - self.blank - (at - i))
                at = min(at + content.picture.room, most)
            places.append(at)
        filled = dict(zip(places, contents, strict=True))
        count, sent = max(len(self._frames), places[-1] + 1 if places else 0), 0
        for at in range(count):
            if at == len(self._frames):
                self._frames.append(_Frame())
            content = filled.get(at, _Content("", None))
            value = content.picture.value if content.picture is not None else None
            sent += self._frames[at].write(self._area, content.text)
            self._frames[at].draw(self._area, value, last=at == count - 1)
        return places, sent

    def _seal(self, contents: list[_Content], places: list[int]) -> None:
        """Seal the frames of what is settled, down to its last display: they change no more."""
        pictures = [i for i, part in enumerate(self.settled) if isinstance(part, ScreenPicture)]
        if not pictures:
            return
        for content, at in zip(contents[: len(pictures)], places, strict=False):
            if content.picture is not None:
                content.picture.settle(self._frames[at], content.above)
        end = places[len(pictures) - 1] + 1
        self.blank += sum(frame.blank for frame in self._frames[:end])
        del self._frames[:end]
        del self.settled[: pictures[-1] + 1]
        self.chars = sum(len(part[1]) for part in self.settled if isinstance(part, tuple))


def _contents(parts: Sequence[tuple[str, str] | str | ScreenPicture]) -> list[_Content]:
    """Split into each display with the text above it, and last the text below the last display, if there is any."""
    contents: list[_Content] = []
    texts: list[str] = []
    for part in parts:
        if isinstance(part, ScreenPicture):
            contents.append(_Content("".join(texts), part))
            texts.clear()
        else:
            texts.append(part if isinstance(part, str) else part[1])
    if texts:
        contents.append(_Content("".join(texts), None))
    return contents


def _staying(wanted: Sequence[bytes], there: Sequence[bytes]) -> dict[int, int]:
    """Return which contents stay in their frames, as many as possible: content -> frame.

    The frames between two that stay must suffice for the contents between them. So, where content i is in frame k, k -
    i must not decrease from one that stays to the next: the result is a longest such sequence.
    """
    frames: dict[bytes, deque[int]] = {}
    for at, digest in enumerate(there):
        frames.setdefault(digest, deque()).append(at)
    at_of: dict[int, int] = {}
    before: dict[int, int] = {}
    spares: list[int] = []  # the least k - i with which a sequence of this length can end
    lasts: list[int] = []  # and the content that it ends with
    for i, digest in enumerate(wanted):
        if not digest or not frames.get(digest):
            continue
        at_of[i] = frames[digest].popleft()
        spare = at_of[i] - i
        if spare < 0:
            continue
        length = bisect_right(spares, spare)
        before[i] = lasts[length - 1] if length else -1
        spares[length : length + 1] = [spare]
        lasts[length : length + 1] = [i]
    staying: dict[int, int] = {}
    last = lasts[-1] if lasts else -1
    while last >= 0:
        staying[last] = at_of[last]
        last = before[last]
    return staying


def _moved(contents: list[_Content], staying: dict[int, int], there: Sequence[bytes]) -> int:
    """Return how many bytes are sent again, of displays that are shown already and do not stay."""
    shown = Counter(there) - Counter(there[at] for at in staying.values())
    moved = 0
    for i, content in enumerate(contents):
        if content.picture is not None and i not in staying and shown[content.digest] > 0:
            shown[content.digest] -= 1
            moved += content.picture.value.size
    return moved


def _as_shown(contents: list[_Content], there: Sequence[bytes]) -> list[_Content]:
    """Return the contents in their current order on the screen, new ones after them, text last."""
    at = {digest: i for i, digest in reversed(list(enumerate(there)))}
    return sorted(contents, key=lambda content: (content.picture is None, at.get(content.digest, len(there))))
