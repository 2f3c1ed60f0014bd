"""The controller's ports, in a network of its own that has few of them, beside a process that wants them all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_NETWORK = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]

_FEW_PORTS = """
import fcntl, socket, struct, sys
from pathlib import Path

SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h

def few_ports(n):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(f"{65536 - n} 65535")
"""

_KEPT = """
import zmq
from nbcomm.node.processes.controller import kept_ports

few_ports(8)
print(ports := kept_ports(8))
for reuse in (0, 1):
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        print(asking.bind(("127.0.0.1", 0)))
    except OSError as error:
        print(error.strerror)
zeromq = zmq.Context().socket(zmq.ROUTER)
for port in ports:
    zeromq.bind(f"tcp://127.0.0.1:{port}")
with socket.create_server(("127.0.0.1", 50000)) as elsewhere:
    try:
        print(socket.create_connection(elsewhere.getsockname()))
    except OSError as error:
        print(error.strerror)
"""

_NOT_GIVEN = """
import zmq
from nbcomm.node.processes.controller import kept_ports

few_ports(8)
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("65500 65530")
taken = socket.create_server(("127.0.0.1", 65531), reuse_port=True)
print(ports := kept_ports(2), kept_ports(3))
later = socket.socket()
try:
    later.bind(("", ports[0]))
except OSError as error:
    print(error.strerror)
zeromq = zmq.Context().socket(zmq.ROUTER)
for port in ports:
    zeromq.bind(f"tcp://127.0.0.1:{port}")
"""

_GREEDY = """
from collections import deque

held = deque()
while True:
    greedy = socket.socket()
    try:
        greedy.bind(("127.0.0.1", 0))
        greedy.listen()
    except OSError:
        greedy.close()  # all are taken
    else:
        held.append(greedy)
    if len(held) == 1:
        print(flush=True)
    if len(held) > 10:
        held.popleft().close()
"""

_CONTROLLER = """
import json, subprocess, time
import psutil

few_ports(96)
greedy = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
greedy.stdout.readline()
arguments = ["--usethreads", "--scheme=none", "--IPController.broadcast_scheduler_depth=0", "--nodb"]
arguments += ["--ip=127.0.0.1", "--profile-dir=."]
controller = psutil.Popen([sys.executable, "-m", "nbcomm.node.processes.controller", *arguments])

def listening():
    processes = [controller, *controller.children(recursive=True)]
    sockets = [one for process in processes for one in process.net_connections()]
    return {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}

def promised():
    said = [json.loads(Path(f"security/ipcontroller-{who}.json").read_text()) for who in ("engine", "client")]
    names = ("registration", "control", "mux", "iopub", "notification", "hb_ping", "hb_pong")
    return {name: one[name] for one in said for name in names if name in one}

missing, deadline = {"all": 0}, time.monotonic() + 60
try:
    while missing and time.monotonic() < deadline and controller.poll() is None:
        time.sleep(0.05)
        if len(list(Path("security").glob("*.json"))) == 2:
            try:
                said = promised()
            except json.JSONDecodeError:
                continue  # it is being written
            listens = listening()
            missing = {name: port for name, port in said.items() if port not in listens}
    print(json.dumps([controller.poll(), missing]))
finally:
    greedy.kill()
    for process in controller.children(recursive=True) + [controller]:
        process.kill()
"""


def _in_a_small_network(code: str, *arguments: str, cwd: Path) -> str:
    unshare = shutil.which(_NETWORK[0])
    if not unshare or subprocess.run([*_NETWORK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare cannot make a network here, so ports cannot be made few")
    command = [*_NETWORK, sys.executable, "-c", _FEW_PORTS + code, *arguments]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kept_ports_are_given_to_nobody_else_and_can_be_bound(tmp_path: Path) -> None:
    ports, *others = _in_a_small_network(_KEPT, cwd=tmp_path).splitlines()
    assert sorted(json.loads(ports)) == list(range(65528, 65536))
    assert others == ["Address already in use"] * 2 + ["Cannot assign requested address"]


def test_they_are_none_that_another_process_may_have_been_given_before(tmp_path: Path) -> None:
    ports, other = _in_a_small_network(_NOT_GIVEN, cwd=tmp_path).splitlines()
    kept = [int(port) for port in re.findall(r"\d+", ports)]
    assert sorted(kept[:4]) == [65532, 65533, 65534, 65535]
    assert 65500 <= kept[4] <= 65530, "there are no more above"
    assert other == "Address already in use"


def test_a_controller_has_its_ports_where_others_take_all_they_can(tmp_path: Path) -> None:
    assert json.loads(_in_a_small_network(_CONTROLLER, _FEW_PORTS + _GREEDY, cwd=tmp_path)) == [None, {}]
