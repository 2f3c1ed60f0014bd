"""A script's file: written completely or not at all, and never over a user's own work."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..errors import ScriptError
from .source import compiles

_MARK = "# Made by nbcomm (%distributed save), "


def check(path: str, *, force: bool = False) -> Path:
    """Refuse a file that cannot or should not be written, and return its path.

    Raises:
        ScriptError: the folder does not exist, or the file exists and nbcomm did not write it or it was edited since.
    """
    if not path.strip() or "\0" in path:
        raise ScriptError(f"A script needs a file's name, such as train.py; nothing was written to {path!r}.")
    try:
        file = Path(path).expanduser().resolve()
        if file.is_dir():
            raise ScriptError(f"{path!r} is a folder; name a file for the script, such as train.py.")
        if not file.parent.is_dir():
            raise ScriptError(
                f"There is no folder {str(file.parent)!r} for the script; make it first, or name another."
            )
        if not force and file.exists() and not _is_untouched(file):
            raise ScriptError(
                f"{path!r} already exists, and nbcomm did not write it or it was edited since; nothing was changed. "
                "Choose another name, or add --force (force=True) to overwrite it."
            )
    except (OSError, RuntimeError) as error:  # a cycle of links, a home directory of an unknown user
        raise ScriptError(f"{path!r} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    return file


def write(file: Path, text: str) -> None:
    """Write a script, with a mark that nbcomm wrote it.

    Raises:
        ScriptError: it cannot be written, or does not compile; the file is unchanged.
    """
    if not compiles(text):
        raise ScriptError("The script would not compile, so it was not written. This is a bug in nbcomm.")
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        try:
            beside.write_bytes(f"{_MARK}{_digest(text.encode())}\n".encode() + text.encode())
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ScriptError(f"{str(file)!r} cannot be written: {error.strerror}.") from error


def _is_untouched(file: Path) -> bool:
    first, _, rest = file.read_bytes().partition(b"\n")
    return first == f"{_MARK}{_digest(rest)}".encode()


def _digest(rest: bytes) -> str:
    return hashlib.sha256(rest).hexdigest()[:12]
