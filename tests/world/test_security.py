"""Who can reach a world: its own user, over loopback and private sockets, and nobody else.

This process has started a notebook's kernel and is no part of the world behind it: it acts the stranger.
"""

from __future__ import annotations

import io
import ipaddress
import json
import os
import pickle
import random
import re
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import psutil
import pytest
import zmq
from jupyter_client.session import Session

from nbcomm.protocol import Claim, Exited, Hello, Output, Shutdown, Start, Text
from nbcomm.protocol.codec import decode_status, encode
from nbcomm.protocol.nodes import HEAD, name_of
from nbcomm.protocol.streams import Header
from nbcomm.world_dir import WorldDir

from .notebook import Notebook
from .processes import OLD_GLOO, await_daemon, of_notebook, pid_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc to see which sockets are open")

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""

PREPARE = """\
%%distributed
all_reduce(1)
pair = new_group([0, 1])
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ddp(torch.ones(1, 4)).sum().backward()
"""


# ── what is open ────────────────────────────────────────────────────────────────────────────────────


class Door(NamedTuple):
    """A socket to which others can connect, or send: an IP address and a port, or a path ("@…" if abstract)."""

    pid: int
    kind: str
    address: str
    port: int = 0

    def connect(self) -> socket.socket:
        """Knock."""
        connection = socket.socket(socket.AF_UNIX if self.kind == "Unix" else socket.AF_INET)
        connection.settimeout(PATIENCE)
        connection.connect(self.address if self.kind == "Unix" else (self.address, self.port))
        return connection


def _doors(process: psutil.Process) -> set[Door]:
    """Every door of a process."""
    connections = getattr(process, "net_connections", process.connections)  # its name from psutil 6 on
    found = {
        Door(process.pid, "TCP" if connection.type == socket.SOCK_STREAM else "UDP", *connection.laddr)
        for connection in connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type != socket.SOCK_STREAM
    }
    inodes = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed this instant
            inodes.update(re.findall(r"^socket:\[(\d+)\]$", str(descriptor.readlink())))
    for line in Path(f"/proc/{process.pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if words[6] in inodes and len(words) == 8:  # the others have no name
            found.add(Door(process.pid, "Unix", words[7]))
    return found


def _too_open(door: Door) -> bool:
    """Whether somebody else than this user, or than this machine, could use it."""
    if door.kind != "Unix":
        return not ipaddress.ip_address(door.address).is_loopback
    folder = Path(door.address).parent
    if not folder.is_absolute():  # an abstract name, which has no permissions
        return True
    return folder.stat().st_uid != os.getuid() or stat.S_IMODE(folder.stat().st_mode) != 0o700


class World:
    """Four ranks behind a kernel whose umask hides nothing, after all that makes sockets."""

    def __init__(self, directory: str) -> None:
        self.notebook = Notebook(directory)
        self.kernel = psutil.Process(self.notebook.pid)
        self.run("import os\n_ = os.umask(0)")
        self._before = _doors(self.kernel)
        self.taps: list[Wiretap] = []
        self.run("%load_ext nbcomm")
        self.run("%distributed start -n 4")
        self.run("from nbcomm.notebook.session import registry\nregistry.current().client;")
        self.run(PREPARE)
        assert "HangError" in self.notebook.run("%%distributed\nif rank: barrier()", fails=True).error_text
        assert "Rank 2 is back" in self.run("%distributed heal 2")
        self.run(PREPARE)
        where = self.run("registry.current().client  # rank 2 registers again\nprint(registry.current().home.path)")
        self.home = WorldDir(where.strip())

    def run(self, code: str) -> str:
        """Run a cell, and return what it showed."""
        return self.notebook.run(code).text

    @property
    def processes(self) -> list[psutil.Process]:
        """The daemon, its zygote, ipyparallel's controller and its heart monitor, and the ranks."""
        return of_notebook(self.kernel.pid)

    @property
    def seed(self) -> psutil.Process:
        """The process that has forked the daemon."""
        seed = psutil.Process(pid_of(self.notebook, "daemon")).parent()
        assert seed is not None
        return seed

    @property
    def doors(self) -> set[Door]:
        """Every door of the world and of the seed, and those that nbcomm has opened in the kernel."""
        return set().union(*map(_doors, [self.seed, *self.processes]), _doors(self.kernel) - self._before)

    @property
    def houses(self) -> dict[str, Door]:
        """One door for each address, by the language spoken behind it and a number.

        The seed's is left out, as tests/node/seed/test_seed.py knocks there.
        """
        ours = {"link": "curve", "daemon": "status", "store": "store"}
        found: dict[str, Door] = {}
        seen = set()
        for door in sorted(self.doors):
            if door[1:] in seen:
                continue
            seen.add(door[1:])
            if door.pid == self.seed.pid:
                continue
            if door.kind == "Unix":
                path = Path(door.address)
                language = ours[path.name.split(".")[0].rstrip("0123456789")]
                found[language] = door._replace(address=str(path.with_suffix(".sock")))
            else:
                language = "curve" if self._is_controllers(door) else "gloo"
                found[f"{language} {len(found)}"] = door
        return found

    def _is_controllers(self, door: Door) -> bool:
        return door.port in self.ports.values() or "controller" in self.log_of(door.pid)

    @property
    def ports(self) -> dict[str, int]:
        """The ports of ipyparallel's controller on which it speaks with clients, by what they are for."""
        said = json.loads((self.home.profile / "security" / "ipcontroller-client.json").read_text())
        return {name: said[name] for name in ("registration", "control", "mux", "iopub", "notification", "broadcast")}

    @staticmethod
    def log_of(pid: int) -> str:
        """Where a process's output goes."""
        return str(Path(f"/proc/{pid}/fd/2").readlink())

    def told(self) -> str:
        """The table of the ranks, without what changes by itself: memory, and how long ago something was."""
        return re.sub(r"[\d.]+ [MG]iB|\(.*?\)|[ ]{2,}", " ", self.run("%distributed"))

    def pids(self) -> list[int]:
        """The ranks' processes."""
        return [int(word) for word in re.findall(r"\d+", self.run("[v.pid for v in registry.current().status()]"))]

    def works(self) -> None:
        """See that collectives are right, that groups can form, and that nothing has died or was replaced."""
        before = self.processes
        code = "%%distributed\nfresh = new_group([0, 1, 2, 3])\nall_reduce(1), all_reduce(rank, group=fresh)"
        assert self.run(code) == "[0-3] (4, 6)\n"
        assert self.processes == before
        assert all(process.status() != psutil.STATUS_ZOMBIE for process in before)

    def until(self, condition: Callable[[], Any], complaint: str) -> None:
        """Wait for something."""
        self.notebook.until(condition, PATIENCE, complaint)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(str(tmp_path_factory.mktemp("security")))
    try:
        yield made
    finally:
        made.notebook.close()
        for tap in made.taps:
            tap.close()


def test_every_listening_socket_is_on_loopback_or_in_a_private_directory(world: World) -> None:
    world.until(lambda: len(world.processes) == 8, "the process that was replaced has not ended")
    doors = world.doors
    assert not [door for door in doors if _too_open(door)]
    # What must be there, or the list has missed something:
    paths = [Path(door.address) for door in doors if door.kind == "Unix"]
    assert {path.parent for path in paths} == {world.home.path, Path(world.seed.cwd())}
    assert {re.sub(r"\d*\.part", ".sock", path.name) for path in paths} == {
        "link.sock",
        "daemon.sock",
        "store.sock",
        "seed.sock",
    }
    assert set(world.ports.values()) <= {door.port for door in doors}
    gloo = {door.pid for door in doors if door.kind == "TCP" and not world._is_controllers(door)}
    assert gloo == set(world.pids())
    assert len(world.processes) == 8


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1"])  # noqa: S104 - nobody binds it
def test_an_address_beyond_loopback_is_told(address: str) -> None:
    assert _too_open(Door(1, "TCP", address))


def test_a_socket_that_is_too_open_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    path, name = str(tmp_path / "s"), f"nbcomm-test-{os.getpid()}"
    before = _doors(psutil.Process())
    with ExitStack() as stack:
        kinds = [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
        kinds += [(socket.AF_UNIX, socket.SOCK_STREAM)] * 2
        tcp, udp, named, abstract = (stack.enter_context(socket.socket(*kind)) for kind in kinds)
        for end, address in ((tcp, ("127.0.0.1", 0)), (udp, ("127.0.0.1", 0)), (named, path), (abstract, "\0" + name)):
            end.bind(address)
        for end in (tcp, named, abstract):
            end.listen()
        found = _doors(psutil.Process()) - before
    assert sorted(door.kind for door in found) == ["TCP", "UDP", "Unix", "Unix"]
    assert sorted(door.address for door in found if _too_open(door)) == [path, f"@{name}"]


@pytest.mark.gpu
def test_with_nccl_every_listening_socket_is_on_loopback(tmp_path: Path) -> None:
    notebook = Notebook(str(tmp_path))
    try:
        kernel = psutil.Process(notebook.pid)
        before = _doors(kernel)
        notebook.run("%load_ext nbcomm")
        notebook.run("%distributed start --device cuda")
        notebook.run("%%distributed\nall_reduce(torch.ones(1, device=device))")
        doors = set().union(*map(_doors, of_notebook(kernel.pid)), _doors(kernel) - before)
        # CUDA and NCCL open abstract Unix sockets, which SECURITY.md tells.
        assert not [door for door in doors if _too_open(door) and not door.address.startswith("@")]
    finally:
        notebook.close()


# ── files ───────────────────────────────────────────────────────────────────────────────────────────


def _too_readable(path: Path) -> str:
    """What is wrong with the mode or the owner of a file; an empty text if nothing is."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISSOCK(status.st_mode):  # not every system asks for its mode: its directory is what protects it
        fine = True
    elif stat.S_ISDIR(status.st_mode):
        fine = mode == 0o700
    else:
        fine = not mode & 0o077
    return "" if fine and status.st_uid == os.getuid() else f"{path}: mode {mode:o}, owner {status.st_uid}"


def test_every_file_is_for_this_user_alone_whatever_the_umask(world: World) -> None:
    home, bulk = world.home.path, world.home.bulk
    there = [home.parent, home, bulk, *home.rglob("*"), *bulk.rglob("*")]
    names = {path.name for path in there}
    assert {"link.json", "rank0.log", "rank3.stdout", "daemon.log", "ipcontroller-client.json", "board2"} <= names
    ours = [path for path in there if path.name != "README"]  # a text of IPython's
    assert not list(filter(None, map(_too_readable, ours)))


def test_a_large_value_on_its_way_is_for_this_user_alone(world: World) -> None:
    slow, bulk = psutil.Process(world.pids()[3]), world.home.bulk
    before = set(bulk.iterdir())
    slow.suspend()  # so that the value must wait for it
    try:
        cell = world.notebook.submit("import numpy\nbig = numpy.ones(1 << 19)\n%distributed push big")
        world.until(lambda: set(bulk.iterdir()) - before, "no file came")
        assert not list(filter(None, map(_too_readable, bulk.iterdir())))
    finally:
        slow.resume()
    world.notebook.finish(cell)
    assert cell.error is None
    assert set(bulk.iterdir()) == before, "it is removed when all have it"


# ── strangers ───────────────────────────────────────────────────────────────────────────────────────


def _greeting(mechanism: bytes) -> bytes:
    """How ZMQ begins: https://rfc.zeromq.org/spec/23."""
    return b"\xff" + bytes(8) + b"\x7f\3\0" + mechanism.ljust(20, b"\0") + bytes(32)


def _frame(stream: IO[bytes]) -> bytes:
    """Read one frame of ZMQ's; empty at the end of the stream."""
    head = stream.read(2)
    if len(head) == 2 and head[0] & 2:
        head += stream.read(7)
    return head + stream.read(int.from_bytes(head[1:], "big"))


def _play_back(connection: socket.socket, recorded: bytes) -> list[bytes]:
    """Say what a client of ZMQ said once, each word when its turn comes; return what was answered to the handshake."""
    answered = []
    connection.sendall(recorded[:64])
    with connection.makefile("rb") as answers, io.BytesIO(recorded[64:]) as words, suppress(ConnectionError):
        answers.read(64)
        while word := _frame(words):
            connection.sendall(word)
            if word[0] & 4:  # a step of the handshake, whose answer comes before the next
                answered.append(_frame(answers))
    return answered


_NESTED = 200_000
"""How deep: far beyond what any parser that calls itself can go."""


def _store(*request: Any) -> bytes:
    body = msgspec.msgpack.encode(request)
    return struct.pack("!I", len(body)) + body


_SHORT_WORD = b"\x04\0who" + b"\x05\0word"
"""A name and a message of one part, in ZMQ's first protocol, which asks for no handshake."""


def _said(language: str) -> dict[str, bytes]:
    """What a stranger says in one of the languages that are spoken here."""
    begin, whole, long, deep = {
        "curve": (
            _greeting(b"CURVE"),
            b"\x04\xc8\x05HELLO\1" + bytes(193),
            b"\x06" + struct.pack("!Q", 1 << 32),
            b"\x06" + struct.pack("!Q", 1 << 62),
        ),
        "status": (b"", encode(Claim(1, 1, 0.0)), b"\xff" * 8, b"\x91" * _NESTED + b"\xc0"),
        "store": (
            b"",
            _store("check", ["x"]),
            b"\xff\xff\xff\xff",
            struct.pack("!I", _NESTED + 1) + b"\x91" * _NESTED + b"\xc0",
        ),
        "gloo": (b"", bytes.fromhex("0123456789abcdef"), b"\xff" * 8, b"\xfe" * 8 + b"\xff" * 64),
    }[language]
    seeded = random.Random(language)  # noqa: S311 - noise that is the same each time
    strange = {
        "nothing": b"",
        "noise": seeded.randbytes(4096),
        "zeros": bytes(4096),
        "an old ZMQ": _SHORT_WORD,
        "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    known = {
        "half a message": begin + whole[: len(whole) // 2],
        "a whole message, and noise": begin + whole + seeded.randbytes(4096),
        "the length of a message of 4 GiB": begin + long,
        "a message too deep or too long": begin + deep,
    }
    return {**strange, **known}


@contextmanager
def _siege(world: World) -> Iterator[None]:
    """Say all of it at every door, each on a connection of its own, and stay."""
    with ExitStack() as stack:
        for name, door in world.houses.items():
            for said in _said(name.split()[0]).values():
                connection = stack.enter_context(door.connect())
                with suppress(ConnectionError):  # it has hung up on us already
                    connection.sendall(said)
        yield


def _threads(process: psutil.Process) -> list[str]:
    """The names of a process's threads, but of those that every new gloo group brings."""
    found = []
    for path in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended this instant
            found.append((path / "comm").read_text())
    return [name for name in found if not name.startswith("pt_gloo")]


def test_strangers_at_every_door_disturb_nothing_while_they_stay_and_after(world: World) -> None:
    languages = {name.split()[0] for name in world.houses}
    assert languages == {"curve", "status", "store", "gloo"}
    world.works()
    everybody = [world.kernel, *world.processes]
    before = {process: (process.memory_info(), len(_threads(process))) for process in everybody}
    with _siege(world):
        world.works()
        for process, (memory, _) in before.items():
            now = process.memory_info()
            assert now.rss - memory.rss < 200 << 20, process
            # ZMQ asks the system for as much address space as a stranger says, and touches none of it.
            if "controller" not in world.log_of(process.pid) and process != world.kernel:
                assert now.vms - memory.vms < 1 << 30, process
    world.works()
    counted = {process: threads for process, (_, threads) in before.items() if process == world.kernel or not OLD_GLOO}
    world.until(
        lambda: all(len(_threads(process)) <= threads for process, threads in counted.items()),
        "a thread is stuck on a stranger who has left",
    )
    logs = {path.name: path.read_text(errors="replace") for path in world.home.path.glob("rank*.*")}
    assert not [name for name, log in logs.items() if "Exception in thread" in log]


def _hears(door: Door, said: bytes, *, leaves: bool = False) -> bytes:
    """Say something, and hear all of the answer until the other end hangs up; it does so at once on one who leaves."""
    heard = b""
    with door.connect() as connection, suppress(ConnectionError):
        with suppress(ConnectionError):  # it listens to nothing
            connection.sendall(said)
            if leaves:
                connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            heard += data
    return heard


_HELLO = encode(Header(0, 7, 0, 0, 0)) + encode(Hello(1, 1, "stranger", 0, "0"))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        encode(Shutdown(1)),
        encode(Claim(1, 1, 0.0)),
        encode(Start(1, "x", "engine", [], {}, "/")),
        _HELLO,
        _HELLO * 1000,
        encode(Exited(1, "rank 1", 1, 0)),
        b"x" * (4 << 20),
    ],
    ids=["nothing", "end", "claim", "start", "a rank's", "a thousand", "report", "long"],
)
def test_a_stranger_is_told_the_status_whatever_it_says_and_no_more(world: World, said: bytes) -> None:
    status = decode_status(_hears(world.houses["status"], said, leaves=True))
    assert (status.holder, status.alone) == (world.kernel.pid, 0.0)
    assert "stranger" not in world.run("%distributed")
    world.works()


@pytest.mark.parametrize("body", [b"\xc1", b"\x01", b"\x90", b"\xa1\xff", msgspec.msgpack.encode(["no_such", 1])])
def test_the_store_hangs_up_on_what_is_no_request(world: World, body: bytes) -> None:
    heard = _hears(world.houses["store"], struct.pack("!I", len(body)) + body)
    assert len(heard) == 16, "its name, with which it greets everybody, and no answer"
    world.works()


_REFUSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_REFUSED |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


@pytest.mark.parametrize("who", ["without keys", "with keys of its own", "who takes another for the notebook"])
def test_a_stranger_on_the_link_is_refused_even_under_the_nodes_name(world: World, who: str) -> None:
    info = world.home.read_link()
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.routing_id = name_of(HEAD).encode()
        if who != "without keys":
            dealer.curve_serverkey = info.server_public.encode() if who == "with keys of its own" else public
            dealer.curve_publickey = public if who == "with keys of its own" else info.client_public.encode()
            dealer.curve_secretkey = secret if who == "with keys of its own" else info.client_secret.encode()
        with dealer.get_monitor_socket(_REFUSED) as fate:
            dealer.connect(info.address)
            said = (Hello(1, 1, "stranger", 0, "0"), Output(1, [Text("stdout", "forged\n")]))
            for word in said:
                dealer.send_multipart([encode(Header(0, 7, 0, 0, 0)), encode(word)])
            assert fate.poll(PATIENCE * 1000), "the link neither took nor refused it"
            dealer.disable_monitor()
    assert "stranger" not in world.run("%distributed")
    world.works()
    assert "forged" not in "".join(cell.text for cell in world.notebook.cells.values())


_LIAR = """\
%%distributed -r 1
import gc, os, sys, zmq
from nbcomm.rank.link import RankLink
from nbcomm.protocol import Hello, Obeyed, Output, Text
from nbcomm.protocol.codec import encode
from nbcomm.protocol.streams import Header
(link,) = [each for each in gc.get_objects() if type(each) is RankLink]
own = link._info
shown = [*os.environ.values(), *sys.argv, open("/proc/self/cmdline").read(), open("/proc/self/environ").read()]
print("secret" if any(own.client_secret in each for each in shown) else "not shown")
with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
    dealer.routing_id = {name!r}
    dealer.linger = 2000
    dealer.curve_serverkey = own.server_public.encode()
    dealer.curve_publickey, dealer.curve_secretkey = own.client_public.encode(), own.client_secret.encode()
    dealer.connect(own.address)
    for word in (Hello(0, 1, "a lie", 0, "0"), Output(1, [Text("stdout", "forged")]), Obeyed(1)):
        dealer.send_multipart([encode(Header(1 << 40, 7, 0, 0, 0)), encode(word)])
        dealer.send_multipart([encode(word)])
"""


@pytest.mark.parametrize("name", [b"node0", b"rank0-1"])
def test_a_rank_is_its_key_with_which_it_speaks_neither_as_another_nor_as_a_node(world: World, name: bytes) -> None:
    assert world.run(_LIAR.replace("{name!r}", repr(name))) == "[1] not shown\n"
    world.works()
    assert "a lie" not in world.run("%distributed")
    assert "forged" not in "".join(cell.text for cell in world.notebook.cells.values())


# ── what was recorded ───────────────────────────────────────────────────────────────────────────────


class Wiretap:
    """Passes one connection on to a door, and keeps what its client says."""

    def __init__(self, listener: socket.socket, door: Door) -> None:
        self.recorded = bytearray()
        self._listener, self._door = listener, door
        self._ends: list[socket.socket] = []
        listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed before anybody came
            client, _ = self._listener.accept()
            server = self._door.connect()
            client.settimeout(None)
            server.settimeout(None)
            self._ends = [client, server]
            threading.Thread(target=self._pump, args=(server, client, bytearray()), daemon=True).start()
            self._pump(client, server, self.recorded)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Cut it."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _is_worth_nothing(recorded: bytes, door: Door, said: bytes) -> None:
    """See that what was recorded tells nothing, and that nobody is let in who repeats it."""
    assert b"CURVE" in recorded
    assert said not in recorded, "what passes is encrypted"
    with door.connect() as connection:
        welcome, ready = _play_back(connection, recorded)
    assert b"WELCOME" in welcome
    assert not ready, "it was let in"


def test_what_was_recorded_on_the_link_is_worth_nothing_played_back(world: World) -> None:
    door = world.houses["curve"]
    path = Path(door.address)
    behind = path.with_name("behind.sock")
    path.rename(behind)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(door.address)
        tap = Wiretap(listener, door._replace(address=str(behind)))
        try:
            daemon = await_daemon(world.notebook, world.home)
            os.kill(daemon, signal.SIGKILL)  # the next one connects through it
            await_daemon(world.notebook, world.home, daemon)
            world.run("%distributed heal")  # ipyparallel's controller has ended with the last one
            world.run("registry.current().client")  # the ranks register
            world.until(lambda: len(world.processes) == 8, "it has not ended")
            world.works()
            recorded = bytes(tap.recorded)
        finally:
            path.unlink()
            behind.rename(path)
            world.taps.append(tap)  # the daemon goes on through it
    world.works()
    shown = world.told()
    _is_worth_nothing(recorded, door, b"Hello")
    assert world.told() == shown
    world.works()


# ── ipyparallel ─────────────────────────────────────────────────────────────────────────────────────


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = os.fspath(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._mark,)


class Caller:
    """Somebody let in at a port of ipyparallel's controller, who signs what he says with the world's key or another."""

    def __init__(self, context: zmq.Context[Any], port: int, key: str, door_key: str) -> None:
        self.session = Session(key=key.encode())
        self.socket = context.socket(zmq.DEALER)
        self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.curve_serverkey = door_key.encode()
        self.socket.linger = 0
        self.socket.sndtimeo = int(PATIENCE * 1000)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def say(self, kind: str, content: dict[str, Any] | None = None, *buffers: bytes, to: str = "") -> None:
        """Send a message, to an engine or to the controller itself."""
        names = [to.encode()] if to else None
        self.session.send(self.socket, kind, content=content or {}, buffers=list(buffers), ident=names)

    def ask(self) -> dict[str, Any]:
        """Ask which engines there are."""
        self.say("connection_request")
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.socket.poll((deadline - time.monotonic()) * 1000), "the controller does not answer"
            _, answer = self.session.recv(self.socket, mode=0)
            if answer["msg_type"] == "connection_reply":
                return dict(answer["content"]["engines"])


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def _keys(world: World) -> tuple[str, str]:
    """The key to sign with, and the one that opens the doors."""
    said = json.loads((world.home.profile / "security" / "ipcontroller-client.json").read_text())
    return said["key"], said["curve_serverkey"]


@pytest.mark.parametrize("key", ["", "00000000-000000000000000000000000"], ids=["unsigned", "another key"])
def test_ipyparallel_does_nothing_for_who_has_not_its_key(
    world: World, context: zmq.Context[Any], tmp_path: Path, key: str
) -> None:
    ports = world.ports
    right, door_key = _keys(world)
    friend = Caller(context, ports["registration"], right, door_key)
    engines = friend.ask()
    assert len(engines) == 4
    world.run(
        "import logging\ntrouble, keeper = [], logging.Handler()\n"
        "keeper.emit = lambda record: trouble.append(record.getMessage())\n"
        "logging.getLogger('tornado').addHandler(keeper)"
    )
    to = engines["1"]
    callers = {
        name: Caller(context, ports[name], key, door_key) for name in ("registration", "control", "mux", "broadcast")
    }
    for name, stranger in callers.items():
        bomb = pickle.dumps(Bomb(tmp_path / name))
        for names in ("", to):
            stranger.say("shutdown_request", {"restart": False}, to=names)
            stranger.say("unregistration_request", {"id": 1}, to=names)
            stranger.say("apply_request", {}, bomb, bomb, to=names)
            stranger.say("execute_request", {"code": f"import os; os.mkdir({str(tmp_path / name)!r})"}, to=names)
    for name in ("mux", "control"):  # the very same, signed right, is done
        callers[name].session.key = right.encode()
        callers[name].say("apply_request", {}, *[pickle.dumps(Bomb(tmp_path / f"signed {name}"))] * 2, to=to)
    world.until((tmp_path / "signed mux").exists, "the right key does not help either")
    assert friend.ask() == engines
    world.works()
    assert {path.name for path in tmp_path.iterdir()} <= {"signed mux", "signed control"}
    # The ranks tell ipyparallel's client that they have refused something, as of the cell before.
    assert world.run("print(trouble)") == "[]\n"


def test_nobody_without_keys_is_let_in_at_a_port_of_ipyparallels(world: World) -> None:
    doors = [door for name, door in world.houses.items() if name.startswith("curve ")]
    assert {*world.ports.values()} <= {door.port for door in doors}
    for door in doors:
        heard = _hears(door, _greeting(b"NULL") + b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0")
        assert not heard[64:], "it goes on with a stranger"
        assert len(heard) < 64 or b"CURVE" in heard


def test_a_strangers_word_that_is_too_short_does_not_stop_ipyparallels_queues(world: World) -> None:
    # Its queues swap the first two parts of a message, and then wait for a third.
    code = "import ipyparallel\nprint(registry.current().client[:].apply_async(lambda: 6 * 7).get(timeout=50))"
    assert world.run(code) == "[42, 42, 42, 42]\n"
    for name, door in world.houses.items():
        if name.startswith("curve "):
            with door.connect() as connection, suppress(ConnectionError):
                connection.sendall(_SHORT_WORD)
    assert world.run(code) == "[42, 42, 42, 42]\n"


def test_what_was_recorded_at_ipyparallels_port_is_refused_played_back(world: World, context: zmq.Context[Any]) -> None:
    port = world.ports["registration"]
    door = Door(0, "TCP", "127.0.0.1", port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        tap = Wiretap(listener, door)
        assert len(Caller(context, listener.getsockname()[1], *_keys(world)).ask()) == 4
        recorded = bytes(tap.recorded)
        tap.close()
    _is_worth_nothing(recorded, door, b"connection_request")
    world.works()


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_unpickled_from_a_stranger(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(mark))
    frames = b"\1" + bytes([0]) + b"\0" + bytes([len(bomb)]) + bomb
    framed = {
        "curve": [_greeting(b"CURVE") + frames, _greeting(b"NULL") + frames, frames, frames[2:]],
        "status": [bomb],
        "store": [struct.pack("!I", len(bomb)) + bomb, _store("set", "bomb", bomb), _store(bomb), _store("set", bomb)],
        # Eight bytes say which connection of a group this is: not one that the next groups will make, and lack then.
        "gloo": [bytes(8) + bomb, struct.pack("<Q", 1 << 40) + bomb],
    }
    assert len(bomb) < 256
    for name, door in world.houses.items():
        for said in (bomb, *framed[name.split()[0]]):
            with door.connect() as connection, suppress(ConnectionError):
                connection.sendall(said)
    world.works()
    assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists(), "the bomb is one"
