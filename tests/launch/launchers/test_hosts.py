"""The hosts of a world: how they are written, and how many ranks each gets."""

from __future__ import annotations

import socket
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers import hosts
from nbcomm.launch.launchers.hosts import Host, address_towards, check_address, counts, parse


def test_hosts_are_what_ssh_takes() -> None:
    assert parse("a:4, user@b.example.org:2,[fe80::1]:3,localhost") == [
        Host("localhost", None),
        Host("a", 4),
        Host("user@b.example.org", 2),
        Host("fe80::1", 3),
    ]
    assert [host.is_here for host in parse("a:1,127.0.0.1:3")] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--engines ssh needs hosts; write for example --hosts a:4,b:4."),
        (" , ", "--engines ssh needs hosts; write for example --hosts a:4,b:4."),
        ("a:x", "'a:x' is no host with a number of ranks; write for example --hosts a:4,b:4."),
        ("a:0", "'a:0' is no host with a number of ranks; write for example --hosts a:4,b:4."),
        ("a b:2", "'a b:2' is no host with a number of ranks; write for example --hosts a:4,b:4."),
        ("127.0.0.1:1,localhost:1", "localhost stands twice in --hosts; write each host once, with all of its ranks."),
        ("a:1,b:1,a:2", "a stands twice in --hosts; write each host once, with all of its ranks."),
        (
            "-oProxyCommand=x:1",
            "'-oProxyCommand=x:1' is no host with a number of ranks; write for example --hosts a:4,b:4.",
        ),
    ],
)
def test_what_is_no_list_of_hosts(text: str, said: str) -> None:
    with pytest.raises(StartError) as refused:
        parse(text)
    assert str(refused.value) == said


def test_each_host_gets_the_ranks_that_are_said() -> None:
    assert counts(parse("a:4,b:2"), None) == counts(parse("a:4,b:2"), 6) == [4, 2]
    assert counts(parse("a,b,c"), 8) == [3, 3, 2]


@pytest.mark.parametrize(
    ("text", "n", "said"),
    [
        ("a:4,b:2", 8, "--hosts has 6 ranks, and -n says 8"),
        ("a:4,b", 8, "Some hosts have a number of ranks and others have none"),
        ("a,b", None, "How many ranks?"),
        ("a,b,c", 2, "2 ranks cannot be shared out over 3 nodes"),
    ],
)
def test_numbers_that_are_missing_or_differ(text: str, n: int | None, said: str) -> None:
    with pytest.raises(StartError, match=said.replace("?", r"\?")):
        counts(parse(text), n)


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> list[list[str]]:
    """Let ssh say this; return what it is asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return SimpleNamespace(stdout=text)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_address_is_that_of_the_route_to_the_host_behind_the_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, "user somebody\nhostname 127.0.0.1\nport 22\n")
    assert address_towards("gpu") == "127.0.0.1"
    assert asked == [["ssh", "-G", "gpu"]]


def test_a_host_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "hostname nowhere.invalid\n")

    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(StartError, match=r"knows no host nowhere\.invalid \(Name or service not known\): is its name"):
        address_towards("gpu")


def test_a_host_to_which_no_way_leads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "hostname nowhere.invalid\n")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(StartError, match=r"has no route to nowhere\.invalid \(Network is unreachable\).*--address"):
        address_towards("gpu")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "localhost", "::1"])
def test_loopback_is_refused_where_another_machine_has_to_reach_it(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    answers(monkeypatch, "hostname 192.0.2.1\n")
    monkeypatch.setattr(hosts, "on_the_route_to", lambda _: "192.0.2.77")
    with pytest.raises(StartError, match=f"^--address {address} is the loopback address, at which b cannot reach this"):
        check_address(address, ["b"])
    check_address("192.0.2.77", ["b"])
    check_address("", ["b"])
    monkeypatch.setattr(hosts, "on_the_route_to", lambda _: "192.0.2.1")
    check_address(address, ["b"])  # it is this machine, by another name


def test_without_ssh_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "ssh")

    monkeypatch.setattr(hosts.subprocess, "run", fail)
    with pytest.raises(StartError, match=r"ssh could not be asked about gpu: .*Is it installed\?"):
        address_towards("gpu")
