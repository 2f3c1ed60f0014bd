"""The names that ``from module import *`` binds, found without running the module.

A module's source is read if it has one: an import would run it, and a notebook that only steers must not import torch.
If that does not give the names (C, or computed names), they are taken from the module if this process has imported it
already. Python's own modules in C are imported, because these only define names. The names of all others are reported
as not known.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import pkgutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .source import names_of, of_scope, stars_of

_COMPUTE = ("globals", "locals", "vars", "exec")
"""Functions that, called at a module's top, may bind any name; so may an enum's ``_convert_``."""


def names_in(module: str) -> frozenset[str] | None:
    """Return the names that a star import of a module binds; None if they are not known.

    The result may have extra names, such as those of a branch that is not taken, but none is missing.

    >>> sorted(names_in("string"))[:2], names_in("no_such_module")
    (['Formatter', 'Template'], None)
    """
    return _names_in(module, frozenset())


def _names_in(module: str, within: frozenset[str]) -> frozenset[str] | None:
    if module in within:  # two modules that import each other: these names are being read already
        return frozenset()
    spec = _find(module)
    tree = _read(spec)
    if tree is not None and spec is not None:
        found = _Reader(spec, tree, within | {module}).names()
        if found is not None:
            return found
    there = sys.modules.get(module)
    if there is None and spec is not None and _is_pythons_own_c(spec):
        there = importlib.import_module(module)
    return None if there is None else _public(vars(there))


def _public(namespace: Mapping[str, Any]) -> frozenset[str]:
    named = namespace.get("__all__")
    words = list(namespace) if named is None else list(named)
    return frozenset(word for word in words if isinstance(word, str) and (named is not None or word[:1] != "_"))


# ── finding a module ────────────────────────────────────────────────────────────────────────────────


def _find(module: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module; unlike `importlib.util.find_spec`, do not import its parent packages."""
    path: list[str] | None = None
    spec = None
    name = ""
    for part in module.split("."):
        if name and path is None:
            return None
        name = f"{name}.{part}" if name else part
        if not part.isidentifier():  # a relative import, which has no package in a cell
            return None
        try:
            spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
            path = None if spec is None or not _is_package(spec) else list(spec.submodule_search_locations or ())
        except Exception:  # noqa: BLE001 - any package may have added a finder
            return None
    return spec


def _is_package(spec: importlib.machinery.ModuleSpec) -> bool:
    return spec.submodule_search_locations is not None


def _is_pythons_own_c(spec: importlib.machinery.ModuleSpec) -> bool:
    origin = spec.origin or ""
    return origin == "built-in" or Path(origin).parent.name == "lib-dynload"


def _read(spec: importlib.machinery.ModuleSpec | None) -> ast.Module | None:
    get_source = getattr(spec.loader, "get_source", None) if spec is not None else None
    if spec is None or get_source is None:
        return None
    try:
        source = get_source(spec.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return None if source is None else ast.parse(source)
    except (ImportError, OSError, SyntaxError, ValueError, RecursionError):
        return None


# ── reading a module's source ───────────────────────────────────────────────────────────────────────


class _Reader:
    """A reader of one module's source.

    Args:
        spec: the module's spec.
        tree: its syntax tree.
        within: the modules whose star imports led here, and this one.
    """

    def __init__(self, spec: importlib.machinery.ModuleSpec, tree: ast.Module, within: frozenset[str]) -> None:
        self._package = spec.name if _is_package(spec) else spec.name.rpartition(".")[0]
        self._folders = list(spec.submodule_search_locations or ())
        self._body = tree.body
        self._within = within
        self._tree = tree

    def names(self) -> frozenset[str] | None:
        """Return the names that a star import binds; None if the source alone does not tell."""
        if any(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(self._tree)):
            return self._listed()
        if any(map(_computes, self._at_import())):
            return None
        found = {name for name in names_of(*self._body).binds | self._submodules() if name[:1] != "_"}
        tried = {id(node) for part in self._body if isinstance(part, ast.Try) for node in ast.walk(part)}
        for node in stars_of(self._body):
            module = absolute(node, self._package)
            others = _names_in(module, self._within)
            if others is not None:
                found |= others  # those that begin with "_" come from the other module's __all__, and are dropped below
            elif id(node) not in tried or _find(module) is not None:
                return None
        return frozenset(name for name in found if name[:1] != "_")

    def _listed(self) -> frozenset[str] | None:
        """Return the names in ``__all__``; None if it is built from anything but string literals."""
        found: set[str] = set()
        understood = 0
        for node in of_scope(self._body):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                    | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
                    | ast.AugAssign(target=ast.Name(id="__all__"), op=ast.Add(), value=value)
                ):
                    texts = _texts(value)
                case ast.Expr(
                    ast.Call(func=ast.Attribute(ast.Name(id="__all__"), "extend"), args=[value], keywords=[])
                ):
                    texts = _texts(value)
                case ast.Expr(
                    ast.Call(func=ast.Attribute(ast.Name(id="__all__"), "append"), args=[value], keywords=[])
                ):
                    texts = _texts(ast.List([value]))
                case _:
                    continue
            if texts is None:
                return None
            found |= texts
            understood += 1
        changes = sum(map(_changes_all, ast.walk(self._tree)))
        return frozenset(found) if changes == understood else None

    def _submodules(self) -> set[str]:
        """Return the submodules of a package, because each imported submodule is bound in it."""
        return {found.name for found in pkgutil.iter_modules(self._folders)}

    def _at_import(self) -> Iterator[ast.AST]:
        """Yield all nodes that run during the import, so none in function bodies."""
        waiting: list[ast.AST] = list(self._body)
        while waiting:
            node = waiting.pop()
            yield node
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            waiting += [] if inner else ast.iter_child_nodes(node)


def absolute(node: ast.ImportFrom, package: str = "") -> str:
    """Return the absolute name of an import's module, seen from a package; without a module, an invalid name."""
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def _computes(node: ast.AST) -> bool:
    """Tell whether a node may bind names that the source does not show."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args):
            return name in _COMPUTE and not (name == "vars" and args)
        case ast.Attribute(attr="_convert_" | "_convert"):
            return True
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"), slice=ast.Name(id="__name__")
        ):
            return True
    return False


def _changes_all(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="__all__", ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(ast.Name(id="__all__"), attr):
            return hasattr(list, attr) and attr not in ("index", "count", "copy")
        case ast.Subscript(ast.Name(id="__all__"), ctx=ast.Store() | ast.Del()):
            return True
    return False


def _texts(value: ast.expr) -> set[str] | None:
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _texts(left), _texts(right)
            return None if one is None or other is None else one | other
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
            return texts if all(isinstance(part, ast.Constant) for part in parts) else None
    return None
