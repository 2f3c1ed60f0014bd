"""Collectives of a cell whose results nobody has taken: they return a value, and change no argument."""

from __future__ import annotations

import ast
import re
from typing import Any

from ...short_repr import shortened
from .shell import blank_lines

_RETURNING = (
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "scan",
)
_IN_PLACE = ("broadcast", "all_reduce")
"""In torch. What another one returns is no new value of the variable that was given, which may differ on the ranks."""

_CALL = re.compile(rf"(?m)^\s*({'|'.join(_RETURNING)})\s*\(")
_LONGEST = 40


class UnusedResults:
    """Says it once: whoever comes from torch expects the call to work in place."""

    def __init__(self) -> None:
        self._told = False

    def explain(self, shell: Any, code: str, above: int = 0) -> list[str]:
        """Return what to say of a cell that has ended well.

        Args:
            shell: the rank's.
            code: the cell.
            above: how many lines stand above it on its page.
        """
        if self._told or _CALL.search(code) is None:
            return []
        found = _unused(shell.input_transformer_manager.transform_cell(code))
        name = found.func.id if found is not None else ""  # type: ignore[attr-defined]  # see `_unused`
        if found is None or shell.user_ns.get(name) is not shell.user_ns_hidden.get(name):
            return []
        self._told = True
        call = shortened(ast.unparse(found), _LONGEST)
        line = found.lineno + above + blank_lines(code)
        given, target, torchs = ast.unparse(found.args[0]), "result", ""
        if name in _IN_PLACE and given not in shell.user_ns_hidden:
            target, torchs = shortened(given, _LONGEST), f", or call torch's dist.{name}, which works in place"
        return [f"the result of {call} in line {line} is not used: {name} returns it; write {target} = {call}{torchs}."]


def _unused(source: str) -> ast.Call | None:
    """Return the first call with a variable, which may be expected to change, whose result is not used or shown."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    shown = tree.body[-1] if tree.body and not source.rstrip().endswith(";") else None
    for node in ast.walk(tree):
        match node:
            case ast.Expr(
                value=ast.Call(
                    func=ast.Name(id=name), args=[ast.Name() | ast.Attribute() | ast.Subscript(), *_]
                ) as call
            ):
                into = any(keyword.arg == "out" for keyword in call.keywords)
                if name in _RETURNING and node is not shown and not into:
                    return call
    return None
