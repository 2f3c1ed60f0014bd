"""Profiles: options of ``%distributed start`` that are written down once, for a cluster, in ``profiles.toml``."""

from __future__ import annotations

import argparse
import difflib
import os
from typing import Any

from ... import profile_file
from ...errors import StartError
from ..cluster.start_options import StartOptions
from ..session import registry
from .arguments import line_parser, parse_line

VARIABLE = "NBCOMM_PROFILE"
"""Names the profile of each start that names none."""


def read(name: str) -> dict[str, Any]:
    """Return the options of a profile, by the names of `StartOptions`.

    Args:
        name: of its table in the file.

    Raises:
        StartError: there is no such file or profile, or there is something else in it.
    """
    file, profiles = profile_file.path(), profile_file.loaded()
    tables = {key: value for key, value in profiles.items() if isinstance(value, dict)}
    if name not in tables:
        raise StartError(f"{file} has no profile {name!r}; it has {', '.join(sorted(tables)) or 'none'}.")
    return {key.replace("-", "_"): _sound(key, value, f"[{name}] in {file}") for key, value in tables[name].items()}


def parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse a line of ``%distributed``; what its profile says is the default of what it does not say itself.

    A start that names neither a profile nor engines has the profile that ``$NBCOMM_PROFILE`` names: so a notebook that
    names no machines runs on those, unchanged.

    Raises:
        UsageError: the line is not understood.
        StartError: there is no such profile.
    """
    options = parse_line(parser, words)
    if options.word != "start":
        return options
    name = options.profile
    if name is None and _with(words, engines=None).engines is None:
        name = os.environ.get(VARIABLE)
    return _with(words, **read(name)) if name else options


def _with(words: list[str], **standing: Any) -> argparse.Namespace:
    """Parse a start whose defaults are these."""
    parser, made = line_parser()
    made["start"].set_defaults(**{**registry.defaults(), **standing})
    return parse_line(parser, words)


def start_options_of(options: argparse.Namespace) -> StartOptions:
    """Return what a parsed ``start`` asks for."""
    names = vars(StartOptions()).keys() & vars(options).keys()
    chosen = {name: getattr(options, name) for name in names}
    return StartOptions(**{**chosen, "name": options.world, "lines": tuple(options.lines)})


def _sound(key: str, value: Any, where: str) -> Any:
    """Return an option as `StartOptions` has it.

    Raises:
        StartError: there is no such option, or it has no such values.
    """
    name = key.replace("-", "_")
    if name not in vars(StartOptions()) or name == "name":
        near = difflib.get_close_matches(name, vars(StartOptions()), 1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise StartError(f"{key} ({where}) is no option of a start{meant}")
    if name in ("hosts", "lines"):
        listed = [value] if isinstance(value, str) else value
        if not (isinstance(listed, list) and all(isinstance(one, str) for one in listed)):
            raise StartError(f"{key} ({where}) must be a list of texts.")
        return ",".join(listed) if name == "hosts" else listed
    if isinstance(getattr(StartOptions, name, None), bool):
        if not isinstance(value, bool):
            raise StartError(f"{key} ({where}) must be true or false, not {value!r}.")
        return value
    wanted = _kinds(name)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise StartError(f"{key} ({where}) must be {'a text' if wanted == (str,) else 'a number'}, not {value!r}.")
    return value


def _kinds(name: str) -> tuple[type, ...]:
    if name == "idle":
        return (int, float, str)  # "30m"
    default = getattr(StartOptions, name)
    if name in ("n", "nodes") or type(default) is int:
        return (int,)
    return (int, float) if isinstance(default, float) else (str,)
