"""What a rank has written and not said when it died is read once, from where it had said the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbcomm.node import unsaid
from nbcomm.protocol import Text
from nbcomm.protocol.nodes import Unsaid, UnsaidText, unheard
from nbcomm.world_dir import WorldDir


@pytest.fixture
def home(tmp_path: Path) -> WorldDir:
    return WorldDir(str(tmp_path))


@pytest.fixture
def note(home: WorldDir) -> Iterator[Callable[[int, tuple[int, int]], None]]:
    descriptor = os.open(home.captured(2, "said"), os.O_WRONLY | os.O_CREAT)
    yield lambda run, said: unsaid.note(descriptor, run, said)
    os.close(descriptor)


def test_the_rest_of_both_files_is_read_once(home: WorldDir, note: Callable[[int, tuple[int, int]], None]) -> None:
    home.captured(2, "stdout").write_bytes("said, ünsaid\n".encode())
    home.captured(2, "stderr").write_bytes(b"all said")
    note(7, (0, 0))
    note(8, (6, 8))
    rest = UnsaidText("stdout", 6, 6, "ünsaid\n".encode())
    assert unsaid.read(home, 2) == Unsaid(8, [rest, UnsaidText("stderr", 8, 8, b"")])
    assert unsaid.read(home, 2) is None
    note(9, (6, 4))  # the next process of the rank, in the same place, which needs no further room
    assert unsaid.read(home, 2) == Unsaid(9, [rest, UnsaidText("stderr", 4, 4, b"said")])


def test_what_could_not_be_noted_is_known() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert not unsaid.note(full, 1, (0, 0))
    finally:
        os.close(full)


def test_of_very_much_the_end_is_read(home: WorldDir, note: Callable[[int, tuple[int, int]], None]) -> None:
    home.captured(2, "stdout").write_bytes(b"x" * (2 << 20) + b"end\n")
    note(8, (0, 0))
    found = unsaid.read(home, 2)
    assert found is not None
    output = unheard(found, (0, 0))
    assert output is not None
    (text,) = output.items
    assert isinstance(text, Text)
    assert text.text.startswith("(earlier output is not kept)\nxx")
    assert text.text.endswith("xend\n")
    assert len(text.text) < (1 << 20) + 100
    assert text.stream == "stdout"


def test_a_rank_that_has_not_begun_or_whose_files_are_gone_has_nothing_to_say(
    home: WorldDir, note: Callable[[int, tuple[int, int]], None]
) -> None:
    assert unsaid.read(home, 1) is None
    note(8, (0, 0))
    assert unsaid.read(home, 2) is None
    home.captured(2, "said").write_bytes(b"half a no")
    assert unsaid.read(home, 2) is None
