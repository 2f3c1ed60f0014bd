"""What is said to a page that may be gone."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


def quietly(call: Callable[..., object], *args: object) -> None:
    """Call it; a kernel that is shutting down has no page any more, and that is nobody's error."""
    try:
        call(*args)
    except Exception:  # noqa: BLE001  # which one depends on how far the shutdown has come
        _log.debug("The page could not be reached.", exc_info=True)
