"""Calls of one group, recorded without torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from nbcomm.rank.collectives.fingerprints import entry
from nbcomm.rank.collectives.flight_recorder import FlightRecorder
from nbcomm.rank.collectives.recorded_call import Log, RecordedCall


class Future:
    """What C++ waits for. A callback may come late, as if the interpreter were busy elsewhere."""

    def __init__(self) -> None:
        self.over = self.calls_back = False
        self.error: RuntimeError | None = None

    def done(self) -> bool:
        return self.over

    def value(self) -> None:
        if self.error is not None:
            raise self.error

    def add_done_callback(self, back: Callable[[Future], None]) -> None:
        if self.calls_back:
            back(self)


class Work:
    """A handle that ends when it is told to."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked = 0
        self.future = Future()

    def is_completed(self) -> bool:
        self.asked += 1
        return self.over.is_set()

    def get_future(self) -> Future:
        return self.future

    def wait(self, timeout: float | None = None) -> bool:
        assert self.over.wait(30)
        return True


@pytest.fixture(name="group")
def group_of_two() -> tuple[FlightRecorder, Log]:
    record = FlightRecorder()
    return record, record.begin_group("pair", [1, 3])


def collective(log: Log, name: str = "all_reduce") -> RecordedCall:
    log.issued = next(log.positions)
    return RecordedCall("collective", name, log, log.issued, entry(1, "all_reduce(float32 (3,), sum)"))
