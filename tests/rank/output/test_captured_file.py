"""Text is read whole, wherever its bytes were cut."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.rank.output import captured_file
from nbcomm.rank.output.captured_file import CapturedFile, whole_characters


@pytest.mark.parametrize("character", ["a", "ü", "€", "𝄞"])
def test_only_a_cut_character_waits(character: str) -> None:
    data = character.encode()
    for size in range(1, len(data) + 1):
        whole, rest = whole_characters(b"x" + data[:size])
        assert whole + rest == b"x" + data[:size]
        assert rest == (b"" if size == len(data) else data[:size])


@given(st.lists(st.sampled_from([b"a", b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xf0", b"\x9d", b"\xff"]), max_size=20))
def test_bytes_cut_anywhere_read_as_the_whole_does(pieces: list[bytes]) -> None:
    text, rest = "", b""
    for piece in pieces:
        whole, rest = whole_characters(rest + piece)
        text += whole.decode(errors="replace")
    assert text + rest.decode(errors="replace") == b"".join(pieces).decode(errors="replace")


class Disk:
    """A disk of which the test says how much room it has."""

    def __init__(self) -> None:
        self.room = 1 << 20
        self.error = errno.ENOSPC
        self.taken = 0

    def allocate(self, _: int, start: int, size: int) -> int:
        if start + size > self.room:
            return self.error
        self.taken = start + size
        return 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(captured_file, "_allocate", made.allocate)
    return made


class Captured:
    """A file that a descriptor of this process writes to, and what is said of it."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.descriptor = os.open(os.devnull, os.O_WRONLY)
        self.file = CapturedFile(self.descriptor, "stdout", path, self.said.append)
        self.file.claim()

    def write(self, size: int) -> None:
        os.write(self.descriptor, b"x" * size)


@pytest.fixture
def captured(disk: Disk, tmp_path: Path) -> Iterator[Captured]:
    made = Captured(tmp_path / "stdout")
    yield made
    os.close(made.descriptor)


def test_there_is_room_in_advance_and_where_that_ends_it_is_said_once(
    disk: Disk, captured: Captured, tmp_path: Path
) -> None:
    assert disk.taken == 1 << 15
    captured.write(1 << 14)
    assert captured.file.reserve()
    assert disk.taken == 1 << 15, "half of it is left"
    disk.room = 0
    captured.write(1 << 13)
    assert captured.file.reserve(), "the rest is enough for a while"
    captured.write(1)
    for _ in range(3):
        assert not captured.file.reserve()
    (said,) = captured.said
    assert said == (
        f"what C code and child processes write may be lost: there is no room for it in {tmp_path} (No space left on "
        "device). Free some space there."
    )
    disk.room = 1 << 20
    assert captured.file.reserve()
    disk.room = 0
    captured.write(1 << 15)
    assert not captured.file.reserve()
    assert len(captured.said) == 2


def test_what_is_shown_anyhow_leaves_the_room_to_the_others(disk: Disk, captured: Captured) -> None:
    captured.file.keep("a" * 100_000)
    assert captured.file.size() == 100_000
    assert disk.taken == 100_000 + (1 << 15)
    disk.room = 0
    captured.file.keep("b" * 100_000)
    assert captured.file.size() == 100_000
    assert captured.said == []
    captured.file.keep("c")
    assert captured.file.size() == 100_001, "there is enough for this"


def test_a_system_that_reserves_nothing_is_not_asked_again(disk: Disk, tmp_path: Path) -> None:
    disk.room, disk.error = 0, errno.EOPNOTSUPP
    captured = Captured(tmp_path / "other")
    disk.error = errno.ENOSPC
    captured.write(1 << 20)
    assert captured.file.reserve()
    assert captured.said == []
    os.close(captured.descriptor)


LOSING = """
import ctypes, os, sys
from pathlib import Path
from nbcomm.rank.output import captured_file
from nbcomm.rank.output.captured_file import CapturedFile

captured_file._c_stream("stdout")
file = CapturedFile(1, "stdout", Path("/dev/full"), lambda said: print(said, file=sys.stderr))
file.claim()
libc = ctypes.CDLL(None)
libc.puts(b"lost")
file.flush_c()
print("-", file=sys.stderr)
file.flush_c()
print("-", file=sys.stderr)
libc.puts(b"x" * 100_000)
file.flush_c()
"""


@pytest.mark.ranks
def test_what_c_code_could_not_write_is_said_each_time() -> None:
    ended = subprocess.run([sys.executable, "-c", LOSING], capture_output=True, text=True, check=True, timeout=60)
    first, *between, last = ended.stderr.splitlines()
    assert between == ["-", "-"]
    for said in (first, last):
        assert said.startswith("some of what C code wrote to stdout is lost: there is no room for it in /dev")


def test_a_file_that_is_just_being_opened_has_nothing_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    file = CapturedFile(descriptor, "stdout", tmp_path / "stdout")
    plain, sizes = os.open, list[int]()

    def opened(*args: object) -> int:
        made = plain(*args)  # type: ignore[arg-type]
        sizes.append(file.size())  # as the link's thread does at any time
        return made

    with monkeypatch.context() as patch:
        patch.setattr(captured_file.os, "open", opened)
        file.claim()
    assert sizes == [0, 0]
    os.write(descriptor, b"text")
    assert file.read(file.size(), final=True) == "text"
    os.close(descriptor)


@pytest.mark.parametrize("kept", [True, False])
def test_what_the_notebook_has_heard_takes_no_space_any_more(tmp_path: Path, kept: bool) -> None:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    file = CapturedFile(descriptor, "stdout", tmp_path / "stdout")
    file.claim()
    lines = "x" * (1 << 20)
    for _ in range(4):
        if kept:
            file.keep(lines)
        else:
            os.write(descriptor, lines.encode())
        while file.read(file.size(), final=False):
            pass
    heard = file.taken - 1000  # the rest may still be wanted, if the process ends now
    assert heard < file.due, "not yet"
    file.release(heard)
    assert file.due > heard + (1 << 25)
    stat = (tmp_path / "stdout").stat()
    assert stat.st_size == 4 << 20
    assert stat.st_blocks * 512 <= (1 << 20) + (1 << 17), "but for what is reserved for others"
    assert (tmp_path / "stdout").read_bytes()[heard:] == b"x" * 1000
    os.close(descriptor)
