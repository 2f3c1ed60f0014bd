"""Calls are counted, and their handles are kept as long as they go on."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from nbcomm.errors import HangError
from nbcomm.rank.collectives.call_values import Drawn
from nbcomm.rank.collectives.flight_recorder import _MANY, FlightRecorder
from nbcomm.rank.collectives.recorded_call import Log, RecordedCall
from nbcomm.torch_internals import nccl as torch_nccl

from .calls import Work, collective, group_of_two  # noqa: F401  # the last is the fixture `group`


def test_a_call_that_was_refused_is_counted_no_more(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    collective(log)
    log.take_back(collective(log))
    assert record.issued() == {"pair": 1}
    assert collective(log).seq == 2
    log.sent[3, 0], log.received[3, 7] = 2, 1
    log.take_back(RecordedCall("send", "send", log, 2, None, 3, 0))
    log.take_back(RecordedCall("recv", "recv", log, 1, None, 3, 7))
    assert (log.sent[3, 0], log.received[3, 7]) == (1, 0)


def test_a_call_is_not_taken_back_from_under_another_threads(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    refused = collective(log)
    behind = next(log.positions)  # it has its place, and is about to be issued
    log.take_back(refused)
    assert (behind, next(log.positions), record.issued()) == (2, 3, {"pair": 1})
    log.sent[3, 0] = 2
    log.take_back(RecordedCall("send", "send", log, 1, None, 3, 0))
    assert log.sent[3, 0] == 2


def test_handles_that_have_ended_are_let_go(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    works = [Work() for _ in range(_MANY + 1)]
    for work in works[:-1]:
        work.over.set()
        record.follow(work, collective(log))
    assert len(record.live) == _MANY
    record.follow(works[-1], collective(log))
    assert [work for work, _ in record.live.values()] == works[-1:]


def test_what_does_not_tell_its_end_has_ended_where_nobody_holds_it_any_more(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    held = Work()
    record.follow(held, collective(log, "reduce_scatter_tensor"))
    record.follow(Work(), collective(log, "reduce_scatter_tensor"))  # C++ has waited for it, and let it go
    record.follow(Work(), collective(log))  # DDP's, of which C++ holds the future: it goes on
    assert [call.seq for call in record.under_way()] == [1, 3]
    record.tidy()
    assert [call.seq for _, call in record.live.values()] == [1, 3]
    del held
    assert [call.seq for call in record.under_way()] == [3]


def test_gloos_handle_has_ended_with_its_future_and_nccls_has_not() -> None:
    record = FlightRecorder()
    gloo, nccl = Log("gloo", [0, 1], timedelta(seconds=60)), Log("nccl", [0, 1])
    works = [Work(), Work()]
    for work, log in zip(works, (gloo, nccl), strict=True):
        work.future.over = True
        record.follow(work, collective(log))
    assert [call.log for call in record.under_way()] == [nccl]
    record.tidy()
    assert [work for work, _ in record.live.values()] == works[1:]


def watched(record: FlightRecorder, drawn: Drawn | None = None) -> tuple[Work, RecordedCall]:
    """A call of gloo's whose end nobody but C++ sees, and whose callback waits for the interpreter."""
    work, call = Work(), collective(Log("pair", [0, 1], timedelta(seconds=60)))
    record.follow(work, call)
    record.journal.complete(call.entry, drawn, (), work)
    return work, call


def test_what_was_waited_for_in_cpp_has_an_end_in_a_trace_before_its_callback_ran() -> None:
    record = FlightRecorder()
    record.journal.begin(tracing=True)
    work, _ = watched(record)
    record.tidy()
    [step] = record.journal.steps()
    assert not step.ended
    work.future.over = True
    record.tidy()
    [step] = record.journal.steps()
    assert step.began <= step.ended


def test_nccls_result_is_not_read_when_its_future_ends() -> None:
    record, drawn = FlightRecorder(), Drawn({}, [], lambda result: [str(result)], 1)
    record.journal.begin(drawing=True, tracing=True)
    work, call = Work(), collective(Log("nccl", [0, 1]))
    work.future.over = work.future.calls_back = True
    record.follow(work, call)
    record.journal.complete(call.entry, drawn, (), work)
    assert call.entry.ended
    assert drawn.after is None, "to read it, this thread would wait for the others"
    work.over.set()
    record.tidy()
    assert drawn.after == ["1"]


def test_results_of_more_calls_than_are_kept_under_way_are_drawn() -> None:
    record = FlightRecorder()
    record.journal.begin(drawing=True)
    for number in range(_MANY + 8):
        drawn = Drawn({}, [], lambda result: [str(result)], number)
        work, _ = watched(record, drawn)
        work.future.over = True
    record.tidy()
    assert [step.after for step in record.journal.steps()] == [[str(number)] for number in range(_MANY + 8)]


def test_handles_that_go_on_are_not_all_asked_for_each_new_one(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    works = [Work() for _ in range(64 * _MANY)]
    for work in works:
        record.follow(work, collective(log))
    assert sum(work.asked for work in works) < 4 * len(works)
    for work in works:
        work.over.set()
    record.tidy()  # as at a cell's end: the next one keeps few again
    test_handles_that_have_ended_are_let_go(group)


def test_groups_formed_anew_count_from_one(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    collective(log)
    record.forget()
    assert record.issued() == {}
    again = record.begin_group("pair", [1, 3])
    assert collective(again).seq == 1


def test_a_collective_that_has_failed_here_is_told_until_the_group_is_formed_anew(
    group: tuple[FlightRecorder, Log],
) -> None:
    record, log = group
    call, work = collective(log), Work()

    def fails(*_: object) -> None:
        raise RuntimeError("invalid sizes")

    record.follow(work, call)
    with pytest.raises(RuntimeError, match="invalid sizes"):
        record.wait(fails, work, (), {})
    assert record.failed() == {"pair": [1]}
    for aborted, args in ((1.0, ()), (0.0, (timedelta(seconds=1),))):  # as all do; it has only taken too long
        record.aborted = aborted
        record.follow(work, collective(log))
        with pytest.raises(RuntimeError):
            record.wait(fails, work, args, {})
    assert record.failed() == {"pair": [1]}
    log.begin()
    assert record.failed() == {}


@pytest.mark.parametrize(
    ("kind", "limit", "error", "broken"),
    [
        ("collective", (), "Timed out waiting", True),
        ("collective", (timedelta(seconds=1),), "Operation timed out!", False),  # it goes on
        ("collective", (timedelta(seconds=1),), "Connection closed by peer", True),
        ("recv", (timedelta(seconds=1),), "Timed out waiting", True),  # gloo has closed all connections
    ],
)
def test_a_group_is_broken_by_a_call_that_fails_and_not_by_a_wait_that_may_be_repeated(
    group: tuple[FlightRecorder, Log], kind: str, limit: tuple[timedelta, ...], error: str, broken: bool
) -> None:
    record, log = group
    work, call = Work(), RecordedCall(kind, kind, log, 1, None)

    def fails(*_: object) -> None:
        raise RuntimeError(error)

    record.follow(work, call)
    with pytest.raises(RuntimeError, match=error):
        record.wait(fails, work, limit, {})
    assert record.broken == broken
    record.forget()
    assert not record.broken


def test_a_group_is_broken_by_a_call_that_has_failed_for_cpp_or_for_nobody(group: tuple[FlightRecorder, Log]) -> None:
    record = group[0]
    log = record.begin_group("gloos", [1, 3], timedelta(seconds=60))
    good, bad = Work(), Work()
    bad.future.error = RuntimeError("Timed out waiting")
    for work in (good, bad):
        record.follow(work, collective(log))
    good.future.over = True
    record.tidy()
    assert not record.broken
    bad.future.over = True
    record.tidy()
    assert record.broken


def test_what_only_cpp_has_seen_is_noted_until_the_next_request(group: tuple[FlightRecorder, Log]) -> None:
    record, log = group
    record.follow(Work(), collective(log, "reduce_scatter_tensor"))
    record.tidy()
    assert record.unseen
    record.settle()
    assert not record.unseen


class Mark:
    """A place in a GPU's stream."""

    def __init__(self) -> None:
        self.done: bool | Exception = False

    def query(self) -> bool:
        if isinstance(self.done, Exception):
            raise self.done
        return self.done


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[Mark]:
    """The marks that are made, in place of a GPU's."""
    made: list[Mark] = []

    def mark() -> Mark:
        made.append(Mark())
        return made[-1]

    monkeypatch.setattr(torch_nccl, "mark", mark)
    return made


def queued(record: FlightRecorder, log: Log, *, done: bool = False) -> tuple[Work, RecordedCall]:
    """A call whose wait returns when it is queued."""
    work, call = Work(), collective(log)
    record.follow(work, call)
    if done:
        work.over.set()
    assert record.wait(lambda _: True, work, (), {})
    return work, call


def test_a_call_that_is_only_queued_is_known_until_the_gpu_has_done_it(marks: list[Mark]) -> None:
    record, log = FlightRecorder(), Log("nccl", [0, 1])
    queued(record, log, done=True)
    assert not marks, "it had ended before anybody asked"
    calls = [queued(record, log)[1] for _ in range(3)]
    assert record.undone() == calls
    assert not record.live, "a handle would keep its tensors"
    marks[0].done = True
    marks[1].done = RuntimeError("CUDA error: device-side assert triggered")
    assert record.undone() == calls[2:]
    record.forget()
    assert record.undone() == []


def test_many_that_are_done_are_let_go(marks: list[Mark]) -> None:
    record, log = FlightRecorder(), Log("nccl", [0, 1])
    for _ in range(4 * _MANY):
        queued(record, log)
        marks[-1].done = True
    assert len(record.on_device) <= _MANY


def test_gloos_calls_have_ended_when_their_wait_has(marks: list[Mark]) -> None:
    record, log = FlightRecorder(), Log("gloo", [0, 1], timedelta(seconds=60))
    work, call = Work(), collective(log)
    record.follow(work, call)
    record.wait(lambda *_: True, work, (), {})
    assert not marks
    assert record.undone() == []


def test_what_ddp_has_called_is_undone_and_what_code_can_wait_for_is_not(marks: list[Mark]) -> None:
    record, log = FlightRecorder(), Log("nccl", [0, 1])
    held, call = Work(), collective(log)
    record.follow(held, collective(log))
    record.follow(Work(), call)
    assert record.undone() == [call]
    assert not marks


def test_the_end_of_a_request_waits_for_the_gpu_and_is_told_as_a_wait(marks: list[Mark]) -> None:
    record, log = FlightRecorder(), Log("nccl", [0, 1])
    _, call = queued(record, log)
    seen: list[RecordedCall | None] = []

    def gpu() -> None:
        deadline = time.monotonic() + 30
        while record.inside is None and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append(record.inside)
        marks[0].done = True

    thread = threading.Thread(target=gpu)
    thread.start()
    record.await_device()
    thread.join()
    assert seen == [call]
    assert record.inside is None


def test_an_abort_ends_that_wait_with_its_reason(marks: list[Mark]) -> None:
    record = FlightRecorder(explain=lambda error: HangError(f"explained: {error}"))
    queued(record, Log("nccl", [0, 1]))
    record.await_device(0.01)  # a limited one only waits
    record.aborted = time.monotonic()
    with pytest.raises(HangError, match="explained: The connection was closed while the GPU"):
        record.await_device()
    assert not marks[0].done
