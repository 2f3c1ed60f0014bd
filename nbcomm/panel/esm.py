"""Several JavaScript files as one module: what a widget brings to the page can import no file that lies beside it."""

from __future__ import annotations

import re
from pathlib import Path

_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.\.?/[\w./]+\.js)";\n', re.MULTILINE)


def module(main: Path) -> str:
    """A module's text with all that it imports by relative paths in front of it, each file once.

    Names at the top of the files must differ. What they export stays exported: tests call it.

    Args:
        main: the file with the default export.
    """
    parts: dict[Path, str] = {}
    _collect(main.resolve(), parts)
    return "\n".join(parts.values())


def _collect(file: Path, parts: dict[Path, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for path in _IMPORT.findall(text):
        needed = (file.parent / path).resolve()
        if needed not in parts:
            _collect(needed, parts)
    parts[file] = _IMPORT.sub("", text)
