"""The process group that torch hands out in a cell: one that can be re-formed, and sees every call.

A `RankGroup` passes each call on to a process group of torch's own. After an abort that one is thrown away and
another takes its place, so what holds the group (a variable, a DeviceMesh, DDP, FSDP) notices nothing. And
since Python and C++ alike can only go through here, here is where a call is refused, compared and recorded.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.profiler import record_function

from ...errors import CollectiveError
from ...rank_spec import fold, named
from ...torch_internals import process_groups
from ...torch_internals.c10d import PASSED_ON, hash_of
from ..collectives import call_site, signatures
from ..collectives.any_source import AnyoneReceive
from ..collectives.fingerprints import Pages
from ..collectives.recorded_call import Log, RecordedCall
from . import selftest
from .comparison import CallComparison
from .hub import Hub
from .identity import Identity

if TYPE_CHECKING:
    from ..collectives.fingerprints import Fingerprint


class RankGroup(Identity):
    """A process group whose inside can be replaced.

    Args:
        hub: the world.
        backend: "gloo", "nccl", or which backend serves which device.
        rank: this rank's number in the group.
        timeout: how long a call may take.
        name: torch's name of it.
        members: their global ranks, in group order.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - torch gives all these
        self,
        hub: Hub,
        backend: str,
        rank: int,
        timeout: timedelta,
        name: str,
        members: list[int],
    ) -> None:
        super().__init__(rank, members, name, hub.gloo)
        self.lost: str = ""
        """Why it cannot be formed: which of its members are dead."""
        self._hub = hub
        self._backend = backend
        self._timeout = timeout
        self._inner: dist.ProcessGroup | None = None
        self._comparison = CallComparison(hub, members)
        self._log = Log(name, members)
        self._may_block = "nccl" in backend
        """Whether a collective's method may wait for other ranks before it returns its handle."""
        self._store: Any = None

    def form(self, absent: Sequence[int] = (), without: Sequence[int] = ()) -> None:
        """Meet the other members, who must do so too, and begin to count from 1.

        A group of which a member cannot come is not formed, and says so when it is used.

        Args:
            absent: ranks that are dead.
            without: ranks that have destroyed their end of it.
        """
        hub = self._hub
        self.drop()
        missing = sorted(set(self.members) & set(absent))
        if missing:
            self.lost = (
                f"This group needs {named(missing)}, which {'is' if len(missing) == 1 else 'are'} dead. "
                f"Type %distributed heal in a cell of its own to replace {'it' if len(missing) == 1 else 'them'}."
            )
            return
        if without:
            self.lost = f"This group was destroyed on {named(without)} (dist.destroy_process_group): create it again."
            return
        self._log = hub.record.begin_group(self.called, self.members, None if self._may_block else self._timeout)
        # A rank that destroys a group and makes it again in one generation must not meet its own old words. Ranks that
        # are each alone in a group may have given these the same name, and still share nothing.
        times = hub.record.formed(self.called, self.members)
        life = f"{hub.generation}:{times}:{self.called}:{fold(self.members)}"
        self._store = self._comparison.store = hub.meeting_place(life)
        self._inner = process_groups.new_inner(
            self._backend,
            self._store,
            *self._place,
            self._timeout,
            hub.gloo,
            self.called,
            self.members,
            hub.ended,
        )
        inner = self._inner
        selftest.compare(f"the inside of the group of {named(self.members)}", (inner.rank(), inner.size()), self._place)
        self.lost = ""
        self._comparison.life = self._log.life = hash_of(life)
        self.look_at_board()

    def look_at_board(self) -> None:
        """Compare calls with those members whose pages can be seen."""
        board = self._hub.board if self._inner is not None else None
        self._comparison.look_at(board)
        self._log.board = board if self._comparison.pages else None

    @contextmanager
    def tried_out(self) -> Iterator[None]:
        """While nbcomm itself calls a collective of a group that is just formed: it is neither compared nor counted."""
        pages, self._comparison.pages = self._comparison.pages, Pages()
        board, self._log.board = self._log.board, None
        try:
            yield
        finally:
            self._comparison.pages, self._log.board = pages, board
            self._log.begin()

    def drop(self) -> None:
        """Let go of the inside; its connections must be shut, or this waits for what is under way."""
        if self._log.stuck:
            _stuck.append(self._inner)  # its end would wait for a call that gloo has forgotten
        self._inner = None
        self._comparison.look_at(None)

    def abort_device(self) -> None:
        """Free a rank that waits on a device; for gloo that is the sockets' matter."""
        if self._inner is not None:
            process_groups.abort_nccl(self._inner, self._backend)

    # ── every call ──────────────────────────────────────────────────────────────────────────────────

    def _message(self, kind: str, args: tuple[Any, ...], peer: int, tag: int) -> Any:
        hub, other = self._hub, self.members[peer]
        if hub.alert or self._inner is None:
            self._object(kind, other)
        counts = self._log.sent if kind == "send" else self._log.received
        with self._log.lock:
            seq = counts[other, tag] = counts.get((other, tag), 0) + 1
        said = signatures.message(kind, args[0])
        call = RecordedCall(kind, kind, self._log, seq, said, other, tag)
        if kind == "send" or other in self._comparison.pages:  # who is not seen may see us
            try:
                call.where = self._comparison.compare_message(kind, (other, tag), seq, said)
            except Exception as error:  # noqa: BLE001 - whatever torch has said of it elsewhere
                raise self._refused(error, call) from None
        drawn = hub.record.journal.look_at(kind, args, self.members, hub.rank)
        work = self._pass_on(kind, args, {}, call)
        hub.record.journal.complete(call.entry, drawn, args, None)
        return work

    def _pass_on(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], call: RecordedCall) -> Any:
        record = self._hub.record
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
        failed = told is not error or isinstance(error, dist.DistError) or self._hub.ended()
        if not failed and not call.limited:
            call.log.take_back(call)
            self._comparison.refuse(call, error)
        return told

    def _judge(self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint, different: Sequence[int]) -> None:
        """Raise where other members do something else than this rank; they may only seem to."""
        try:
            different = self._comparison.settle(seq, said, different)
        except Exception as error:  # noqa: BLE001 - whatever torch has said of it elsewhere
            name = signatures.NAMES.get(method, method)
            raise self._refuse(error, RecordedCall("collective", name, self._log, seq, said)) from None
        if not different and method in signatures.UNEVEN:  # those that were slower have come now
            different = self._comparison.not_fitting(seq, signatures.splits_of(method, args, len(self.members)))
        if different:
            self._note_refused(method, args, seq, said)
            raise self._comparison.mismatch(seq, said, different)

    def _refuse(self, error: Exception, call: RecordedCall) -> BaseException:
        """Return what to raise for a collective that has not begun; it is recorded as one that has failed."""
        self._hub.record.follow(None, call, failed=True)
        return self._refused(error, call)

    def _object(self, method: str, peer: int | None) -> None:
        self._hub.object(signatures.NAMES.get(method, method), self.members, peer)
        if self._inner is None:
            raise CollectiveError(self.lost or "This process group is not formed.")

    def _object_to_collective(self, method: str, args: tuple[Any, ...]) -> None:
        try:
            self._object(method, None)
        except RuntimeError:
            self._note_refused(method, args, self._log.issued + 1, None)
            raise

    def _note_refused(self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint | None) -> None:
        """Write what was refused into the journal, in its place in the order: other ranks may be there."""
        journal = self._hub.record.journal
        call = RecordedCall("collective", signatures.NAMES.get(method, method), self._log, seq, said)
        drawn = journal.look_at(method, args, self.members, self._hub.rank)
        journal.follow(call, failed=True)
        journal.complete(call.entry, drawn, args, None)

    # ── what torch asks beside calls ────────────────────────────────────────────────────────────────

    def getBackendName(self) -> str:  # noqa: N802 - torch's C++ name
        """Return the name of the backend, for C++."""
        return self._backend if ":" not in self._backend else "custom"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in process_groups.devices_of(self._backend)]

    def _get_backend(self, device: torch.device) -> Any:
        return self._formed()._get_backend(device)

    def _formed(self) -> dist.ProcessGroup:
        if self._inner is None:
            self._object("This call", None)
        return cast("dist.ProcessGroup", self._inner)

    def get_group_store(self) -> Any:
        """Return a store that the members share, until the groups are re-formed."""
        self._formed()
        return process_groups.part_of(self._store, "user")

    def split_group(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002 - of a backend: what ours have is the parent's
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002 - likewise
    ) -> dist.ProcessGroup | None:
        """Make a group of some members, all of which must call this; the others get None."""
        chosen = tuple(sorted(ranks))
        if not chosen or len(set(chosen)) < len(chosen) or not 0 <= chosen[0] <= chosen[-1] < self.size():
            raise CollectiveError(f"split_group needs different ranks of a group of {self.size()}, not {list(ranks)}.")
        name = group_name or f"{self.called}:split:{list(chosen)}"
        if not group_name:  # by what there is: all that a new process in a dead one's place knows
            taken = {known for _, known, *_ in process_groups.known_groups()}
            name = next(one for number in itertools.count(1) if (one := f"{name}#{number}") not in taken)
        members = [self.members[place] for place in chosen]
        made = self._hub.split(name, members, self._backend, timeout or self._timeout)
        if made is not None:
            made._set_group_desc(group_desc or f"{self.group_desc}:split:{list(chosen)}")
        return made

    def merge_remote_group(self, *_: Any, **__: Any) -> dist.ProcessGroup:
        """Refuse: who would be in the other group is known to no notebook."""
        raise CollectiveError(
            "merge_remote_group adds ranks that are not in this world, so nbcomm could not detect deadlocks with them. "
            "All ranks of the world are already in one group: select some of them with new_group."
        )

    def _get_sequence_number_for_group(self) -> int:
        return self._log.issued

    def _start_coalescing(self, device: torch.device) -> None:
        self._formed()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._formed()._end_coalescing(device)

    def abort(self) -> None:
        """Torch's abort of the backends."""
        self._formed().abort()

    def shutdown(self) -> None:
        """Torch's end of the backends."""
        if self._inner is not None:
            self._inner.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a call may take."""
        self._timeout = timeout
        if self._log.is_gloos:
            self._log.timeout = timeout
        self._formed().set_timeout(timeout)

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
                "recv", (member, tag), seq, call.said or signatures.message("recv", tensors), call.where
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


_stuck: list[Any] = []
"""What must live as long as the process, for its end would never end."""


def _passing(method: str) -> Callable[..., Any]:
    """Make the method of a group that passes a collective on.

    What its call does, in this order::

        refuses what cannot be, and lets what goes on beside the cell come first
        takes a number, writes the call on the board, and compares it with what the others have written there
        sets `issued`: from now on the notebook knows that this rank has come there
        gloo   pass it on → record it → tell its place               torch's method returns while the data is on its way
        NCCL   tell its place → set `inside` → pass it on → record   torch's method may wait for other ranks

    All of it is in one function: every collective runs it, when the processor has long forgotten where it lies, so
    each further function on the way costs microseconds.
    """
    name = signatures.NAMES.get(method, method)
    describe, uneven, blocking = signatures.describe, method in signatures.UNEVEN, method == "monitored_barrier"
    returns_at_once, rooted = signatures.returns_at_once, method in signatures.ROOTED

    def call(self: RankGroup, *args: Any, **kwargs: Any) -> Any:
        # No variable for the inside: a traceback, which IPython keeps, would keep it alive beyond its time.
        hub, log, pages = self._hub, self._log, self._comparison.pages
        if hub.alert or self._inner is None:
            self._object_to_collective(method, args)
        if hub.record.busy_beside:
            hub.await_turn(self)
        seq = next(log.positions)
        said, journal = describe(method, args, kwargs), hub.record.journal
        different: Sequence[int] = ()
        if not pages:
            pass  # alone in the group, or with ranks on other machines only
        elif uneven:
            said, different = self._comparison.compare_uneven(method, args, seq, said)
        else:
            different = hub.board.compare(0, self._comparison.life, seq, said, pages)  # type: ignore[union-attr]
        if different:
            self._judge(method, args, seq, said, different)
        log.issued = seq
        curious = journal.curious
        drawn = journal.look_at(method, args, self.members, hub.rank) if curious else None
        if blocking or self._may_block:
            made = RecordedCall("collective", name, log, seq, said)
            made.limited = blocking
            made.tell_place(hub.record.scope())
            work = self._pass_on(method, args, kwargs, made)
            journal.complete(made.entry, drawn, args, work)
            return work
        try:
            work = getattr(self._inner, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - torch refuses calls by many kinds of errors
            raise self._refuse(error, RecordedCall("collective", name, log, seq, said)) from None
        made = RecordedCall("collective", name, log, seq, said)
        hub.record.follow(work, made)
        if curious or rooted or returns_at_once(args, kwargs):  # else there is time while it is waited for
            made.tell_place(hub.record.scope())
            journal.complete(made.entry, drawn, args, work)
        return work

    call.__name__ = method
    return call


for _method in PASSED_ON:
    if _method not in vars(RankGroup) and hasattr(dist.ProcessGroup, _method):
        setattr(RankGroup, _method, _passing(_method))
