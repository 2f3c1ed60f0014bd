"""A node with keys and a directory of its own, whose ranks are in the process of the test."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from nbcomm.node.dealers import Connection, Outward
from nbcomm.protocol import Listener, ServeGroups, Serving
from nbcomm.protocol.nodes import rank_name
from nbcomm.rank.groups.store_ways import FarWay
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from .loops import ServedGroups


class RankKeys:
    """The keys of a process of a rank, and its connections."""

    def __init__(self, rank: int, start: int = 1) -> None:
        self.public, secret = (key.decode() for key in zmq.curve_keypair())
        self.name = rank_name(rank, start)
        self._outward = Outward(LinkInfo("", "", self.public, secret))
        self.connect = self._outward.open()

    def close(self) -> None:
        """Close what is open: the end of a context waits for that."""
        assert self._outward._context is not None
        self._outward._context.destroy(linger=0)


class ServedNode:
    """A node, with what its daemon serves."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.public, secret = (key.decode() for key in zmq.curve_keypair())
        self.home = WorldDir.create()
        self.info = LinkInfo("", "", self.public, secret)
        self.orders = 0
        self.ranks: dict[int, RankKeys] = {}
        self._all: set[RankKeys] = set()
        self.served = ServedGroups(self.home, self.info)
        self.address = ""

    def serve(self, generation: int, *, ranks: Sequence[int] = (), store: bool = True, again: bool = False) -> Serving:
        """Serve a generation with these ranks on other nodes."""
        self.orders += 1
        for rank in ranks:
            self._all.add(self.ranks.setdefault(rank, RankKeys(rank)))
        order = ServeGroups(
            self.orders,
            generation,
            store,
            self.address or "tcp://127.0.0.1:*",
            {self.ranks[rank].public: self.ranks[rank].name for rank in ranks},
            [*ranks],
            again,
        )
        answer = self.served.obey(order)
        self.address = answer.address
        return answer

    def replace_daemon(self) -> None:
        """Let another daemon take the place of this one; it serves nothing yet."""
        self.served.close()
        self.served = ServedGroups(self.home, self.info)

    def listener(self, address: str = "") -> Listener:
        """Where ranks of other nodes reach it."""
        return Listener(self.number, address or self.address, self.public)

    def connection(self, rank: int) -> Connection:
        """A connection of a rank on another node."""
        return self.ranks[rank].connect(self.listener())

    def way(self, rank: int, generation: int, address: str = "") -> FarWay:
        """The way of a rank on another node to the store."""
        return FarWay(self.ranks[rank].connect, self.listener(address), generation)

    def close(self) -> None:
        """Serve nobody any more."""
        for keys in self._all:
            keys.close()
        self.served.close()
        self.home.remove()
