"""Whether this process ends to make room for another kernel of the same notebook.

A kernel that is shut down ends its world. One that is restarted leaves it for `attach`: ipykernel learns which of the
two it is before Python's own end begins. If all cells run on the ranks, a restart is the way to get fresh ranks; such a
kernel says (by an attribute ``keeps_worlds``) that it leaves nothing.
"""

from __future__ import annotations

from typing import Any

_restarting = _kept = _keeps = False
"""Of the process, which ends once: worlds ask for it when the extension may be gone."""


def restarting() -> bool:
    """Return whether another kernel of the same notebook is about to take this one's place."""
    return _restarting


def worlds_are_kept() -> bool:
    """Return whether the worlds of this process live on when it ends."""
    return _kept


def would_keep_worlds() -> bool:
    """Return whether a restart of this process's kernel, if there is one, leaves its worlds."""
    return _keeps


def follow(kernel: Any) -> None:
    """Notice how a kernel ends; None, or a kernel that was followed before, is accepted."""
    global _keeps  # noqa: PLW0603
    if kernel is None or getattr(kernel.do_shutdown, "_nbcomm", False):
        return
    _keeps = getattr(kernel, "keeps_worlds", True)
    shut_down = kernel.do_shutdown

    def do_shutdown(restart: bool) -> Any:  # noqa: FBT001 - ipykernel's signature
        global _restarting, _kept  # noqa: PLW0603
        _restarting = bool(restart)
        _kept = _restarting and _keeps
        return shut_down(restart)

    do_shutdown._nbcomm = True  # type: ignore[attr-defined]  # noqa: SLF001
    kernel.do_shutdown = do_shutdown
