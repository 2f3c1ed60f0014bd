"""IPython's own syntax (``!cmd``, ``%magic``, ``%%magic``, ``x?``) as plain Python or as comments.

IPython itself turns it into calls of ``get_ipython()``; this module finds and replaces these calls. A command's ``$x``
and ``{x}`` are Python's if all of them are known, as in IPython, and the shell's otherwise.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from IPython.utils.text import DollarFormatter

from .source import Edits, commented, names_of, parse, quoted

_TRANSPARENT = ("time", "prun", "capture", "memit", "mprun", "lprun")
"""Magics that run their code and observe it."""

_SHELLS = ("bash", "sh")
_VARIABLES = ("env", "set_env")


@dataclass
class Plain:
    """A cell in plain Python.

    Attributes:
        text: the cell.
        dropped: the magics that became comments: ``"%matplotlib"``.
        modules: modules of the standard library that the new text uses.
        silent: whether a cell would not show the value of the last statement, although it has one in Python.
    """

    text: str
    dropped: list[str] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    silent: bool = False


def plain(cell: str, known: Collection[str]) -> Plain:
    r"""Turn a cell into plain Python.

    Args:
        cell: the cell as the user wrote it.
        known: names that a command may use by ``$name`` and ``{name}``.

    Raises:
        SyntaxError: it is not valid code, so it has never run either.

    >>> plain("%matplotlib inline\nfiles = !ls $HOME", known=()).text
    '# %matplotlib inline\nfiles = subprocess.getoutput("ls $HOME").splitlines()\n'
    """
    made = Plain(TransformerManager().transform_cell(cell.replace("\r\n", "\n").replace("\r", "\n")))
    tree = parse(made.text)
    edits = Edits(made.text)
    known = {*known, *names_of(*tree.body).binds}
    outer = set(map(id, tree.body))
    for node in ast.walk(tree):
        call = _call(node)
        if call is None or not isinstance(node, ast.Expr | ast.Assign):
            continue
        name, args = call
        if name == "run_cell_magic" and len(args) == 3:  # it is the whole cell
            return _cell_magic(*args, known)
        new = _statement(call, edits, node, made, known)
        made.silent |= node is tree.body[-1] and (name == "system" or new.startswith("os."))
        if new.startswith("#") and id(node) not in outer:
            new = f"pass  {new}"  # a block must not be empty
        edits.replace(*edits.span(node), new)
    made.text = edits.apply()
    return made


def _call(node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
    """Return the call in a statement that IPython made: "system", ("ls",); None if it is another statement."""
    match node:
        case ast.Expr(value=value) | ast.Assign(value=value):
            match value:
                case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=name)):
                    texts = [argument.value for argument in value.args if isinstance(argument, ast.Constant)]
                    return name, tuple(text for text in texts if isinstance(text, str))
    return None


def _statement(
    call: tuple[str, tuple[str, ...]], edits: Edits, node: ast.Expr | ast.Assign, made: Plain, known: Collection[str]
) -> str:
    name, args = call
    targets = ""
    if isinstance(node, ast.Assign):
        start, end = edits.span(node)[0], edits.span(node.value)[0]
        targets = edits.text.encode()[start:end].decode()  # "x = "
    match name, args:
        case "system", (command,):
            made.modules.add("subprocess")
            return f"{targets}subprocess.run({expanded(command, known)}, shell=True)"
        case "getoutput", (command,):
            made.modules.add("subprocess")
            return f"{targets}subprocess.getoutput({expanded(command, known)}).splitlines()"
        case "run_line_magic", (magic, line):
            return _line_magic(magic, line, targets, made, known)
    return edits.text.encode()[slice(*edits.span(node))].decode()


def _line_magic(magic: str, line: str, targets: str, made: Plain, known: Collection[str]) -> str:
    if magic in _TRANSPARENT and not line.startswith("-") and _is_python(line):
        return f"{targets}{line}"
    if magic == "cd" and line and not line.startswith("-"):
        made.modules.add("os")
        return f"os.chdir(os.path.expanduser({expanded(line.strip(chr(34) + chr(39)), known)}))"
    setting = re.fullmatch(r"\s*(\w+)(?:\s*=\s*|\s+)(.+)", line)
    if magic in _VARIABLES and setting:
        made.modules.add("os")
        return f"os.environ[{quoted(setting[1])}] = {expanded(setting[2], known)}"
    if magic in ("pinfo", "pinfo2"):
        return commented(f"{line}{'??' if magic == 'pinfo2' else '?'}")
    made.dropped.append(f"%{magic}")
    return commented(f"{targets}%{magic} {line}")


def _cell_magic(magic: str, line: str, body: str, known: Collection[str]) -> Plain:
    head = commented(f"%%{magic} {line}")
    if magic in _TRANSPARENT:
        inner = plain(body, known)
        inner.text = f"{head}\n{inner.text}"
        return inner
    if magic in _SHELLS and not line:
        run = f"subprocess.run([{quoted(magic)}], input={quoted(body)}, text=True, check=True)"
        return Plain(f"{head}\n{run}\n", modules={"subprocess"}, silent=True)
    if magic == "writefile" and line and not line.startswith("-"):
        name = expanded(line.strip(chr(34) + chr(39)), known)
        write = f"pathlib.Path({name}).write_text({quoted(body)})"
        return Plain(f"{head}\n{write}\n", modules={"pathlib"}, silent=True)
    return Plain(f"{head}\n{commented(body)}\n", [f"%%{magic}"])


def expanded(text: str, known: Collection[str]) -> str:
    """Return a command as Python text: an f-string if it uses variables, by ``$x`` or ``{x + 1}``.

    >>> print(expanded("echo $x {y:.3f} $$HOME", {"x", "y"}), expanded("echo $HOME {y}", {"y"}))
    f"echo {x} {y:.3f} $HOME" "echo $HOME {y}"
    """
    try:
        parts = list(DollarFormatter().parse(text))
    except ValueError:
        return quoted(text)
    if not all(_is_known(field, spec, known) for _, field, spec, _ in parts if field is not None):
        return quoted(text)
    if all(field is None for _, field, _, _ in parts):
        return quoted("".join(literal for literal, *_ in parts))
    return _joined(parts)


def _is_known(expression: str, spec: str | None, known: Collection[str]) -> bool:
    if any(name for _, name, _, _ in string.Formatter().parse(spec or "") if name is not None):
        return False
    try:
        (statement,) = parse(f"({expression}\n)").body
    except (SyntaxError, ValueError):
        return False
    return names_of(statement).loads <= set(known)


def _joined(parts: list[Any]) -> str:
    inline, template, values = "", "", []
    for literal, expression, spec, conversion in parts:
        fixed = literal.replace("{", "{{").replace("}", "}}")
        how = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        if expression is None:
            inline, template = inline + fixed, template + fixed
            continue
        inline += f"{fixed}{{{expression}{how}}}"
        template += f"{fixed}{{{how}}}"
        values.append(expression)
    whole = quoted(inline)
    if whole[1:-1] == inline:
        return f"f{whole}"
    return f"{quoted(template)}.format({', '.join(values)})"  # nested equal quotation marks need later Pythons


def _is_python(text: str) -> bool:
    try:
        return bool(parse(text).body)
    except (SyntaxError, ValueError):
        return False
