"""Ranks that exist on paper only: programs of collectives and messages, run step by step, and what ranks report of it.

A rank has strands: its main thread, and perhaps others, which are the user's threads or nbcomm's lanes. A strand is a
list of steps. Collectives and sends are issued and then waited for, or left under way; a send is not buffered. The
truth is kept apart from what is counted: which send met which receive is decided here, and the ranks report only what
real ones do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from nbcomm.analysis.wait_graph import RankReport
from nbcomm.protocol import CollectiveState, MessageCount, PendingCall, rank_lists

T = TypeVar("T")

ENDS = ["finished", "failed", "interrupted", "idle", "dead"]
KINDS = ["compute", "wait", "collective", "collective", "send", "send", "recv", "recv"]


class Tape:
    """Choices, read from bytes: fewer draws than if each was made by itself, and shrunk as well."""

    def __init__(self, choices: bytes) -> None:
        self._choices = itertools.chain(choices, itertools.repeat(0))

    def below(self, number: int) -> int:
        return next(self._choices) * number >> 8

    def of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


class Step(NamedTuple):
    """One step of a program: "collective", "send", "recv", "compute", or "wait" for a call that is under way.

    ``number`` is the group's; of a wait, which of the strand's calls that are under way.
    """

    kind: str
    number: int = 0
    peer: int | None = None
    tag: int = 0
    stays: bool = False  # under way, until a later wait or for ever


@dataclass(eq=False)
class Call:
    """A call on a rank; ``op`` is how the rank would report it."""

    rank: int
    op: PendingCall
    met: bool = False  # of a send or receive
    source: int | None = None  # of a receive from anyone that has met its sender
    ended: bool = False


@dataclass(eq=False)
class Strand:
    """A thread of a rank: where it is in its program, and what it waits for."""

    steps: list[Step]
    at: int = 0
    stuck: Call | None = None
    under_way: list[Call] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.at == len(self.steps) and self.stuck is None


class Report(NamedTuple):
    """What a rank's main thread is at, and how often it has moved; its other strands, and in what its lanes wait."""

    report: RankReport
    moves: int
    alive: frozenset[int]
    lanes: dict[int, PendingCall]


class Play:
    """A world that runs programs.

    Args:
        groups: the members of each group.
        programs: for each rank its main thread's, and those of its other threads.
        ends: for each rank the state that it is in when its program has ended.
        announced: how receives from anyone meet their sender. True: at any time later, with a message for which no
            receive stands, and from then on it is a receive from that rank. False: at once, and it is counted for its
            sender when it has ended.
        lanes: whether the other threads are lanes: it is known in what they wait.
    """

    def __init__(
        self,
        groups: list[list[int]],
        programs: list[list[list[Step]]],
        ends: list[str],
        *,
        announced: bool = True,
        lanes: bool = False,
    ) -> None:
        self.groups = groups
        self.programs = programs
        self.ends = ends
        self.history: list[list[Report]] = []
        self.announced = announced
        self.lanes = lanes
        self.strands = [[Strand(list(steps)) for steps in program] for program in programs]
        self.moves = [0] * len(programs)
        self.issued: list[Counter[int]] = [Counter() for _ in programs]
        self.sent: list[Counter[tuple[int, int | None, int]]] = [Counter() for _ in programs]
        self.received: list[Counter[tuple[int, int | None, int]]] = [Counter() for _ in programs]
        self.sends: list[Call] = []
        self.receives: list[Call] = []

    def run(self, tape: Tape) -> None:
        """Play until nothing can happen any more; after every move all ranks report."""
        self.history = [[self.report(rank) for rank in range(len(self.programs))]]
        while choices := self.choices():
            self.choose(tape.of(choices))
            self.history.append([self.report(rank) for rank in range(len(self.programs))])

    # ── moving ──────────────────────────────────────────────────────────────────────────────────────

    def choices(self) -> list[tuple[str, int, int]]:
        """What can happen next."""
        moves = [
            ("step", rank, number)
            for rank, strands in enumerate(self.strands)
            for number, strand in enumerate(strands)
            if not strand.ended and (strand.stuck is None or self.complete(strand.stuck))
        ]
        return moves + [("meet", i, j) for i, j in self.matched_calls()]

    def choose(self, choice: tuple[str, int, int]) -> None:
        what, first, second = choice
        if what == "meet":
            self._meet(self.sends[first], self.receives[second])
        else:
            self._move(first, second)

    def matched_calls(self) -> list[tuple[int, int]]:
        """The receives from anyone that could take a message now: each sender's first for which no receive stands."""
        if not self.announced:
            return []
        return [
            (i, j)
            for j, receive in enumerate(self.receives)
            if receive.op.peer is None and not receive.met
            for i, send in enumerate(self.sends)
            if _fit(send, receive) and send.op.seq == self.received[receive.rank][_lane(send.op, send.rank)] + 1
        ]

    def _move(self, rank: int, number: int) -> None:
        strand = self.strands[rank][number]
        if number == 0:
            self.moves[rank] += 1
        if strand.stuck is not None:
            self._end(strand.stuck)
            strand.stuck = None
            return
        step = strand.steps[strand.at]
        strand.at += 1
        if step.kind == "compute":
            return
        if step.kind == "wait":
            if strand.under_way:
                strand.stuck = strand.under_way.pop(step.number % len(strand.under_way))
            return
        call = self._issue(rank, step)
        if step.stays:
            strand.under_way.append(call)
        else:
            strand.stuck = call

    def _issue(self, rank: int, step: Step) -> Call:
        counts: Counter = {"send": self.sent, "recv": self.received}.get(step.kind, self.issued)[rank]
        key = step.number if step.kind == "collective" else (step.number, step.peer, step.tag)
        counts[key] += 1
        members, line = self.groups[step.number], f"line {self.moves[rank]}: {step.kind}()"
        name = "all_reduce" if step.kind == "collective" else step.kind
        group = str(step.number)
        ranks = rank_lists.written(members)
        op = PendingCall(step.kind, name, group, ranks, counts[key], "float32 (4,)", line, 0.0, step.peer, step.tag)
        call = Call(rank, op)
        if step.kind == "send":
            self.sends.append(call)
            others = [receive for receive in self.receives if _fit(call, receive)]
            if self.announced:
                others = [receive for receive in others if receive.op.peer is not None and receive.op.seq == op.seq]
            if others:
                self._meet(call, others[0])
        elif step.kind == "recv":
            self.receives.append(call)
            others = [send for send in self.sends if _fit(send, call)]
            if self.announced:
                others = [send for send in others if op.peer is not None and send.op.seq == op.seq]
            if others:
                self._meet(others[0], call)
        return call

    def _meet(self, send: Call, receive: Call) -> None:
        send.met = receive.met = True
        if receive.op.peer is None:
            receive.source = send.rank
            if self.announced:
                received, op = self.received[receive.rank], receive.op
                received[_lane(op, None)] -= 1
                received[_lane(op, send.rank)] += 1
                receive.op = msgspec.structs.replace(op, peer=send.rank, seq=send.op.seq)

    def _end(self, call: Call) -> None:
        call.ended = True
        if call.op.kind == "recv" and call.op.peer is None:
            received = self.received[call.rank]
            received[_lane(call.op, None)] -= 1
            received[_lane(call.op, call.source)] += 1

    def complete(self, call: Call) -> bool:
        if call.op.kind != "collective":
            return call.met
        group = int(call.op.group)
        return all(self.issued[member][group] >= call.op.seq for member in call.op.members)

    # ── reporting ───────────────────────────────────────────────────────────────────────────────────

    def report(self, rank: int) -> Report:
        main, *threads = self.strands[rank]
        alive = frozenset(number for number, thread in enumerate(threads) if not thread.ended)
        lanes = {number: each.stuck.op for number, each in enumerate(threads) if self.lanes and each.stuck is not None}
        state = self.ends[rank] if main.ended and not (self.ends[rank] == "dead" and alive) else "running"
        if main.ended and state == "running":
            state = "finished"
        doing = CollectiveState(
            {str(group): number for group, number in self.issued[rank].items()},
            _counts(self.sent[rank]),
            _counts(self.received[rank]),
            [main.stuck.op] if main.stuck is not None else [],
            "line 1: compute()",
            len(alive - lanes.keys()),
            lanes=[*lanes.values()],
        )
        note = "was killed by SIGKILL" if state == "dead" else ""
        return Report(RankReport(rank, state, note, doing), self.moves[rank], alive, lanes)

    def stuck(self) -> list[int]:
        """The ranks whose main thread is stuck: when nothing can happen any more, for ever."""
        return [rank for rank, (main, *_) in enumerate(self.strands) if main.stuck is not None]

    def unclear(self) -> bool:
        """Whether a receive from anyone has met its sender and nobody counts it: then nobody can tell whom."""
        return any(r.op.peer is None and r.met and not r.ended for r in self.receives)

    def threads(self) -> bool:
        """Whether a rank has a thread of which nobody knows what it waits for."""
        others = [thread for _, *threads in self.strands for thread in threads]
        return any(not thread.ended and not (self.lanes and thread.stuck is not None) for thread in others)


def any_play(tape: Tape, *, anyone: bool, lanes: bool = False) -> Play:
    """Some programs on 2 to 5 ranks in 1 to 3 groups, played to their end.

    Args:
        tape: chooses.
        anyone: with receives from anyone.
        lanes: with lanes in place of other threads, on most ranks.
    """
    size = 2 + tape.below(3 if lanes else 4)
    groups = [list(range(size))]
    for _ in range(tape.below(3)):
        members = [rank for rank in range(size) if tape.below(2)]
        groups += [members] * (len(members) > 1)
    announced = not anyone or tape.of([True, True, False])
    stays = tape.of([(False,), (False, False, False, True), (False, True)])
    length = tape.of([2, 2, 4] if lanes else [2, 4, 8])
    more, longest = ([0, 1, 1], 8) if lanes else ([0] * 9 + [1], 1)

    def step(rank: int) -> Step:
        kind = tape.of(KINDS)
        group = tape.of([number for number, members in enumerate(groups) if rank in members])
        if kind in {"compute", "wait"}:
            return Step(kind, tape.below(8))
        if kind == "collective":
            return Step(kind, group, stays=tape.of(stays))
        peer: int | None = tape.of([member for member in groups[group] if member != rank])
        tag = tape.below(2)
        if kind == "recv" and anyone and tape.below(2):
            peer = None
        if kind == "recv" and not announced:
            # Receives by name and from anyone that share a tag would meet messages in an order that no count tells.
            tag = int(peer is None)
        return Step(kind, group, peer, tag, tape.of(stays))

    programs = [
        [
            [step(rank) for _ in range(tape.below(length + 1))],
            *([step(rank) for _ in range(1 + tape.below(longest))] for _ in range(tape.of(more))),
        ]
        for rank in range(size)
    ]
    play = Play(groups, programs, [tape.of(ENDS) for _ in range(size)], announced=announced, lanes=lanes)
    play.run(tape)
    return play


def _fit(send: Call, receive: Call) -> bool:
    """Whether a send and a receive that are both open could meet."""
    there, here = send.op, receive.op
    return (
        not send.met
        and not receive.met
        and (there.group, there.tag, there.peer) == (here.group, here.tag, receive.rank)
        and here.peer in {None, send.rank}
    )


def _lane(op: PendingCall, peer: int | None) -> tuple[int, int | None, int]:
    return int(op.group), peer, op.tag


def _counts(counts: Counter[tuple[int, int | None, int]]) -> list[MessageCount]:
    return [MessageCount(str(group), peer, tag, number) for (group, peer, tag), number in counts.items() if number]
