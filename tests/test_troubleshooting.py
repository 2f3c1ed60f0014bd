"""The page for newcomers: each message that it quotes is one that nbcomm has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import IPython.core.interactiveshell
import pytest

import nbcomm

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
PACKAGE = Path(nbcomm.__file__).parent
OTHERS = (Path(IPython.core.interactiveshell.__file__),)
"""Sources of messages that are not nbcomm's own."""

QUOTED = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
LEFT_OUT = "…"
KIND = re.compile(r"^(?:nbcomm|\w+Error): ")
"""What stands before a message: its type, or nbcomm's name."""

EDGES = " .,;:()"

LEAST = 10
"""Letters of a text below which it would be found anywhere."""

JOINTS = re.compile(
    r"|of|has|ranks?|line|largest|called|failed|torch|dst|Let|Node|SIGKILL|variable|in line|is None|have a|on ranks|"
    r"over the|wait in|this cell|which are|not found|first at|rank ==|it, in|else None|/dev/shm"
)
"""Short parts of messages which are put together of several texts."""


def _flat(text: str) -> str:
    return " ".join(text.split())


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module as they are shown, with "…" for each value in them; docstrings are no messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else LEFT_OUT for part in node.values]
            yield _flat("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield _flat(re.sub(r"%[ds]|\{\d?\}", LEFT_OUT, node.value).replace("%%", "%"))
            yield _flat(node.value)


@cache
def _source() -> str:
    return "\n".join(text for path in [*sorted(PACKAGE.rglob("*.py")), *OTHERS] for text in _texts(path))


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda quoted: _flat(quoted)[:50])
def test_a_quoted_message_is_made_of_texts_of_the_source(quoted: str) -> None:
    parts = [_flat(part) for part in KIND.sub("", quoted).split(LEFT_OUT)]
    runs = [run for part in parts for run in _runs(part.split())]
    assert [run for run in runs if len(run) < LEAST and JOINTS.fullmatch(run) is None] == [], runs


def _runs(words: list[str]) -> Iterator[str]:
    """Cut a text into the longest parts that are texts of the source."""
    while words:
        ends = range(len(words), 0, -1)
        count = next((end for end in ends if " ".join(words[:end]).strip(".,:;()") in _source()), 1)
        yield " ".join(words[:count]).strip(EDGES)
        words = words[count:]


def test_the_page_has_what_newcomers_meet() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^### ", text, re.MULTILINE)
    assert len(headings) >= 20
    assert "nbcomm doctor" in text
