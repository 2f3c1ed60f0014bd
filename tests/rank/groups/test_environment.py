"""The environment of a rank's process."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from nbcomm.errors import StartError
from nbcomm.rank.groups.environment import interface_of


def test_the_interface_is_the_one_that_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_of("127.0.0.1") in {"lo", "lo0"}
    addresses = {
        "eth0": [SimpleNamespace(address="10.0.0.1"), SimpleNamespace(address="fe80::1%eth0")],
        "ib0": [SimpleNamespace(address="10.1.0.1")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert interface_of("10.1.0.1") == "ib0"
    assert interface_of("fe80::1") == "eth0"
    with pytest.raises(
        StartError, match=rf"^No network interface of {socket.gethostname()} has the address 10\.2\.0\.1"
    ):
        interface_of("10.2.0.1")
