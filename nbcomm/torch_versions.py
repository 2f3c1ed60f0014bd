"""The versions of torch with which nbcomm was tested; docs/versions.md has a row for each."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

OLDEST = "2.8"
"""The oldest minor version of torch that pyproject.toml allows."""

NEWEST = "2.15"
"""The newest minor version with a row in docs/versions.md; pyproject.toml allows torch below the next one."""

_LIMITS = (
    ("2.12", "a group has its ranks in ascending order"),  # `split_group` has more of it
    ("2.9", "dist.reduce_scatter only adds and averages"),  # as `process_group` has
)
"""From which version on torch can do more, and what it does before."""


def untested(version: str) -> str:
    """Return a sentence if nbcomm was not tested with this version of torch; "" if it was.

    A patch release counts as its minor version, and so does a build: a suffix such as ``+cpu`` or ``a0`` only says how
    torch was built.

    Args:
        version: torch's ``__version__``.

    Examples:
        >>> untested("2.13.0+cpu")
        ''
        >>> untested("1.13.1")
        'torch 1.13.1 is older than any that nbcomm was tested with, which are 2.8 to 2.15.'
    """
    tested = f"which are {OLDEST} to {NEWEST}"
    try:
        found = Version(version)
    except InvalidVersion:  # a user's own build may have any version text
        return f"torch {version} is not one of the versions that nbcomm was tested with, {tested}."
    minor = found.release[:2]
    if minor > Version(NEWEST).release:
        return f"torch {version} is newer than any that nbcomm was tested with, {tested}."
    if minor < Version(OLDEST).release:
        return f"torch {version} is older than any that nbcomm was tested with, {tested}."
    return ""


def limits(version: str) -> str:
    """Return a sentence on what does not work with this version of torch, and does with others; "" if all does.

    Args:
        version: torch's ``__version__``.

    Examples:
        >>> limits("2.11.0+cpu")
        'With torch 2.11.0+cpu, a group has its ranks in ascending order; torch 2.12 has no such limit.'
        >>> limits("2.12.1")
        ''
    """
    try:
        minor = Version(version).release[:2]
    except InvalidVersion:
        return ""
    found = [(since, limit) for since, limit in _LIMITS if minor < Version(since).release]
    if not found:
        return ""
    has = "has no such limit" if len(found) == 1 else "has no such limits"
    return f"With torch {version}, {' and '.join(limit for _, limit in found)}; torch {found[0][0]} {has}."


_GLOOS = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number .* is : \d+\n", re.MULTILINE)


def without_gloos_lines(text: str) -> str:
    r"""Return what C code has written without the lines that gloo of torch up to 2.10 prints for each new group.

    Examples:
        >>> said = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
        >>> without_gloos_lines(f"before\n{said}\nbehind")
        'before\nbehind'
    """
    return _GLOOS.sub("", text) if "[Gloo] Rank " in text else text
