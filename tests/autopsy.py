"""What was there when a test ran out of its time: its notebooks' pages, its processes' stacks, its worlds' logs.

A pytest plugin; tests/conftest.py registers it. The time is over where pytest-timeout says so, where a helper raises
`OutOfTimeError`, where a program that a test runs does not end, or where a test or fixture fails with any other
time-out. It is looked at there and then, before anything is ended; the report gets it as sections. Other failures get
nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from nbcomm.world_dir import HOME_VARIABLE

MARK = "NBCOMM_TEST_PROCESS"
"""The variable that all processes of a test process inherit; its value is that process's id."""

_SECONDS, _SECONDS_EACH = 8.0, 4.0
"""For all processes together, and for one of them."""

_PROCESSES, _LINES, _FRAMES, _LOGS, _LOG_LINES, _LETTERS = 40, 120, 30, 24, 25, 60_000
"""At most so many processes; lines and frames a thread of one; logs and lines of one; letters in a section."""

Sections = list[tuple[str, str]]


class Page(Protocol):
    """Something that a reader looks at."""

    def shown(self) -> str:
        """All of it, as text."""


class OutOfTimeError(AssertionError):
    """What a test waited for did not come; whoever raises it has ended nothing yet."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.autopsy = perform()


_pages: list[tuple[Page, bool]] = []


def remember(page: Page, *, asks: bool = False) -> None:
    """Tell what a page shows whenever the time is over, until `forget`.

    Args:
        page: what is told of.
        asks: it must ask a browser, which cannot be done while an alarm rings: that may have come in the middle of it.
    """
    _pages.append((page, asks))


def forget(page: Page) -> None:
    """The page is closed."""
    _pages[:] = [known for known in _pages if known[0] is not page]


# ── when ────────────────────────────────────────────────────────────────────────────────────────────


def pytest_configure(config: pytest.Config) -> None:
    """Mark this process's descendants; look at a program that does not end before `subprocess.run` kills it."""
    os.environ[MARK] = str(os.getpid())
    communicate = subprocess.Popen.communicate

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return communicate(self, *args, **options)
        except subprocess.TimeoutExpired as error:
            _attach(error)
            raise

    subprocess.Popen.communicate = watched
    config.add_cleanup(lambda: setattr(subprocess.Popen, "communicate", communicate))


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Iterator[None]:
    """Look when pytest-timeout's alarm rings: what it raises ends all that the test holds in a ``with``."""
    result = yield
    ring = signal.getsignal(signal.SIGALRM)
    if callable(ring):

        def look(*args: Any) -> None:
            __tracebackhide__ = True
            try:
                ring(*args)
            except BaseException as error:
                _attach(error, ringing=True)
                raise

        signal.signal(signal.SIGALRM, look)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add to the report of a time-out what was there; where nobody has looked yet, look now."""
    report: Any = yield
    if call.excinfo is not None and report.failed:
        report.sections += _found(call.excinfo.value)
    return report


def _found(error: BaseException) -> Sections:
    chain = list(_chain(error))
    for link in chain:
        if sections := getattr(link, "autopsy", None):
            return list(sections)
    return perform() if any(map(_is_time_out, chain)) else []


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_time_out(error: BaseException) -> bool:
    """Playwright's, zmq's, jupyter_client's, concurrent.futures' …, and Python's own."""
    return any("timeout" in kind.__name__.lower() for kind in type(error).__mro__)


def _attach(error: Any, *, ringing: bool = False) -> None:
    if not hasattr(error, "autopsy"):
        error.autopsy = perform(ringing=ringing)


# ── what ────────────────────────────────────────────────────────────────────────────────────────────

_at_work = False


def perform(*, ringing: bool = False) -> Sections:
    """Look at everything; takes seconds at most, and does not raise.

    Args:
        ringing: this is within the handler of an alarm.
    """
    global _at_work  # noqa: PLW0603 - what looks runs programs itself
    if _at_work:
        return []
    _at_work = True
    try:
        processes = _told(_processes, [])
        return [
            (f"when the time was over: {title}", _shortened(_told(look, "")))
            for title, look in (
                ("pages", lambda: _read_pages(ringing=ringing)),
                ("stacks", lambda: _stacks(processes)),
                ("logs", lambda: _logs(processes)),
            )
        ]
    finally:
        _at_work = False


def _told(look: Callable[[], Any], nothing: Any) -> Any:
    """The result; where it fails, why it did, for the test's own failure must not be lost behind that."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001
        return nothing or f"(this could not be found out: {type(error).__name__}: {error})"


def _shortened(text: str, letters: int = _LETTERS) -> str:
    """Without the middle, if it is long."""
    left_out = len(text) - letters
    return text if left_out <= 0 else f"{text[: letters // 2]}\n… {left_out} letters …\n{text[-letters // 2 :]}"


def _read_pages(*, ringing: bool) -> str:
    told = [
        "(a page in a browser, which cannot be asked now)" if asks and ringing else _told(page.shown, "")
        for page, asks in list(_pages)
    ]
    return "\n\n".join(told) or "No notebook was open."


def _processes() -> list[psutil.Process]:
    """Those that came of this one. Worlds are in sessions of their own, and outlive what started them."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _environment(process).get(MARK) == str(os.getpid()):
            found.setdefault(process.pid, process)
    return [process for _, process in sorted(found.items())]


def of_worlds() -> dict[psutil.Process, str]:
    """The processes of this test process's worlds, which may be nobody's children, each with its world's directory."""
    found = {}
    for process in psutil.process_iter():
        environment = _environment(process)
        home = environment.get(HOME_VARIABLE, "").rstrip("/")
        if home and environment.get(MARK) == str(os.getpid()):  # a seed has none
            found[process] = home
    return found


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):  # it is gone, or another user's
        return {}


def _stacks(processes: list[psutil.Process]) -> str:
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    deadline = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda process: _stack(process, spy, deadline), processes[:_PROCESSES]))
    if len(processes) > _PROCESSES:
        told.append(f"… and {len(processes) - _PROCESSES} more processes.")
    return "\n\n".join(told) or "There was no process but the test's own."


def _stack(process: psutil.Process, spy: str | None, deadline: float) -> str:
    try:
        command = process.cmdline()
        title = f"process {process.pid}, child of {process.ppid()}, {process.status()}{_output_of(process.pid)}: "
        title += _shortened(" ".join(command), 200)
        is_python = "python" in Path(command[0] if command else process.name()).name
    except (psutil.Error, OSError) as error:
        return f"process {process.pid}: {type(error).__name__}"
    if not is_python:
        return title
    frames, why = _frames(process.pid, spy, deadline - time.monotonic())
    return "\n".join([title, *(frames or (_kernels_view(process.pid), f"(no stack: {why})"))])


def _frames(pid: int, spy: str | None, seconds: float) -> tuple[list[str], str]:
    """The stacks of a process's threads, or why they cannot be had."""
    if spy is None:
        return [], "py-spy is not installed; pip install py-spy"
    if seconds <= 0:
        return [], "there was no time left for it"
    try:
        asked = [spy, "dump", "--pid", str(pid)]
        limit = min(_SECONDS_EACH, seconds)
        seen = subprocess.run(asked, capture_output=True, text=True, timeout=limit, check=False)
    except (subprocess.TimeoutExpired, OSError) as error:
        return [], str(error)
    lines = list(_innermost(seen.stdout.splitlines()[3:]))[:_LINES]  # behind a head that says which process it is
    return lines, f"py-spy says {_shortened(seen.stderr.strip(), 1000)!r}"


def _innermost(lines: Iterable[str]) -> Iterator[str]:
    """The frames of each thread that are nearest to what it does."""
    frames = 0
    for line in lines:
        frames = frames + 1 if line.startswith(" ") else 0
        if frames <= _FRAMES:
            yield line


def _output_of(pid: int) -> str:
    """Where it writes, which says which rank it is: a fork has the zygote's command line."""
    try:
        target = Path(f"/proc/{pid}/fd/1").readlink()
    except OSError:
        return ""
    return f", writes to {target.name}" if target.is_absolute() else ""


def _kernels_view(pid: int) -> str:
    """What the system says of a process, where its stack cannot be had."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        state = [line for line in status if line.startswith(("Name", "State", "Threads", "SigCgt", "SigBlk"))]
        return "\n".join([f"waits in: {Path(f'/proc/{pid}/wchan').read_text() or '?'}", *state])
    except OSError as error:
        return f"({error})"


def _logs(processes: list[psutil.Process]) -> str:
    homes = sorted({home for process in processes if (home := _environment(process).get(HOME_VARIABLE))})
    logs = [log for home in homes for log in sorted(Path(home).glob("*.log"))]
    told = [f"{log}:\n{_end_of(log) or '(empty)'}" for log in logs[:_LOGS]]
    told += [f"… and {len(logs) - _LOGS} more logs."] * (len(logs) > _LOGS)
    return "\n\n".join(told) or f"There was no log{' in ' * bool(homes)}{', '.join(homes)}."


def _end_of(log: Path) -> str:
    """Its last lines; it may be of any size."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 14)))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(text.rstrip().splitlines()[-_LOG_LINES:])
