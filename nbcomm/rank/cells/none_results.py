"""A None that a collective has returned, and that the same cell uses as data: which call it was, and what to do.

`gather` and `reduce` give their result on one rank only, and torch's own functions write into their arguments. The
error that follows, "'NoneType' object is not subscriptable", names neither. It is told only where it is certain: the
failing statement uses one thing as the error says, and that is the call itself, or a variable that is None and that
nothing but such calls sets in the cell.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch.distributed as dist

from ...cell_names import METHODS
from ...short_repr import shortened

_ON_DST = ("gather", "reduce")
_NEVER = ("send", "barrier", "rank_print", "show")
_TORCHS = ("all_", "barrier", "broadcast", "gather", "reduce", "scatter")
"""How functions of torch.distributed begin that return None, unless they are to return at once."""

_LONGEST = 40
"""Characters of a call that are shown."""

_LONGEST_CELL = 100_000
"""Characters of a cell that is looked into: one that holds its data would take seconds."""


class Statement(NamedTuple):
    """The statement of a cell in which an error was raised.

    Attributes:
        frame: it ran in this one.
        tree: all of its cell.
        parts: it, others that begin in its line, and what they consist of; of a loop or the like the head only.
    """

    frame: FrameType
    tree: ast.Module
    parts: list[ast.AST]


def statement(error: BaseException, scope: dict[str, Any]) -> Statement | None:
    """Return the last statement of a cell that an error has passed through; None if it is not known.

    Args:
        error: with its traceback.
        scope: the namespace of the cells.
    """
    step, last = error.__traceback__, None
    while step is not None:
        if step.tb_frame.f_globals is scope:
            last = step
        step = step.tb_next
    tree = _tree(last.tb_frame.f_code.co_filename) if last is not None else None
    if last is None or tree is None:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= last.tb_lineno <= (node.end_lineno or node.lineno)
    ]
    begins = max([node.lineno for node in around], default=0)
    inner = [node for node in around if node.lineno == begins]  # a line may have several
    return Statement(last.tb_frame, tree, [part for node in inner for part in _head(node)])


def explain(error: BaseException, at: Statement) -> str:
    """Return what to say of an error that a None of a collective has caused; empty if that is not certain.

    Args:
        error: what a cell has raised.
        at: where.
    """
    if "NoneType" not in str(error):
        return ""
    names = _Names(at)
    used = [node for one in at.parts if not names.called(one)[1] for node in _used(one, str(error))]
    suspects = [node for node in used if not names.is_something(node)]
    return names.reason(suspects[0]) if len(suspects) == 1 else ""


def _tree(file: str) -> ast.Module | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if len(text) <= _LONGEST_CELL else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _head(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, but not the statements in it, nor what other functions do."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.Lambda | ast.ExceptHandler):
            yield from _head(child)


def _used(node: ast.AST, said: str) -> list[ast.expr]:  # noqa: PLR0911 - a table
    """Return what a node uses in the way of which Python has complained."""
    match node:
        case ast.Subscript(value=value) if "subscriptable" in said or "item" in said:
            return [value]
        case ast.Attribute(value=value) if "has no attribute" in said:
            return [value]
        case (
            ast.For(iter=value)
            | ast.comprehension(iter=value)
            | ast.Starred(value=value)
            | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
        ) if "itera" in said or "unpack" in said:
            return [value]
        case ast.BinOp(left=one, right=other) | ast.AugAssign(target=one, value=other) if "operand" in said:
            return [one, other]
        case ast.UnaryOp(operand=value) if "operand" in said:
            return [value]
        case ast.Compare(left=left, comparators=others) if "not supported between" in said or "itera" in said:
            return [left, *others]
        case ast.FormattedValue(value=value) if "__format__" in said:
            return [value]
        case ast.Call(args=args, keywords=keywords) if not any(word in said for word in _BY_ITSELF):
            return [one for one in (*args, *(each.value for each in keywords)) if not isinstance(one, ast.Starred)]
    return []


_BY_ITSELF = ("operand", "subscriptable", "has no attribute", "__format__", "not supported between", "unpack")
"""Words of errors that a call as such does not cause."""


class _Names:
    """What the names of a statement stand for."""

    def __init__(self, at: Statement) -> None:
        self._at = at
        self._scope = at.frame.f_globals

    def is_something(self, node: ast.expr) -> bool:
        """Return whether an expression is known not to be None."""
        match node:
            case ast.Name(id=name):
                return self._value(node) is not None or name not in {*self._at.frame.f_locals, *self._scope}
            case ast.Constant(value=value):
                return value is not None
            case ast.Call(func=ast.Name(id="range" | "len" | "list" | "int" | "float" | "str" | "sorted" | "sum")):
                return True
            case ast.Call():
                name, kind = self.called(node)
                return kind == "dst" and self._dst(node, name) == self._scope["comm"].rank
        return isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.JoinedStr | ast.ListComp | ast.Lambda)

    def reason(self, node: ast.expr) -> str:
        """Return why an expression is None, and what to do; empty if it is not certain."""
        calls = [node] if isinstance(node, ast.Call) else self._settings(node)
        if not calls or not all(self.called(call)[1] for call in calls):
            return ""
        call: Any = calls[-1]
        name, kind = self.called(call)
        shown = shortened(ast.unparse(call), _LONGEST)
        if kind == "torch":
            ours = f", or call {name}, without dist., which returns the result" if name in METHODS else ""
            return f"{shown} is None: torch's functions write into their arguments. Use the arguments{ours}."
        if kind == "none":
            more = ": recv returns the data, on the receiving rank" if name == "send" else ""
            return f"{shown} is None: {name} returns nothing{more}."
        dst = self._dst(call, name)
        if dst == self._scope["comm"].rank:
            return ""
        on, here = ("dst", "rank == dst") if dst is None else (f"rank {dst} (dst)", f"rank == {dst}")
        return (
            f'{shown} is None: {name} gives its result on {on} only. Use it below "if {here}:", or call all_{name}, '
            f"which gives it on every rank."
        )

    def _settings(self, node: ast.expr) -> list[ast.AST]:
        """Return all that the cell sets a variable to that is None: its values, or what binds its name otherwise."""
        if not isinstance(node, ast.Name) or self._value(node) is not None:
            return []
        cell, name = [*ast.walk(self._at.tree)], node.id
        plain = {id(one.targets[0]): one.value for one in cell if isinstance(one, ast.Assign) and len(one.targets) == 1}
        bound = [
            one for one in cell if isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load)
        ]
        given = [one for one in cell if isinstance(one, ast.arg) and one.arg == name]
        return [*given, *(plain.get(id(one), one) for one in bound)]

    def called(self, call: ast.AST) -> tuple[str, str]:
        """Return the name of what a call calls, and when that gives None: "dst", "none", "torch", or "" if never."""
        if not isinstance(call, ast.Call) or {each.arg for each in call.keywords} & {None, "async_op", "sync_grads"}:
            return "", ""
        function, comm = self._value(call.func), self._scope.get("comm")
        if not isinstance(function, FunctionType | MethodType):  # no code of the user's own must run
            return "", ""
        name = function.__name__
        if comm is not None and getattr(function, "__self__", None) is comm:
            return name, "dst" if name in _ON_DST else "none" if name in _NEVER else ""
        return name, "torch" if name.startswith(_TORCHS) and function is getattr(dist, name, None) else ""

    def _dst(self, call: ast.Call, name: str) -> int | None:
        """Return the rank that gets the result, if it can be told."""
        place = {"gather": 1, "reduce": 2}[name]
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "dst"), None)
        if given is None:
            given = call.args[place] if len(call.args) > place else ast.Constant(0)
        value = given.value if isinstance(given, ast.Constant) else self._value(given)
        return value if isinstance(value, int) else None

    def _value(self, node: ast.expr) -> Any:
        """Return what a name, or an attribute of the Communicator or of torch's module, stands for; of no other one."""
        match node:
            case ast.Name(id=name):
                return self._at.frame.f_locals.get(name, self._scope.get(name))
            case ast.Attribute(value=ast.Name(id="comm" | "dist"), attr=attr):
                return getattr(self._value(node.value), attr, None)
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="distributed"), attr=attr):
                return getattr(dist, attr, None)
        return None
