"""Each room of the house says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import nbcomm

PACKAGE = Path(nbcomm.__file__).parent
ROOMS = sorted(PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.parent.relative_to(PACKAGE.parent)))
def test_a_package_says_in_one_sentence_what_it_is_for(room: Path) -> None:
    said = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8")))
    assert said
    assert said.splitlines()[0].endswith(".")
