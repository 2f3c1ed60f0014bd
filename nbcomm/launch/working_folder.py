"""The folder in which processes are started: the notebook's, or another one if that was removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from ..world_dir import WorldDir


def here() -> str:
    """Return the notebook's folder; an empty text if it was removed."""
    try:
        return os.fspath(Path.cwd())
    except OSError:
        return ""


def written() -> str:
    """Return the notebook's folder as text that can be written to a file, without bytes that are not UTF-8."""
    return here().encode(errors="replace").decode()


def to_start_in(home: WorldDir) -> str:
    """Return the folder for a world's processes: this one, else the one where the world was started, else home."""
    if place := here():
        return place
    known = (_of(home), os.path.expanduser("~"))  # noqa: PTH111 - pathlib's raises where there is none
    return next((place for place in known if place and Path(place).is_dir()), "/")


def _of(home: WorldDir) -> str:
    with suppress(OSError, msgspec.DecodeError):  # none has been started yet
        return home.read_world().cwd
    return ""


def said_of_missing(home: WorldDir) -> str:
    """Return a sentence if the notebook's folder was removed; else an empty text."""
    if here():
        return ""
    return (
        "The notebook's working folder does not exist any more, so new processes were started in "
        f"{to_start_in(home)!r}; type %cd to change to another folder."
    )
