"""The outputs of cells on ranks in the cluster kernel: a cell's value and help go where any kernel's go.

The value is Jupyter's ``execute_result``, so that programs that read saved notebooks find it. Help goes to the pager if
the cell asks for nothing else: it is a payload of the reply, and each front end shows it in its own way.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from ..notebook.display.area import JupyterArea

_PAGED = {"pinfo", "pinfo2", "psearch", "psource", "pdoc", "pfile", "page"}
"""The magics that ``x?``, ``x??`` and ``*x*?`` stand for, and similar ones."""

_NOT_FOUND = re.compile(r"\[[\d,-]+\] Object `.*` not found\.")


class ClusterArea(JupyterArea):
    """The output of the running cell.

    Args:
        publisher: ipykernel's display publisher.
        number: the cell's number, as in In[number].
    """

    def __init__(self, publisher: Any, number: int) -> None:
        super().__init__(publisher)
        self._number = number

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show the value of the cell."""
        from ipykernel.jsonutil import encode_images

        content = {"data": encode_images(data), "metadata": metadata, "execution_count": self._number}
        self._send("execute_result", content, "execute_result")


class PageArea(ClusterArea):
    """The output of a cell that only asks for help; its text on stdout is kept for the pager.

    Text that may still change is shown in the cell until all ranks have answered, because one may keep others waiting.
    """

    def __init__(self, publisher: Any, number: int) -> None:
        super().__init__(publisher, number)
        self._keeps = True
        self._kept: list[tuple[str, str]] = []  # the display_id, if it has one, and the text

    def stream(self, name: str, text: str) -> None:
        """Keep text written to "stdout", and show text written to "stderr"."""
        if self._keeps and name == "stdout":
            self._kept.append(("", text))
        else:
            super().stream(name, text)

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Keep a text, and show it meanwhile if it may change; for other data, show everything as usual."""
        if self._keeps and set(data) <= {"text/plain"}:
            self._kept.append((display_id, data.get("text/plain", "")))
            if not display_id:
                return
        else:
            self.show()
        super().display(data, metadata, display_id)

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace the kept and shown text of the ``display_id``."""
        text = data.get("text/plain", "")
        self._kept = [(known, text if known == display_id else old) for known, old in self._kept]
        super().update(data, metadata, display_id)

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show a value, and before it the kept text, because the cell does more than ask for help."""
        self.show()
        super().result(data, metadata)

    def clear(self, *, wait: bool) -> None:
        """Remove all output, also the kept text."""
        self._kept.clear()
        super().clear(wait=wait)

    def show(self) -> None:
        """Show the kept text as the cell's output, and stop keeping text."""
        text = self._take()
        if text:
            super().stream("stdout", text)

    def page(self) -> dict[str, Any] | None:
        """Return the text for the pager as a payload of the reply, or None if there is none; stop keeping text."""
        if all(_NOT_FOUND.fullmatch(line) for _, text in self._kept for line in text.splitlines()):
            self.show()
            return None
        return {"source": "page", "data": {"text/plain": self._take()}, "start": 0}

    def _take(self) -> str:
        kept, self._kept, self._keeps = self._kept, [], False
        for display_id, text in kept:
            if display_id and text:
                super().update({}, {}, display_id)
        return "".join(text if not text or text.endswith("\n") else f"{text}\n" for _, text in kept)


def asks_for_help(code: str) -> bool:
    r"""Tell whether a cell only asks for help, as ``x?`` does.

    >>> asks_for_help("# What is it?\nx?\n%psource y")
    True
    >>> asks_for_help("x = 1\nx?")
    False
    """
    if "?" not in code and "%" not in code:  # most cells: skip the work below
        return False
    try:
        statements = ast.parse(TransformerManager().transform_cell(code)).body
    except Exception:  # noqa: BLE001 - any error is shown when the cell runs
        return False
    return bool(statements) and all(_is_help(statement) for statement in statements)


def _is_help(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), "run_line_magic"), [word, *_])):
            return isinstance(word, ast.Constant) and word.value in _PAGED
    return False
