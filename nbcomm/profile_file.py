"""``profiles.toml``: options of ``%distributed start``, and what all ranks are to share, written down once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .errors import StartError

PRELOAD_VARIABLE = "NBCOMM_PRELOAD"
"""The environment variable that names modules, with commas, which all ranks are to share: "transformers,datasets"."""


def path() -> Path:
    """Return where the file is: ``nbcomm/profiles.toml`` in ``$XDG_CONFIG_HOME``, or in ``~/.config``."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nbcomm" / "profiles.toml"


def loaded() -> dict[str, Any]:
    """Return what is in the file.

    Raises:
        StartError: it cannot be read.
    """
    # Imported here: most users have no such file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    file = path()
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(f"The file of profiles, {file}, cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise StartError(f"The file of profiles, {file}, is no TOML: {error}.") from error
    return found


def set_preload() -> None:
    """Let worlds import what the file's ``preload`` names, a list of modules, unless ``$NBCOMM_PRELOAD`` names some.

    Raises:
        StartError: it is no such list, or the file cannot be read.
    """
    if PRELOAD_VARIABLE in os.environ or not path().exists():
        return
    asked = loaded().get("preload", [])
    if not (isinstance(asked, list) and all(isinstance(name, str) for name in asked)):
        raise StartError(f"preload (in {path()}) must be a list of names of modules, not {asked!r}.")
    if asked:
        os.environ[PRELOAD_VARIABLE] = ",".join(asked)
