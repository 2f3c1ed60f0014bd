"""What a teacher sees of a class: each learner's file of progress in one table, and who is stuck where."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...durations import duration
from ...frontend.tables import aligned
from .progress import Done, gathered

_STUCK = 3
"""Tries without success after which a learner counts as stuck."""

_SHOWN = 5
"""How many who are stuck, and how many kinds of mistakes, are shown."""

Class = Mapping[str, Mapping[str, Done]]
"""What each learner has done with each puzzle."""


def read(folder: Path) -> Class:
    """Return what each learner of a class has done.

    Raises:
        OSError: the folder cannot be read.
    """
    found = {}
    for file in sorted(folder.iterdir()):
        if file.suffix == ".jsonl":
            found[file.stem] = gathered(file.read_text(encoding="utf-8", errors="replace").splitlines())
    return found


def text(learners: Class, now: float | None = None) -> str:
    """Return the table, and what a teacher may want to know, as text."""
    if not learners:
        return "No learner has checked anything yet."
    now = time.time() if now is None else now
    puzzles = list(dict.fromkeys(puzzle for done in learners.values() for puzzle in done))
    rows = [[name, *(_cell(done.get(puzzle)) for puzzle in puzzles)] for name, done in learners.items()]
    right = [sum(bool(done[puzzle].solved) for done in learners.values() if puzzle in done) for puzzle in puzzles]
    rows.append(["right", *(f"{count} of {len(learners)}" for count in right)])
    return "\n".join([*aligned((["learner", *puzzles], rows)), *_stuck(learners, now), *_mistakes(learners, puzzles)])


def _cell(done: Done | None) -> str:
    """Return what one learner has done with one puzzle: ✓ or ✗ with the tries, and hints behind a +."""
    if done is None:
        return "–"
    if done.predicted is not None:
        return f"{'✓' if done.solved else '≠' if done.mistakes else '…'} {done.predicted[:12]}"
    hints = f" +{done.hints}" if done.hints else ""
    return f"{'✓' if done.solved else '✗' if done.tries else '…'} {done.tries}{hints}"


def _stuck(learners: Class, now: float) -> Sequence[str]:
    found = [
        (done.tries, name, puzzle, done)
        for name, all_done in learners.items()
        for puzzle, done in all_done.items()
        if not done.solved and done.predicted is None and done.tries >= _STUCK
    ]
    return [
        f"Stuck: {name} with {puzzle}, after {tries} tries and {done.hints} hint{'s' * (done.hints != 1)}; the last "
        f"{duration(max(0.0, now - done.last))} ago: {done.mistakes[-1]}"
        for tries, name, puzzle, done in sorted(found, key=lambda each: (-each[0], each[1:3]))[:_SHOWN]
    ]


def _mistakes(learners: Class, puzzles: Sequence[str]) -> Sequence[str]:
    counts = Counter(
        (puzzle, mistake)
        for all_done in learners.values()
        for puzzle in puzzles
        for mistake in (all_done[puzzle].mistakes if puzzle in all_done else ())
    )
    most = counts.most_common(_SHOWN)
    said = "; ".join(f"{puzzle}: {mistake} ({n}×)" for (puzzle, mistake), n in most)
    return [f"Mistakes made most: {said}"] if said else []
