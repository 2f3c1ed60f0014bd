"""Python text: edits, indentation, and the names that it uses.

Text stays as the user wrote it, with comments, so nothing here goes through `ast.unparse`.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import io
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

INDENT = "    "

_STRING_BEGINS, _STRING_ENDS = ("FSTRING_START", "TSTRING_START"), ("FSTRING_END", "TSTRING_END")
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_HIDDEN = ("__annotations__", "__conditional_annotations__", "__static_attributes__")
_NEED_A_LOOP = {"create_task", "ensure_future", "get_running_loop", "get_event_loop"}
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

EVERYWHERE = frozenset(vars(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__", "__spec__"}
"""Names that every script has."""


def parse(text: str) -> ast.Module:
    """Parse a cell, which may have ``await`` at its top."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks have shown them already
        return compile(text, "<cell>", "exec", flags=_FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)  # type: ignore[no-any-return]


def compiles(text: str) -> bool:
    """Tell whether a text compiles as a program, without ``await`` at its top."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<script>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


# ── edits ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Edits:
    """Edits of a text, given by positions in its syntax tree."""

    text: str
    _made: list[tuple[int, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bytes = self.text.encode()  # the columns of a tree count these
        self._starts = [0]
        for line in self._bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int) -> int:
        """Return the byte offset of a position."""
        return self._starts[line - 1] + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return the offsets of a node's first byte, and of the byte after its last."""
        assert node.end_lineno is not None  # noqa: S101 - for mypy: a parsed node has an end
        assert node.end_col_offset is not None  # noqa: S101
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replace(self, start: int, end: int, new: str) -> None:
        """Replace the bytes from ``start`` to ``end`` by a text."""
        self._made.append((start, end, new.encode()))

    def apply(self) -> str:
        """Return the text with all edits."""
        out, last = [], 0
        for start, end, new in sorted(self._made, key=lambda edit: edit[:2]):
            out += [self._bytes[last:start], new]
            last = end
        return b"".join([*out, self._bytes[last:]]).decode()


def indent(text: str, by: str = INDENT) -> str:
    r"""Indent code, but not the lines within strings, which must keep their values.

    >>> print(indent("x = '''a\nb'''\nif x:\n    pass"))
        x = '''a
    b'''
        if x:
            pass
    """
    within: set[int] = set()
    begun: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name in _STRING_BEGINS:
            begun.append(token.start[0])
        elif name in _STRING_ENDS:
            within.update(range(begun.pop() + 1, token.end[0] + 1))
        elif name == "STRING":
            within.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = text.split("\n")
    return "\n".join(by + line if line.strip() and n not in within else line for n, line in enumerate(lines, 1))


def quoted(text: str) -> str:
    """Return a text as a Python literal, in the quotation marks that a formatter would choose.

    >>> print(quoted("it's"), quoted('say "a"'))
    "it's" 'say "a"'
    """
    return repr(text) if '"' in text else '"' + repr("'" + text)[2:]


def of_scope(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, with those in its branches and loops, but not those in functions and classes."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for child in ast.iter_child_nodes(node):
            blocks = child.body if isinstance(child, ast.ExceptHandler | ast.match_case) else [child]
            yield from of_scope(block for block in blocks if isinstance(block, ast.stmt))


def commented(text: str) -> str:
    """Turn each line of a text into a comment."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


# ── queries ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Names:
    """The global names that code reads, in functions too, and those that it binds or deletes.

    ``stars``: the modules from which it also takes names by ``from … import *``; see `star_imports.names_in`.
    """

    loads: frozenset[str]
    binds: frozenset[str]
    deletes: frozenset[str]
    stars: frozenset[str] = frozenset()


def names_of(*statements: ast.stmt) -> Names:
    """Return the global names of statements, as the compiler sees them."""
    loads, binds, deletes = set(), set(), set()
    for code in _codes(_compiled(statements)):
        for step in dis.get_instructions(code):
            if step.opname in _LOADS:
                loads.add(step.argval)
            elif step.opname == "STORE_GLOBAL" or (step.opname == "STORE_NAME" and code.co_name == "<module>"):
                binds.add(step.argval)
            elif step.opname == "DELETE_GLOBAL" or (step.opname == "DELETE_NAME" and code.co_name == "<module>"):
                deletes.add(step.argval)
    stars = frozenset(f"{'.' * node.level}{node.module or ''}" for node in stars_of(statements))
    hidden = frozenset(_HIDDEN)
    return Names(frozenset(loads) - hidden, frozenset(binds) - hidden, frozenset(deletes), stars)


def stars_of(statements: Iterable[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Yield the star imports among statements, also those in branches."""
    for node in of_scope(statements):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield node


def bound_for_sure(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement always binds if it is reached; a branch or a loop gives none."""
    plain = ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef
    return names_of(statement).binds if isinstance(statement, plain | ast.ClassDef) else frozenset()


def needs_loop(tree: ast.Module) -> bool:
    """Tell whether code must run within an event loop, because it awaits or makes tasks at its top."""
    code = _compiled(tree.body)
    return bool(code.co_flags & inspect.CO_COROUTINE) or bool(_NEED_A_LOOP.intersection(code.co_names))


def only_defines(tree: ast.Module) -> bool:
    """Tell whether code only imports, and defines functions and plain classes, so that a second run changes nothing."""
    return bool(tree.body) and all(_is_definition(statement) for statement in tree.body)


def _is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        defaults = [*statement.args.defaults, *(default for default in statement.args.kw_defaults if default)]
        return not statement.decorator_list and all(isinstance(default, ast.Constant) for default in defaults)
    if isinstance(statement, ast.ClassDef):
        inside = all(_is_definition(part) or _is_constant(part) for part in statement.body)
        return inside and not statement.decorator_list and not statement.keywords
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_constant(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) else None
    return isinstance(statement, ast.Pass) or isinstance(value, ast.Constant)


def _compiled(statements: tuple[ast.stmt, ...] | list[ast.stmt]) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ast.Module(list(statements), [])
        return compile(module, "<cell>", "exec", flags=_FLAGS, dont_inherit=True)  # type: ignore[no-any-return]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
