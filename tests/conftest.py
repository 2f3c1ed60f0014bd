"""What every test may use."""

from __future__ import annotations

import contextlib
import doctest
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import psutil
import pytest

from nbcomm.node.seed.inheritance import WARM_VARIABLE

from . import autopsy, kinds, laws, order  # noqa: F401 - laws registers the profiles

_GONE_SECONDS = 10

_STAY = "3m"
"""How long a seed stays for the next test that wants it: an import of torch takes seconds of a processor."""

_SHARED = "NBCOMM_TESTS"
"""The variable that tells the processes of a run where to have directories of their own."""

# `make quick` and `make test` ask for others by --hypothesis-profile; tests/laws.py has all.
hypothesis.settings.load_profile("nbcomm")

pytest_addoption = order.add_option  # it is asked for before plugins are registered here


def pytest_configure(config: pytest.Config) -> None:
    """Hear interrupts, and let children hear them: what a shell starts in the background ignores them.

    Where tests run in several processes, each has a directory of its own for its worlds: notebooks see all worlds of
    their user, and those of another process would be strangers.
    """
    for plugin in (autopsy, kinds, order):
        config.pluginmanager.register(plugin)
    os.environ[WARM_VARIABLE] = _STAY
    config.add_cleanup(_end_seeds)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(dir=os.environ[_SHARED])
    elif getattr(config.option, "numprocesses", None):
        shared = os.environ[_SHARED] = tempfile.mkdtemp(prefix="t-")
        config.add_cleanup(lambda: shutil.rmtree(shared, ignore_errors=True))


def _end_seeds() -> None:
    """End the seeds that tests of this process have begun: nobody needs them any more."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "nbcomm.node.seed" in process.cmdline() and process.environ().get(autopsy.MARK) == str(os.getpid()):
                process.terminate()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out examples that are there to be read; skip what needs a GPU where torch sees none, and say so."""
    items[:] = [item for item in items if not _is_only_read(item)]
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if not needy:
        return
    import torch  # only if such a test is there

    if not torch.cuda.is_available():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="it needs a CUDA device, and torch sees none here"))


def _is_only_read(item: pytest.Item) -> bool:
    """Whether this is a doctest that needs a world, so that its author has marked all of it +SKIP."""
    examples = item.dtest.examples if isinstance(item, pytest.DoctestItem) and item.dtest else []
    return bool(examples) and all(example.options.get(doctest.SKIP) for example in examples)


@pytest.fixture(autouse=True)
def _environment_is_kept() -> Iterator[None]:
    """A variable of ours that a test leaves behind reaches every process that later tests start."""
    before = _own_variables()
    yield
    assert _own_variables() == before, "The test has left other variables than it has found."


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("NBCOMM_")}


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """Fail the test if a process that was started while it ran is still there after it.

    Descendants of the test's own process count, and processes of its worlds; what a broader fixture started before is
    left out.
    """
    before = _started()
    yield
    started = _started() - before
    _, left = psutil.wait_procs(started, timeout=_GONE_SECONDS)
    told = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not told, f"The test left processes behind: {told}"


def _started() -> set[psutil.Process]:
    return {*psutil.Process().children(recursive=True), *autopsy.of_worlds()}
