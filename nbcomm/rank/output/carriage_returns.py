"""What a progress bar wrote over itself, shortened to what is visible at the end."""

from __future__ import annotations

import re

_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)[^\n]*")


def settle_returns(text: str) -> str:
    r"""Shorten what a progress bar wrote: of many states of one line, keep what is visible at the end.

    Exact, also for text written after it: the cursor stays where it was. A line with colours or cursor moves is not
    changed, for its characters are not its columns.

    >>> settle_returns("\r10%\r20%\r30%\nend\n")
    '\r30%\nend\n'
    """
    if "\r" not in text:
        return text
    return _OVERWRITTEN.sub(_overwritten, text)


def _overwritten(match: re.Match[str]) -> str:
    body = match[0].rstrip("\r")  # returns at the end may belong to a newline that follows: they stay
    if "\x1b" in body or "\b" in body or "\r" not in body:
        return match[0]
    first, *states = body.split("\r")
    # A line that begins in this text is known from its start; one that goes on from an earlier text is not.
    known = match.start() > 0 and bool(first)
    seen = first if known else ""
    for state in states:
        seen = state + seen[len(state) :]
    last = states[-1]
    cursor = "\r" + last if len(last) < len(seen) else ""
    return ("" if known else first + "\r") + seen + cursor + match[0][len(body) :]
