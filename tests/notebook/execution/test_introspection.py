"""Questions to one rank, and who waits for the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nbcomm.notebook.execution import introspection
from nbcomm.notebook.execution.introspection import Introspections
from nbcomm.protocol import IntrospectReply, IntrospectRequest


def made() -> tuple[Introspections, list[tuple[list[int], IntrospectRequest]]]:
    """Inquiries, and what was sent."""
    sent: list[tuple[list[int], IntrospectRequest]] = []
    link: Any = SimpleNamespace(send=lambda ranks, message: sent.append((ranks, message)))
    return Introspections(link), sent


def test_an_answer_goes_to_who_has_asked() -> None:
    table, sent = made()
    first, second = table.ask(1, "complete", "x.", 2), table.ask(1, "inspect", "y", 1, 1)
    assert [(ranks, ask.kind, ask.code, ask.cursor, ask.detail) for ranks, ask in sent] == [
        ([1], "complete", "x.", 2, 0),
        ([1], "inspect", "y", 1, 1),
    ]
    table.hear(1, IntrospectReply(sent[1][1].id, {"found": True}))
    assert second.result(0) == {"found": True}
    assert not first.done()
    table.hear(1, IntrospectReply(sent[0][1].id, {}))
    assert first.result(0) is None, "the rank could not say"


def test_what_nobody_asked_for_is_dropped() -> None:
    table, sent = made()
    answer = table.ask(1, "complete", "x", 1)
    table.hear(1, IntrospectReply(12345, {"matches": []}))
    table.hear(2, IntrospectReply(sent[0][1].id, {"matches": ["of another rank"]}))
    assert not answer.done()
    assert answer.cancel()  # its time is over
    table.hear(1, IntrospectReply(sent[0][1].id, {"matches": []}))
    table.hear(1, IntrospectReply(sent[0][1].id, {"matches": []}))


def test_a_rank_that_dies_answers_nothing() -> None:
    table, _ = made()
    lost, other = table.ask(1, "complete", "x", 1), table.ask(2, "complete", "x", 1)
    table.lose(1)
    assert lost.result(0) is None
    assert not other.done()


def test_questions_without_answers_do_not_pile_up() -> None:
    table, sent = made()
    answers = [table.ask(0, "complete", "x", 1) for _ in range(introspection._KEPT + 5)]
    assert [answer.done() for answer in answers[:6]] == [True] * 5 + [False]
    assert len(table._open) == introspection._KEPT
    assert len({ask.id for _, ask in sent}) == len(sent)
