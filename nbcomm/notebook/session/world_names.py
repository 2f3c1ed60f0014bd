"""A notebook's names for its worlds, if it has several: ``--world NAME``."""

from __future__ import annotations

import re

from ...errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REMEDY = re.compile(r"%distributed (?:start|stop|restart|heal|interrupt)(?: \d+(?:[-,]\d+)*)?(?![\w-])(?! --world)")


def check_name(name: str) -> str:
    """Check a world's name, and return it.

    Raises:
        SpecError: the name is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a valid world name: use letters, digits, _ . and -, and begin with a letter or digit."
        )
    return name


def addressed(text: str, name: str) -> str:
    """Add a world's name to the remedies in a text; the world without a name needs none.

    >>> addressed("Type %distributed heal 1 to put a new process in its place.", "b")
    'Type %distributed heal 1 --world b to put a new process in its place.'
    """
    return _REMEDY.sub(rf"\g<0> --world {name}", text) if name else text
