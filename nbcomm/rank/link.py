"""The rank's end of the link: a daemon thread that answers while the main thread is busy.

Two threads share the work. The link's thread owns the connection to the notebook: it answers probes, interrupts the
main thread, ends the process, and sends whatever is waiting. What must run user code or torch (cells, push,
pull, forming the group) goes to the main thread: see `main_loop`.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import msgspec
import zmq

from .. import errors
from ..faults import Faults, failure, trace
from ..node.notebook_end import NotebookEnd
from ..node.processes.daemon_lock import DaemonLock
from ..protocol import (
    Abort,
    CommToRank,
    Done,
    FromRank,
    Hello,
    InputReply,
    Interrupt,
    IntrospectReply,
    IntrospectRequest,
    Item,
    MainLoopRequest,
    Output,
    Register,
    Registered,
    StatusReply,
    StatusRequest,
    Stop,
    Text,
    ToRank,
)
from ..protocol.codec import decode_piece, decode_to_rank, encode, to_frames
from ..protocol.losses import begins_with, bytes_lost, request_lost
from ..protocol.nodes import rank_name
from ..protocol.payload import release
from ..protocol.streams import Frames, Header, Outgoing
from ..threads import keep
from ..world_dir import WorldDir
from .cells import debugger, script_runner
from .cells.completer import Insight
from .cells.completion_thread import CompletionThread
from .cells.pager import show_pages
from .cells.runner import CellRunner, handle_interrupts
from .cells.stdin import InputPrompter
from .ending import Ending
from .groups.environment import Gpu, gpu
from .groups.world import World
from .main_loop import CALLBACK, MainLoop, MainThreadState, Parts
from .messages import Messages
from .output import progress_bars
from .output.capture import Capture, follow_threads, route_displays
from .output.widget_comms import Comms
from .process_memory import Footprint
from .registration import Registration
from .termination import Termination

_TRIES = 5
"""How many times in a row the link is opened again after a fault of its thread."""

_ROUNDS, _BACKOFF = 20, 0.05
"""Rounds of the thread that may fail in a row, and seconds of pause after each."""

_RETRY = 50
"""Milliseconds between two tries to open the connection again."""

_FLUSH_BUSY = 50
"""Milliseconds between two checks for new output while a cell runs."""

_FLUSH_IDLE = 250
"""The same between cells, when only background threads can print."""

_NOTES = 8
"""The most notes of lost output that wait for the end of a cell."""

_MOST = 64 << 20
"""Bytes of a cell's output that are kept for another notebook."""

_MOST_PRINTED = 4000
"""Characters of what startup files print that the notebook shows; the rank's log has all."""

_MOST_UNHEARD = 1 << 30
"""The same for the present notebook, which mostly hears it within a second: only one that is stopped leaves so much."""

_REQUESTS = frozenset(kind.__name__ for kind in get_args(MainLoopRequest))


def _gap(run: int) -> Frames:
    return [encode(Output(run, [Text("stderr", "(earlier output is not kept)\n")]))]


class RankLink:
    """One rank's end of the link.

    Args:
        rank: this rank.
        home: the world's directory.
        key: of this process's own; see `own_key` of `nbcomm.node.processes.child`.
    """

    def __init__(self, rank: int, home: WorldDir, key: str) -> None:
        self.rank = rank
        start, public, secret = key.split()
        self._info = msgspec.structs.replace(
            home.read_link(), client_public=public, client_secret=secret, name=rank_name(rank, int(start))
        )
        self.home = home
        self.world = World(home.store_socket, home.board, self._info, self._send, self._scope)
        captured = {name: home.captured(rank, name) for name in ("stdout", "stderr")}
        self.capture = Capture(captured, self._note_loss)
        self._main_thread = MainThreadState()
        out = Outgoing(_MOST, _gap, _MOST_UNHEARD)
        self._messages = Messages(secrets.randbits(62) + 1, out, self._hello, self._meet)
        self._cell: tuple[int, str] = (0, "")
        self._faults = Faults(lambda: home.add_to_log(rank, trace()))
        self._untold: dict[str, None] = {}  # what was, or may be, lost of output; the next cell's end tells it
        self._sending = threading.Lock()  # what is taken from the capture must be sent before what is taken later
        self._main_loop: MainLoop | None = None
        self._waiting: list[tuple[MainLoopRequest, Sequence[Any]]] = []
        self._asker: InputPrompter | None = None
        self._shell: Any = None
        self._printed = ""
        self._assistant: CompletionThread | None = None
        self._registration: Registration | None = None
        self._termination: Termination | None = None
        self._footprint = Footprint()
        self._ending = Ending(lambda what: home.add_to_log(rank, what))
        self._heard_at_once: dict[type, Callable[[Any], None]] = {
            StatusRequest: self._hear_probe,
            IntrospectRequest: self._hear_question,
            InputReply: self._hear_reply,
            Interrupt: self._interrupt,
            Abort: self._abort,
            Register: self._register,
            Stop: self._end,
        }
        self._look_at = 0.0  # when the link's thread looks for output, by `time.monotonic`
        self._said: tuple[int, int] | None = None  # how much of the captured files is in messages
        self._unheard: deque[tuple[int, tuple[int, int]]] = deque()  # the same, behind which message
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)  # noqa: FBT003 - positional only
        # A rank that cannot be reached must not live on unnoticed.
        keep("nbcomm-link", self._serve_link, self._faults, again=_TRIES, lost=lambda _: os._exit(70))

    def _scope(self) -> dict[str, Any] | None:
        """Return the user's variables: a frame whose globals they are is a line of the user's."""
        return script_runner.scope if script_runner.scope is not None else self._shell and self._shell.user_ns

    # ── the main thread ─────────────────────────────────────────────────────────────────────────────

    def attach(self, shell: Any, loop: asyncio.AbstractEventLoop, printed: str = "") -> MainLoop:
        """Serve the notebook's requests from now on: the shell is ready. Main thread.

        Args:
            shell: the rank's.
            loop: runs whatever awaits.
            printed: what the user's startup files have printed.

        Returns:
            What the main thread is to run.
        """
        follow_threads()
        route_displays(shell.display_pub, self.capture)
        show_pages(shell, self.capture)
        self._shell, self._printed = shell, printed[-_MOST_PRINTED:]
        runner = CellRunner(shell, self.capture, self.world.explain, self.world.record.await_device)
        handle_interrupts(runner)
        self._assistant = CompletionThread(lambda: Insight(shell), self._send, self.world.apart)
        self._asker = InputPrompter(self.capture, self.world.record, runner.to_end, self._hurry_output)
        self._asker.install()
        debugger.install(shell, runner, self.capture, self.world.record)
        progress_bars.of_cells(self.capture)
        comms = Comms(self.capture, getattr(shell, "kernel", None))
        comms.install()
        parts = Parts(self.rank, self.home, self.world, self.capture, self._begin_cell, self._send_output, self._faults)
        self._registration = Registration(
            self.rank, shell, self.capture, loop=loop, answer=self._send, faults=self._faults
        )
        main_loop = MainLoop(shell, runner, comms, parts, self._main_thread)
        main_loop.begin(loop)
        self._main_loop = main_loop  # from now on the link's thread hands requests over to it
        self._messages.notify(self._hello(asks=False))
        self._rouse()
        return main_loop

    # ── sending, from either thread ─────────────────────────────────────────────────────────────────

    def _send(self, message: FromRank, buffers: Sequence[Any] = (), run: int = 0) -> None:
        """Send a message exactly once; a later notebook needs it, too, if it is about a cell."""
        self._say(message, buffers, run)
        self._rouse()

    def _say(self, message: FromRank, buffers: Sequence[Any] = (), run: int = 0) -> None:
        """Keep a message for the link's thread, which is to be roused: it takes Python's lock from the main thread."""
        answers, output = isinstance(message, Done), isinstance(message, Output)
        self._messages.send(to_frames(message, buffers), run, output=output, asks=answers)

    def _begin_cell(self, run: int, ranks: str) -> None:
        """Note a cell that begins, for a notebook that may come meanwhile."""
        self._cell = run, ranks

    def _hurry_output(self) -> None:
        """Let the link's thread send what waits for it now."""
        self._look_at = 0.0
        self._rouse()

    def _rouse(self) -> None:
        with suppress(BlockingIOError):  # many wake-ups are already pending
            self._wake.send(b"\0")

    def _send_output(self, *, end: bool = False, then: tuple[Done, Sequence[Any]] | None = None) -> None:
        with self._sending:
            input_requests = self._asker.take() if self._asker is not None else []  # after what was shown before them
            taken: list[tuple[int, list[Item]]] = []
            with self._faults.beside("some of its output is lost", self._note_loss):
                taken = self.capture.take(end=end)
                said = self.capture.taken
                for place, (run, items) in enumerate(taken, 1):
                    # A callback's run is below 0.
                    self._say(Output(run, items, said if place == len(taken) else None), run=max(run, 0))
                    if place < len(taken):  # much leaves while the rest is packed
                        self._rouse()
                if said is not None and said != self._said:
                    self._said = said
                    self._unheard.append((self._messages.newest, said))
            for input_request in input_requests:
                self._say(input_request)
            if then is not None:
                self._say_answer(*then)
            if taken or input_requests or then is not None:
                self._rouse()

    def _note_loss(self, note: str) -> None:
        if len(self._untold) < _NOTES:
            self._untold[note] = None

    def _say_answer(self, done: Done, buffers: Sequence[Any]) -> None:
        """Send an answer that the notebook waits for; if it cannot be sent, send that the request failed."""
        run = done.id if done.id == self._cell[0] else 0
        if run:  # what is lost between cells is told by the next one
            untold, self._untold = self._untold, {}
            done = msgspec.structs.replace(done, notes=[*done.notes, *untold])
        try:
            self._say(done, buffers, run)
        except Exception as error:  # noqa: BLE001 - what cannot be encoded may raise anything
            self._faults.log("an answer could not be sent", error)
            if done.blob is not None:
                release(done.blob)
            self._say(Done(done.id, done.seconds, failure(self.rank, error), broken=True), run=run)

    # ── the link's thread ───────────────────────────────────────────────────────────────────────────

    def _serve_link(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        end = NotebookEnd(zmq.Context(), self._info, poller)  # made here: a fork must not use its parent's
        try:
            self._serve(end, poller)
        finally:  # it failed: the next try has a connection of its own
            end.close()

    def _serve(self, end: NotebookEnd, poller: zmq.Poller) -> None:
        self._alone_since, failed = time.monotonic(), list[str]()
        while len(failed) < _ROUNDS:
            before = len(failed)
            with self._faults.beside("a round of the link failed", failed.append):
                self._round(end, poller)
            if len(failed) == before:
                failed.clear()
            else:
                time.sleep(_BACKOFF)
        raise RuntimeError(failed[-1])  # another connection may do better

    def _round(self, end: NotebookEnd, poller: zmq.Poller) -> None:
        """Wait until something happens, and handle it."""
        ready = dict(poller.poll(_RETRY if end.closed else self._until_output()))
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        self._hear_all(end, ready)
        if end.connected:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > self.home.read_lease() and not self._is_kept():
            self.home.remove()
            os._exit(0)
        with self._faults.beside("an interrupt could not be passed on"):
            self._end_what_runs()
            self._terminate()
        with self._faults.beside("it could not be told what does not end"):
            self._ending.look()
        if self._assistant is not None:
            with self._faults.beside("an answer to what was typed could not be ended"):
                self._assistant.look()
        self._look_for_output()
        for message in self._messages.leaving(connected=end.connected):
            end.send([encode(message.header), *message.frames])

    def _is_kept(self) -> bool:
        """Whether a daemon keeps the lease; without one, each rank does."""
        with suppress(OSError):  # the directory is removed
            lock = DaemonLock(self.home.daemon_lock)
            try:
                return bool(lock.holder())
            finally:
                lock.close()
        return False

    def _until_output(self) -> int:
        """Return the milliseconds until the next look for output; most rounds are about something else."""
        main, now = self._main_thread, time.monotonic()
        busy = main.running is not None or main.heard > main.answered
        self._look_at = min(self._look_at, now + (_FLUSH_BUSY if busy else _FLUSH_IDLE) / 1e3)
        return max(0, math.ceil(1e3 * (self._look_at - now)))

    def _look_for_output(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = math.inf  # first: what hurries from now on is looked for in the next round
        # What is printed while the shell is made belongs to the start; and what the main thread sends is everything.
        if self._main_loop is not None and not self._sending.locked():
            with self._faults.beside("output could not be sent"):
                self._send_output()

    def _hear_all(self, end: NotebookEnd, ready: Mapping[Any, int]) -> None:
        """Take what has come, and note whether the notebook is there."""
        with self._faults.beside("it could not be looked whether a notebook is there"):
            if end.closed:
                end.open()
            elif end.monitor in ready:
                for there in end.looks_up():
                    if not there:  # what it has brought still counts
                        self._hear_arrived(end)
            if end.connections != self._messages.connection:
                self._messages.connect(end.connections)
        if not end.closed and end.link in ready:
            self._hear_arrived(end)
        while self._unheard and self._unheard[0][0] <= self._messages.heard:
            _, said = self._unheard.popleft()
            self.capture.note_said(said)

    def _hear_arrived(self, end: NotebookEnd) -> None:
        for header, *rest in end.receive():
            with self._faults.beside("a message could not be read"), suppress(msgspec.DecodeError):
                piece = decode_piece(header.buffer)
                frames = self._messages.arrive(piece, [frame.buffer for frame in rest])
                if frames is not None:
                    self._hear(piece, frames)

    def _hear(self, header: Header, frames: Sequence[Any]) -> None:
        """Take a message, if it is the next one in the stream."""
        message: ToRank | None = None
        lost = bytes_lost(frames)
        with self._faults.beside("a message could not be read"), suppress(msgspec.DecodeError):
            # A newer notebook may have messages unknown to this version; each keeps its place in the stream.
            try:
                message = decode_to_rank(frames[0]) if not lost else None
            except MemoryError:
                lost = len(frames[0])
        accepted = self._messages.hear(header, message)
        if accepted and message is not None:
            self._take(message, frames[1:])
        elif accepted and lost:
            self._miss(*begins_with(frames[0]), lost)

    def _meet(self) -> None:
        """Tell a notebook that is new here what only the one before it knew."""
        if self._main_loop is not None:
            self._main_loop.tell_again()
        for asking in self._asker.open() if self._asker is not None else ():
            self._send(asking)
        looks = self._main_thread.looks
        if looks is not None and looks == self._main_thread.running:  # the notebook that asked has gone
            self._termination = Termination(looks, self.world.generation)

    def _take(self, message: ToRank, frames: Sequence[Any]) -> None:
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

    def _miss(self, name: str, identity: int, size: int) -> None:
        """Answer a message for which there was not enough memory; most that are so large are requests."""
        lost = request_lost(self.rank, size)
        if name in _REQUESTS:
            self._main_thread.heard = identity
            self._send(Done(identity, failure=lost))
        elif name == IntrospectRequest.__name__:
            self._send(IntrospectReply(identity, {}))
        elif name == InputReply.__name__:  # the typed text is lost, and the cell waits for it
            self._termination = Termination(identity, 0, errors.TransferError(lost.message))

    def _dispatch(self, message: ToRank, frames: Sequence[Any]) -> None:
        if not isinstance(message, MainLoopRequest | CommToRank):
            self._heard_at_once[type(message)](message)
        elif self._main_loop is not None:
            for waiting in self._waiting:
                self._main_loop.put(*waiting)
            self._waiting.clear()
            self._main_loop.put(message, frames)
        elif isinstance(message, MainLoopRequest):
            # The shell is not ready yet; the notebook waits until a Hello says that it is, so this is a safeguard.
            self._waiting.append((message, frames))

    def _end(self, _: Stop) -> None:
        """Let the main thread end the process as Python ends one; what it runs is interrupted."""
        if self._main_loop is None:
            os._exit(0)
        self._ending.begin()
        self._main_loop.end()

    def _end_what_runs(self) -> None:
        """Interrupt what runs where the process is to end: also what arrived before that, and has begun only now."""
        running, told = self._main_thread.running, self._termination
        if self._ending.begun and running is not None and (told is None or told.run != running):
            self._termination = Termination(running, self.world.generation)

    def _hear_probe(self, message: StatusRequest) -> None:
        if self._main_loop is not None:
            self._main_loop.rouse_again()
        self._messages.notify(self._snapshot(message.question))

    def _hear_question(self, message: IntrospectRequest) -> None:
        if self._assistant is not None:
            self._assistant.ask(message)
        else:
            self._send(IntrospectReply(message.id, {}))

    def _hear_reply(self, message: InputReply) -> None:
        if self._asker is not None:
            self._asker.hear(message)

    def _register(self, message: Register) -> None:
        if self._registration is not None:
            self._registration.ask(message.connection)
        else:  # a safeguard: the notebook asks ranks whose shell is ready
            self._send(Registered("", "it is still starting"))

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
        # may run a user's `__repr__`, for as long as it likes: the link waits for nobody, and looks again.
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
            elif termination.run <= main_thread.answered:  # otherwise it is yet to run
                self._termination = None
        finally:
            main_thread.closing.release()

    def _hello(self, *, asks: bool = True) -> Hello:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        run, ranks = self._cell if self._cell[0] > self._messages.acknowledged else (0, "")
        attached = self._main_loop is not None
        told = attached, run, ranks, asks, self._printed
        return Hello(self.rank, os.getpid(), socket.gethostname(), gpus, str(torch.__version__), *told)

    def _snapshot(self, question: int) -> StatusReply:
        answered = self._main_thread.answered  # read first: what is read behind it is of after that answer
        on = gpu(self.world.comm.device) if self.world.comm is not None else Gpu()
        memory, pss = self._footprint.measure()
        world, main_thread, main_loop = self.world, self._main_thread, self._main_loop
        termination = self._termination
        return StatusReply(
            self.rank,
            os.getpid(),
            main_thread.state,
            main_thread.since,
            main_thread.running,
            memory,
            on.used,
            on.total,
            world.generation,
            world.stuck.state(),
            question,
            world.record.journal.recent() if main_thread.running is not None else [],
            main_thread.heard,
            main_thread.begun,
            answered,
            pss,
            importing=main_loop.runner.importing() if main_loop is not None and main_thread.running is not None else "",
            ending=termination.run if termination is not None else 0,
            asking=self._asker.open() if self._asker is not None else [],
            device_name=on.name,
            allocated=on.allocated,
            reserved=on.reserved,
        )
