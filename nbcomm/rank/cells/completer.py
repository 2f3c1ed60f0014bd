"""What IPython knows of code while a user types: its completions, and what its names are.

It uses IPython's own means, with three differences. It works on a copy of the namespace, as cells go on meanwhile.
Nothing is called: an expression is evaluated only as far as IPython considers that harmless. And errors in a user's
``__dir__`` or ``__getattr__`` are not reported: there are fewer completions then.
"""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from IPython.core import guarded_eval
from IPython.core.completer import IPCompleter, completions_sorting_key, not_found
from IPython.utils.tokenutil import token_at_cursor

from ...short_repr import clipped

TYPES = "_jupyter_types_experimental"
"""Where a front end looks for the kinds of completions; its type and its place are ipykernel's."""

_UNKNOWN = "<unknown>"
_WHOLE = ("path", "dict key")
"""Kinds of texts in which a dot is no separator."""

_MOST = 500
"""The most completions, as in IPython."""

_LONGEST, _TEXT = 1000, 100_000
"""The most characters of a completion, and of a name's description: an answer is sent beside the cell's output."""

_KINDS: list[tuple[str, tuple[type, ...]]] = [
    ("module", (types.ModuleType,)),
    ("class", (type,)),
    ("function", (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)),
]
"""In the words of Jedi, for which front ends have symbols."""

# IPython evaluates no attribute of a class that has a __getattr__ of its own: it may do anything. These only look up.
_LOOKS_UP_ATTRIBUTES = [("torch", "nn", "Module")]
_LOOKS_UP_ITEMS = [("torch", "nn", name) for name in ("Sequential", "ModuleList", "ModuleDict")]


class Enough(BaseException):
    """The exception that ends what takes too long; no ``except Exception`` of a user's code stops it."""


class Insight:
    """Completions and docs from a shell's namespace, on any thread, but one at a time.

    Args:
        shell: an `InteractiveShell`.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._completer = _Completer(shell)
        trust_modules()

    def complete(self, code: str, cursor: int) -> dict[str, Any]:
        """Return the completions at a position, as in Jupyter's ``complete_reply``."""
        own = dict(self._shell.user_ns)
        cursor = min(max(cursor, 0), len(code))
        found = self._completer.find(code, cursor, own)
        start = min((cursor - len(fragment) for fragment, _, _ in found), default=cursor)
        types_of: dict[str, str] = {}
        for fragment, text, kind in found:  # those that begin later get the text before them
            whole = code[start : cursor - len(fragment)] + text
            types_of.setdefault(whole, _kind(text, own) or kind if kind in ("variable", _UNKNOWN) else kind)
        return {
            "status": "ok",
            "matches": list(types_of),
            "cursor_start": start,
            "cursor_end": cursor,
            "metadata": {
                TYPES: [
                    {"start": start, "end": cursor, "text": text, "type": kind, "signature": ""}
                    for text, kind in types_of.items()
                ]
            },
        }

    def inspect(self, code: str, cursor: int, detail: int = 0) -> dict[str, Any]:
        """Return what the name at a position is, as in Jupyter's ``inspect_reply``."""
        data = None
        with suppress(Exception):  # from a user's __getattr__ or __repr__, mostly
            data = self._look_up(token_at_cursor(code, cursor), detail)
        return {"status": "ok", "found": data is not None, "data": data or {}, "metadata": {}}

    def _look_up(self, name: str, detail: int) -> dict[str, Any] | None:
        shell, own = self._shell, dict(self._shell.user_ns)
        # The public method enters IPython's trap for built-in names, which is the main thread's.
        places = [("Interactive", own), ("Python builtin", vars(builtins))]
        info = shell._ofind(name, places) if name else None  # noqa: SLF001
        if info is None or not info.found:
            return None
        data = dict(shell.inspector._get_info(info.obj, name, info=info, detail_level=detail))  # noqa: SLF001
        if not shell.enable_html_pager:
            data.pop("text/html", None)
        # Markup cannot be cut: the text replaces it.
        return {kind: clipped(text, _TEXT) for kind, text in data.items() if kind == "text/plain" or len(text) <= _TEXT}


class _Completer(IPCompleter):
    """IPython's completer without Jedi, which reads files for seconds, and knows no more about existing values."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell, namespace={}, global_namespace={}, use_jedi=False, evaluation="limited")  # type: ignore[no-untyped-call]
        self.custom_completers = shell.strdispatchers.get("complete_command")
        self._enough = False

    def find(self, code: str, cursor: int, own: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Return all completions: what is already typed of each, its text, and its kind."""
        self.namespace = own
        self._enough = False
        before = code[:cursor]
        line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
        # The public method makes `Completion`s, which are provisional: it changes the process's filters of warnings.
        try:
            results = self._complete(full_text=code, cursor_line=line, cursor_pos=column)
        finally:
            self.namespace = {}  # otherwise what a user deletes would stay alive here
        if self._enough:
            raise Enough
        in_order: list[tuple[str, str, str]] = []
        by_name: list[tuple[str, str, str]] = []
        for result in results.values():
            kept = in_order if result.get("ordered") else by_name
            fragment = result.get("matched_fragment") or ""
            kept += [_bare(fragment, each.text, each.type or _UNKNOWN) for each in result["completions"]]
        by_name.sort(key=lambda each: completions_sorting_key(each[1]))
        return [each for each in in_order + by_name if len(each[1]) <= _LONGEST][:_MOST]

    @property
    def matchers(self) -> list[Any]:
        """IPython's matchers; one that fails finds nothing, and reports nothing."""
        return [self._quietly(matcher) for matcher in super().matchers]

    def _quietly(self, matcher: Any) -> Callable[..., Any]:
        @functools.wraps(matcher)
        def match(asked: Any) -> Any:
            with suppress(Exception):  # a user's code may raise anything
                if not self._enough:
                    try:
                        return matcher(asked)
                    except Enough:  # IPython would print it, and try the next matcher
                        self._enough = True
            return [] if getattr(matcher, "matcher_api_version", 1) == 1 else {"completions": []}

        return match

    def _evaluate_expr(self, expr: str) -> Any:
        # The code above the cursor may be incomplete. IPython would cut it off, character by character.
        if "\n" in expr:
            try:
                ast.parse(expr)
            except (SyntaxError, ValueError):
                return not_found
        return super()._evaluate_expr(expr)  # type: ignore[no-untyped-call]


def _bare(fragment: str, text: str, kind: str) -> tuple[str, str, str]:
    """Return an attribute without the text before it: IPython's versions differ in how much of that they give."""
    dot = fragment.rfind(".") + 1
    if dot and kind not in _WHOLE:
        if text.startswith(fragment[:dot]):
            return fragment[dot:], text[dot:], kind
        if text[:1] == ".":
            return fragment[dot:], text[1:], kind
    return fragment, text, kind


def trust_modules() -> None:
    """Let IPython evaluate attributes of torch's modules: ``model.layers[0].weight.`` is typical input."""
    policy: Any = guarded_eval.EVALUATION_POLICIES["limited"]
    with suppress(AttributeError):  # an IPython that keeps such lists elsewhere
        policy.allowed_getattr_external.update(_LOOKS_UP_ATTRIBUTES)
        policy.allowed_getitem_external.update(_LOOKS_UP_ITEMS)


def _kind(name: str, own: dict[str, Any]) -> str:
    """Return what kind a name is of; empty if it is undefined."""
    if keyword.iskeyword(name):
        return "keyword"
    for scope in (own, vars(builtins)):
        if name in scope:
            return next((kind for kind, classes in _KINDS if issubclass(type(scope[name]), classes)), "instance")
    return ""
