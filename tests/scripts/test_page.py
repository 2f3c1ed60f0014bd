"""The page about scripts shows what is really written."""

from __future__ import annotations

import re
from pathlib import Path

from nbcomm.scripts import Entry, Ran
from nbcomm.scripts.history import pushed
from nbcomm.scripts.writer import write

PAGE = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text(encoding="utf-8")


def test_the_script_of_the_page_is_that_of_its_cells() -> None:
    cells = re.findall(r"```python\n%%distributed([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    entries: list[Entry] = [pushed({"settings": {"lr": 0.1}}, None)]
    for number, (options, code) in enumerate(cells, 4):
        entries.append(Ran(number, code, (0, 2) if options else None))
    saved = write(entries, name="train.py", world_size=4)
    assert saved.text == re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0]
    assert "\n".join(["", *saved.notes, "```"]) in PAGE
    assert f"train.py has {saved.cells} cells: torchrun" in PAGE
