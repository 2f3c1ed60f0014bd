"""What is told of a main thread that is stuck, by another thread."""

from __future__ import annotations

import asyncio
import functools
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from nbcomm.protocol import CollectiveState
from nbcomm.rank.collectives.flight_recorder import FlightRecorder
from nbcomm.rank.collectives.recorded_call import Log
from nbcomm.rank.collectives.stuck import StuckDetector

from .calls import Work, collective, group_of_two  # noqa: F401  # the last is the fixture `group`


def told(record: FlightRecorder) -> CollectiveState:
    return StuckDetector(record).state()


class Gate(threading.Event):
    """One that knows whether anybody has begun to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_for.set()
        return super().wait(timeout)


def told_meanwhile(record: FlightRecorder, wait: Any, release: Any) -> Any:
    """What the record tells while the main thread is in ``wait``."""
    seen: list[Any] = []

    def look() -> None:
        deadline = time.monotonic() + 30
        while not told(record).waits and time.monotonic() < deadline:
            time.sleep(0.002)
        seen.append(told(record))
        release()

    thread = threading.Thread(target=look)
    thread.start()
    wait()
    thread.join()
    return seen[0]


def test_a_wait_for_a_handle_is_told_whole(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    call, work = collective(log), Work()
    record.follow(work, call)
    doing = told_meanwhile(record, lambda: record.wait(Work.wait, work, (), {}), work.over.set)
    (op,) = doing.waits
    assert (op.kind, op.name, op.group, op.members, op.seq) == ("collective", "all_reduce", "pair", (1, 3), 1)
    assert op.what == "float32 (3,), sum"
    assert abs(op.since - time.time()) < 30
    assert not op.limited
    assert doing.issued == {"pair": 1}
    assert not told(record).waits


def test_a_wait_with_a_timeout_is_a_limited_one(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    call, work = collective(log), Work()
    record.follow(work, call)
    doing = told_meanwhile(record, lambda: record.wait(Work.wait, work, (5.0,), {}), work.over.set)
    assert doing.waits[0].limited


def test_a_call_that_blocks_by_itself_is_told(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    gate = threading.Event()

    def block() -> None:
        with record.within(collective(log, "monitored_barrier")):
            assert gate.wait(30)

    assert told_meanwhile(record, block, gate.set).waits[0].name == "monitored_barrier"


def test_a_wait_of_another_thread_is_no_wait_of_the_cell(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work = Work()
    record.follow(work, collective(log))
    thread = threading.Thread(target=lambda: record.wait(Work.wait, work, (), {}))
    thread.start()
    assert not told(record).waits
    work.over.set()
    thread.join()


def test_a_thread_that_waits_is_told_while_the_main_one_waits_for_it(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work = Work()
    record.follow(work, collective(log))
    thread = threading.Thread(target=lambda: record.wait(Work.wait, work, (), {}), name="mine")
    seen: list[Any] = []

    def look() -> None:
        deadline = time.monotonic() + 30
        while not (seen and seen[-1].beside) and time.monotonic() < deadline:
            seen.append(told(record))  # this one counts: the main thread waits also for a moment in `looking.start`
            time.sleep(0.002)
        work.over.set()

    looking = threading.Thread(target=look)
    thread.start()
    assert not told(record).beside  # the main thread does something else
    looking.start()
    thread.join()
    looking.join()
    ((op,), waits) = seen[-1].beside, seen[-1].waits
    assert (op.name, op.seq, op.thread) == ("all_reduce", 1, "mine")
    assert not waits
    assert not told(record).beside


def test_a_thread_that_waits_is_told_while_the_cell_awaits_it(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work, seen = Work(), []
    record.follow(work, collective(log))

    def look() -> None:
        deadline = time.monotonic() + 30
        while not (seen and seen[-1].beside) and time.monotonic() < deadline:
            seen.append(told(record))
            time.sleep(0.002)
        work.over.set()

    looking = threading.Thread(target=look)
    looking.start()
    asyncio.run(asyncio.to_thread(record.wait, Work.wait, work, (), {}))
    looking.join()
    ((op,), waits) = seen[-1].beside, seen[-1].waits
    assert (op.name, op.seq) == ("all_reduce", 1)
    assert not waits


class Lane(threading.Thread):
    """A thread that carries on what a cell has begun, as nbcomm's own do: it waits in a call, or for another one."""

    def __init__(self, record: FlightRecorder, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._record = record
        self._body = wait
        self.on = threading.Event()
        self.start()
        assert self.on.wait(30)

    def run(self) -> None:
        with self._record.beside(issues=True):
            self.on.set()
            self._body()


def begun(record: FlightRecorder, log: Log) -> tuple[Work, Callable[[], object]]:
    """A call, and what waits for it."""
    work = Work()
    record.follow(work, collective(log))
    return work, lambda: record.wait(Work.wait, work, (), {})


def told_once(record: FlightRecorder, is_it: Callable[[CollectiveState], object]) -> CollectiveState:
    deadline = time.monotonic() + 30
    while not is_it(doing := told(record)) and time.monotonic() < deadline:
        time.sleep(0.002)
    return doing


def test_in_what_a_lane_waits_is_told_and_one_that_does_not_wait_is_a_thread(
    group: tuple[FlightRecorder, Log],
) -> None:
    record, log = group
    (one, waits), (two, waits_too), gate = begun(record, log), begun(record, log), threading.Event()
    lanes = Lane(record, waits), Lane(record, waits_too), Lane(record, lambda: gate.wait(30))
    doing = told_once(record, lambda doing: len(doing.lanes) == 2)
    assert sorted(op.seq for op in doing.lanes) == [1, 2]
    assert (doing.threads, doing.waits) == (1, [])
    assert doing.issued == {"pair": 2}
    with record.waiting_for(lanes[1].ident):  # what the main thread waits for is its own wait
        doing = told(record)
        assert [op.seq for op in doing.waits] == [2]
        assert [op.seq for op in doing.lanes] == [1]
        assert doing.threads == 1
    with record.waiting_for(lanes[2].ident):
        doing = told(record)
        assert (doing.threads, doing.waits, len(doing.lanes)) == (0, [], 2)
    for over in (one.over, two.over, gate):
        over.set()
    for lane in lanes:
        lane.join(30)
    doing = told(record)
    assert (doing.threads, doing.lanes) == (0, [])


def test_what_a_lane_has_got_it_does_not_wait_for(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work, _ = begun(record, log)
    gate = threading.Event()
    lane = Lane(record, lambda: record.wait(lambda _: gate.wait(30), work, (), {}))
    assert told_once(record, lambda doing: doing.lanes).threads == 0
    work.over.set()  # and its thread has not noticed yet
    doing = told(record)
    assert (doing.threads, doing.lanes) == (1, [])
    gate.set()
    lane.join(30)


def test_a_lane_that_waits_for_another_one_waits_in_its_call(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    (work, waits), gate = begun(record, log), threading.Event()

    def in_turn() -> None:
        with record.waiting_for(first.ident):
            gate.wait(30)

    first = Lane(record, waits)
    behind = Lane(record, in_turn)
    doing = told_once(record, lambda doing: len(doing.lanes) == 2)
    assert [op.seq for op in doing.lanes] == [1, 1]
    assert doing.threads == 0
    with record.waiting_for(behind.ident):
        doing = told(record)
        assert [op.seq for op in doing.waits] == [op.seq for op in doing.lanes] == [1]
        assert doing.threads == 0
    work.over.set()
    first.join(30)
    gate.set()
    behind.join(30)
    assert not record.delegated_beside


def test_a_lane_is_waited_for_with_or_without_a_limit(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work, waits = begun(record, log)
    lane = Lane(record, waits)
    assert [op.limited for op in told_once(record, lambda doing: doing.lanes).lanes] == [False]
    with record.waiting_for(lane.ident, limited=True):
        assert [op.limited for op in told(record).waits] == [True]
        with record.waiting_for(lane.ident):  # in a signal's handler
            assert [op.limited for op in told(record).waits] == [False]
        assert [op.limited for op in told(record).waits] == [True]
    assert [op.limited for op in told(record).lanes] == [False]
    work.over.set()
    lane.join(30)


def test_a_timer_that_will_call_something_of_the_cells_counts_as_its_thread(group: tuple[FlightRecorder, Log]) -> None:
    scope: dict[str, Any] = {"done": threading.Event()}
    exec("def late(): pass", scope)  # noqa: S102 - that is what a cell is
    record = FlightRecorder(lambda: scope)
    for function, counted in (
        (scope["late"], 1),
        (functools.partial(scope["late"]), 1),
        (dist.barrier, 1),
        (textwrap.dedent, 0),  # a library's
        (scope["done"].set, 0),
    ):
        timer = threading.Timer(1000, function)
        timer.finished = gate = Gate()
        timer.start()
        try:
            assert gate.waited_for.wait(30)
            assert told(record).threads == counted, function
        finally:
            timer.cancel()
            timer.join()


def test_the_line_is_that_of_the_cell() -> None:
    scope: dict[str, Any] = {}
    record = FlightRecorder(lambda: scope)
    log, work = record.begin_group("", [0, 1]), Work()
    record.follow(work, collective(log))
    scope["wait"] = lambda: record.wait(Work.wait, work, (), {})
    cell = compile("a = 1\nwait()", "<cell>", "exec")
    doing = told_meanwhile(record, lambda: exec(cell, scope), work.over.set)  # noqa: S102 - that is what a cell is
    assert doing.waits[0].line == doing.line == "line 2"


def test_messages_are_counted_by_peer_and_tag(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    log.sent[3, 7] = 2
    log.received[None, 0] = 1
    log.received[1, 0] = 0
    doing = told(record)
    assert [(count.peer, count.tag, count.number) for count in doing.sent] == [(3, 7, 2)]
    assert [(count.peer, count.tag, count.number) for count in doing.received] == [(None, 0, 1)]


def test_the_end_of_a_request_is_told_as_at_any_time(group: tuple[FlightRecorder, Log]) -> None:
    """Whatever is left there: by calls that nobody waited for, by threads, by an interrupt."""
    record, log = group
    detector = StuckDetector(record)

    def same() -> CollectiveState:
        end = detector.at_end()
        assert end == detector.state()
        return end

    assert same() == CollectiveState(issued={"pair": 0})
    log.sent[3, 7] = 2
    log.received[1, 0] = 1
    assert same().sent
    call, work = collective(log), Work()
    record.follow(work, call)
    assert same().issued == {"pair": 1}
    record.waiting.append((work, False))
    assert same().waits
    record.settle()
    record.issuing.add(1)
    assert same().threads == 1
    record.issuing.clear()
    work.over.set()
    record.tidy()
    with record.within(call):
        assert same().waits
    assert not same().waits


def test_a_cell_begins_without_what_an_interrupt_left(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    work = Work()
    record.follow(work, collective(log))
    record.waiting.append((work, False))
    assert told(record).waits
    record.settle()
    assert not told(record).waits


def test_making_groups_is_counted_where_all_take_part() -> None:
    record = FlightRecorder()
    with record.creation([0, 1], counted=True) as number:
        assert number == 1
        (op,) = told(record).waits
        assert (op.name, op.members, op.limited) == ("new_group", (0, 1), False)
    with record.creation([0, 1], counted=False):
        assert told(record).waits[0].limited
    assert told(record).issued == {"new_group": 1}
