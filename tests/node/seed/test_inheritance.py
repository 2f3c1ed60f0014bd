"""A fork of the seed has all that a fresh process of its caller would have: each inherited thing, one by one."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from .callers import Callers, tell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seeds are Linux's only")

_OWN = ("random", "parent", "cold")
"""What two processes never have in common."""

_GIVEN = {
    "environment": "os.environ['TERM'] = 'a\\udcff=b'; os.environ['SSH_ODD'] = ''; os.environ.pop('PWD', None)",
    "folder": "os.makedirs('elsewhere', exist_ok=True); os.chdir('elsewhere')",
    "umask": "os.umask(0o027)",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(4)[1]));"
    " resource.setrlimit(resource.RLIMIT_NOFILE, (333, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "ignored": "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})",
    "interrupt": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
}
"""What a fork is given: how a caller changes it."""

_NAMED = {
    "nice": "os.nice(3)",
    "cores": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "policy": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "oom": "open('/proc/self/oom_score_adj', 'w').write('77')",
    "personality": "import ctypes; ctypes.CDLL(None).personality(0x0040000)",
    "environment": "os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'",
    "capabilities": "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",  # PR_SET_NO_NEW_PRIVS
}
"""What takes another seed: how a caller changes it, and what the daemon sees of that."""

_NAMED_OF_ROOT = {
    "groups": "os.setgroups([1234])",
    "namespaces": "import ctypes; assert not ctypes.CDLL(None).unshare(0x04000000)",  # CLONE_NEWUTS
}


def _compared(callers: Callers, change: str) -> tuple[dict[str, Any], dict[str, Any]]:
    fresh, forked = callers.ask(f"{change}\n{tell('without_a_seed()', 'by_the_seed()')}")
    for seen in (fresh, forked):
        for name in _OWN:
            seen.pop(name, None)
    return fresh, forked


def test_a_fork_has_what_a_fresh_process_has(shared: Callers) -> None:
    fresh, forked = _compared(shared, "")
    assert forked == fresh
    assert forked["leads"]
    assert forked["home"] == ["NBCOMM_HOME=HOME"], "which processes are a world's is read there"
    assert forked["command"][1:] == ["-m", "nbcomm.node.daemon", "HOME"], "as in lists of processes"
    assert {int(number) for number in forked["opened"]} >= {0, 1, 2}


@pytest.mark.parametrize("what", _GIVEN)
def test_what_the_caller_has_changed_is_given_to_the_fork(shared: Callers, what: str) -> None:
    plain = shared.ask(tell("by_the_seed()"))[0]
    before = shared.seed()
    fresh, forked = _compared(shared, _GIVEN[what])
    assert forked == fresh
    assert forked[what] != plain[what], "the caller has changed it"
    assert shared.seed() == before, "the same seed has done it"


@pytest.mark.parametrize("what", [*_NAMED, *(_NAMED_OF_ROOT if os.getuid() == 0 else ())])
def test_what_no_fork_can_be_given_takes_another_seed(callers: Callers, what: str) -> None:
    plain = callers.ask(tell("by_the_seed()"))[0]
    fresh, forked = _compared(callers, {**_NAMED, **_NAMED_OF_ROOT}[what])
    assert forked == fresh
    assert forked[what] != plain[what], "the caller has changed it"
    assert len(callers.seeds()) == 2
