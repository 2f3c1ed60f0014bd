"""Text for a console, whatever it can show."""

from __future__ import annotations

from typing import TextIO


def write(stream: TextIO, text: str) -> None:
    """Write to a stream; what it has no characters for becomes "?", and is no error."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, errors="replace").decode(encoding))
