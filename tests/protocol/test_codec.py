from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.protocol import FromRank, ToRank, messages
from nbcomm.protocol.codec import decode_from_rank, decode_to_rank, encode

PLACE = messages.RankPlacement(1, 4, 1, 4, 0, 1, "cuda:1", "cpu:gloo,cuda:nccl", 2)
BLOB = messages.Payload(b"\x80\x05N.", [3, 0], "where/it/lies")
DOING = messages.CollectiveState(
    {"": 3, "pair": 1},
    [messages.MessageCount("", 2, 7, 1)],
    [messages.MessageCount("", None, 0, 2)],
    [
        messages.PendingCall(
            "collective", "all_reduce", "", [0, 1], 3, "float32 (4,), sum", "cell 5 line 2", 1e9, None, 0
        )
    ],
    "cell 5 line 2",
    1,
)

TO_RANK: list[ToRank] = [
    messages.FormGroups(1, PLACE, "store0.sock", True, 2, "127.0.0.1", 29500, 1800.0, "board", [3], [1]),
    messages.Run(2, "x = 1\n", [0, 1], 7),
    messages.Push(3, BLOB),
    messages.Pull(4, ["x", "ünïcode"]),
    messages.Call(5, BLOB, [0]),
    messages.IntrospectRequest(6, "complete", "x.ünïcode", 9, 1),
    messages.InputReply(2, 1, "Ünï", ""),
    messages.CommToRank("msg", "c0ffee", {"method": "update", "state": {"value": 3}}, {"version": "2"}, [b"\x00"]),
    messages.DescribeVariables(6, ["x", "model.fc.weight"], hashes=False),
    messages.SendVariable(7, "grads[0]"),
    messages.CompareVariable(8, "grads[0]", BLOB, 1e-6),
    messages.Interrupt(2),
    messages.Abort(2, 1, "HangError", "all_reduce can never complete."),
    messages.StatusRequest(9, 3),
    messages.Stop(),
]
FROM_RANK: list[FromRank] = [
    messages.Hello(1, 4242, "node-a", 2, "2.13.0"),
    messages.Attached(1),
    messages.Resume(2, [0, 1]),
    messages.Output(
        2,
        [
            messages.Text("stdout", "hello\n"),
            messages.Text("stderr", "late\n", late=True),
            messages.Display({"text/plain": "<Figure>"}, {"isolated": True}, "id-1", update=True),
            messages.Result({"text/plain": "6"}),
            messages.Clear(wait=True),
            messages.CommFromRank(
                "open", "c0ffee", {"state": {}}, {"version": "2"}, "jupyter.widget", [b"\x00"], late=True
            ),
        ],
    ),
    messages.InputRequest(2, 1, "ipdb> ", hidden=True, dialogue=True),
    messages.InputCancelled(2, 1),
    messages.Done(
        2,
        0.5,
        messages.Failure("ValueError", "no", "Traceback …"),
        interrupted=True,
        blob=BLOB,
        broken=True,
        doing=DOING,
    ),
    messages.Mismatch(2, 1, "all_reduce #3 is not the same on all ranks."),
    messages.IntrospectReply(6, {"matches": ["x.ünïcode"], "cursor_start": 0, "metadata": {"types": []}}),
    messages.StatusReply(1, 4242, "waiting", 1e9, None, 10**11, 0, 0, 2, DOING),
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
    assert decode_to_rank(memoryview(encode(messages.StatusRequest()))) == messages.StatusRequest()


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
        msgspec.msgpack.encode(["Run", "1", "x", [0], 1]),  # a text where a number belongs
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
    sent = messages.Output(1, [messages.Text("stdout", text, late)])
    assert decode_from_rank(encode(sent)) == sent


def test_what_has_no_place_in_msgpack_is_replaced_and_never_lost() -> None:
    data = {"text/plain": "x", "n": 2**70, "o": {1j}}
    items = [messages.Text("stdout", "half \ud800 character"), messages.Result(data)]
    output = decode_from_rank(encode(messages.Output(1, items)))
    assert isinstance(output, messages.Output)
    assert output.items == [
        messages.Text("stdout", "half ? character"),
        messages.Result({"text/plain": "x", "n": str(2**70), "o": ["1j"]}),
    ]
