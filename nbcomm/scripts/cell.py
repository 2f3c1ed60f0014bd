"""One cell as statements of a script."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Collection
from dataclasses import dataclass

from . import injected_names as names
from .ipython_syntax import Plain, plain
from .source import Edits, Names, indent, names_of, needs_loop, of_scope, only_defines, parse

_NOTHING = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)


@dataclass
class ScriptCell:
    """A parsed cell.

    Attributes:
        plain: the cell in plain Python.
        tree: the syntax tree of that text.
        names: the names that it reads and binds.
    """

    plain: Plain
    tree: ast.Module
    names: Names

    @property
    def asynchronous(self) -> bool:
        """Whether it has to run within an event loop."""
        return needs_loop(self.tree)

    @property
    def only_defines(self) -> bool:
        """Whether a second run of it changes nothing."""
        return only_defines(self.tree) and not self.plain.dropped

    @property
    def futures(self) -> list[str]:
        """The names that it imports from ``__future__``: a script can have that only at its top."""
        return [alias.name for node in self.tree.body if _is_future(node) for alias in node.names]  # type: ignore[attr-defined]

    def statements(self, comm: str, given: Collection[str]) -> str:
        """Return the cell's text for a script, which shows the value of the last expression as a cell does.

        Args:
            comm: the script's name for its communicator.
            given: the names that the script has from nbcomm. If a cell deletes its own variable of such a name, the
                name is nbcomm's again.
        """
        text = self.plain.text
        edits = Edits(text)
        for node in self.tree.body:
            if _is_future(node):
                edits.replace(*edits.span(node), "# from __future__: see the top")
        for node in of_scope(self.tree.body):
            if isinstance(node, ast.Delete):
                deleted = [target.id for target in node.targets if isinstance(target, ast.Name) and target.id in given]
                lines = [line for name in deleted for line in names.lines(name, comm)]
                end = edits.span(node)[1]
                edits.replace(end, end, "".join(f"; {line}" for line in lines))
        last = self.tree.body[-1] if self.tree.body else None
        semicolon = _last_semicolon(text)
        if semicolon is not None:
            start = edits.at(*semicolon)
            edits.replace(start, start + 1, "")
        elif isinstance(last, ast.Expr) and not self.plain.silent and not _returns_nothing(last.value):
            start, end = edits.span(last)
            bare = _is_bare_tuple(text.encode()[start:end].decode())
            edits.replace(start, start, f"{comm}.show((" if bare else f"{comm}.show(")
            edits.replace(end, end, "))" if bare else ")")
        return edits.apply().strip("\n")

    def coroutine(self, name: str, loop: str, comm: str, given: Collection[str]) -> str:
        """Return the cell's text as a coroutine function, and the line that runs it; its variables stay global.

        Args:
            name: the function's name.
            loop: the script's name for its event loop.
            comm: as in `statements`.
            given: as in `statements`.
        """
        text = self.statements(comm, given)
        edits = Edits(text)
        for node in of_scope(parse(text).body):
            if not isinstance(node, ast.AnnAssign) or not node.simple:
                continue
            start, end = edits.span(node)
            if node.value is None:
                edits.replace(start, end, "pass")
            else:  # a global variable cannot be annotated within a function
                edits.replace(edits.span(node.target)[1], edits.span(node.annotation)[1], "")
        bound = sorted(self.names.binds | self.names.deletes)
        shared = indent(f"global {', '.join(bound)}\n") if bound else ""
        return f"async def {name}():\n{shared}{indent(edits.apply())}\n\n\n{loop}.run_until_complete({name}())"


def read(code: str, known: Collection[str]) -> ScriptCell:
    """Parse a cell.

    Args:
        code: the cell as the user wrote it.
        known: the names that earlier cells bind.

    Raises:
        SyntaxError: the cell is not valid code.
    """
    made = plain(code, known)
    tree = parse(made.text)
    return ScriptCell(made, tree, names_of(*tree.body))


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _returns_nothing(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=None):
            return True
        case ast.Call(func=ast.Name(id=name), keywords=keywords):
            return names.returns_nothing(name) and all(keyword.arg != "async_op" for keyword in keywords)
    return False


def _is_bare_tuple(expression: str) -> bool:
    """Tell whether an expression would be several arguments of a call: ``a, b``."""
    call = ast.parse(f"f({expression}\n)", mode="eval").body
    return not isinstance(call, ast.Call) or len(call.args) != 1 or isinstance(call.args[0], ast.Starred)


def _last_semicolon(text: str) -> tuple[int, int] | None:
    """Return the position of the semicolon that ends a cell and so hides the last value; else None."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in _NOTHING]
    while tokens and tokenize.tok_name[tokens[-1].type] in ("INDENT", "DEDENT"):
        tokens.pop()
    return tokens[-1].start if tokens and tokens[-1].string == ";" else None
