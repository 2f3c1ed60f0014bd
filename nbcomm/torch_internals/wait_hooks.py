"""Hooks at the places where torch's Python code waits: ``Work.wait`` and ``new_group``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .c10d import _C, Undo, c10d, put


def watch_waits(around: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]) -> Undo:
    """Pass every ``work.wait(…)`` that Python calls through ``around(wait, work, args, kwargs)``."""
    plain = _C.Work.wait

    @functools.wraps(plain)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return around(plain, work, args, kwargs)

    return put(_C.Work, "wait", wait)


def watch_new_groups(around: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> Undo:
    """Pass every creation of a group through ``around(make, ranks, kwargs)``; ``ranks`` may be None for all."""
    plain = c10d._new_group_with_tag

    @functools.wraps(plain)
    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(plain, ranks, *args, **kwargs), ranks, kwargs)

    return put(c10d, "_new_group_with_tag", new_group)
