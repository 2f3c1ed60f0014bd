"""The versions of torch with which nbcomm was tested; docs/versions.md has a row for each."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

OLDEST = "2.13"
"""The oldest minor version of torch that pyproject.toml allows."""

NEWEST = "2.15"
"""The newest minor version with a row in docs/versions.md; pyproject.toml allows torch below the next one."""


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
        'torch 1.13.1 is older than any that nbcomm was tested with, which are 2.13 to 2.15.'
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
