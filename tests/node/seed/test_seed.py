"""One seed for all who may share it, and a fresh import, never an error, wherever there is none."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from nbcomm.node.seed import messages
from nbcomm.node.seed.messages import Refused, Warm

from ..served import await_that
from .callers import CALLER, Callers, await_end, tell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seeds are Linux's only")

_ASK_HELD = "held()\n" + tell("by_the_seed()")

_TOKEN = b"x" * 16

_SLOW = "import os, time\nwhile not os.path.exists(os.environ['GO_ON']): time.sleep(0.005)\n"
"""A torch whose import waits for a file."""


def test_the_second_start_is_warm_and_numbers_differ(callers: Callers) -> None:
    (first,) = callers.ask(_ASK_HELD)
    seed = callers.seed()
    (second,) = callers.ask(_ASK_HELD)
    assert (first["cold"], second["cold"]) == ("", ""), "the seed had imported all"
    assert callers.seed() == seed
    assert first["parent"] == second["parent"] == seed.pid
    assert first["random"] != second["random"]
    assert first["temporary"] == callers.environment["TMPDIR"]


def test_callers_that_begin_at_once_make_one_seed(callers: Callers) -> None:
    told: list[str] = []
    asking = [threading.Thread(target=lambda: told.extend(callers.ask(tell("by_the_seed()")))) for _ in range(5)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(told) == 5
    assert {seen["parent"] for seen in told} == {callers.seed().pid}  # type: ignore[index]


def test_modules_that_were_asked_for_are_shared(callers: Callers) -> None:
    (seen,) = callers.ask(_ASK_HELD, NBCOMM_PRELOAD="asked_for, not_there")
    assert seen["modules"]
    assert seen["cold"] == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("asked_for", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"),
        ("asked_for", "import torch\ntorch.cuda.is_initialized = lambda: True"),
    ],
    ids=["thread", "cuda"],
)
def test_a_process_whose_forks_would_be_broken_is_not_forked(callers: Callers, name: str, text: str) -> None:
    (callers.stubs / f"{name}.py").write_text(text)
    (seen,) = callers.ask(tell("by_the_seed()"), NBCOMM_PRELOAD=name)
    assert seen["cold"] in {"the seed has ended", "The seed has used CUDA"}
    assert not seen["modules"], "it was started without the seed, and had not imported yet"


# ── what has changed since ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("held", ["", "held()\n"], ids=["found", "held"])
def test_an_edited_module_takes_another_seed(callers: Callers, held: str) -> None:
    callers.ask(tell("by_the_seed()"))
    first = callers.seed()
    edit = f"{held}open({os.fspath(callers.stubs / 'quick_engine.py')!r}, 'a').write('# edited')\n"
    (seen,) = callers.ask(edit + tell("by_the_seed()"))
    await_end(first, "a stale seed ends when nobody needs it")
    assert seen["parent"] == callers.seed().pid
    assert "importing" in seen["cold"]
    assert callers.ask(tell("by_the_seed()"))[0]["cold"] == ""


def test_a_module_of_the_folder_that_hides_an_imported_one_takes_a_fresh_process(callers: Callers) -> None:
    callers.ask(tell("by_the_seed()"))
    seed = callers.seed()
    (callers.folder / "quick_engine.py").write_text("# another")
    (seen,) = callers.ask(_ASK_HELD)
    assert "in this folder Python imports " in seen["cold"]
    assert not seen["cold"].endswith("."), "it becomes a part of a sentence"
    assert seen["parent"] != seed.pid
    assert callers.seed() == seed
    (callers.folder / "quick_engine.py").unlink()
    assert callers.ask(_ASK_HELD)[0]["parent"] == seed.pid, "it serves those whose folder has no such module"


# ── a seed that does not do it ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_seed_that_is_ended_or_stopped_before_a_start_costs_an_import(callers: Callers, number: int) -> None:
    (seen,) = callers.ask(
        f"held()\nos.kill(client._held._pid, {int(number)})\n"
        f"if {int(number)} != {int(signal.SIGSTOP)}:\n"
        "    wait(lambda: not os.path.exists(f'/proc/{client._held._pid}/exe') or"
        " open(f'/proc/{client._held._pid}/stat').read().split()[2] == 'Z')\n" + tell("by_the_seed()")
    )
    assert seen["cold"], "torch is imported once more"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("imported", [False, True], ids=["importing", "warm"])
def test_a_seed_that_is_ended_or_stopped_in_mid_start_costs_an_import(
    callers: Callers, tmp_path: Path, number: int, *, imported: bool
) -> None:
    (callers.stubs / "torch.py").write_text(_SLOW + (callers.stubs / "torch.py").read_text())
    go_on = tmp_path / "go on"
    if imported:
        go_on.touch()
    (seen,) = callers.ask(
        f"{'held()' if imported else 'client.hold()'}\n"
        "from nbcomm.node.peers import listener_at\nimport psutil\n"
        "where = client.messages.folder_of(client.identity()) / 'seed.sock'\n"
        "pid = lambda: listener_at(where, 5)\n"
        "wait(lambda: pid() not in (0, os.getpid()))\n"
        "seed = psutil.Process(pid())\n"
        "if seed.pid != os.getpid(): seed.suspend()\n"  # so that the question is not answered before
        "wait(lambda: seed.status() == 'stopped')\n"
        "home = WorldDir.create()\n"
        "with home.daemon_log.open('w+b') as log:\n"
        "    made = ask(home, log)\n"
        f"    seed.send_signal({int(number)})\n"
        f"    open({os.fspath(go_on)!r}, 'w').close()\n"
        "    wait(lambda: made.has_ended)\n"
        "    assert made.status(60) == 7, (made.cold, log.seek(0), log.read())\n"
        "first = seen(home)\n"
        # The seed goes on: it must not begin another daemon in the place of that one.
        "if seed.is_running() and seed.status() == 'stopped':\n"
        "    seed.resume()\n"
        "    wait(lambda: not seed.children() and not os.path.exists(home.path))\n"
        + tell("{**first, 'cold': made.cold}", "by_the_seed()"),
        GO_ON=os.fspath(go_on),
    )[:1]
    assert seen["cold"] == ("the seed was stopped" if number == signal.SIGSTOP else "the seed has ended")
    assert seen["parent"] not in [seed.pid for seed in callers.seeds()]


_NO_FORK = """
import errno, os
plain = os.fork
def fork():
    if os.path.exists(os.environ['NO_FORK']):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return plain()
os.fork = fork
"""


def test_a_seed_without_memory_for_a_fork_costs_an_import(callers: Callers, tmp_path: Path) -> None:
    (callers.stubs / "asked_for.py").write_text(_NO_FORK)
    full = tmp_path / "full"
    held = f"held()\nopen({os.fspath(full)!r}, 'w').close()\n"
    asked = {"NBCOMM_PRELOAD": "asked_for", "NO_FORK": os.fspath(full)}
    (seen,) = callers.ask(held + tell("by_the_seed()"), **asked)
    assert "Cannot allocate memory" in seen["cold"]
    full.unlink()
    assert callers.ask(_ASK_HELD, **asked)[0]["cold"] == "", "it forks when there is memory again"


def test_where_no_directory_can_be_made_torch_is_imported(callers: Callers) -> None:
    parent = Path(callers.environment["TMPDIR"]) / f"nbcomm-{os.getuid()}"
    parent.mkdir(mode=0o700)
    (parent / "seeds").touch()
    (seen,) = callers.ask(tell("by_the_seed()"))
    assert "no seed could be asked" in seen["cold"]


@pytest.mark.parametrize(
    ("name", "raises"),
    [
        ("client.identity", "psutil.AccessDenied(1)"),  # ionice, in a sandbox
        ("client.Inherited.of_this", "StopIteration"),  # /proc/self/status without a umask
    ],
)
def test_what_a_system_does_not_tell_costs_an_import_and_no_start(callers: Callers, name: str, raises: str) -> None:
    code = "import psutil\nfrom nbcomm.node.seed import client\n"
    code += f"def refuse(*_, **__): raise {raises}\n{name} = refuse\nclient.hold()\n"
    (seen,) = callers.ask(code + tell("by_the_seed()"))
    assert "no seed could be asked" in seen["cold"]


_STUMBLES = """
import os
plain, failed = os.waitpid, []
def waitpid(*args):
    if args[1] == os.WNOHANG and not failed:
        failed.append(args)
        raise RuntimeError('on purpose')
    return plain(*args)
os.waitpid = waitpid
"""


def test_a_step_that_fails_is_tried_again(callers: Callers) -> None:
    (callers.stubs / "asked_for.py").write_text(_STUMBLES)
    (seen,) = callers.ask(_ASK_HELD, NBCOMM_PRELOAD="asked_for")
    assert seen["cold"] == "", "it was forked, and its end was told"


# ── nobody else's ───────────────────────────────────────────────────────────────────────────────────


def _reach(callers: Callers) -> socket.socket:
    (folder,) = (Path(callers.environment["TMPDIR"]) / f"nbcomm-{os.getuid()}" / "seeds").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(os.fspath(folder / messages.SOCKET))
    said = messages.decode(connection.recv(1 << 16))
    assert isinstance(said, Warm)
    assert said.pid == callers.seed().pid
    return connection


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"x",
        b"x" * 100_000,
        messages.QUESTION.pack(b"nbcomm seed 0", _TOKEN, 1.0),
        messages.QUESTION.pack(messages.MAGIC, _TOKEN, float("nan")),
        messages.QUESTION.pack(messages.MAGIC, _TOKEN, 1.0),
    ],
    ids=["nothing", "short", "long", "another version", "no time", "no descriptors"],
)
def test_who_says_something_else_is_not_heard(callers: Callers, said: bytes) -> None:
    callers.ask(_ASK_HELD)
    seed = callers.seed()
    with _reach(callers) as connection:
        connection.send(said)
        assert connection.recv(1 << 16) == b""
    assert not seed.children()
    assert callers.ask(_ASK_HELD)[0]["parent"] == seed.pid


def test_a_question_without_a_request_is_refused_and_costs_nothing(callers: Callers, tmp_path: Path) -> None:
    callers.ask(_ASK_HELD)
    seed = callers.seed()
    before = seed.num_fds()
    for written in (None, b"\x81", b""):
        if written is not None:
            (tmp_path / messages.Request(tmp_path, _TOKEN).name).write_bytes(written)
        folder = os.open(tmp_path, os.O_RDONLY)
        with _reach(callers) as connection:
            socket.send_fds(connection, [messages.QUESTION.pack(messages.MAGIC, _TOKEN, 60.0)], [0, 1, 2, folder])
            answers = []
            while said := connection.recv(1 << 16):
                answers.append(type(messages.decode(said)))
            assert (Refused in answers) == (written is not None)
        os.close(folder)
    # At first it may have held the connection of the caller that had just ended; one that stays costs four.
    await_that(lambda: not seed.children() and seed.num_fds() <= before, "the seed holds something")
    assert callers.ask(_ASK_HELD)[0]["parent"] == seed.pid


def test_another_user_at_the_other_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        messages.check_same_user(here)
        monkeypatch.setattr(os, "getuid", lambda: 54321)
        with pytest.raises(PermissionError, match="A process of user"):
            messages.check_same_user(here)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_who_gets_at_the_socket_is_refused(callers: Callers) -> None:
    callers.ask(_ASK_HELD)
    with _reach(callers) as ours:  # the socket is reached by its descriptor's folder, past all modes
        path = ours.getpeername()
        code = (
            "import os, socket, sys\nos.chdir(os.path.dirname(sys.argv[1]))\nos.setuid(54321)\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "try: s.connect('seed.sock')\nexcept PermissionError: print('kept out')\nelse: print(s.recv(100))"
        )
        for folder in (Path(path), *list(Path(path).parents)[:5]):
            folder.chmod(0o777)
        command = [sys.executable, "-c", code, path]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout == "b''\n", "it is let in by the modes, and heard by nobody"


# ── nothing left ────────────────────────────────────────────────────────────────────────────────────


def test_a_seed_ends_when_nobody_has_needed_it_for_a_while(callers: Callers) -> None:
    (seen,) = callers.ask(_ASK_HELD, NBCOMM_WARM="1s")
    assert seen["cold"] == ""
    for seed in callers.seeds():
        await_end(seed, "it stays")
    await_that(lambda: not list(Path(callers.environment["TMPDIR"]).iterdir()), "something of it is left")


def test_a_notebook_that_has_not_started_yet_keeps_its_seed(callers: Callers) -> None:
    (lives,) = callers.ask(
        "import psutil\nheld()\nseed = psutil.Process(client._held._pid)\n"
        "try: seed.wait(1.5)\nexcept psutil.TimeoutExpired: pass\n" + tell("seed.is_running()"),
        NBCOMM_WARM="0.1",
    )
    assert lives
    for seed in callers.seeds():
        await_end(seed, "it stays though the notebook has gone")


def test_there_is_no_seed_where_none_is_wanted(callers: Callers) -> None:
    (seen,) = callers.ask("client.hold()\n" + tell("by_the_seed()"), NBCOMM_WARM="0")
    assert seen["cold"] == "NBCOMM_WARM=0"
    assert not callers.seeds()


def test_a_seed_whose_imports_do_not_end_does_not_outlive_who_wants_it(callers: Callers, tmp_path: Path) -> None:
    (callers.stubs / "torch.py").write_text(_SLOW)
    callers.ask("client.hold()\n" + tell("1"), GO_ON=os.fspath(tmp_path / "never"), NBCOMM_WARM="0.1")
    for seed in callers.seeds():
        await_end(seed, "it stays")
    await_that(lambda: not list(Path(callers.environment["TMPDIR"]).iterdir()), "something of it is left")


def test_the_end_of_a_seed_is_no_end_of_what_it_has_forked(callers: Callers) -> None:
    """The caller learns of the fork's end all the same, and no exit status."""
    (callers.stubs / "quick_engine.py").write_text(
        "import time\nimport nbcomm.node.processes.daemon_lock as lock\n"
        "plain = lock.DaemonLock.take_over\n"
        "def see(self):\n    while not self._path.with_name('go on').exists(): time.sleep(0.005)\n    plain(self)\n"
        "lock.DaemonLock.take_over = see\n"
    )
    ended, status, cold = callers.ask(
        "held()\nhome = WorldDir.create()\nlog = home.daemon_log.open('w+b')\nmade = ask(home, log)\n"
        "wait(lambda: made.has_ended or made._fork is not None)\nos.kill(client.os.getppid() and made._seed._pid, 9)\n"
        "wait(lambda: made.has_ended or made._seed is None)\nbefore = made.has_ended\n"
        "(home.path / 'go on').touch()\nwait(lambda: made.has_ended)\n"
        + tell("before", "made.status(0.1)", "made.cold")
    )
    assert (ended, status, cold) == (False, None, "")


def test_the_caller_may_end_it_before_and_after_it_has_begun(callers: Callers) -> None:
    (callers.stubs / "quick_engine.py").write_text(
        "import time\nimport nbcomm.node.processes.daemon_lock as lock\n"
        "lock.DaemonLock.take_over = lambda self: time.sleep(60)\n"
    )
    early, late, left = callers.ask(
        "held()\nseed = client._held._pid\nhome = WorldDir.create()\nlog = home.daemon_log.open('w+b')\n"
        "os.kill(seed, 19)\nmade = ask(home, log)\nmade.kill()\nearly = made.has_ended\nos.kill(seed, 18)\n"
        "again = ask(home, log)\nwait(lambda: again.has_ended or again._fork is not None)\n"
        "again.kill()\nimport psutil\n"
        "wait(lambda: not psutil.Process(seed).children())\n"
        + tell("early", "again.status(5)", "len(psutil.Process(seed).children())")
    )
    assert (early, late, left) == (True, -9, 0)


def test_the_parts_that_a_caller_begins_with_are_sound() -> None:
    compile(CALLER, "caller", "exec")
    assert psutil.pid_exists(os.getpid())
