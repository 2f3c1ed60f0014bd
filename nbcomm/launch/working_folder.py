"""The folder in which processes are started: the notebook's, or another one where that was taken away."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from ..world_dir import WorldDir


def here() -> str:
    """The notebook's folder; empty if it is gone."""
    try:
        return os.fspath(Path.cwd())
    except OSError:
        return ""


def written() -> str:
    """The same as it can be written to a file: without bytes that are no UTF-8."""
    return here().encode(errors="replace").decode()


def to_start_in(home: WorldDir) -> str:
    """Where a world's processes are started: here, or else where the world was started, or in the user's own folder."""
    if place := here():
        return place
    known = (_of(home), os.path.expanduser("~"))  # noqa: PTH111 - pathlib's raises where there is none
    return next((place for place in known if place and Path(place).is_dir()), "/")


def _of(home: WorldDir) -> str:
    with suppress(OSError, msgspec.DecodeError):  # none has been started yet
        return home.read_world().cwd
    return ""


def said_of_missing(home: WorldDir) -> str:
    """A sentence where the notebook's folder is gone; else an empty text."""
    if here():
        return ""
    return (
        "The notebook's working folder does not exist any more, so new processes were started in "
        f"{to_start_in(home)!r}; type %cd to change to another folder."
    )
