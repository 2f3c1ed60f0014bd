"""Parts of the messages in both directions."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A message, encoded as an array with the class's name first: smaller than a map, and unknown types are refused."""


LOOPBACK = "127.0.0.1"
"""The address of a node that no other one needs to reach."""


class RankPlacement(msgspec.Struct, array_like=True, frozen=True):
    """The place of one rank; the numbers are torchrun's.

    ``device`` is as for `torch.device`: ``"cpu"`` or ``"cuda:1"``. ``address`` is the one of its node at which other
    ranks reach it. ``sharing`` counts the ranks of that node on this GPU.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    device: str
    backend: str
    threads: int
    address: str = LOOPBACK
    sharing: int = 1


class Listener(msgspec.Struct, array_like=True, frozen=True):
    """Where a node's daemon takes what ranks of other nodes say; ``public`` is its CURVE key, in Z85 text."""

    node: int
    address: str
    public: str


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An exception as its rank rendered it; ``traceback`` may contain ANSI colours."""

    name: str
    message: str
    traceback: str


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """A pickled value. Its out-of-band buffers travel as frames, or in a file when ``path`` is set.

    ``sizes`` are the buffers' lengths in bytes, in order.
    """

    pickled: bytes
    sizes: list[int] = []
    path: str = ""
