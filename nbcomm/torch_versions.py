"""Which versions of torch nbcomm was tested with; docs/versions.md has a row for each."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

OLDEST = "2.13"
"""The oldest minor version of torch that pyproject.toml allows."""

NEWEST = "2.15"
"""The newest one that has a row in docs/versions.md; pyproject.toml's cap is the next after it."""


def untested(version: str) -> str:
    """Say, in a sentence, that nobody has tried nbcomm with this torch; "" if it lies in the range that was tested.

    A patch release counts as its minor version does, and so does a build of it: what follows as ``+cpu`` or ``a0`` says
    how torch was built.

    Args:
        version: torch's ``__version__``.

    Examples:
        >>> untested("2.13.0+cpu")
        ''
        >>> untested("1.13.1")
        'torch 1.13.1 is older than any that nbcomm was tested with, which are 2.13 to 2.15.'
    """
    tested = f"which are {OLDEST} to {NEWEST}"
    try:
        found = Version(version)
    except InvalidVersion:  # a build of one's own may be called anything
        return f"torch {version} is not one of the versions that nbcomm was tested with, {tested}."
    minor = found.release[:2]
    if minor > Version(NEWEST).release:
        return f"torch {version} is newer than any that nbcomm was tested with, {tested}."
    if minor < Version(OLDEST).release:
        return f"torch {version} is older than any that nbcomm was tested with, {tested}."
    return ""
