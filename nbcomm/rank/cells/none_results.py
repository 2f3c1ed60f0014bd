"""A None that a collective has returned, and that a cell uses as data: which call it was, and what to do.

`gather` and `reduce` give their result on one rank only, and torch's own functions write into their arguments. The
error that follows, "'NoneType' object is not subscriptable", names neither. It is told only where it is certain: the
failing statement uses one thing as the error says, and that is the call itself, or a variable that is None and that
nothing but such calls has set.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, MethodType, TracebackType
from typing import Any, NamedTuple

import torch.distributed as dist

from ...cell_names import METHODS
from ...short_repr import shortened

_ON_DST = ("gather", "reduce")
_NEVER = ("send", "barrier", "rank_print", "show")
_TORCHS = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "reduce", "reduce_scatter"),
    *("reduce_scatter_tensor", "scatter", "scatter_object_list"),
)
"""Functions of torch.distributed that return None, unless they are to return at once."""

_LONGEST, _OLDEST = 40, 50
"""Characters of a call that are shown, and cells in which the setting of a variable is looked for."""

_LONGEST_CELL = 100_000
"""Characters of a cell that is looked into: one that holds its data would take seconds."""


class Statement(NamedTuple):
    """The statement of a cell in which an error was raised.

    Attributes:
        frame: it ran in this one.
        tree: all of its file.
        parts: it, others that begin in its line, and what they consist of; of a loop or the like the head only.
    """

    frame: FrameType
    tree: ast.Module
    parts: list[ast.AST]
    place: tuple[int | None, ...] | None
    """Where in the file the failing expression begins and ends, where Python knows that: since 3.11."""


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
    return Statement(last.tb_frame, tree, [part for node in inner for part in _head(node)], _place(last))


def _place(step: TracebackType) -> tuple[int | None, ...] | None:
    if sys.version_info < (3, 11):
        return None
    return next(itertools.islice(step.tb_frame.f_code.co_positions(), step.tb_lasti // 2, None), None)


def _failing(at: Statement) -> list[ast.AST]:
    """Return what has failed, or else all that may have."""
    exactly: list[ast.AST] = [
        node
        for node in at.parts
        if isinstance(node, ast.expr)
        and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == at.place
    ]
    return exactly or at.parts


def explain(error: BaseException, at: Statement, history: Callable[[], list[str]]) -> str:
    """Return what to say of an error that a None of a collective has caused; empty if that is not certain.

    Args:
        error: what a cell has raised.
        at: where.
        history: returns the cells before, as Python; the last one is this one.
    """
    if "NoneType" not in str(error):
        return ""
    names = _Names(at, history)
    used = [node for one in _failing(at) for node in _used(one, str(error))]
    if not used:  # where something is iterated over, or formatted, its own place is known, and not that of its use
        used = [node for one in at.parts if not names.is_collective(one) for node in _used(one, str(error))]
    suspects = [node for node in used if not names.is_something(node)]
    return names.reason(suspects[0]) if len(suspects) == 1 else ""


def _tree(file: str) -> ast.Module | None:
    return _parsed("".join(linecache.getlines(file)))


def _parsed(text: str) -> ast.Module | None:
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


def _used(node: ast.AST, said: str) -> list[ast.expr]:
    """Return what a node uses in the way of which Python has complained."""
    found: list[ast.expr] = []
    match node:
        case ast.Subscript(value=value) if "subscriptable" in said or "item" in said:
            found = [value]
        case ast.Attribute(value=value) if "has no attribute" in said:
            found = [value]
        case (
            ast.For(iter=value)
            | ast.comprehension(iter=value)
            | ast.Starred(value=value)
            | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
        ) if "itera" in said:
            found = [value]
        case ast.BinOp(left=one, right=other) | ast.AugAssign(target=one, value=other) if "operand" in said:
            found = [one, other]
        case ast.UnaryOp(operand=value) if "operand" in said:
            found = [value]
        case ast.Compare(left=left, comparators=others) if "not supported between" in said or "itera" in said:
            found = [left, *others]
        case ast.FormattedValue(value=value) if "__format__" in said:
            found = [value]
        case ast.Call(func=func) if "not callable" in said:
            found = [func]
        case ast.Call(args=args, keywords=keywords) if not any(word in said for word in _BY_ITSELF):
            found = [*_flat([*args, *(keyword.value for keyword in keywords)])]
    return found


_BY_ITSELF = ("operand", "subscriptable", "has no attribute", "__format__", "not supported between", "unpack")
"""Words of errors that a call as such does not cause."""


def _flat(nodes: list[ast.expr]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):
            yield from _flat(node.elts)
        elif not isinstance(node, ast.Starred):
            yield node


class _Names:
    """What the names of a statement stand for."""

    def __init__(self, at: Statement, history: Callable[[], list[str]]) -> None:
        self._at = at
        self._scope = at.frame.f_globals
        self._history = history

    def is_collective(self, node: ast.AST) -> bool:
        """Return whether a node is a call that may give None: what it is given is none of Python's complaints."""
        return isinstance(node, ast.Call) and bool(self._called(node)[1])

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
                name, kind = self._called(node)
                return kind == "dst" and self._dst(node, name) == self._scope["comm"].rank
        return isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.JoinedStr | ast.ListComp | ast.Lambda)

    def reason(self, node: ast.expr) -> str:
        """Return why an expression is None, and what to do; empty if it is not certain."""
        call = self._origin(node)
        if call is None:
            return ""
        name, kind = self._called(call)
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

    def _origin(self, node: ast.expr) -> ast.Call | None:
        """Return the call whose None this is."""
        if isinstance(node, ast.Call):
            if self._called(node)[1]:
                return node
            return self._returned(self._value(node.func))
        if isinstance(node, ast.Name) and self._value(node) is None:
            return self._setter(node.id)
        return None

    def _setter(self, name: str) -> ast.Call | None:
        """Return the call that has set a variable, if nothing else has."""
        local = _function_around(self._at.tree, self._at.frame)
        if local is not None and name in self._at.frame.f_locals:
            return self._only(_settings(local, name)) if name not in _parameters(local) else None
        for tree in (self._at.tree, *self._earlier()):
            found = _settings(tree, name)
            if found:
                return self._only(found)
        return None

    def _earlier(self) -> Iterator[ast.Module]:
        for cell in self._history()[-2:-_OLDEST:-1]:
            tree = _parsed(cell)
            if tree is not None:
                yield tree

    def _only(self, values: list[ast.AST | None]) -> ast.Call | None:
        calls = [value for value in values if isinstance(value, ast.Call) and self._called(value)[1]]
        return calls[-1] if calls and len(calls) == len(values) else None

    def _returned(self, function: Any) -> ast.Call | None:
        """Return the call whose value a function of the user's returns, if it returns nothing else."""
        if not isinstance(function, FunctionType) or function.__globals__ is not self._scope:
            return None
        tree = _tree(function.__code__.co_filename)
        made = _at_line(tree, function.__code__.co_firstlineno) if tree is not None else None
        if made is None:
            return None
        found: list[ast.AST | None] = []
        for node in _own(made):
            if isinstance(node, ast.Return) and isinstance(made.body[-1], ast.Return):
                value = node.value
                found += _settings(made, value.id) if isinstance(value, ast.Name) else [value]
        return self._only(found)

    def _called(self, call: ast.Call) -> tuple[str, str]:
        """Return the name of what a call calls, and when that gives None: "dst", "none", "torch", or "" if never."""
        given = {keyword.arg for keyword in call.keywords}
        if given & {None, "async_op", "sync_grads"}:
            return "", ""
        function, comm = self._value(call.func), self._scope.get("comm")
        if not isinstance(function, FunctionType | MethodType):  # no code of the user's own must run
            return "", ""
        name = function.__name__
        if comm is not None and getattr(function, "__self__", None) is comm:
            return name, "dst" if name in _ON_DST else "none" if name in _NEVER else ""
        return name, "torch" if name in _TORCHS and function is getattr(dist, name, None) else ""

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


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function or a module, but not what is in the functions and classes in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own(child)


def _settings(of: ast.AST, name: str) -> list[ast.AST | None]:
    """Return the values that a function or a module sets a variable to; None for what is no plain assignment."""
    found: list[ast.AST | None] = []
    for node in _own(of):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                found.append(value)
            case ast.Name(id=target, ctx=ast.Store() | ast.Del()) if target == name:
                found.append(None)
            case ast.alias(name=whole, asname=short) if (short or whole) == name:
                found.append(None)
            case ast.FunctionDef(name=made) | ast.ClassDef(name=made) if made == name:
                found.append(None)
            case ast.Global(names=those) if name in those:
                found.append(None)
    # The target of a plain assignment was met, too, as a name that is set.
    plain = [value for value in found if value is not None]
    return [*plain, *[None] * (len(found) - 2 * len(plain))]


def _parameters(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def _function_around(tree: ast.Module, frame: FrameType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return None if frame.f_code.co_name == "<module>" else _at_line(tree, frame.f_code.co_firstlineno)


def _at_line(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function that begins in a line; None if it is not the only one, as a lambda."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and min([node.lineno, *(each.lineno for each in node.decorator_list)]) == line
    ]
    return found[0] if len(found) == 1 else None
