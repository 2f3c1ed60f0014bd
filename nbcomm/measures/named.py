"""The values that a user names, as a cell on this rank would read them."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from ..errors import TransferError


def variables() -> dict[str, Any]:
    """Return the variables of the cells on this rank."""
    shell = get_ipython()
    return {} if shell is None else shell.user_ns


def value(name: str) -> Any:
    """Return the value of a name, or of an expression such as ``model.fc.weight``.

    Raises:
        TransferError: it has none here.
    """
    try:
        return eval(name, variables())  # noqa: S307 - a user's own expression, in the user's own names
    except Exception as error:  # noqa: BLE001 - it is the user's
        raise TransferError(f"{name} cannot be read: {type(error).__name__}: {error}.") from None
