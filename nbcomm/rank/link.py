"""The rank's end of the link: a daemon thread that answers while the main thread is busy.

Two threads share the work. The agent's thread owns the socket: it answers probes, interrupts the main
thread, ends the process, and sends whatever is waiting. What must run user code or torch (cells, push,
pull, forming the group) goes to the main thread: see `main_loop`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from .. import errors
from ..faults import Faults, failure, trace
from ..protocol import (
    Abort,
    Attached,
    CommToRank,
    Done,
    FromRank,
    Hello,
    InputReply,
    Interrupt,
    IntrospectReply,
    IntrospectRequest,
    MainLoopRequest,
    Output,
    StatusReply,
    StatusRequest,
    Stop,
    ToRank,
)
from ..protocol.codec import decode_to_rank, encode
from ..threads import keep
from ..world_dir import LinkInfo, WorldDir
from .cells import debugger, script_runner
from .cells.completer import Insight
from .cells.completion_thread import CompletionThread
from .cells.notebook_magics import refuse_steering
from .cells.pager import find_names, show_pages
from .cells.runner import CellRunner, handle_interrupts
from .cells.stdin import InputPrompter
from .groups.environment import device_memory
from .groups.world import World
from .main_loop import CALLBACK, MainLoop, MainThreadState, Parts
from .output import progress_bars
from .output.capture import Capture, follow_threads, route_displays
from .output.widget_comms import Comms
from .process_memory import Footprint
from .replay import Replay
from .termination import Termination

_TRIES = 5
"""How many times in a row the link is opened again after a fault of its thread."""

_FLUSH_BUSY = 50
"""Milliseconds between two checks for new output while a cell runs."""

_FLUSH_IDLE = 250
"""The same between cells, when only background threads can print."""


class RankLink:
    """One rank's end of the link.

    Args:
        rank: this rank.
        home: the world's directory.
    """

    def __init__(self, rank: int, home: WorldDir) -> None:
        self.rank = rank
        self.home = home
        self.world = World(self._send, self._scope)
        self.capture = Capture({name: home.captured(rank, name) for name in ("stdout", "stderr")})
        self._info = home.read_link()
        self._main_thread = MainThreadState()
        self._outbox: deque[list[Any]] = deque()
        self._connected = False
        self._history = Replay()
        self._faults = Faults(lambda: home.add_to_log(rank, trace()))
        self._sending = threading.Lock()  # what is taken from the capture must be sent before what is taken later
        self._main_loop: MainLoop | None = None
        self._waiting: list[tuple[MainLoopRequest, Sequence[Any]]] = []
        self._asker: InputPrompter | None = None
        self._shell: Any = None
        self._assistant: CompletionThread | None = None
        self._termination: Termination | None = None
        self._footprint = Footprint()
        self._parent = os.getppid()
        self._heard_at_once: dict[type, Callable[[Any], None]] = {
            StatusRequest: self._hear_probe,
            IntrospectRequest: self._hear_question,
            InputReply: self._hear_reply,
            Interrupt: self._interrupt,
            Abort: self._abort,
            Stop: lambda _: os._exit(0),
        }
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        # A rank that cannot be reached must not live on unnoticed.
        keep("nbcomm-agent", self._serve_link, self._faults, again=_TRIES, lost=lambda _: os._exit(70))

    def _scope(self) -> dict[str, Any] | None:
        """Return the user's variables: a frame whose globals they are is a line of the user's."""
        return script_runner.scope if script_runner.scope is not None else self._shell and self._shell.user_ns

    # ── the main thread ─────────────────────────────────────────────────────────────────────────────

    def attach(self, shell: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the notebook's requests from now on: the engine's shell is ready. Main thread."""
        follow_threads()
        route_displays(shell.display_pub, self.capture)
        show_pages(shell, self.capture)
        find_names(shell)
        refuse_steering(shell)
        self._shell = shell
        runner = CellRunner(shell, self.capture, self.world.explain)
        handle_interrupts(runner)
        self._assistant = CompletionThread(lambda: Insight(shell), self._send, self.world.apart)
        self._asker = InputPrompter(self.capture, self.world.record, runner.to_end, self._rouse)
        self._asker.install()
        debugger.install(shell, runner, self.capture, self.world.record)
        progress_bars.of_cells(self.capture)
        comms = Comms(self.capture, getattr(shell, "kernel", None))
        comms.install()
        parts = Parts(self.rank, self.home, self.world, self.capture, self._history, self._send_output, self._faults)
        main_loop = MainLoop(shell, runner, comms, parts, self._main_thread)
        main_loop.begin(loop)
        self._main_loop = main_loop  # from now on the agent's thread hands requests over to it
        self._send(Attached(self.rank))

    # ── sending, from either thread ─────────────────────────────────────────────────────────────────

    def _send(self, message: FromRank, buffers: Sequence[Any] = ()) -> list[Any]:
        frames = [encode(message), *buffers]
        self._outbox.append(frames)
        self._rouse()
        return frames

    def _rouse(self) -> None:
        with suppress(BlockingIOError):  # many wake-ups are already pending
            self._wake.send(b"\0")

    def _send_output(self, *, end: bool = False, then: tuple[Done, Sequence[Any]] | None = None) -> None:
        with self._sending:
            questions = self._asker.take() if self._asker is not None else []  # after what was shown before them
            notes: list[str] = []
            with self._faults.beside("some of its output is lost", notes.append):
                for run, items in self.capture.take(end=end):
                    self._history.add(self._send(Output(run, items)))
            for question in questions:
                self._send(question)
            if then is not None:
                self._send_answer(*then, notes)

    def _send_answer(self, done: Done, buffers: Sequence[Any], notes: list[str]) -> None:
        """Send an answer that the notebook waits for; if it cannot be sent, send that the request failed."""
        try:
            frames = self._send(msgspec.structs.replace(done, notes=[*done.notes, *notes]), buffers)
        except Exception as error:  # noqa: BLE001 - what cannot be encoded may raise anything
            self._faults.log("an answer could not be sent", error)
            frames = self._send(Done(done.id, done.seconds, failure(self.rank, error), broken=True))
        self._history.add(frames, last=True)

    # ── the agent's thread ──────────────────────────────────────────────────────────────────────────

    def _serve_link(self) -> None:
        context = zmq.Context()
        try:
            self._serve(context)
        finally:  # it failed: the next try has sockets of its own
            context.destroy(linger=0)

    def _serve(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        link = context.socket(zmq.DEALER)
        _configure(link, self._info, self.rank)
        monitor = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._connected = False
        link.connect(self._info.address)
        poller = zmq.Poller()
        for source in (link, self._woken, monitor):
            poller.register(source, zmq.POLLIN)
        heard = time.monotonic()
        while True:
            busy = self._main_thread.running is not None
            ready = dict(poller.poll(_FLUSH_BUSY if busy else _FLUSH_IDLE))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if monitor in ready and self._is_connected_anew(monitor):
                heard = time.monotonic()
                self._introduce()
            if link in ready:
                heard = time.monotonic()
                self._receive(link)
            elif os.getppid() != self._parent and time.monotonic() - heard > self._info.lease:
                # The fork server keeps the lease; without it, each rank does. A notebook's process that exists but is
                # busy sends nothing either, so silence alone is no reason to end.
                self.home.remove()
                os._exit(0)
            with self._faults.beside("an interrupt could not be passed on"):
                self._terminate()
            if self._assistant is not None:
                with self._faults.beside("an answer to what was typed could not be ended"):
                    self._assistant.look()
            if not self._sending.locked():  # otherwise the main thread is sending: it will send everything
                with self._faults.beside("output could not be sent"):
                    self._send_output()
            self._empty_outbox(link)

    def _empty_outbox(self, link: zmq.Socket[bytes]) -> None:
        try:
            while self._outbox:
                link.send_multipart(self._outbox[0], zmq.NOBLOCK, copy=False)
                self._outbox.popleft()
        except zmq.Again:  # a connection that has just been made may also refuse for a moment: then it waits
            if not self._connected:  # `_introduce` repeats to the next notebook what it has missed
                self._outbox.clear()

    def _is_connected_anew(self, monitor: zmq.Socket[bytes]) -> bool:
        self._connected = parse_monitor_message(monitor.recv_multipart())["event"] != zmq.EVENT_DISCONNECTED
        return self._connected

    def _introduce(self) -> None:
        """Introduce this rank to a newly connected notebook, and repeat what that has missed."""
        with self._sending:
            self._outbox.clear()
            self._send(self._hello())
            if self._main_loop is not None:
                self._send(Attached(self.rank))
                self._main_loop.tell_again()
            self._outbox.extend(self._history.replay())
            for asking in self._asker.open() if self._asker is not None else ():
                self._send(asking)
        looks = self._main_thread.looks
        if looks is not None and looks == self._main_thread.running:  # the notebook that asked has gone
            self._termination = Termination(looks, self.world.generation)

    def _receive(self, link: zmq.Socket[bytes]) -> None:
        while True:
            try:
                body, *frames = link.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            message = None
            with self._faults.beside("a message could not be read"), suppress(msgspec.DecodeError):
                message = decode_to_rank(body.buffer)
            if message is None:
                continue  # CURVE let only the notebook in; a newer one may have messages unknown to this version
            if isinstance(message, MainLoopRequest):
                self._main_thread.heard = message.id
            try:
                self._dispatch(message, frames)
            except Exception as error:  # noqa: BLE001 - no message is worth the rank's variables
                self._faults.log(f"a {type(message).__name__} failed", error)
                if isinstance(message, MainLoopRequest):
                    self._send(Done(message.id, failure=failure(self.rank, error)))
                elif isinstance(message, InputReply):  # the typed text is lost, and the cell waits for it
                    reason = errors.InternalError(failure(self.rank, error).message)
                    self._termination = Termination(message.run, 0, reason)

    def _dispatch(self, message: ToRank, frames: Sequence[Any]) -> None:
        if not isinstance(message, MainLoopRequest | CommToRank):
            self._heard_at_once[type(message)](message)
        elif self._main_loop is not None:
            for waiting in self._waiting:
                self._main_loop.put(*waiting)
            self._waiting.clear()
            self._main_loop.put(message, frames)
        elif isinstance(message, MainLoopRequest):
            # The shell is not ready yet. The notebook waits for Attached; this is a safeguard.
            self._waiting.append((message, frames))

    def _hear_probe(self, message: StatusRequest) -> None:
        with self._faults.beside("what the notebook has heard could not be forgotten"):
            self._history.seen(message.seen)
        self._send(self._snapshot(message.question))

    def _hear_question(self, message: IntrospectRequest) -> None:
        if self._assistant is not None:
            self._assistant.ask(message)
        else:
            self._send(IntrospectReply(message.id, {}))

    def _hear_reply(self, message: InputReply) -> None:
        if self._asker is not None:
            self._asker.hear(message)

    def _interrupt(self, message: Interrupt) -> None:
        heard = self._main_loop.runner.interrupts() if self._main_loop is not None else (0, 0)
        self._termination = Termination(message.run, self.world.generation, heard=heard)
        self._terminate()

    def _abort(self, message: Abort) -> None:
        error = getattr(errors, message.error)(message.text)
        present = self.world.generation
        if message.generation >= present:  # a later one is being formed, and may be long in coming
            reason = self.world.broken if message.generation == present else None
            self._termination = Termination(message.run, message.generation, reason or error)
        self.world.abort(message.generation, error)
        self._terminate()

    def _terminate(self) -> None:
        """End the request that is to end, as far as is due now; forget that when it is over."""
        main_thread, main_loop = self._main_thread, self._main_loop
        # Its answer must say whether that broke the groups, and no signal may hit the next request. To settle an end
        # may run a user's `__repr__`, for as long as it likes: the agent waits for nobody, and looks again.
        if not main_thread.closing.acquire(blocking=False):
            return
        try:
            termination = self._termination
            if termination is None:
                return
            to_begin = termination.error is None and termination.run > main_thread.begun
            if main_loop is None:
                self._termination = None
            elif to_begin and main_thread.running != CALLBACK:
                termination.signalled = 0.0  # the callback before it has ended; it is to be signalled when it begins
            elif to_begin or termination.run == main_thread.running:  # it waits for that callback, or runs
                termination.proceed(self.world, main_loop.runner)
            else:
                self._termination = None
        finally:
            main_thread.closing.release()

    def _hello(self) -> Hello:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return Hello(self.rank, os.getpid(), socket.gethostname(), gpus, str(torch.__version__))

    def _snapshot(self, question: int) -> StatusReply:
        used, total = device_memory(self.world.comm.device) if self.world.comm is not None else (0, 0)
        memory, pss = self._footprint.measure()
        world, main_thread = self.world, self._main_thread
        return StatusReply(
            self.rank,
            os.getpid(),
            main_thread.state,
            main_thread.since,
            main_thread.running,
            memory,
            used,
            total,
            world.generation,
            world.stuck.state(),
            question,
            world.record.journal.recent() if main_thread.running is not None else [],
            main_thread.heard,
            main_thread.begun,
            main_thread.answered,
            pss,
        )


def _configure(link: zmq.Socket[bytes], info: LinkInfo, rank: int) -> None:
    link.setsockopt(zmq.ROUTING_ID, b"rank%d" % rank)
    link.setsockopt_string(zmq.CURVE_SERVERKEY, info.server_public)
    link.setsockopt_string(zmq.CURVE_PUBLICKEY, info.client_public)
    link.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
    link.setsockopt(zmq.LINGER, 0)
    link.setsockopt(zmq.SNDHWM, 0)  # nothing that a cell prints is dropped
    link.setsockopt(zmq.RCVHWM, 0)
    link.setsockopt(zmq.IMMEDIATE, 1)  # what no notebook can receive is kept here, and not sent twice
    link.setsockopt(zmq.RECONNECT_IVL, 50)
    link.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
