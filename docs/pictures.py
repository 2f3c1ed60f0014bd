"""Draws the pictures of docs/collectives again: ``python docs/pictures.py`` (``make screenshots`` does it, too).

tests/test_docs.py holds the files to what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbcomm
from nbcomm.pictures.svg import draw

FOLDER = Path(__file__).parent / "collectives" / "pictures"

NUMBERS = [0, 10, 20, 30]
PICTURES: dict[str, dict[str, Any]] = {
    "all_gather": {"values": NUMBERS},
    "all_reduce": {"values": NUMBERS},
    "all_to_all": {"values": [[f"{rank}{item}" for item in range(4)] for rank in range(4)]},
    "barrier": {"values": [0.0, 0.2, 0.4, 0.6]},
    "broadcast": {"values": [{"lr": 0.1}, None, None, None]},
    "gather": {"values": NUMBERS},
    "reduce": {"values": NUMBERS},
    "reduce_scatter": {"values": [[0, 1, 2, 3]] * 4},
    "scan": {"values": NUMBERS},
    "scatter": {"values": ["a", "b", "c", "d"]},
    "sendrecv": {"values": [0, 1, 2, 3]},
}
"""Each collective with the values of its page."""


def make() -> dict[str, str]:
    """Each file's name and text."""
    return {f"{name}.svg": draw(nbcomm.draw(name, **how).plan, themed=True) + "\n" for name, how in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in make().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
