"""Calls are counted, and their handles are kept as long as they go on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nbcomm.rank.collectives.call_values import Drawn
from nbcomm.rank.collectives.flight_recorder import _MANY, FlightRecorder
from nbcomm.rank.collectives.recorded_call import Log, RecordedCall

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
