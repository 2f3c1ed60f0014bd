"""The daemon's ends of connections over the link's keys: to the notebook, and between the daemons of nodes."""

from __future__ import annotations

import zmq

from ..world_info import LinkInfo

_BEAT, _SILENCE = 1000, 3000
"""Milliseconds between heartbeats over TCP, and without one until either end gives the connection up."""


def dealer(context: zmq.Context[zmq.Socket[bytes]], server: str, info: LinkInfo) -> zmq.Socket[bytes]:
    """Make a DEALER that connects by CURVE, as often as it must; nothing that it sends is dropped for its number.

    If the other end refuses its key, ZeroMQ gives this connection up: sending raises `zmq.Again` then. Else it would
    wait for ever, and with it a thread that all ranks of the node need.

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
    made.setsockopt(zmq.SNDTIMEO, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.RECONNECT_IVL, 50)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return made


def door(context: zmq.Context[zmq.Socket[bytes]], host: str, secret: bytes) -> zmq.Socket[bytes]:
    """Make a ROUTER to which daemons of other nodes connect, at a port that the system chooses.

    Args:
        context: for the socket; `Keys` guards it.
        host: the address of this machine at which they reach it.
        secret: its own secret key.

    Raises:
        zmq.ZMQError: this machine has no such address.
    """
    made = context.socket(zmq.ROUTER)
    made.setsockopt(zmq.CURVE_SERVER, 1)
    made.setsockopt(zmq.CURVE_SECRETKEY, secret)
    made.setsockopt(zmq.SNDHWM, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    beat(made)
    made.bind(f"tcp://{host}:*")
    return made


def beat(link: zmq.Socket[bytes]) -> None:
    """Let a socket notice a dead machine or a network that is cut, which end no connection."""
    link.setsockopt(zmq.HEARTBEAT_IVL, _BEAT)
    link.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE)
    link.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE)
