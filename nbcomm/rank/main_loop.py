"""The work of a rank's main thread for its notebook, one request after the other.

Requests come in order and are answered by a `Done`: cells, transfers of values, the forming of groups, questions about
variables. Between them run the callbacks of widgets, which have no answer.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from ..cell_names import meant
from ..comm import torchrun
from ..errors import NbcommError, TransferError
from ..faults import Faults, failure, told
from ..protocol import (
    Call,
    CommToRank,
    CompareVariable,
    DescribeVariables,
    Done,
    Failure,
    FormGroups,
    MainLoopRequest,
    Payload,
    Pull,
    Push,
    Run,
    SendVariable,
    Stop,
    rank_lists,
)
from ..protocol.payload import pack, unpack
from ..torch_internals import compiling, nccl
from ..world_dir import WorldDir
from . import ending
from .baton import Baton
from .cells import forks, namespace, script_runner
from .cells.remedies import remedies
from .cells.runner import CellRunner
from .cells.unused_results import UnusedResults
from .clock import clock
from .collectives import call_site
from .groups.world import World
from .output.capture import Capture
from .output.streams import flush_all
from .output.widget_comms import Comms
from .variables import answers, pushed

CALLBACK = -1
"""The run of a widget's callback: it is no request, and has no id."""

_AGAIN = 0.1
"""Seconds after which an answer that could not be given is given again."""


@dataclass
class MainThreadState:
    """The state of the main thread; the link's thread reads it.

    Attributes:
        state: "starting", "idle", "running", "interrupted" or "failed".
        since: the start of that state, by the rank's clock in seconds.
        running: the request that runs; None between two.
        heard: the last request that has arrived.
        begun: the last one that has begun.
        answered: the last one whose answer has been sent.
        looks: the last request that only reads variables.
        closing: held while a request's end is settled: a request that is being ended does not end meanwhile.
    """

    state: str = "starting"
    since: float = field(default_factory=lambda: clock.now())  # noqa: PLW0108 - it is replaced
    running: int | None = None
    heard: int = 0
    begun: int = 0
    answered: int = 0
    looks: int | None = None
    closing: threading.Lock = field(default_factory=threading.Lock)

    def set(self, state: str, run: int | None = None) -> None:
        """Change the state, from now on."""
        self.state = state
        self.since = clock.now()
        self.running = run


class _SendOutput(Protocol):
    def __call__(self, *, end: bool = False, then: tuple[Done, Sequence[Any]] | None = None) -> None: ...


@dataclass(frozen=True)
class Parts:
    """The parts of a rank that the main loop needs.

    Attributes:
        rank: its number.
        home: the world's directory.
        world: its process group.
        capture: what its cells show.
        begin_cell: notes a cell that begins, and all ranks that run it.
        send_output: sends pending output, and an answer after it.
        faults: takes errors beside the work.
    """

    rank: int
    home: WorldDir
    world: World
    capture: Capture
    begin_cell: Callable[[int, str], None]
    send_output: _SendOutput
    faults: Faults


_Order = tuple[MainLoopRequest | CommToRank | Stop | None, Sequence[Any]]


class MainLoop:
    """The main loop of one rank.

    Args:
        shell: the engine's.
        runner: runs cells.
        comms: messages from and to the cells' widgets.
        parts: of the rank.
        main_thread: the main thread's state.
    """

    def __init__(
        self, shell: Any, runner: CellRunner, comms: Comms, parts: Parts, main_thread: MainThreadState
    ) -> None:
        self.runner = runner
        self.main_thread = main_thread
        self._shell = shell
        self._comms = comms
        self._parts = parts
        self._pid = os.getpid()
        self._faults = parts.faults
        parts.world.record.journal.use(parts.faults)
        self._bulk = parts.home.shared
        self._reserve = shell.reserve
        self._hiding, self._unused = namespace.HidingVariables(), UnusedResults()
        self._inbox: deque[_Order] = deque()
        self._baton: Baton | None = None  # while the main thread waits for the next one
        self._cell = 0  # the last request that ran user code
        self._left: list[asyncio.Task[None]] = []  # asyncio would say of each, in some later cell, that it was pending

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve requests on the main thread, whose loop this is."""
        self._loop = loop
        self._work = loop.create_task(self._serve())

    def run(self) -> None:
        """Run the event loop until the process ends: whatever leaves the loop, or stops it, does not end the rank."""
        while not self._loop.is_closed():
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - of a handler of signals, or SystemExit in a task
                with self._faults.beside("what has left the event loop could not be shown"):
                    self._take_stray(error)

    def _take_stray(self, error: BaseException) -> None:
        """Let the cell that awaits fail with what has left the loop, or show it as late output of the last one."""
        began = error.__traceback__
        *_, (last, _) = traceback.walk_tb(began)
        is_asyncios = (
            last.f_code.co_filename == asyncio.base_events.__file__
        )  # a cell has run it in itself: nest_asyncio
        if not is_asyncios and not self.runner.fail(error):
            text = "".join(traceback.format_exception(type(error), error, began and began.tb_next))
            self._parts.capture.write(self._cell, "stderr", text)
            self._parts.send_output()

    # ── the link's thread ──────────────────────────────────────────────────────────────────────────

    def put(self, message: MainLoopRequest | CommToRank, frames: Sequence[Any]) -> None:
        """Queue a message for the main thread, after all earlier ones."""
        if isinstance(message, CommToRank):
            if self._comms.put(message):
                self._hand_over((message, ()))
        else:
            self._comms.fence()
            self._hand_over((message, frames))

    def tell_again(self) -> None:
        """Make the widgets known to another notebook; link's thread."""
        self._hand_over((None, ()))

    def end(self) -> None:
        """End the process, after all earlier messages; link's thread."""
        self._hand_over((Stop(), ()))

    def rouse_again(self) -> None:
        """Rouse the main thread if something still waits for it: whatever was to rouse it may have failed."""
        if self._inbox and self.main_thread.running is None:
            self._loop.call_soon_threadsafe(self._rouse)

    def _hand_over(self, order: _Order) -> None:
        self._inbox.append(order)
        self._loop.call_soon_threadsafe(self._rouse)

    # ── the main thread ─────────────────────────────────────────────────────────────────────────────

    def _rouse(self) -> None:
        if self._work.done() or (self._baton is not None and not self._baton.pass_on()):
            # It has failed, or its wait could not begin: nothing can wake that task any more.
            self._work.get_coro().close()
            self._left.append(self._work)
            self.begin(self._loop)

    async def _next(self) -> _Order:
        while not self._inbox:
            self._baton = Baton(loop=self._loop)
            try:
                await self._baton
            finally:
                self._baton = None
        return self._inbox.popleft()

    async def _serve(self) -> None:
        owed: Done | None = None
        while True:
            # A late interrupt, between two requests: there is nothing left to end. A cell may cancel all tasks of its
            # loop, and this is one: the next request must be served all the same.
            with suppress(KeyboardInterrupt, asyncio.CancelledError):
                message, frames = await self._next()
                try:
                    await self._do(message, frames)
                except Exception as error:  # noqa: BLE001 - this loop must not end, and a request must be answered
                    self._faults.log("a duty failed", error)
                    if not isinstance(message, CommToRank | Stop | None):
                        owed = Done(message.id, failure=failure(self._parts.rank, error), broken=True)
            while owed is not None:  # nobody else would ever give it, and the notebook waits
                with suppress(KeyboardInterrupt, asyncio.CancelledError):
                    try:
                        self._answer(owed)
                        owed = None
                    except Exception as error:  # noqa: BLE001 - as above
                        self._faults.log("an answer could not be given", error)
                        await asyncio.sleep(_AGAIN)

    async def _do(self, message: MainLoopRequest | CommToRank | Stop | None, frames: Sequence[Any]) -> None:
        if isinstance(message, CommToRank):
            self._call_back()
        elif isinstance(message, Stop):
            ending.end(self._shell)
        elif message is None:
            self._tell_again()
        else:
            self.main_thread.begun = message.id
            await self._handle(message, frames)

    def _answer(self, done: Done, buffers: Sequence[Any] = ()) -> None:
        self._parts.send_output(end=True, then=(done, buffers))
        self.main_thread.answered = done.id

    def _tell_again(self) -> None:
        """Make the widgets known to another notebook."""
        self._comms.tell_again()
        self._parts.send_output()

    def _call_back(self) -> None:
        """Handle what the page says to a widget. No other rank takes part, and there is no answer."""
        before = self.main_thread.state, self.main_thread.since
        group = self._parts.world.comm
        ranks = None if group is None else group.cell_ranks
        self._parts.world.begin(CALLBACK, [self._parts.rank])
        self.main_thread.set("running", CALLBACK)
        try:
            with self.runner.callback():
                self._comms.handle()
        finally:
            if os.getpid() != self._pid:
                forks.leave(1)  # a child that it has forked; see `CellRunner._end_forked_child`
            with self.main_thread.closing:
                self.main_thread.set(before[0])
                self.main_thread.since = before[1]
                self._parts.world.end()
                if group is not None:
                    group.cell_ranks = ranks  # threads of the last cell go on
            self._parts.send_output()

    async def _handle(self, message: MainLoopRequest, frames: Sequence[Any]) -> None:
        """Do one request and answer it; while its end is settled, the link's thread cannot end it.

        ::

            main thread                                         link's thread, while the request is to end
            _outcome: cells, values, groups                     _terminate: interrupt it, or abort what it waits for
            takes `closing`; waits if the link has it
              running = None; are the groups broken?            _terminate: `closing` is taken, look again later
            gives `closing` back, sends the Done                _terminate: another one runs, or none: forget it
        """
        since = clock.now()
        before, fresh = (self.main_thread.state, self.main_thread.since), self._parts.world.comm is None
        journal = self._parts.world.record.journal
        journal.begin(
            drawing=isinstance(message, Run) and message.draw,
            tracing=isinstance(message, Run | Call) and message.trace,
        )
        done, buffers = await self._outcome(message, frames)
        if os.getpid() != self._pid:
            forks.leave(1)  # a child that a called function has forked; see `CellRunner._end_forked_child`
        notes: list[str] = [*done.notes]
        with self.main_thread.closing:
            healed = isinstance(message, FormGroups) and bool(message.newcomers)
            if isinstance(message, Run | Call) or fresh or healed:
                self.main_thread.set("interrupted" if done.interrupted else "failed" if done.failure else "idle")
            else:  # groups that are re-formed, values that come and go: how the last cell ended stays to be seen
                self.main_thread.set(before[0])
                self.main_thread.since = before[1]
            told = self._settled(message, done, notes)
        notes += journal.notes
        self._answer(msgspec.structs.replace(done, began=since, notes=notes, **told), buffers)

    async def _outcome(self, message: MainLoopRequest, frames: Sequence[Any]) -> tuple[Done, list[Any]]:
        """Do what is asked; also what it raises is an answer. The buffers go with it."""
        began, notes = time.perf_counter(), list[str]()
        try:
            if isinstance(message, Run):
                return await self._run(message), []
            if isinstance(message, FormGroups):
                self._form(message)
                return Done(message.id), []
            if isinstance(message, Push):
                own = self._shell.user_ns
                with self._reserve.if_needed():
                    own.update(unpack(message.blob, frames, functools.partial(pushed.load, namespace=own)))
                return Done(message.id), []
            if isinstance(message, Pull):
                blob, buffers = self._pull(message.names, notes)
            elif isinstance(message, Call):
                blob, buffers = self._call(message, frames, notes)
            else:
                blob, buffers = self._look(message, frames)
            return Done(message.id, time.perf_counter() - began, blob=blob, notes=notes), buffers
        except KeyboardInterrupt as error:
            return Done(message.id, time.perf_counter() - began, _failure(error), interrupted=True), []
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - the notebook waits for an answer
            if isinstance(error, SystemExit) and os.getpid() != self._pid:
                forks.end(error)
            interrupted = self.runner.ended_by_interrupt(error)
            failed = _failure(KeyboardInterrupt() if interrupted else error)
            return Done(message.id, time.perf_counter() - began, failed, interrupted=interrupted), []

    def _settled(self, message: MainLoopRequest, done: Done, notes: list[str]) -> dict[str, Any]:
        """Return what the request has made and how it has left the world; `closing` is held. Faults go to the notes."""
        world = self._parts.world
        told: dict[str, Any] = {"broken": True, "dropped": -1}  # unless it is known not to be
        with self._faults.beside("its end could not be noted", notes.append):
            world.end()
        with self._faults.beside("its collectives could not be reported", notes.append):
            told |= self._story()
        talks = bool(told.get("steps"))
        with self._faults.beside("its unfinished calls are not known", notes.append):
            told["doing"] = doing = world.stuck.at_end()
            broken, said = world.look_back(failed=done.failure is not None, alone=not doing.threads)
            told["broken"] = broken or done.interrupted  # perhaps between a call's place in the order and its beginning
            notes += said if isinstance(message, Run | Call) else []
        with self._faults.beside("what the cell may lack could not be told", notes.append):
            if not isinstance(message, Run) or message.script is not None:
                notes += self._hiding.look(self._shell, tell=isinstance(message, Push))
            else:
                error = done.failure.traceback if done.failure is not None and not done.interrupted else ""
                notes += self._hiding.explain(self._shell, message.code, error, talks=talks)
                if error and self.runner.error is not None:
                    notes += remedies(self.runner.error, self._shell)
                good = done.failure is None
                unused = self._unused
                notes += unused.explain(self._shell, message.code, message.above) if good else self._reserve.explain()
        return told

    def _story(self) -> dict[str, Any]:
        """Report the request's calls that needed other ranks."""
        record = self._parts.world.record
        try:
            record.tidy()
            return {"steps": record.journal.steps(), "dropped": record.journal.dropped}
        finally:
            record.journal.end()
            call_site.forget()

    async def _run(self, message: Run) -> Done:
        self._begin(message)
        if message.script is not None:
            with script_runner.instead_of_cell(message.script, f"run {message.id}"):
                return await self.runner.run(message)
        if self._parts.world.on_gpu:
            with nccl.named(f"In [{message.number}]"):
                return await self.runner.run(message)
        return await self.runner.run(message)

    def _call(self, message: Call, frames: Sequence[Any], notes: list[str]) -> tuple[Payload, list[Any]]:
        function, arguments, keywords = unpack(message.blob, frames)
        if message.local_rank and self._parts.world.comm is not None:
            arguments = (self._parts.world.comm.local_rank, *arguments)
        self._begin(message)
        with self._parts.capture.of_run(message.id), self.runner.interruptible():
            # A function typed in a notebook brings the globals that it uses; what it does not bring, it finds here.
            scope = getattr(function, "__globals__", {})
            if scope.get("__name__") == "__main__":
                for name, value in self._shell.user_ns.items():
                    scope.setdefault(name, value)
            value = function(*arguments, **keywords)
            self._parts.world.record.await_device()
            with self._reserve.if_needed():
                answer = pack(value, self._bulk, notes)
            flush_all()
            return answer

    def _begin(self, message: Run | Call) -> None:
        """Prepare for user code: provide the names, and refuse what needs a rank that does not run it."""
        comm = self._parts.world.comm
        if comm is None:
            raise RuntimeError("A cell arrived before the process group had formed.")
        namespace.install(self._shell, namespace.cell_names(comm))
        self._cell = message.id
        self._parts.begin_cell(message.id, message.ranks)
        self._parts.world.begin(message.id, [*rank_lists.read(message.ranks)])
        self.main_thread.set("running", message.id)

    def _form(self, order: FormGroups) -> None:
        self.main_thread.set("running", order.id)
        first = self._parts.world.comm is None
        with self.runner.interruptible(), self._reserve.lent():
            comm = torchrun.current = self._parts.world.form(order)  # nbcomm.init() in a cell returns this one
        namespace.install(self._shell, namespace.cell_names(comm))
        if first:
            compiling.follow_compile()
        self._parts.capture.claim_descriptors()

    def _pull(self, wanted: list[str], notes: list[str]) -> tuple[Payload, list[Any]]:
        scope = self._shell.user_ns
        missing = [name for name in wanted if name not in scope]
        if missing:
            near = meant(missing[0], [name for name in scope if name[:1] != "_"])
            raise TransferError(f"{', '.join(missing)} is not defined{f', but {near} is' if near else ''}.")
        with self._reserve.if_needed():
            return pack({name: scope[name] for name in wanted}, self._bulk, notes)

    def _look(
        self, message: DescribeVariables | SendVariable | CompareVariable, frames: Sequence[Any]
    ) -> tuple[Payload, list[Any]]:
        self.main_thread.looks = message.id
        self.main_thread.set("running", message.id)  # it may take long, and can be interrupted
        with self.runner.interruptible(), self._parts.world.by_itself(), self._reserve.if_needed():
            return pack(answers.answer(message, frames, self._shell), self._bulk)


def _failure(error: BaseException) -> Failure:
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, NbcommError):
        text = "".join(traceback.format_exception(error)).rstrip()
    return told(type(error).__name__, str(error), text)
