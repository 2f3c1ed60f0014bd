"""The protocol of the link between the notebook and a rank: messages, their encoding, and pickled values.

A message is one ZMQ multipart: the encoded struct first, then its raw buffers (for example the tensors of a `Push`),
which are never copied into the struct.
"""

from __future__ import annotations

from .collectives import CallRecord, CollectiveState, MessageCount, PendingCall
from .common import Failure, Payload, RankPlacement
from .output import LIVE, Clear, CommFromRank, Display, Item, Result, Text
from .reports import (
    Attached,
    Done,
    FromRank,
    Hello,
    InputCancelled,
    InputRequest,
    IntrospectReply,
    Mismatch,
    Output,
    Resume,
    StatusReply,
)
from .requests import (
    Abort,
    Call,
    CommToRank,
    CompareVariable,
    DescribeVariables,
    FormGroups,
    InputReply,
    Interrupt,
    IntrospectRequest,
    MainLoopRequest,
    Pull,
    Push,
    Run,
    SendVariable,
    StatusRequest,
    Stop,
    ToRank,
)

__all__ = [
    "LIVE",
    "Abort",
    "Attached",
    "Call",
    "CallRecord",
    "Clear",
    "CollectiveState",
    "CommFromRank",
    "CommToRank",
    "CompareVariable",
    "DescribeVariables",
    "Display",
    "Done",
    "Failure",
    "FormGroups",
    "FromRank",
    "Hello",
    "InputCancelled",
    "InputReply",
    "InputRequest",
    "Interrupt",
    "IntrospectReply",
    "IntrospectRequest",
    "Item",
    "MainLoopRequest",
    "MessageCount",
    "Mismatch",
    "Output",
    "Payload",
    "PendingCall",
    "Pull",
    "Push",
    "RankPlacement",
    "Result",
    "Resume",
    "Run",
    "SendVariable",
    "StatusReply",
    "StatusRequest",
    "Stop",
    "Text",
    "ToRank",
]
