"""The rank's end of the link: a daemon thread that answers while the main thread is busy.

Two threads share the work. The agent's thread owns the socket: it answers probes, interrupts the main
thread, ends the process, and sends whatever is waiting. What must run user code or torch (cells, push,
pull, forming the group) goes to the main thread's event loop, one request after the other.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import psutil
import zmq

from .. import errors
from ..errors import NbcommError, TransferError
from ..home import Home, LinkInfo
from ..messages import (
    Abort,
    Ask,
    Attached,
    Blob,
    Call,
    Compare,
    Done,
    Failure,
    Form,
    FromRank,
    Heard,
    Hello,
    Interrupt,
    Offer,
    Output,
    Probe,
    Pull,
    Push,
    Reply,
    Request,
    Run,
    Snapshot,
    Stop,
    Survey,
    Told,
    ToRank,
)
from ..values import pack, unpack
from ..wire import decode_to_rank, encode
from . import debugger, libraries, names, program, script, surveys
from .asking import Asker
from .assistant import Assistant
from .cells import CellRunner, handle_interrupts
from .comms import Comms
from .ending import Ending
from .history import History
from .insight import Insight
from .paging import find_names, show_pages
from .streams import Capture, follow_threads, route_displays
from .world import World, device_memory

_FLUSH_BUSY = 50
"""Milliseconds between two looks for new output while a cell runs."""

_FLUSH_IDLE = 250
"""The same between cells, when only background threads can print."""

_CALLBACK = -1
"""What runs while a widget's callback does: it is no request, and has no id."""


class Agent:
    """One rank's end of the link.

    Args:
        rank: this rank.
        home: the world's directory.
    """

    def __init__(self, rank: int, home: Home) -> None:
        self.rank = rank
        self.home = home
        self.world = World(self._send, lambda: program.scope or (self._shell and self._shell.user_ns))
        self.capture = Capture({name: home.captured(rank, name) for name in ("stdout", "stderr")})
        self._info = home.read_link()
        self._state, self._since = "starting", time.time()
        self._running: int | None = None
        self._look_id: int | None = None
        self._outbox: deque[list[Any]] = deque()
        self._history = History()
        self._sending = threading.Lock()  # what is taken from the capture must be sent before what is taken later
        self._begun = 0
        self._comms: Comms | None = None
        self._waiting: list[tuple[Request, Sequence[Any]]] = []
        self._inbox: asyncio.Queue[tuple[Request | Heard | None, Sequence[Any]]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: CellRunner | None = None
        self._asker: Asker | None = None
        self._shell: Any = None
        self._assistant: Assistant | None = None
        self._ending: Ending | None = None
        self._closing = threading.Lock()  # a request that is being ended does not end meanwhile
        self._process = psutil.Process()
        self._heard_at_once: dict[type, Callable[[Any], None]] = {
            Probe: self._hear_probe,
            Ask: self._hear_question,
            Reply: self._hear_reply,
            Interrupt: self._interrupt,
            Abort: self._abort,
            Stop: lambda _: os._exit(0),
        }
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        threading.Thread(target=self._serve, name="nbcomm-agent", daemon=True).start()

    # ── the main thread ─────────────────────────────────────────────────────────────────────────────

    def attach(self, shell: Any, loop: asyncio.AbstractEventLoop) -> None:
        """The engine's shell is ready: run from now on what the notebook asks for. Main thread."""
        follow_threads()
        route_displays(shell.display_pub, self.capture)
        show_pages(shell, self.capture)
        find_names(shell)
        self._shell = shell
        self._runner = CellRunner(shell, self.capture, self.world.explain)
        self._assistant = Assistant(lambda: Insight(shell), self._send, self.world.apart)
        self._comms = Comms(self.capture, getattr(shell, "kernel", None))
        self._comms.install()
        libraries.of_cells(self.capture)
        handle_interrupts(self._runner)
        self._asker = Asker(self.capture, self.world.record, self._runner.to_end, self._rouse)
        self._asker.install()
        debugger.install(shell, self._runner, self.capture, self.world.record)
        self._inbox = asyncio.Queue()
        self._loop = loop
        self._work = asyncio.ensure_future(self._serve_requests(self._inbox))
        self._send(Attached(self.rank))

    async def _serve_requests(self, inbox: asyncio.Queue[tuple[Request | Heard | None, Sequence[Any]]]) -> None:
        while True:
            message, frames = await inbox.get()
            with suppress(KeyboardInterrupt):  # a late one, between two requests: there is nothing left to end
                if isinstance(message, Heard):
                    self._call_back()
                elif message is None:
                    self._tell_again()
                else:
                    self._begun = message.id
                    await self._handle(message, frames)

    def _tell_again(self) -> None:
        """Another notebook is there: let it know the widgets."""
        if self._comms is not None:
            self._comms.tell_again()
            self._send_output()

    def _call_back(self) -> None:
        """Handle what the page says to a widget. No other rank takes part, and nobody waits for an answer."""
        assert self._comms is not None  # noqa: S101 - for mypy: `attach` has made both
        assert self._runner is not None  # noqa: S101
        before = self._state, self._since
        group = self.world.comm
        ranks = None if group is None else group.cell_ranks
        self.world.begin(_CALLBACK, [self.rank])
        self._set_state("running", _CALLBACK)
        try:
            with self._runner.callback():
                self._comms.handle()
        finally:
            if os.getpid() != self._process.pid:
                os._exit(1)  # a child that it has forked; see `CellRunner._end_forked_child`
            with self._closing:
                self._set_state(before[0])
                self._since = before[1]
                self.world.end()
                if group is not None:
                    group.cell_ranks = ranks  # threads of the last cell go on
            self._send_output()

    async def _handle(self, message: Request, frames: Sequence[Any]) -> None:
        began, since = time.perf_counter(), time.time()
        before = self._state, self._since
        done = Done(message.id)
        asked = (message.draw, message.trace) if isinstance(message, Run) else (False, False)
        self.world.record.journal.begin(drawing=asked[0], tracing=asked[1])
        buffers: list[Any] = []
        try:
            if isinstance(message, Form):
                self._form(message)
            elif isinstance(message, Run):
                done = await self._run(message)
            elif isinstance(message, Push):
                self._shell.user_ns.update(unpack(message.blob, frames))
            else:
                if isinstance(message, Pull):
                    blob, buffers = self._pull(message.names)
                elif isinstance(message, Call):
                    blob, buffers = self._call(message, frames)
                else:
                    blob, buffers = self._look(message, frames)
                done = Done(message.id, time.perf_counter() - began, blob=blob)
        except KeyboardInterrupt as error:
            done = Done(message.id, time.perf_counter() - began, _failure(error), interrupted=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the notebook is told: it waits for an answer
            done = Done(message.id, time.perf_counter() - began, _failure(error))
        if os.getpid() != self._process.pid:
            os._exit(1)  # a child that a called function has forked; see `CellRunner._end_forked_child`
        with self._closing:
            healed = isinstance(message, Form) and bool(message.newcomers)
            if isinstance(message, Run | Call) or before[0] == "starting" or healed:
                self._set_state("interrupted" if done.interrupted else "failed" if done.failure else "idle")
            else:  # groups that are formed anew, values that come and go: how the last cell ended stays to be seen
                self._set_state(before[0])
                self._since = before[1]
            self.world.end()
            story = self._story()
            self.world.record.tidy()
            doing = self.world.record.doing()
            done = msgspec.structs.replace(done, broken=self.world.stale, doing=doing, began=since, **story)
        self._send_output(end=True, then=(done, buffers))

    def _story(self) -> dict[str, Any]:
        """What the request has made that needed other ranks."""
        record = self.world.record
        record.close_journal()
        steps = record.journal.steps()
        record.journal.end()
        return {"steps": steps, "dropped": record.journal.dropped}

    async def _run(self, message: Run) -> Done:
        with self._working(message) as runner:
            return await runner.run(message)

    def _call(self, message: Call, frames: Sequence[Any]) -> tuple[Blob, list[Any]]:
        function, arguments, keywords = unpack(message.blob, frames)
        if message.local_rank and self.world.comm is not None:
            arguments = (self.world.comm.local_rank, *arguments)
        with self._working(message) as runner, self.capture.of_run(message.id), runner.interruptible():
            # A function typed in a notebook brings the globals that it uses; what it does not bring, it finds here.
            scope = getattr(function, "__globals__", {})
            if scope.get("__name__") == "__main__":
                user = self._shell.user_ns
                for name, value in {**user["__builtins__"], **user}.items():
                    scope.setdefault(name, value)
            return pack(function(*arguments, **keywords), self.home.bulk)

    @contextmanager
    def _working(self, message: Run | Call) -> Iterator[CellRunner]:
        """While user code runs: the names are there, and what needs a rank that does not run it is refused."""
        runner, comm = self._runner, self.world.comm
        if runner is None or comm is None:
            raise RuntimeError("A cell came before the process group had formed.")
        names.install(self._shell.user_ns, names.cell_names(comm))
        self._history.begin(message.id, message.ranks)
        self.world.begin(message.id, message.ranks)
        self._set_state("running", message.id)
        yield runner

    def _form(self, order: Form) -> None:
        runner = self._runner
        assert runner is not None  # noqa: S101 - for mypy: `attach` has made it
        self._set_state("running", order.id)
        with runner.interruptible():
            comm = script.current = self.world.form(order)  # nbcomm.init() in a cell is this one
        names.install(self._shell.user_ns, names.cell_names(comm))
        self.capture.claim_descriptors()

    def _pull(self, wanted: list[str]) -> tuple[Blob, list[Any]]:
        scope = {**self._shell.user_ns.get("__builtins__", {}), **self._shell.user_ns}
        missing = [name for name in wanted if name not in scope]
        if missing:
            raise TransferError(f"{', '.join(missing)} is not defined.")
        return pack({name: scope[name] for name in wanted}, self.home.bulk)

    def _look(self, message: Survey | Offer | Compare, frames: Sequence[Any]) -> tuple[Blob, list[Any]]:
        runner = self._runner
        assert runner is not None  # noqa: S101 - for mypy: `attach` has made it
        self._look_id = message.id
        self._set_state("running", message.id)  # it may take long, and can be interrupted
        with runner.interruptible(), self.world.by_itself():
            return pack(surveys.answer(message, frames, self._shell), self.home.bulk)

    def _set_state(self, state: str, run: int | None = None) -> None:
        self._state = state
        self._since = time.time()
        self._running = run

    # ── sending, from either thread ─────────────────────────────────────────────────────────────────

    def _send(self, message: FromRank, buffers: Sequence[Any] = ()) -> list[Any]:
        frames = [encode(message), *buffers]
        self._outbox.append(frames)
        self._rouse()
        return frames

    def _rouse(self) -> None:
        with suppress(BlockingIOError):  # it is awake already, many times over
            self._wake.send(b"\0")

    def _send_output(self, *, end: bool = False, then: tuple[Done, Sequence[Any]] | None = None) -> None:
        with self._sending:
            questions = self._asker.take() if self._asker is not None else []  # after what was shown before them
            for run, items in self.capture.take(end=end):
                self._history.add(self._send(Output(run, items)))
            for question in questions:
                self._send(question)
            if then is not None:
                self._history.add(self._send(*then), last=True)

    # ── the agent's thread ──────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        try:
            self._serve_link()
        except BaseException:  # noqa: BLE001 - see below
            traceback.print_exc()  # into the engine's log
            os._exit(70)  # a rank that cannot be reached must not live on unseen

    def _serve_link(self) -> None:
        context = zmq.Context()
        link = context.socket(zmq.DEALER)
        _configure(link, self._info, self.rank)
        monitor = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        link.connect(self._info.address)
        poller = zmq.Poller()
        for source in (link, self._woken, monitor):
            poller.register(source, zmq.POLLIN)
        heard, parent = time.monotonic(), os.getppid()
        while True:
            busy = self._running is not None
            ready = dict(poller.poll(_FLUSH_BUSY if busy else _FLUSH_IDLE))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if monitor in ready:
                monitor.recv_multipart()
                heard = time.monotonic()
                self._introduce()
            if link in ready:
                heard = time.monotonic()
                self._receive(link)
            elif os.getppid() != parent and time.monotonic() - heard > self._info.lease:
                # The fork server keeps the lease; without it, each rank does. A notebook's process that is
                # there but busy says nothing either, so silence alone is no reason to end.
                self.home.remove()
                os._exit(0)
            self._press()
            if self._assistant is not None:
                self._assistant.look()
            if not self._sending.locked():  # the main thread is at it: it will send all there is
                self._send_output()
            with suppress(zmq.Again):  # no notebook is connected: it all waits for the next one
                while self._outbox:
                    link.send_multipart(self._outbox[0], zmq.NOBLOCK, copy=False)
                    self._outbox.popleft()

    def _introduce(self) -> None:
        """A notebook is connected, the first or another one: say who this is, and what it has missed."""
        with self._sending:
            self._outbox.clear()
            self._send(self._hello())
            if self._loop is not None:
                self._send(Attached(self.rank))
                if self._inbox is not None:
                    self._loop.call_soon_threadsafe(self._inbox.put_nowait, (None, ()))
            self._outbox.extend(self._history.replay())
            for asking in self._asker.open() if self._asker is not None else ():
                self._send(asking)
        run = self._running
        if run is not None and run == self._look_id:  # the notebook that wanted to know has gone
            self._ending = Ending(run, self.world.generation)

    def _receive(self, link: zmq.Socket[bytes]) -> None:
        while True:
            try:
                body, *frames = link.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = decode_to_rank(body.buffer)
            except msgspec.DecodeError:
                continue  # CURVE let only the notebook in; a newer one may know more than we do
            self._dispatch(message, frames)

    def _dispatch(self, message: ToRank, frames: Sequence[Any]) -> None:
        if isinstance(message, Request | Heard):
            self._queue(message, frames)
        else:
            self._heard_at_once[type(message)](message)

    def _queue(self, message: Request | Heard, frames: Sequence[Any]) -> None:
        """Let the main thread do it, when all that came before is done."""
        if self._loop is None or self._inbox is None or self._comms is None:
            # The shell is not there yet. The notebook waits for Attached; be safe all the same.
            if not isinstance(message, Heard):
                self._waiting.append((message, frames))
            return
        if isinstance(message, Heard):
            if self._comms.put(message):
                self._loop.call_soon_threadsafe(self._inbox.put_nowait, (message, ()))
            return
        self._comms.fence()
        for waiting in (*self._waiting, (message, frames)):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, waiting)
        self._waiting.clear()

    def _hear_probe(self, message: Probe) -> None:
        self._history.seen(message.seen)
        self._send(self._snapshot(message.question))

    def _hear_question(self, message: Ask) -> None:
        if self._assistant is not None:
            self._assistant.ask(message)
        else:
            self._send(Told(message.id, {}))

    def _hear_reply(self, message: Reply) -> None:
        if self._asker is not None:
            self._asker.hear(message)

    def _interrupt(self, message: Interrupt) -> None:
        self._ending = Ending(message.run, self.world.generation)
        self._press()

    def _abort(self, message: Abort) -> None:
        self.world.abort(message.generation, getattr(errors, message.error)(message.text))
        if message.generation == self.world.generation:
            self._ending = Ending(message.run, message.generation, self.world.broken)
            self._press()

    def _press(self) -> None:
        """While a request is to end: free it from what it waits for, or interrupt what it does."""
        with self._closing:  # its answer must say whether that broke the groups, and no signal may hit the next one
            ending = self._ending
            if ending is None:
                return
            if ending.run > self._begun and ending.error is None:  # it is still to begin
                if self._running == _CALLBACK and self._runner is not None:
                    ending.press(self.world, self._runner)  # what it waits for ends
                else:
                    ending.signalled = 0.0
            elif ending.run != self._running or self._runner is None:
                self._ending = None
            else:
                ending.press(self.world, self._runner)

    def _hello(self) -> Hello:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return Hello(self.rank, os.getpid(), socket.gethostname(), gpus, str(torch.__version__))

    def _snapshot(self, question: int) -> Snapshot:
        used, total = device_memory(self.world.comm.device) if self.world.comm is not None else (0, 0)
        memory = self._process.memory_info().rss
        world = self.world
        return Snapshot(
            self.rank,
            os.getpid(),
            self._state,
            self._since,
            self._running,
            memory,
            used,
            total,
            world.generation,
            world.record.doing(),
            question,
            world.record.journal.recent() if self._running is not None else [],
        )


def _configure(link: zmq.Socket[bytes], info: LinkInfo, rank: int) -> None:
    link.setsockopt(zmq.ROUTING_ID, b"rank%d" % rank)
    link.setsockopt_string(zmq.CURVE_SERVERKEY, info.server_public)
    link.setsockopt_string(zmq.CURVE_PUBLICKEY, info.client_public)
    link.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
    link.setsockopt(zmq.LINGER, 0)
    link.setsockopt(zmq.SNDHWM, 0)  # nothing that a cell prints is dropped
    link.setsockopt(zmq.RCVHWM, 0)
    link.setsockopt(zmq.IMMEDIATE, 1)  # what no notebook can hear is kept here, and not sent twice
    link.setsockopt(zmq.RECONNECT_IVL, 50)
    link.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)


def _failure(error: BaseException) -> Failure:
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, NbcommError):
        text = "".join(traceback.format_exception(error)).rstrip()
    return Failure(type(error).__name__, str(error), text)
