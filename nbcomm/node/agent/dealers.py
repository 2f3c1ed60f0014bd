"""The agent's ends of connections to others: to the notebook, and to the agents of other nodes."""

from __future__ import annotations

import zmq

from ...world_dir import LinkInfo

_BEAT, _SILENCE = 1000, 3000
"""Milliseconds between heartbeats over TCP, and without one until either end gives the connection up."""


def dealer(context: zmq.Context[zmq.Socket[bytes]], server: str, info: LinkInfo) -> zmq.Socket[bytes]:
    """Make a DEALER that connects by CURVE, as often as it must; nothing that it sends is dropped for its number.

    Args:
        context: for the socket.
        server: the public key of the other end, in Z85 text.
        info: has the node's own keys.
    """
    made = context.socket(zmq.DEALER)
    made.setsockopt_string(zmq.CURVE_SERVERKEY, server)
    made.setsockopt_string(zmq.CURVE_PUBLICKEY, info.client_public)
    made.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.SNDHWM, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.RECONNECT_IVL, 50)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return made


def beat(link: zmq.Socket[bytes]) -> None:
    """Let a socket notice a dead machine or a network that is cut, which end no connection."""
    link.setsockopt(zmq.HEARTBEAT_IVL, _BEAT)
    link.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE)
    link.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE)
