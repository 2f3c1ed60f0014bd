"""Text is read whole, wherever its bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.rank.output.captured_file import whole_characters


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
