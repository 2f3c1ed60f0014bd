"""The hosts of a world: how they are written, and how ssh reaches them."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ...errors import StartError
from ...node.peers import on_the_route_to
from ...world_info import Launcher
from ..placement import share_out

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
"""How a host is spoken to: without questions, which nobody could answer."""

HERE = ("localhost", "127.0.0.1")
"""Names of the notebook's own machine."""

_HOST = re.compile(r"(?!-)([^\s:,@]+@)?(\[[0-9a-fA-F:.]+\]|[^\s:,@\[\]]+)(?::(\d+))?")

_RESOLVED = 10.0
"""Seconds in which ssh must tell what is behind an alias."""


class Host(NamedTuple):
    """A host, as ssh takes it, and the number of its ranks; None if it was not written."""

    name: str
    ranks: int | None

    @property
    def is_here(self) -> bool:
        """Whether it is the notebook's own machine."""
        return self.name in HERE


def parse(text: str) -> list[Host]:
    """Read a list of hosts; the notebook's own machine comes first.

    >>> parse("a:4, user@b:2")
    [Host(name='a', ranks=4), Host(name='user@b', ranks=2)]

    Raises:
        StartError: it is none, or a host is named twice.
    """
    hosts = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        found = _HOST.fullmatch(word)
        if found is None or found[3] == "0":
            raise StartError(f"{word!r} is no host with a number of ranks; write for example --hosts a:4,b:4.")
        hosts.append(Host((found[1] or "") + found[2].strip("[]"), int(found[3]) if found[3] else None))
    if not hosts:
        raise StartError("--engines ssh needs hosts; write for example --hosts a:4,b:4.")
    names = [HERE[0] if host.is_here else host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StartError(f"{', '.join(twice)} stands twice in --hosts; write each host once, with all of its ranks.")
    return sorted(hosts, key=lambda host: not host.is_here)  # the notebook's machine is the first node


def counts(hosts: Sequence[Host], n: int | None) -> list[int]:
    """Decide how many ranks each host gets.

    Raises:
        StartError: that is not said, or is said in two ways that differ.
    """
    said = [host.ranks for host in hosts if host.ranks is not None]
    if len(said) == len(hosts):
        if n not in (None, sum(said)):
            raise StartError(f"--hosts has {sum(said)} ranks, and -n says {n}; leave one of them out.")
        return said
    if said:
        raise StartError("Some hosts have a number of ranks and others have none; write it for each, or for none.")
    if n is None:
        raise StartError("How many ranks? Write it for each host, as in --hosts a:4,b:4, or for all of them by -n.")
    return share_out(n, len(hosts))


def launcher_for(host: Host, python: str, via: str = "") -> Launcher:
    """Return how a program is started on another machine.

    Args:
        host: the machine.
        python: the interpreter there.
        via: the command in place of ssh, with ``{host}`` in it: "kubectl exec -i {host} --".

    Raises:
        StartError: ``{host}`` is missing.
    """
    if not via:
        return Launcher(python, host.name, [*SSH, host.name], as_text=True)
    if "{host}" not in via:
        raise StartError(f"--via {via!r} does not name the host; write it as {{host}}: 'kubectl exec -i {{host}} --'.")
    return Launcher(python, host.name, [word.replace("{host}", host.name) for word in shlex.split(via)])


def address_towards(host: str) -> str:
    """Return the address of this machine at which a host reaches it: that of the route there.

    Raises:
        StartError: ssh does not know the host.
    """
    return address_on_the_route(_resolved(host))


def address_on_the_route(name: str) -> str:
    """Return the address of this machine from which it sends to a host.

    Raises:
        StartError: no way leads there.
    """
    try:
        return on_the_route_to(name)
    except socket.gaierror as error:
        raise StartError(f"This machine knows no host {name} ({error.strerror}): is its name right?") from error
    except OSError as error:
        raise StartError(
            f"This machine has no route to {name} ({error.strerror or error}), so nbcomm does not know at which "
            "address the nodes reach this machine; name the address by --address."
        ) from error


def check_address(address: str, far: Sequence[str]) -> None:
    """Refuse an address of this machine at which other machines cannot reach it.

    Args:
        address: it, or nothing.
        far: the hosts that are to reach it, as ssh takes them.

    Raises:
        StartError: it is a loopback address, and one of them is another machine.
    """
    if not (address in (*HERE, "::1") or address.startswith("127.")):
        return
    other = next((host for host in far if not _is_this_machine(_resolved(host))), None)
    if other is not None:
        raise StartError(
            f"--address {address} is the loopback address, at which {other} cannot reach this machine; leave --address "
            "out, or name an address of this machine in the network of the hosts."
        )


def _is_this_machine(name: str) -> bool:
    """Whether a name is this machine's: then the system would send to its address from the same one."""
    try:
        return on_the_route_to(name) in {str(where[0]) for *_, where in socket.getaddrinfo(name, None)}
    except OSError:
        return False


def _resolved(host: str) -> str:
    """Return the name behind ssh's alias."""
    try:
        ask = ["ssh", "-G", host]
        asked = subprocess.run(ask, capture_output=True, text=True, timeout=_RESOLVED, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise StartError(f"ssh could not be asked about {host}: {error}. Is it installed?") from error
    words = dict(line.split(" ", 1) for line in asked.stdout.splitlines() if " " in line)
    return words.get("hostname", host)


def own_address() -> str:
    """Return the address of this machine by its own name, where it is not known who is to reach it.

    Raises:
        StartError: its name leads to no address but its own loopback.
    """
    name = socket.gethostname()
    with suppress(OSError):
        address = socket.gethostbyname(name)
        if not address.startswith("127."):
            return address
    raise StartError(
        f"nbcomm does not know at which address the nodes reach this machine ({name}); name the address by --address."
    )
