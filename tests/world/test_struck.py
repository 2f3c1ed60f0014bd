"""The node's helpers are killed, or stopped, in a start or in a heal: it ends well, or says why it has not.

`faults` strikes them while ranks run cells.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nbcomm.node.peers import listener_at

from .notebook import Notebook
from .processes import pid_of

Open = Callable[..., Notebook]
MOMENTS = [0.0, 0.03, 0.1, 0.3]
"""Seconds from the beginning, or from when the daemon is there: what is hit differs."""


def _late(which: str, number: int, moment: float) -> bool:
    """Whether a strike is left to `make test-all`."""
    return (which, number, moment) not in {
        ("daemon", signal.SIGKILL, 0.03),
        ("zygote", signal.SIGKILL, 0.0),
        ("zygote", signal.SIGSTOP, 0.03),
        ("daemon", signal.SIGSTOP, 0.1),
    }


STRIKES = pytest.mark.parametrize(
    ("which", "number", "moment"),
    [
        pytest.param(which, number, moment, marks=[pytest.mark.nightly] * _late(which, number, moment))
        for which in ("daemon", "zygote", "both")
        for number in (signal.SIGKILL, signal.SIGSTOP)
        for moment in MOMENTS
    ],
)


def _strike(which: str, number: int, daemon: int) -> None:
    """Signal the daemon, its zygote, or both; the zygote first, for it ends with the daemon."""
    struck = []
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if which != "daemon":
            children = psutil.Process(daemon).children()
            struck += [child.pid for child in children if os.getpgid(child.pid) == os.getpgid(daemon)]
    for pid in [*struck, *[daemon] * (which != "zygote")]:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@STRIKES
def test_in_a_heal(healed: Notebook, which: str, number: int, moment: float) -> None:
    daemon = pid_of(healed, "daemon")
    os.kill(int(healed.run("print(session.status()[3].pid)").text), signal.SIGKILL)
    healed.until(lambda: "dead" in healed.run("%distributed").text, 60, "its death is not noticed")
    cell = healed.submit("%distributed heal")
    time.sleep(moment)
    _strike(which, number, daemon)
    healed.finish(cell, 90)
    if cell.error is not None:  # it has said why
        assert "Error: " in cell.error_text
        healed.run("%distributed heal", 90)
    good = healed.run(
        "%%distributed\n(all_reduce(1), kept if rank < 3 else kept == 3 if 'kept' in globals() else True)"
    )
    assert good.lines == ["[0] (4, 0)", "[1] (4, 1)", "[2] (4, 2)", "[3] (4, True)"]


@pytest.fixture(scope="module")
def healed(four: Notebook) -> Notebook:
    """Four ranks with a variable, of which the last one dies in each test, and comes back."""
    four.run("from nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run("%%distributed\nkept = rank")
    return four


@pytest.fixture
def place() -> Iterator[Path]:
    """A short TMPDIR of its own: sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@STRIKES
def test_in_a_start(open_notebook: Open, place: Path, which: str, number: int, moment: float) -> None:
    notebook = open_notebook(TMPDIR=os.fspath(place))
    cell = notebook.submit("%distributed start -n 2")
    daemon = 0

    def serves() -> int:
        nonlocal daemon
        for path in place.glob("nbcomm-*/*/daemon.sock"):
            daemon = daemon or listener_at(path)
        return daemon

    notebook.until(serves, 60, "no daemon begins", cell)
    time.sleep(moment)
    _strike(which, number, daemon)
    notebook.finish(cell, 90)
    if cell.error is not None:  # it has said why, and nothing is left
        assert "Error: " in cell.error_text
        assert "No world is running" in notebook.run("%distributed").text
        assert not [*place.glob("nbcomm-*/*/daemon*")]
        notebook.run("%distributed start -n 2", 90)
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    notebook.run("%distributed stop")
