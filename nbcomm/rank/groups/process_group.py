"""The process group that torch hands out in a cell: one that can be re-formed, and sees every call.

A `RankGroup` passes each call on to a process group of torch's own. After an abort that one is thrown away and
another takes its place, so what holds the group (a variable, a DeviceMesh, DDP, FSDP) notices nothing. And
since Python and C++ alike can only go through here, here is where a call is refused, compared and recorded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ...errors import CollectiveError
from ...rank_spec import fold, named
from ...torch_internals import nccl, process_groups
from ...torch_internals.c10d import ONLY_ADDS, PASSED_ON, hash_of
from ..collectives import signatures
from ..collectives.fingerprints import Pages
from ..collectives.recorded_call import RecordedCall
from . import selftest
from .calls import Calls
from .hub import Hub

if TYPE_CHECKING:
    from ..collectives.fingerprints import Fingerprint


class RankGroup(Calls):
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
        super().__init__(hub, rank, name, members)
        self._backend = backend
        self._timeout = timeout
        if "nccl" in backend:
            self.bound_device_id = hub.gpu  # where torch looks which GPU a barrier, or the split of a group, is for
        self._may_block = "nccl" in backend
        """Whether a collective's method may wait for other ranks before it returns its handle."""
        self._store: Any = None
        self._coalescing: torch.device | None = None
        self._direct: Any = None
        """What carries out calls for the CPU inside of the inside."""

    def form(self, absent: Sequence[int] = (), without: Sequence[int] = (), patience: timedelta | None = None) -> None:
        """Meet the other members, who must do so too, and begin to count from 1.

        A group of which a member cannot come is not formed, and says so when it is used.

        Args:
            absent: ranks that are dead.
            without: ranks that have destroyed their end of it.
            patience: how long to wait for the other members; by default as long as for a call.
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
            hub.gpu,
            patience,
        )
        inner = self._inner
        self._direct = process_groups.direct(inner, self._backend)
        selftest.compare(f"the inside of the group of {named(self.members)}", (inner.rank(), inner.size()), self._place)
        self.lost = ""
        self._comparison.life = self._log.life = hash_of(life)
        self._comparison.gloos = self._log.is_gloos
        self.look_at_board()

    def look_at_board(self) -> None:
        """Compare calls with those members whose pages can be seen."""
        board = self._hub.board if self._inner is not None else None
        self._comparison.look_at(board)
        self._log.board = board if self._comparison.pages else None

    @contextmanager
    def tried_out(self) -> Iterator[None]:
        """While nbcomm itself calls a collective of a group that is just formed: it is neither compared nor counted.

        It may take longer than a user's call.
        """
        pages, self._comparison.pages = self._comparison.pages, Pages()
        board, self._log.board = self._log.board, None
        is_short = self._timeout < _PATIENCE  # only a user can have set it, and torch 2.8 has no way
        if is_short:
            self._formed().set_timeout(_PATIENCE)
        try:
            yield
        finally:
            if is_short:
                self._formed().set_timeout(self._timeout)
            self._comparison.pages, self._log.board = pages, board
            self._log.begin()

    def drop(self) -> None:
        """Let go of the inside; its connections must be shut, or this waits for what is under way."""
        if self._log.stuck:
            _stuck.append(self._inner)  # its end would wait for a call that gloo has forgotten
        self._inner = self._direct = None
        self._comparison.look_at(None)

    @property
    def is_gloos(self) -> bool:
        """Whether it is formed, and gloo serves some device."""
        return self._inner is not None and "gloo" in process_groups.devices_of(self._backend).values()

    @property
    def on_devices(self) -> list[Any]:
        """What waits on a device, and not on gloo's sockets."""
        return process_groups.on_devices(self._inner, self._backend) if self._inner is not None else []

    # ── every call ──────────────────────────────────────────────────────────────────────────────────

    def _judge(self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint, different: Sequence[int]) -> None:
        """Raise where other members do something else than this rank; they may only seem to."""
        try:
            different = self._comparison.settle(seq, said, different)
        except Exception as error:  # noqa: BLE001 - whatever torch has said of it elsewhere
            name = signatures.NAMES.get(method, method)
            raise self._refuse(error, RecordedCall("collective", name, self._log, seq, said)) from None
        if not different and method in signatures.UNEVEN:  # those that were slower have come now
            different = self._comparison.not_fitting(seq, self._comparison.splits(method, args))
        if different:
            number = self._note_refused(method, args, seq, said)
            raise self._comparison.mismatch(seq, said, different, number)

    def _pass_on_blocking(self, method: str, given: tuple[Any, Any], seq: int, said: Fingerprint, drawn: Any) -> Any:
        """Pass on a collective whose method may wait for other ranks before it returns its handle."""
        (args, kwargs), record = given, self._hub.record
        made = RecordedCall("collective", signatures.NAMES.get(method, method), self._log, seq, said)
        made.limited = method == "monitored_barrier"
        made.tell_place(record.scope())
        with nccl.named(said.words.partition("|")[0] or made.name):
            work = self._pass_on(method, args, kwargs, made)
        record.journal.complete(made.entry, drawn, args, work)
        return work

    def _refuse(self, error: Exception, call: RecordedCall) -> BaseException:
        """Return what to raise for a collective that has not begun; it is recorded as one that has failed."""
        self._hub.record.follow(None, call, failed=True)
        return self._refused(error, call)

    def _object_to_collective(self, method: str, args: tuple[Any, ...]) -> None:
        try:
            self._object(method, None)
        except RuntimeError:
            self._note_refused(method, args, self._log.issued + 1, None)
            raise

    def _as_sum(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a reduce_scatter with which gloo, which only adds, does what is asked for."""
        given, told, options = args[:3]
        (first, *_) = told if isinstance(told, list) else [told]
        device = (first[0] if isinstance(first, list) else first).device.type
        op = signatures.reduction(options)
        if op == "sum" or process_groups.devices_of(self._backend).get(device) != "gloo":
            return args
        if op != "avg":
            self._note_refused(method, args, self._log.issued + 1, None)
            raise CollectiveError(
                f"The gloo of torch {torch.__version__} adds in {signatures.NAMES.get(method, method)}, and does not "
                f"know the op {op!r}. Take this rank's part of what dist.all_reduce returns, call the name "
                "reduce_scatter, or install torch 2.9 or newer."
            )
        summed = dist.ReduceScatterOptions()
        summed.timeout, summed.asyncOp = options.timeout, options.asyncOp
        return given, tree_map(lambda tensor: tensor / self.size(), told), summed, *args[3:]

    def _note_refused(self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint | None) -> int:
        """Write what was refused into the journal, in its place in the order: other ranks may be there.

        Returns:
            Its number for people.
        """
        journal = self._hub.record.journal
        call = RecordedCall("collective", signatures.NAMES.get(method, method), self._log, seq, said)
        drawn = journal.look_at(method, args, self.members, self._hub.rank)
        journal.follow(call, failed=True)
        journal.complete(call.entry, drawn, args, None)
        return call.number

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
        self._coalescing = device

    def _end_coalescing(self, device: torch.device) -> Any:
        self._coalescing = None
        return self._formed()._end_coalescing(device)

    def leave_coalescing(self) -> None:
        """End what `_start_coalescing` has begun and nobody has ended: NCCL would hold back this thread's calls."""
        if self._coalescing is not None:
            self._end_coalescing(self._coalescing)

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


_PATIENCE = timedelta(minutes=1)  # for nbcomm's own call, which the notebook ends earlier
_stuck: list[Any] = []
"""What must live as long as the process, for its end would never end."""


def _passing(method: str) -> Callable[..., Any]:  # noqa: C901 - see below
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
    describe, uneven, blocking = (
        signatures.describer(method),
        method in signatures.UNEVEN,
        method == "monitored_barrier",
    )
    returns_at_once, rooted = signatures.returns_at_once, method in signatures.ROOTED
    is_direct, is_plain = method in process_groups.DIRECT, process_groups.is_plain

    def call(self: RankGroup, *args: Any, **kwargs: Any) -> Any:
        # No variable for the inside: a traceback, which IPython keeps, would keep it alive beyond its time.
        hub, log, comparison = self._hub, self._log, self._comparison
        record, pages = hub.record, comparison.pages
        if hub.alert or self._inner is None:
            self._object_to_collective(method, args)
        if record.busy_beside:
            hub.await_turn(self)
        seq = next(log.positions)
        said = describe(args, kwargs)
        different: Sequence[int] = ()
        if not pages:
            pass  # alone in the group, or with ranks on other machines only
        elif uneven or pages.far:
            said, different = comparison.compare(method, args, seq, said, uneven=uneven)
        else:
            different = hub.board.announce(comparison.life, seq, said[0], pages)  # type: ignore[union-attr]
        if different:
            self._judge(method, args, seq, said, different)
        log.issued = seq
        journal = record.journal
        curious = journal.drawing or journal.tracing
        drawn = journal.look_at(method, args, self.members, hub.rank) if curious else None
        if blocking or self._may_block:
            return self._pass_on_blocking(method, (args, kwargs), seq, said, drawn)
        try:
            if is_direct and self._direct is not None and not kwargs and is_plain(args[0]):
                work = getattr(self._direct, method)(*args)
            else:
                work = getattr(self._inner, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - torch refuses calls by many kinds of errors
            raise self._refuse(error, RecordedCall("collective", name, log, seq, said)) from None
        made = RecordedCall("collective", name, log, seq, said)
        record.follow(work, made)
        if curious or rooted or returns_at_once(args, kwargs):  # else there is time while it is waited for
            made.tell_place(record.scope())
            journal.complete(made.entry, drawn, args, work)
        return work

    call.__name__ = method
    return call


def _adding(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make the method of a group for a reduce_scatter: see `ONLY_ADDS`."""

    @functools.wraps(call)
    def reduce_scatter(self: RankGroup, *args: Any) -> Any:
        return call(self, *(self._as_sum(call.__name__, args) if ONLY_ADDS else args))

    return reduce_scatter


for _method in PASSED_ON:
    if _method not in {*vars(RankGroup), *vars(Calls)} and hasattr(dist.ProcessGroup, _method):
        made = _passing(_method)
        setattr(RankGroup, _method, _adding(made) if "reduce_scatter" in _method else made)
