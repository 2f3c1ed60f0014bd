from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm import protocol
from nbcomm.protocol import FromRank, ToRank
from nbcomm.protocol.codec import decode_from_rank, decode_to_rank, encode

PLACE = protocol.RankPlacement(1, 4, 1, 4, 0, 1, "cuda:1", "cpu:gloo,cuda:nccl", 2)
BLOB = protocol.Payload(b"\x80\x05N.", [3, 0], "where/it/lies")
DOING = protocol.CollectiveState(
    {"": 3, "pair": 1},
    [protocol.MessageCount("", 2, 7, 1)],
    [protocol.MessageCount("", None, 0, 2)],
    [
        protocol.PendingCall(
            "collective", "all_reduce", "", "0,1", 3, "float32 (4,), sum", "cell 5 line 2", 1e9, None, 0
        )
    ],
    "cell 5 line 2",
    1,
)

TO_RANK: list[ToRank] = [
    protocol.FormGroups(1, PLACE, 2, "127.0.0.1", 29500, 1800.0, "3", "1"),
    protocol.Run(2, "x = 1\n", "0,1", 7),
    protocol.Push(3, BLOB),
    protocol.Pull(4, ["x", "ünïcode"]),
    protocol.Call(5, BLOB, "0"),
    protocol.IntrospectRequest(6, "complete", "x.ünïcode", 9, 1),
    protocol.InputReply(2, 1, "Ünï", ""),
    protocol.CommToRank("msg", "c0ffee", {"method": "update", "state": {"value": 3}}, {"version": "2"}, [b"\x00"]),
    protocol.DescribeVariables(6, ["x", "model.fc.weight"], hashes=False),
    protocol.SendVariable(7, "grads[0]"),
    protocol.CompareVariable(8, "grads[0]", BLOB, 1e-6),
    protocol.Interrupt(2),
    protocol.Abort(2, 1, "HangError", "all_reduce can never complete."),
    protocol.StatusRequest(3),
    protocol.Greet(asks=True),
    protocol.Register('{"key": "k"}'),
    protocol.Stop(),
]
FROM_RANK: list[FromRank] = [
    protocol.Hello(1, 4242, "node-a", 2, "2.13.0"),
    protocol.Hello(1, 4242, "node-a", 2, "2.13.0", attached=True, run=2, ranks="0,1", asks=False),
    protocol.Output(
        2,
        [
            protocol.Text("stdout", "hello\n"),
            protocol.Text("stderr", "late\n", late=True),
            protocol.Display({"text/plain": "<Figure>"}, {"isolated": True}, "id-1", update=True),
            protocol.Result({"text/plain": "6"}),
            protocol.Clear(wait=True),
            protocol.CommFromRank(
                "open", "c0ffee", {"state": {}}, {"version": "2"}, "jupyter.widget", [b"\x00"], late=True
            ),
        ],
    ),
    protocol.InputRequest(2, 1, "ipdb> ", hidden=True, dialogue=True),
    protocol.InputCancelled(2, 1),
    protocol.Registered("", "no ports left"),
    protocol.Done(
        2,
        0.5,
        protocol.Failure("ValueError", "no", "Traceback …"),
        interrupted=True,
        blob=BLOB,
        broken=True,
        doing=DOING,
    ),
    protocol.Mismatch(2, 1, "all_reduce #3 is not the same on all ranks."),
    protocol.IntrospectReply(6, {"matches": ["x.ünïcode"], "cursor_start": 0, "metadata": {"types": []}}),
    protocol.StatusReply(1, 4242, "waiting", 1e9, None, 10**11, 0, 0, 2, DOING),
]


@pytest.mark.parametrize("message", TO_RANK, ids=lambda message: type(message).__name__)
def test_what_the_notebook_sends_arrives_as_it_was(message: ToRank) -> None:
    assert decode_to_rank(encode(message)) == message


@pytest.mark.parametrize("message", FROM_RANK, ids=lambda message: type(message).__name__)
def test_what_a_rank_sends_arrives_as_it_was(message: FromRank) -> None:
    assert decode_from_rank(encode(message)) == message


def test_every_message_is_among_those_tried_here() -> None:
    assert {type(message) for message in TO_RANK} == set(get_args(ToRank))
    assert {type(message) for message in FROM_RANK} == set(get_args(FromRank))


def test_a_frame_is_read_from_a_view_as_well() -> None:
    assert decode_to_rank(memoryview(encode(protocol.StatusRequest()))) == protocol.StatusRequest()


@pytest.mark.parametrize("message", FROM_RANK, ids=lambda message: type(message).__name__)
def test_a_rank_refuses_what_only_ranks_send(message: FromRank) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_rank(encode(message))


@pytest.mark.parametrize("message", TO_RANK, ids=lambda message: type(message).__name__)
def test_the_notebook_refuses_what_only_notebooks_send(message: ToRank) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_from_rank(encode(message))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x80\x05N.",  # a pickle
        msgspec.msgpack.encode({"type": "Stop"}),
        msgspec.msgpack.encode(["Unheard"]),
        msgspec.msgpack.encode(["Run", 1]),  # too short
        msgspec.msgpack.encode(["Run", "1", "x", "0", 1]),  # a text where a number belongs
        msgspec.msgpack.encode(["Stop"]) + b"more",
    ],
)
def test_anything_else_is_refused(frame: bytes) -> None:
    for decode in (decode_to_rank, decode_from_rank):
        with pytest.raises(msgspec.DecodeError):
            decode(frame)


@given(st.binary(max_size=64))
def test_noise_is_a_message_or_a_decode_error(noise: bytes) -> None:
    try:
        message = decode_to_rank(noise)
    except msgspec.DecodeError:
        return
    assert isinstance(message, get_args(ToRank))


@given(st.text(), st.booleans())
def test_text_keeps_every_character(text: str, late: bool) -> None:
    sent = protocol.Output(1, [protocol.Text("stdout", text, late)])
    assert decode_from_rank(encode(sent)) == sent


def test_what_has_no_place_in_msgpack_is_replaced_and_never_lost() -> None:
    data = {"text/plain": "x", "n": 2**70, "o": {1j}}
    items = [protocol.Text("stdout", "half \ud800 character"), protocol.Result(data)]
    output = decode_from_rank(encode(protocol.Output(1, items)))
    assert isinstance(output, protocol.Output)
    assert output.items == [
        protocol.Text("stdout", "half ? character"),
        protocol.Result({"text/plain": "x", "n": str(2**70), "o": ["1j"]}),
    ]
