"""A process's memory: PSS where the system tells it, read seldom, and RSS elsewhere."""

from __future__ import annotations

import errno
import sys

import pytest

from nbcomm.rank.process_memory import Footprint

MIB = 1 << 20


class System:
    """Tells memory, and counts who asks for PSS; a reading takes 4 ms."""

    def __init__(self, rss: int = 200, pss: int = 60, *, refuses: bool = False) -> None:
        self.rss, self.pss, self.refuses = rss * MIB, pss * MIB, refuses
        self.now = 1000.0
        self.readings = 0
        self.footprint = Footprint(lambda: self.rss, self.read, lambda: self.now)

    def read(self) -> int:
        self.readings += 1
        self.now += 0.004
        if self.refuses:
            raise PermissionError
        return self.pss

    def measure(self, after: float = 0.0) -> tuple[int, bool]:
        self.now += after
        size, pss = self.footprint.measure()
        return size // MIB, pss


def test_pages_that_ranks_share_count_in_part() -> None:
    assert System().measure() == (60, True)


def test_where_the_system_refuses_it_it_is_asked_once_and_rss_is_told() -> None:
    system = System(refuses=True)
    assert [system.measure(60.0) for _ in range(3)] == [(200, False)] * 3
    assert system.readings == 1


def test_what_a_rank_allocates_is_told_at_once_and_read_later() -> None:
    system = System()
    system.measure()
    system.rss, system.pss = 1200 * MIB, 1055 * MIB
    assert system.measure(0.1) == (1060, True)
    assert system.readings == 1
    assert system.measure(2.0) == (1055, True)
    assert system.readings == 2


def test_ten_probes_a_second_of_a_rank_that_keeps_its_memory_read_it_once_a_minute() -> None:
    system = System()
    for _ in range(1200):
        system.measure(0.1)
    assert system.readings == 2


def test_a_rank_whose_memory_changes_all_the_time_spends_a_five_hundredth_on_it() -> None:
    system = System()
    began = system.now
    for step in range(2000):
        system.rss = (200 + 100 * (step % 2)) * MIB
        system.measure(0.1)
    assert system.readings > 50
    assert system.readings * 0.004 <= (system.now - began) / 500 + 0.004


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no smaps_rollup")
def test_the_systems_own_figure_is_no_more_than_what_is_resident() -> None:
    size, pss = Footprint().measure()
    resident, _ = Footprint(pss=_refuse).measure()
    assert not pss or 0 < size <= resident * 1.1


def _refuse() -> int:
    raise PermissionError


def test_without_a_descriptor_it_is_what_it_was() -> None:
    full = False

    def read(value: int) -> int:
        if full:
            raise OSError(errno.EMFILE, "Too many open files")
        return value

    now = 0.0
    footprint = Footprint(lambda: read(100), lambda: read(60), lambda: now)
    assert footprint.measure() == (60, True)
    full = True
    assert footprint.measure() == (60, True)
    full, now = False, 1000.0
    assert footprint.measure() == (60, True), "it is read again, and PSS is not given up"
