"""Parcels: what goes in comes out in its order, equal frames travel once, and rubbish is refused in one way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from nbcomm.protocol.parcels import ITSELF, NO_HEADER, Letter, pack, unpack

from ..laws import examples

COMPARED = 1 << 16  # bytes of the largest frame that is compared by its content


def plain(letters: Sequence[Letter]) -> list[tuple[int, bytes, list[bytes], bool]]:
    return [(rank, header, [bytes(frame) for frame in frames], asks) for rank, header, frames, asks in letters]


def test_letters_come_out_in_their_order() -> None:
    letters = [
        Letter(2, b"head", [b"text", b"raw", b""], asks=True),
        Letter(ITSELF, NO_HEADER, [b"order"]),
        Letter(0, b"other head", [b"text", b"text"]),
        Letter(2, b"head", []),
    ]
    assert unpack(pack(letters)) == letters


def test_an_empty_parcel_has_no_letters() -> None:
    assert len(pack([])) == 1
    assert unpack(pack([])) == []


def test_equal_frames_travel_once() -> None:
    said = b"the same"
    parcel = pack(Letter(rank, b"h%d" % rank, [bytes(bytearray(said)), b"%d" % (rank % 2)]) for rank in range(100))
    assert parcel[1:] == [said, b"0", b"1"]
    assert unpack(parcel)[99] == Letter(99, b"h99", [said, b"1"])


@pytest.mark.parametrize(("size", "copies"), [(COMPARED, 1), (COMPARED + 1, 2)])
def test_large_frames_are_not_compared(size: int, copies: int) -> None:
    one, same, other = b"x" * size, b"x" * size, b"x" * (size - 1) + b"y"
    parcel = pack([Letter(0, b"", [one]), Letter(1, b"", [same]), Letter(2, b"", [one, other])])
    assert len(parcel) == 1 + copies + 1
    assert unpack(parcel) == [Letter(0, b"", [one]), Letter(1, b"", [same]), Letter(2, b"", [one, other])]


def test_the_very_same_frame_travels_once_whatever_it_is() -> None:
    large, array, view, frame = b"x" * (1 << 20), bytearray(b"array"), memoryview(b"view"), zmq.Frame(b"frame")
    for frames in ([large], [array], [view], [frame], [large, array, view, frame]):
        letters = [Letter(rank, b"", frames) for rank in range(3)]
        parcel = pack(letters)
        assert [id(each) for each in parcel[1:]] == [id(each) for each in frames]
        assert plain(unpack(parcel)) == plain(letters)


def test_what_may_still_change_is_not_compared() -> None:
    one, other = bytearray(b"same"), bytearray(b"same")
    parcel = pack([Letter(0, b"", [one, other, b"same", memoryview(b"same")])])
    assert [id(each) for each in parcel[1:3]] == [id(one), id(other)]
    assert len(parcel) == 5


def test_letters_may_be_made_one_by_one() -> None:
    """Each is gone when the next is made, and another frame may be where its frame was."""

    def letters() -> Iterator[Letter]:
        for number in range(1000):
            yield Letter(number, b"", [b"one of %d" % (number % 10), b"a frame of its own: %d" % number])

    assert unpack(pack(letters())) == list(letters())


def test_frames_may_come_from_zmq() -> None:
    letters = [Letter(rank, b"h", [b"text", b"r" * rank, b"x" * COMPARED * 2]) for rank in range(3)]
    parcel = pack(letters)
    for turned in ([zmq.Frame(frame) for frame in parcel], [memoryview(frame) for frame in parcel]):
        assert plain(unpack(turned)) == plain(letters)


_FRAMES = st.lists(st.sampled_from([b"", b"a", b"b", b"a" * COMPARED, b"a" * (COMPARED + 1)]) | st.binary(max_size=3))


@examples(100)
@given(
    st.lists(st.builds(Letter, st.integers(-1, 5), st.binary(max_size=20), _FRAMES, asks=st.booleans()), max_size=8),
    st.booleans(),
)
def test_whatever_goes_in_comes_out(letters: list[Letter], copied: bool) -> None:
    parcel = pack(letters)
    small = {frame for letter in letters for frame in letter.frames if len(frame) <= COMPARED}
    assert sorted(frame for frame in parcel[1:] if len(frame) <= COMPARED) == sorted(small)
    assert unpack([memoryview(bytearray(frame)) for frame in parcel] if copied else parcel) == letters


# ── what is no parcel ───────────────────────────────────────────────────────────────────────────────


def listed(*addresses: Any) -> bytes:
    return msgspec.msgpack.encode(list(addresses))


NO_PARCELS = {
    "no frame": [],
    "an empty frame": [b""],
    "rubbish": [b"rubbish"],
    "a frame is missing": [listed([0, b"", [1]])],
    "another frame is missing": [listed([0, b"", [2]]), b"only one"],
    "one of two is missing": [listed([0, b"", [1, 2]]), b"only one"],
    "the list itself": [listed([0, b"", [0]]), b"a frame"],
    "from the end": [listed([0, b"", [-1]]), b"a frame"],
    "a huge place": [listed([0, b"", [1 << 63]]), b""],
    "no places": [listed([0, b""]), b"a frame"],
    "no rank": [listed(["0", b"", []])],
    "text for a header": [listed([0, "", []])],
    "a place that is no number": [listed([0, b"", [True]]), b""],
    "a flag that is none": [listed([0, b"", [], 1])],
    "something behind": [listed([0, b"", []]) + b"\x00"],
    "endless": [b"\xdd\xff\xff\xff\xff"],
    "deep": [b"\x91" * 100_000],
    "deep where a later version has more": [b"\x91\x95\x00\xc4\x00\x90\xc2" + b"\x91" * 100_000],
}


@pytest.mark.parametrize("parcel", NO_PARCELS.values(), ids=NO_PARCELS.keys())
def test_what_is_no_parcel_is_refused(parcel: list[bytes]) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack(parcel)


@pytest.mark.parametrize(
    ("parcel", "why"),
    [
        ("no frame", r"^A parcel has at least one frame\.$"),
        ("a frame is missing", r"^A parcel lacks a frame of a letter\.$"),
        ("deep where a later version has more", "recursion"),
    ],
)
def test_the_error_says_what_is_wrong(parcel: str, why: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=why):
        unpack(NO_PARCELS[parcel])


def test_a_later_version_may_say_more_about_a_letter() -> None:
    assert unpack([listed([0, b"", [1], True, "more"]), b"frame"]) == [Letter(0, b"", [b"frame"], asks=True)]


@examples(500)
@given(st.lists(st.binary(max_size=40) | st.just(pack([Letter(0, b"h", [b"a"])])[0]), max_size=3))
@example([b"\x91\x95\x01\xc4\x00\x90\xc3\xa1\xff"])
def test_bytes_that_nobody_meant_raise_no_other_error(parcel: list[bytes]) -> None:
    with suppress(msgspec.DecodeError):
        for letter in unpack(parcel):
            assert all(frame in parcel[1:] for frame in letter.frames)


@examples(300)
@given(st.binary(min_size=1, max_size=4), st.integers(0, 60), st.sampled_from(["change", "cut", "insert"]))
def test_a_parcel_that_was_damaged_raises_no_other_error(damage: bytes, at: int, how: str) -> None:
    head, *frames = pack([Letter(rank, b"header", [b"a", b"%d" % rank], asks=True) for rank in range(4)])
    if how == "change":
        head = head[:at] + damage + head[at + len(damage) :]
    else:
        head = head[:at] + (damage + head[at:] if how == "insert" else b"")
    with suppress(msgspec.DecodeError):
        for letter in unpack([head, *frames]):
            assert all(frame in frames for frame in letter.frames)
