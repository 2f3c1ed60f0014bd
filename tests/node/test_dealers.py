"""The agent's ends of connections over the link's keys."""

from __future__ import annotations

import time

import pytest
import zmq

from nbcomm.node.dealers import dealer, door
from nbcomm.node.keys import Keys
from nbcomm.world_info import LinkInfo


def _send_for(seconds: float, link: zmq.Socket[bytes]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        link.send(b"a word")
        time.sleep(0.01)


def test_who_is_refused_does_not_wait_for_ever() -> None:
    inside, outside = zmq.Context(), zmq.Context()
    guard = Keys(inside, {})
    (public, secret), (own_public, own_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    try:
        opened = door(inside, "127.0.0.1", secret)
        link = dealer(outside, public.decode(), LinkInfo("", "", own_public.decode(), own_secret.decode()))
        fate = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED)
        link.connect(opened.get_string(zmq.LAST_ENDPOINT))
        assert fate.poll(10_000)
        with pytest.raises(zmq.Again):
            _send_for(10, link)
    finally:
        guard.stop()
        outside.destroy(linger=0)
        inside.destroy(linger=0)
