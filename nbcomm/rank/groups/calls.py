"""What the calls of a process group have in common, and its messages.

What a call of the group does with the others is in `process_group`, where collectives are.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from ...errors import CollectiveError
from ..collectives import call_site, signatures
from ..collectives.any_source import AnyoneReceive
from ..collectives.recorded_call import Log, RecordedCall
from .comparison import CallComparison
from .hub import Hub
from .identity import Identity


class Calls(Identity):
    """A process group whose messages are compared and recorded.

    Args:
        hub: the world.
        rank: this rank's number in the group.
        name: torch's name of it.
        members: their global ranks, in group order.

    Attributes:
        lost: why it cannot be formed: which of its members are dead.
    """

    def __init__(self, hub: Hub, rank: int, name: str, members: list[int]) -> None:
        super().__init__(rank, members, name, hub.gloo)
        self.lost: str = ""
        self._hub = hub
        self._inner: dist.ProcessGroup | None = None
        self._comparison = CallComparison(hub, members)
        self._log = Log(name, members)

    # ── every call ──────────────────────────────────────────────────────────────────────────────────

    def _object(self, method: str, peer: int | None) -> None:
        self._hub.object(signatures.NAMES.get(method, method), self.members, peer)
        if self._inner is None:
            raise CollectiveError(self.lost or "This process group is not formed.")

    def _pass_on(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], call: RecordedCall) -> Any:
        record = self._hub.record
        record.journal.count(call)
        outer = threading.get_ident() == record.main  # what another thread is in says nothing of the main one
        if outer:
            before, record.inside = record.inside, call  # `within`, at a tenth of its cost
        try:
            work = getattr(self._inner, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - torch refuses calls by many kinds of errors
            raise self._refused(error, call) from None
        finally:
            if outer:
                record.inside = before
        record.follow(work, call)
        return work

    def _refused(self, error: Exception, call: RecordedCall) -> BaseException:
        """Return what to raise in place of torch's error for a call that has not begun.

        Where torch has refused the call itself (a wrong size, for instance), this rank has not come there. Not so where
        the backend or a connection has failed: nobody knows how far the call has come.
        """
        told = self._hub.explain(error)
        if told is not error or isinstance(error, dist.DistError) or self._hub.ended() or call.limited:
            call.log.broken = True
        else:
            call.take_back()
            self._comparison.refuse(call, error)
        return told

    # ── messages: their peers are group ranks ───────────────────────────────────────────────────────

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Any:
        """Send to a member."""
        return self._message("send", (tensors, dst, tag), dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Any:
        """Receive from a member."""
        return self._message("recv", (tensors, src, tag), src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Receive from the rank that sends first."""
        if self._hub.alert or self._inner is None:
            self._object("recv", None)
        received = self._log.received
        with self._log.lock:
            seq = received[None, tag] = received.get((None, tag), 0) + 1
        call = RecordedCall("recv", "recv", self._log, seq, signatures.message("recv", tensors), None, tag)
        call.where = call_site.here(self._hub.record.scope())
        self._hub.record.journal.count(call)
        generation, journal = self._hub.generation, self._hub.record.journal
        drawn = journal.look_at("recv_anysource", (tensors,), self.members, self._hub.rank)
        with record_function("c10d::recv_any_source_"):  # what torch's own says to a profiler
            work = AnyoneReceive(lambda: self._find_sender(tensors, call, generation), self._hub.record.wait)
        self._hub.record.follow(work, call)
        journal.complete(call.entry, drawn, (tensors,), None)
        return work

    def _find_sender(self, tensors: list[torch.Tensor], call: RecordedCall, generation: int) -> tuple[int, Any] | None:
        """Begin to receive from a member that has announced a message with this tag; None if there is none."""
        hub, log, tag = self._hub, call.log, call.tag
        inner = self._inner
        if hub.alert:
            hub.object("recv", self.members, None)
        if generation != hub.generation or inner is None:
            raise RuntimeError("This receive belongs to process groups that no longer exist.")
        for place, member in enumerate(self.members):
            if member == hub.rank:
                continue
            with log.lock:
                seq = log.received.get((member, tag), 0) + 1
            if not self._comparison.has_announced(member, tag, seq):
                continue
            with log.lock:
                if log.received.get((member, tag), 0) + 1 != seq:  # another receive has taken it meanwhile
                    continue
                log.received[None, tag] -= 1
                log.received[member, tag] = seq
                call.peer, call.seq = member, seq  # from now on it is a receive by name
            self._comparison.compare_message(
                "recv", (member, tag), seq, call.said or signatures.message("recv", tensors), call.number, call.where
            )
            if not self._comparison.has_announced(member, tag, seq):  # torch has refused it there
                self._comparison.take_back_message(member, tag, seq)
                with log.lock:
                    log.received[member, tag] = seq - 1
                    log.received[None, tag] += 1
                    call.peer, call.seq = None, log.received[None, tag]
                continue
            try:
                return place, inner.recv(tensors, place, tag)
            except Exception as error:  # noqa: BLE001 - torch refuses calls by many kinds of errors
                raise self._refused(error, call) from None
        return None

    def _message(self, kind: str, args: tuple[Any, ...], peer: int, tag: int) -> Any:
        hub, other = self._hub, self.members[peer]
        if hub.alert or self._inner is None:
            self._object(kind, other)
        counts = self._log.sent if kind == "send" else self._log.received
        with self._log.lock:
            seq = counts[other, tag] = counts.get((other, tag), 0) + 1
        said = signatures.message(kind, args[0])
        call = RecordedCall(kind, kind, self._log, seq, said, other, tag)
        number = hub.record.journal.count(call)
        if kind == "send" or other in self._comparison.pages:  # who is not seen may see us
            try:
                call.where = self._comparison.compare_message(kind, (other, tag), seq, said, number)
            except Exception as error:  # noqa: BLE001 - whatever torch has said of it elsewhere
                raise self._refused(error, call) from None
        drawn = hub.record.journal.look_at(kind, args, self.members, hub.rank)
        work = self._pass_on(kind, args, {}, call)
        hub.record.journal.complete(call.entry, drawn, args, None)
        return work
