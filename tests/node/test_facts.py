"""What a node offers to ranks."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nbcomm.node import facts
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo


def link(address: str, *, tunnelled: bool = False) -> LinkInfo:
    return LinkInfo(address, "", "", "", tunnelled=tunnelled)


def test_the_address_is_the_one_on_the_way_to_the_notebook() -> None:
    assert facts.address_towards(link("ipc:///tmp/link.sock")) == "127.0.0.1"
    assert facts.address_towards(link("tcp://127.0.0.1:4711")) == "127.0.0.1"
    assert facts.address_towards(link("tcp://[::1]:4711")) == "::1"


def test_through_a_tunnel_the_address_is_the_one_at_which_ssh_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.77.0.1 40000 10.77.0.11 22")
    assert facts.address_towards(link("ipc:///tmp/link.sock", tunnelled=True)) == "10.77.0.11"
    monkeypatch.delenv("SSH_CONNECTION")
    assert facts.address_towards(link("ipc:///tmp/link.sock", tunnelled=True)) == "127.0.0.1"


def test_a_node_tells_where_it_is_and_what_runs_there() -> None:
    told = facts.of_node(7, WorldDir(Path("/tmp/somewhere")), link("tcp://127.0.0.1:4711"))  # noqa: S108 - only a name
    assert (told.number, told.host, told.home, told.address) == (7, socket.gethostname(), "/tmp/somewhere", "127.0.0.1")  # noqa: S108
    assert set(told.versions) == {"Python", "nbcomm"}
