"""The teacher's guide: each mistake on it leads to what it says, on real ranks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from nbcomm.lessons.courses import puzzles

from ..lessons.mistakes import MISTAKES
from .notebook import with_ranks

PAGE = Path(__file__).parents[2] / "docs" / "teaching.md"
SECONDS = 300


def test_the_guide_quotes_the_mistakes_that_are_played_and_no_others() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    quoted = [
        (int(number.group(1)) if (number := re.match(r"Lesson (\d+):", section)) else 0, typed, seen)
        for section in sections
        for typed, seen in re.findall(
            r"```python\n((?:(?!```).)*)\n```\n\n```text\n((?:(?!```).)*)\n```\n", section, re.DOTALL
        )
    ]
    assert quoted == [(mistake.lesson, mistake.typed, mistake.seen) for mistake in MISTAKES]
    assert PAGE.read_text().count("```text") == len(MISTAKES)


def test_each_lesson_has_three_mistakes_or_more_with_puzzles_of_its_own() -> None:
    titles = {puzzle.name: title for title, puzzle in puzzles()}
    for lesson in range(1, 11):
        own = [mistake.puzzle for mistake in MISTAKES if mistake.lesson == lesson]
        assert len(own) > 2
        assert all(titles[puzzle].startswith(f"Lesson {lesson}:") for puzzle in own), own


@pytest.mark.nightly
def test_each_mistake_leads_to_what_the_guide_says(tmp_path: Path) -> None:
    until = time.monotonic() + SECONDS
    others = []
    with with_ranks(tmp_path, 4, NBCOMM_CLASS=str(tmp_path / "class")) as notebook:
        for mistake in MISTAKES:
            for code in mistake.cells:
                cell = notebook.finish(notebook.submit(code), until - time.monotonic())
            shown = re.sub(r"\nA hint: .*--hint\n", "\n", cell.text + cell.error_text)
            if not mistake.matches(shown):
                others.append(f"{mistake.typed}\n\n{shown}\n\nin place of\n\n{mistake.seen}")
    assert not others, "\n\n".join(others)
