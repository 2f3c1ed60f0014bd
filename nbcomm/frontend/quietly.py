"""Calls to a page that may be gone."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


def quietly(call: Callable[..., object], *args: object) -> None:
    """Call a function and only log its error: a kernel that is shutting down no longer has a page."""
    try:
        call(*args)
    except Exception:  # noqa: BLE001  # the type depends on the progress of the shutdown
        _log.debug("The page could not be reached.", exc_info=True)
