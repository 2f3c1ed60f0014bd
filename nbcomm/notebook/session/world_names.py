"""The names that a notebook gives to its worlds, where it has several: ``--world NAME``."""

from __future__ import annotations

import re

from ...errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REMEDY = re.compile(r"%distributed (?:start|stop|restart|heal|interrupt)(?: \d+(?:[-,]\d+)*)?(?![\w-])(?! --world)")


def check_name(name: str) -> str:
    """Return the name.

    Raises:
        SpecError: a world cannot be called so.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a valid world name: use letters, digits, _ . and -, and begin with a letter or digit."
        )
    return name


def addressed(text: str, name: str) -> str:
    """Let the remedies in a text name the world that they are for; the one without a name needs none.

    >>> addressed("Type %distributed heal 1 to put a new process in its place.", "b")
    'Type %distributed heal 1 --world b to put a new process in its place.'
    """
    return _REMEDY.sub(rf"\g<0> --world {name}", text) if name else text
