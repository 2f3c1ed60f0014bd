"""What every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

_GONE_SECONDS = 10


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where torch sees none, and say so; torch is loaded only if such a test is there."""
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if not needy:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="it needs a CUDA device, and torch sees none here"))


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """Fail the test if a process that was started while it ran is still there after it.

    Only descendants of the test's own process count; what a broader fixture started before is left out.
    """
    before = set(psutil.Process().children(recursive=True))
    yield
    started = set(psutil.Process().children(recursive=True)) - before
    _, left = psutil.wait_procs(started, timeout=_GONE_SECONDS)
    told = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not told, f"The test left processes behind: {told}"
