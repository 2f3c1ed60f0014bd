"""What a process has from whoever starts it: what a fork of the seed is given, and what takes another seed.

A fresh process inherits some twenty things (execve(2), fork(2)). A fork of the seed has the seed's. Those that any
process can change for itself, it takes from the caller: `Inherited`. The others, and those that the imports may have
looked at, must be the same, so they are in the seed's name: `identity`.

| given to the fork | in the name of the seed |
|---|---|
| environment variables, all of them | all but a few that no import looks at (`_HARMLESS`, `_HARMLESS_GROUPS`) |
| working folder | user, groups, capabilities, seccomp, no_new_privs, audit user |
| umask | namespaces, control groups, root folder |
| soft limits (rlimits) | hard limits |
| ignored and blocked signals | cores and memory nodes it may use, memory policy |
| standard streams | nice value, scheduling policy, I/O priority, OOM score |
| name in lists of processes | personality, security label, session keyring |
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from ...world_dir import HOME_VARIABLE
from ..start import environment

WARM_VARIABLE = "NBCOMM_WARM"
"""The environment variable that says how long a seed stays when nobody needs it."""

PLAYED_VARIABLE = "NBCOMM_PLAYED"
"""The environment variable that marks the processes of a notebook which ``nbcomm demo`` plays; a seed has no mark."""

_HARMLESS = frozenset({
    *(HOME_VARIABLE, WARM_VARIABLE, PLAYED_VARIABLE),
    *("PWD", "OLDPWD", "SHLVL", "_"),
    *("TERM", "COLORTERM", "COLUMNS", "LINES", "STY", "TMUX", "TMUX_PANE", "WINDOWID"),
    *("INVOCATION_ID", "JOURNAL_STREAM", "XDG_SESSION_ID", "KERNEL_ID", "IPYTHONDIR"),
})  # fmt: skip
"""Variables that differ between two notebooks of one environment, and at which no import looks."""

_HARMLESS_GROUPS = ("JPY_", "JUPYTERHUB_", "SSH_", "TERM_", "VSCODE_", "PYTEST_")
"""Beginnings of the names of more such variables."""

_STATUS = frozenset({
    *("Uid", "Gid", "Groups"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"),
    *("Cpus_allowed", "Mems_allowed", "THP_enabled", "Speculation_Store_Bypass", "SpeculationIndirectBranch"),
})  # fmt: skip
"""Lines of proc(5)'s status that a process inherits and that are not in `Inherited`."""

_FILES = (
    *("cgroup", "loginuid", "oom_score_adj", "personality", "attr/current", "timerslack_ns", "coredump_filter"),
    *(f"ns/{kind}" for kind in ("cgroup", "ipc", "mnt", "net", "pid_for_children", "time_for_children", "user", "uts")),
)
"""Files, and links, below /proc/self, with what else it inherits."""

_KEYCTL = {"x86_64": 250, "aarch64": 219}
_GET_KEYRING_ID, _SESSION_KEYRING = 0, -3  # linux/keyctl.h

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})

_OF_PYTHON = frozenset({signal.SIGPIPE, *([signal.SIGXFSZ] if hasattr(signal, "SIGXFSZ") else [])})
"""Signals that Python ignores by itself, and restores in the programs that it starts."""


def identity() -> str:
    """Return the name of the seeds that a process with this one's environment may use.

    It is the same for two processes if a program that they start now would be the same process in all that a fork of
    another process cannot be given: see the table above. What Python would import is compared by the seed itself.
    """
    said = hashlib.sha256()
    for part in _parts():
        said.update(len(part).to_bytes(8, "little") + part)
    return said.hexdigest()[:16]


def _parts() -> list[bytes]:
    variables = [
        os.fsencode(f"{name}={value}") for name, value in sorted(environment().items()) if not _is_harmless(name)
    ]
    interpreter = [sys.executable, sys.version, sys.prefix, sys.base_prefix, *os.uname()]
    here = Path("/proc/thread-self")  # a program that a thread starts has that thread's cores, and its groups
    status = [line for line in _read(here / "status").splitlines() if line.split(b":")[0].decode() in _STATUS]
    files = [f"{name}=".encode() + _read(here / name) for name in _FILES]
    root = Path("/").stat()
    rest = [
        (root.st_dev, root.st_ino),
        [resource.getrlimit(kind)[1] for kind in _LIMITS],
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        psutil.Process().ionice(),
        _memory_policy(),
        _session_keyring(),
    ]
    groups = [variables, [os.fsencode(word) for word in interpreter], status, files, [repr(rest).encode()]]
    return [part for group in groups for part in (str(len(group)).encode(), *group)]


def _is_harmless(name: str) -> bool:
    return name in _HARMLESS or name.startswith(_HARMLESS_GROUPS)


def _read(path: Path) -> bytes:
    """Return what a file of the system says, or where a link leads; nothing where there is none."""
    with suppress(OSError):
        return os.fsencode(path.readlink())
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _memory_policy() -> bytes:
    """Return where this process's memory comes from (`numactl`): the first mapping has the process's own policy."""
    with suppress(OSError), Path("/proc/self/numa_maps").open("rb") as maps:
        return maps.readline().split()[1]
    return b""


def _session_keyring() -> int:
    """Return the number of this process's keyring of the session, where Kerberos and AFS keep what they know."""
    number = _KEYCTL.get(platform.machine())
    return 0 if number is None else int(ctypes.CDLL(None).syscall(number, _GET_KEYRING_ID, _SESSION_KEYRING, 0))


class Inherited(msgspec.Struct, frozen=True):
    """What a fork of the seed takes from the process that has asked for it, as a program that it starts would.

    Attributes:
        environment: variables.
        folder: where it works.
        umask: the modes that its files do not get.
        limits: by their numbers, soft limits; -1 is none.
        ignored: signals that it ignores.
        blocked: signals that are held back.
    """

    environment: dict[bytes, bytes]
    folder: bytes
    umask: int
    limits: dict[int, int]
    ignored: list[int]
    blocked: list[int]

    @classmethod
    def of_this(cls, folder: str, added: Mapping[str, str]) -> Inherited:
        """Return what a program would have that this process starts now.

        Args:
            folder: where it is to work.
            added: environment variables beside this process's own.
        """
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment(added).items()}
        status = _read(Path("/proc/thread-self/status")).splitlines()
        umask = next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask"))
        ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
        return cls(
            variables,
            os.fsencode(folder),
            umask,  # os.umask would have to set it, while other threads make files
            {kind: resource.getrlimit(kind)[0] for kind in _LIMITS},
            [int(number) for number in ignored if number not in _OF_PYTHON],
            [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        )

    def assume(self) -> None:
        """Give all of it to this process, which is a fork of the seed.

        Raises:
            OSError: something cannot be had: the folder is gone, for example.
        """
        os.environb.clear()
        os.environb.update(self.environment)
        os.chdir(self.folder)
        os.umask(self.umask)
        for kind, soft in self.limits.items():
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            is_ignored = number in self.ignored or number in _OF_PYTHON
            signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        if signal.SIGINT not in self.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


# ── in lists of processes ───────────────────────────────────────────────────────────────────────────

ROOM = "/" * 200
"""Where `rename` writes: a program that becomes another has this as its last argument, and as `HOME_VARIABLE`."""


def rename(command: list[str], home: bytes) -> None:
    """Show a command, and `HOME_VARIABLE`, where others look for a process of a world (`ps`, `lives`).

    The system shows the memory in which a program got its arguments and its environment, and nothing refers to the two
    texts that are overwritten there.

    Raises:
        OSError: this process may not write there.
        ValueError: it was not started with `ROOM`.
    """
    arguments, _, environment, _ = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49])
    _overwrite(arguments, Path("/proc/self/cmdline").read_bytes(), 0, b"\0".join(map(os.fsencode, command)))
    shown = Path("/proc/self/environ").read_bytes()
    _overwrite(environment, shown, shown.index(HOME_VARIABLE.encode() + b"=") + len(HOME_VARIABLE) + 1, home)


def _overwrite(start: int, shown: bytes, offset: int, text: bytes) -> None:
    """Write a text over all up to the end of `ROOM`, which follows somewhere behind the offset."""
    end = shown.index(ROOM.encode(), offset) + len(ROOM)
    if len(text) > end - offset:
        raise ValueError(f"There is no room to show {text!r}.")
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start + offset)
        memory.write(text.ljust(end - offset, b"\0"))
