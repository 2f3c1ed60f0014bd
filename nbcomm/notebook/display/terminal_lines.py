r"""The lines that a terminal would show of a rank's output.

Output comes in chunks of any length, and the lines do not depend on where it was cut. A carriage return goes back to
the start of the line, so a progress bar is one line that changes; ``\b``, erase-line and sideways cursor moves are
followed too. Colours stay; one that is still on at the end of a line is turned off there and on again in the next line,
or it would spill over to the prefix and to other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...protocol import Clear, CommFromRank, Display, Item, Result, Text
from .items import Block, Line, Piece, Rich, lines_of, version

_TOKEN = re.compile(
    r"\r|\x08|\x1b\[([0-9;?]*)([ -/]*[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[^\r\x08\x1b]+", re.DOTALL
)
_MOVES = re.compile(r"[\r\x08]|\x1b\[[0-9;?]*[ -/]*[@-ln-~]")
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_TEXT_COLOUR = re.compile(r"\x1b\[(?:3[0-7]|9[0-7]|38;5;[0-9]+|38;2(?:;[0-9]+){3})m")
_ROWS = re.compile(r"(\n|\x1b\[\d*A)")
_CUT = re.compile(r"(?:\r+|\x1b(?:\[[0-9;?]*[ -/]*|\][^\x07\x1b]*\x1b?)?)\Z")
_RESET = "\x1b[0m"
_LONGEST_ESCAPE = 4096
_MOST_ROWS = 8
_MOST_DIGITS = 9  # Python refuses to read a number of thousands of digits


class LineReader:
    """The lines of one stream of one rank.

    Nested progress bars are rows: a bar is followed by a newline, the bar below it, and a move up again. So a bar whose
    line has ended may still change. It is finished when something else is written, in this stream or in another one
    (`release`).
    """

    def __init__(self) -> None:
        self._held = ""  # the start of an escape sequence, or a \r that may be half of \r\n
        self._style = ""  # the colours that are on at the start of the line
        self._raw: list[str] = []  # the unfinished line, if it is not a bar
        self._raw_style = False  # whether that may have colours
        self._bar: _Bar | None = None
        self._above: list[_Bar] = []
        self._below: list[_Bar] = []

    @property
    def is_bar(self) -> bool:
        """Whether the unfinished line has been written over."""
        return self._bar is not None or bool(self._above)

    @property
    def begun(self) -> bool:
        """Whether there is an unfinished line."""
        return self.is_bar or bool(self._raw) or bool(self._held.strip("\r"))

    @property
    def unfinished(self) -> list[str]:
        """The unfinished line so far, in a list; with nested bars, all of them."""
        line = _closed(self._style, "".join(self._raw))[0] if self._bar is None else self._bar.text()
        rows = [*(bar.text() for bar in self._above), line, *(bar.text() for bar in self._below)]
        return [row for row in rows if row.strip()]

    def feed(self, text: str) -> list[str]:
        """Read a chunk; return the lines that it completes, without their newlines."""
        lines, whole = self.read(text)
        return [*lines, *whole[:-1].split("\n")] if whole else lines

    def read(self, text: str) -> tuple[list[str], str]:
        """Read a chunk as `feed` does; return the lines that it completes, and the text of those behind them.

        Plain text, as most is, is not taken apart: it is whole lines, with their newlines.
        """
        plain = "\x1b" not in text and "\r" not in text and "\b" not in text
        if not plain or self._held or self._style or self._raw_style or self.is_bar:
            return self._read_moves(text), ""
        begin, end = 0, text.rfind("\n") + 1
        lines = []
        if end and self._raw:
            begin = text.index("\n") + 1
            self._raw.append(text[: begin - 1])
            lines.append(self._end())
        if end < len(text):
            self._raw.append(text[end:])
        return lines, text[begin:end]

    def _read_moves(self, text: str) -> list[str]:
        text = self._held + text
        cut = _CUT.search(text)
        self._held = text[cut.start() :] if cut and len(cut[0]) < _LONGEST_ESCAPE else ""
        text = text[: len(text) - len(self._held)].replace("\r\n", "\n")
        lines: list[str] = []
        for part in _ROWS.split(text):
            if part == "\n":
                lines += self._down()
            elif part.startswith("\x1b[") and part.endswith("A"):
                self._up(_number(part[2:-1] or "1"))
            elif part:
                self._write(part)
        return lines

    def release(self) -> list[str]:
        """Finish the bars whose lines have ended, before something else is written; return their lines."""
        lines = [bar.text() for bar in self._above]
        self._above.clear()
        return lines

    def finish(self) -> list[str]:
        """End the line that has no newline; bars that erased themselves are dropped."""
        if self._held.strip("\r"):
            self._write(self._held.strip("\r"))
        bars = [*self._above, *([] if self._bar is None else [self._bar]), *self._below]
        lines = [line for bar in bars if (line := bar.text()).strip()]
        if self._raw:
            lines.append(_closed(self._style, "".join(self._raw))[0])
        LineReader.__init__(self)
        return lines

    def _down(self) -> list[str]:
        """Move to the row below after a newline; it is a new row if no bar is nested."""
        if self._below:
            self._above.append(self._as_bar())
            self._bar = self._below.pop(0)
            self._bar.home()
        elif self._bar is not None:
            self._style = self._bar.style
            self._above.append(self._bar)
            self._bar = None
        else:
            return [*self.release(), self._end()]
        return [self._above.pop(0).text()] if len(self._above) > _MOST_ROWS else []

    def _up(self, rows: int) -> None:
        for _ in range(min(rows, len(self._above))):
            self._below.insert(0, self._as_bar())
            self._bar = self._above.pop()

    def _as_bar(self) -> _Bar:
        if self._bar is None:
            self._bar = _Bar(self._style)
            self._bar.write("".join(self._raw))
            self._raw, self._raw_style = [], False
        return self._bar

    def _write(self, part: str) -> None:
        if self._bar is None and not _MOVES.search(part):
            self._raw.append(part)
            self._raw_style |= "\x1b" in part
        else:
            self._as_bar().write(part)

    def _end(self) -> str:
        line, self._style = _closed(self._style, "".join(self._raw))
        self._raw, self._raw_style = [], False
        return line


def _number(digits: str) -> int:
    """Return the number in an escape sequence; 0 if there is none. A huge one means as far as possible."""
    return int(digits[:_MOST_DIGITS]) if digits.isdigit() else 0


class _Bar:
    """A line with a cursor. ``styles`` are the characters' colours, None while all are plain."""

    def __init__(self, style: str) -> None:
        self.style = style
        self._text = ""
        self._styles: list[str] | None = None
        self._cursor = 0
        self._overwritten = False

    def home(self) -> None:
        """Move to the start of the row."""
        self._cursor = 0

    def write(self, part: str) -> None:
        """Apply text, colours and moves within the row."""
        for token in _TOKEN.finditer(part):
            word = token[0]
            if word == "\r":
                self._cursor = 0
            elif word == "\b":
                self._cursor = max(0, self._cursor - 1)
            elif word[0] == "\x1b":
                if token[2]:
                    self._escape(word, token[1], token[2])
            else:
                self._put(word)

    def _escape(self, word: str, argument: str, name: str) -> None:
        number = _number(argument)
        if name == "m":
            self.style = _after(self.style, word)
        elif name == "K" and number == 0:
            self._text = self._text[: self._cursor]
            if self._styles is not None:
                del self._styles[self._cursor :]
        elif name == "K":
            width = len(self._text) if number == 2 else min(self._cursor, len(self._text))
            cursor, style, self._cursor, self.style = self._cursor, self.style, 0, ""
            self._put(" " * width)
            self._cursor, self.style = cursor, style
        elif name == "C":
            self._cursor += min(number or 1, 1000)
        elif name == "D":
            self._cursor = max(0, self._cursor - (number or 1))
        elif name == "G":
            self._cursor = min(max(0, number - 1), 1000)

    def _put(self, text: str) -> None:
        at, end = self._cursor, self._cursor + len(text)
        if at < len(self._text):
            self._overwritten = True
        before = self._text[:at].ljust(at)
        styles = self._styles
        if styles is None and self.style:
            styles = self._styles = [""] * len(self._text)
        if styles is not None:
            styles += [""] * (at - len(styles))
            styles[at:end] = [self.style] * len(text)
        self._text = before + text + self._text[end:]
        self._cursor = end

    def text(self) -> str:
        """Return the current line, without the blanks that erased a longer text."""
        text = self._text.rstrip(" ") if self._overwritten else self._text
        if self._styles is None:
            return text
        out, on = [], ""
        for char, style in zip(text, self._styles, strict=False):
            if style != on:
                out.append((_RESET if on else "") + style)
                on = style
            out.append(char)
        return "".join(out) + (_RESET if on else "")


def _after(style: str, word: str) -> str:
    """Return the colours that are on after one more colour sequence."""
    *_, last = numbers = word[2:-1].split(";")
    if not last.strip("0"):
        return ""
    if numbers == ["39"]:  # the default text colour, by which IPython ends its colours
        return _TEXT_COLOUR.sub("", style)
    return style.replace(word, "") + word if len(style) < 100 else word


def _closed(style: str, text: str) -> tuple[str, str]:
    """Return the line with its colours on at the start and off at the end, and the colours that were on there."""
    if not style and "\x1b" not in text:
        return text, ""
    on = style
    last = text.rfind("\x1b[")
    if text.startswith(("\x1b[0m", "\x1b[m"), last):
        return style + text, ""
    for word in _COLOUR.finditer(text):
        on = _after(on, word[0])
    if not text:
        return "", on
    return style + text + (_RESET if on else ""), on


class Reader:
    """One rank's output of one cell, as pieces.

    A line takes its place when it is finished, so that a progress bar on stderr does not hold back what is printed
    meanwhile. A display finishes the unfinished lines before it, except for bars, as it does in a notebook.
    """

    def __init__(self) -> None:
        self._streams: dict[str, LineReader] = {}
        self._begun: list[str] = []  # streams with an unfinished line, in the order in which these began

    def read_text(self, item: Text) -> list[Line | Block]:
        """Read a text; whole lines stay together."""
        name, text = "stderr" if item.stream == "stderr" else "stdout", item.text
        before: list[Line | Block] = [
            Line(other, line) for other in self._begun if other != name for line in self._streams[other].release()
        ]
        reader = self._streams.get(name)
        if reader is None:
            reader = self._streams[name] = LineReader()
        lines, whole = reader.read(text)
        if (lines or whole) and name in self._begun:
            self._begun.remove(name)
        if reader.begun and name not in self._begun:
            self._begun.append(name)
        before += lines_of(name, lines)
        if whole:
            before.append(Block(name, whole, whole.count("\n")))
        return before

    def read(self, item: Item) -> Iterable[Piece | Clear | Display]:
        """Read one item; a `Display` that is an update is returned unchanged, and so is a `Clear`."""
        if isinstance(item, Text):
            found = self.read_text(item)
            return [line for piece in found for line in (piece.lines() if isinstance(piece, Block) else [piece])]
        if isinstance(item, Clear):
            self._streams.clear()
            self._begun.clear()
            return [item]
        if isinstance(item, Display) and item.update:
            return [item]
        if isinstance(item, CommFromRank):  # `mirrors` has handled it
            return []
        return [*self._finish(bars=False), *piece_of(item)]

    def end(self) -> list[Line]:
        """Return the cell's unfinished lines at its end, in the order in which they began."""
        return self._finish(bars=True)

    @property
    def unfinished(self) -> list[Line]:
        """The unfinished lines so far, in the order in which they began."""
        return [Line(name, text) for name in self._begun for text in self._streams[name].unfinished]

    def _finish(self, *, bars: bool) -> list[Line]:
        done: list[Line] = []
        for name in self._begun:
            reader = self._streams[name]
            lines = reader.release() if reader.is_bar and not bars else reader.finish()
            done += [Line(name, line) for line in lines]
        self._begun = [name for name in self._begun if self._streams[name].begun]
        return done


def piece_of(item: Display | Result) -> list[Piece]:
    """Return a display as a piece: as text if it is nothing else and cannot be updated."""
    display_id = item.display_id if isinstance(item, Display) else ""
    if not display_id and not item.data:
        return []
    text = plain_text(item.data)
    if text is not None and not display_id:
        return [Line("stdout", text)]
    return [Rich(version(item.data, item.metadata), display_id)]


def plain_text(data: dict[str, object]) -> str | None:
    """Return the text of a bundle that has nothing else; None if it has."""
    if set(data) != {"text/plain"}:
        return None
    text = data["text/plain"]
    return ("".join(map(str, text)) if isinstance(text, list) else str(text)).removesuffix("\n")
