"""Times as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Read a time: "90", "90s", "30m" or "2h".

    Raises:
        ValueError: it is none.

    >>> seconds("1.5m")
    90.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no time; write for example 90s, 30m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def is_time(text: str) -> bool:
    """Return whether `seconds` can read a text."""
    try:
        seconds(text)
    except ValueError:
        return False
    return True


def duration(seconds: float) -> str:
    """Write a duration with its two largest units.

    >>> duration(12.7), duration(125), duration(3 * 3600 + 60)
    ('12 s', '2 min 5 s', '3 h 1 min')
    """
    whole = max(0, int(seconds))  # another host's clock may be ahead of ours
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def short(seconds: float) -> str:
    """Write a time with two digits or three, in the unit that fits.

    >>> short(0), short(0.0000451), short(0.0012), short(0.25), short(93)
    ('0', '45 µs', '1.2 ms', '250 ms', '93 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        number = seconds * factor
        if number >= 0.9995 or (unit == "µs" and number > 0):
            return f"{number:.1f}".removesuffix(".0") + f" {unit}" if number < 9.95 else f"{number:.0f} {unit}"
    return "0"
