"""Messages that lost a frame for lack of memory: each is known by its beginning, and what waits for it is answered."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm import protocol
from nbcomm.protocol import Done, Failure, InputReply, IntrospectReply, Output, Payload, Push, Run
from nbcomm.protocol.chunks import Lost
from nbcomm.protocol.codec import decode_from_rank, encode, from_frames, to_frames
from nbcomm.protocol.losses import answer_lost, begins_with, bytes_lost, instead, request_lost

NUMBERS = [0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -1, -32, -33, -129, -70_000]


def lost(frame: Any, size: int = 0) -> Lost:
    return Lost(size or len(frame), bytes(frame[:64]))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_name_and_the_number_of_a_message_are_in_its_first_bytes(number: int) -> None:
    large = "x" * 100_000
    for message in (
        Push(number, Payload(large.encode())),
        Run(number, large, "0", 1),
        Done(number, failure=Failure("E", large, "")),
        Output(number, []),
        InputReply(number, 1, large),
    ):
        frame = encode(message)
        for start in (frame, memoryview(frame), lost(frame)):
            assert begins_with(start) == (type(message).__name__, number)


def test_the_longest_names_are_read_too() -> None:
    names = [name for name in protocol.__all__ if len(name) > 15]
    assert names
    assert all(len(name) < 32 for name in protocol.__all__)
    for name in names:
        assert begins_with(msgspec.msgpack.encode([name, 5, "x"])) == (name, 5)
    assert begins_with(msgspec.msgpack.encode(["IntrospectRequest", 5, *range(20)])) == ("IntrospectRequest", 5)


@given(st.binary(max_size=70))
def test_any_other_beginning_is_none(start: bytes) -> None:
    name, number = begins_with(Lost(1000, start[:64]))
    assert isinstance(name, str)
    assert isinstance(number, int)
    assert begins_with(b"") == begins_with(b"\x92\xa4Push") == begins_with(b"\x92\xa4P") == ("", 0)
    assert begins_with(msgspec.msgpack.encode(["Mismatch", None, 1])) == ("", 0)


def test_what_was_lost_is_counted() -> None:
    assert bytes_lost([b"abc", memoryview(b"d")]) == 0
    assert bytes_lost([b"abc", Lost(5, b""), b"", Lost(7, b"")]) == 12


def sentence(failure: Failure | None) -> str:
    assert failure is not None
    assert failure.name == "TransferError"
    assert failure.traceback == f"TransferError: {failure.message}"
    return failure.message


def test_a_failure_tells_the_rank_the_bytes_and_what_to_do() -> None:
    for text in (sentence(request_lost(2, 123_456_789)), sentence(answer_lost(2, 123_456_789))):
        assert re.search(r"\brank 2\b", text, re.IGNORECASE)
        assert "123,456,789 bytes" in text
        assert "variables of the rank are kept" in text
        assert text.endswith("at once.")


def passed_on(frames: list[Any]) -> Any:
    return from_frames(decode_from_rank(frames[0]), frames[1:])


def test_an_answer_whose_values_are_lost_keeps_the_rest() -> None:
    done = Done(7, 0.5, blob=Payload(b"p", [1 << 30]), began=3.0, notes=["a note"], broken=False)
    first, times, _ = to_frames(done, [b"large"])
    got, buffers = passed_on(instead(2, [first, times, Lost(1 << 30, b"large")]))
    assert sentence(got.failure) == sentence(answer_lost(2, 1 << 30))
    assert (got.id, got.blob, got.notes, got.broken, buffers) == (7, None, ["a note"], False, [])
    assert (got.seconds, got.began) == (0.5, 3.0)


def test_an_answer_that_is_lost_itself_leaves_groups_that_are_formed_again() -> None:
    first, times = to_frames(Done(7, 0.5, blob=Payload(b"p" * 1000)))
    got, buffers = passed_on(instead(2, [lost(first), times]))
    assert sentence(got.failure) == sentence(answer_lost(2, len(first)))
    assert (got.id, got.broken, got.dropped, buffers) == (7, True, -1, [])


@pytest.mark.parametrize("second", [Lost(16, b""), b"short"])
def test_an_answer_whose_times_are_lost_is_one_that_is_lost(second: Any) -> None:
    first, _ = to_frames(Done(7, 0.5))
    got, _ = passed_on(instead(2, [first, second, Lost(100, b"")]))
    assert (got.id, got.failure, got.broken) == (7, answer_lost(2, 116 if isinstance(second, Lost) else 100), True)


def test_a_failure_is_not_replaced_by_its_loss() -> None:
    failed = Failure("ValueError", "its own", "ValueError: its own")
    first, times = to_frames(Done(7, failure=failed))
    got, _ = passed_on(instead(2, [first, times, Lost(1 << 30, b"")]))
    assert got.failure == failed


def test_output_that_is_lost_is_told() -> None:
    frame = encode(Output(5, [protocol.Text("stdout", "x" * 2_000_000)]))
    got, _ = passed_on(instead(2, [lost(frame)]))
    assert got == Output(
        5, [protocol.Text("stderr", f"({len(frame):,} bytes of output are lost: not enough memory)\n")]
    )


def test_what_is_typed_is_not_kept_waiting() -> None:
    got, _ = passed_on(instead(2, [lost(encode(IntrospectReply(4, {"matches": ["x"] * 1000})))]))
    assert got == IntrospectReply(4, {})


def test_what_nobody_waits_for_only_keeps_its_place() -> None:
    assert instead(2, [Lost(1 << 30, b"\xff" * 64)]) == [b""]
    assert instead(2, [lost(encode(protocol.Mismatch(1, 2, "x" * 1000)))]) == [b""]
