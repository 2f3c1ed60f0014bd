"""A rank's answers to questions about its variables: what they are, and how they differ from another rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import TransferError
from ...protocol import CompareVariable, DescribeVariables, SendVariable
from ...protocol.payload import unpack
from .describe import find, survey
from .value_diff import compare, form


def answer(message: DescribeVariables | SendVariable | CompareVariable, frames: Sequence[Any], shell: Any) -> Any:
    """Return the value to send back: plain, except for a `SendVariable`'s, which only another rank unpacks.

    Args:
        message: the question.
        frames: the raw frames after it.
        shell: the engine's `InteractiveShell`.

    Raises:
        TransferError: there is no such value, or it cannot be looked into.
    """
    namespace = shell.user_ns
    if isinstance(message, DescribeVariables):
        return survey(namespace, shell.user_ns_hidden, message.names, hashes=message.hashes)
    value = find(namespace, message.name)
    try:
        formed = form(value)
    except TransferError as error:
        raise TransferError(f"{message.name}: {error}") from error
    return formed if isinstance(message, SendVariable) else compare(formed, unpack(message.blob, frames), message.atol)
