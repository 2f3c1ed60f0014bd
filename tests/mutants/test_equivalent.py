"""The list of changes that no test could notice speaks of lines that are there: a stale one would excuse nothing."""

from __future__ import annotations

import re
from pathlib import Path

LIST = Path(__file__).with_name("equivalent.md")
ROOT = LIST.parents[2]


def test_each_line_of_the_list_stands_in_its_module() -> None:
    modules = re.split(r"^## (.+)\n", LIST.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert modules
    for module, text in zip(modules[::2], modules[1::2], strict=True):
        lines = {line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()}
        changed = re.findall(r"^- (.*)$", text, flags=re.MULTILINE)
        assert changed
        assert [line for line in changed if line.strip() not in lines] == [], module
