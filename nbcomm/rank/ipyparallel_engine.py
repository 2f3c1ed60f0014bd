"""ipyparallel's engine in a rank that runs already: it gets the rank's shell, and nothing else of the process.

`IPEngine` is an application that owns its process. What it does beside its sockets is left out here: it handles no
signals, replaces no streams, starts no nanny, runs no startup files, and ends nothing if it fails.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, NoReturn

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipyparallel.engine import app
from traitlets.config import Config

from .output.capture import Capture


class _MadeBefore(IPKernelApp):
    """The application of the engine's kernel: the rank has initialised its own."""

    def init_profile_dir(self) -> None:
        """Do nothing: the shell has its profile."""

    def init_gui_pylab(self) -> None:
        """Do nothing: that is done."""

    def init_extensions(self) -> None:
        """Load nothing again."""

    def init_code(self) -> None:
        """Run nothing again."""


app.IPKernelApp = _MadeBefore  # its name in the module is the only way to give `IPEngine` another one


class Engine(app.IPEngine):  # type: ignore[misc]  # ipyparallel has no types
    """An engine whose id is its rank, and whose shell is the rank's."""

    shell: Any
    capture: Capture

    @classmethod
    async def begin(cls, rank: int, connection: str, shell: Any, capture: Capture) -> Engine:
        """Return an engine that has registered; main thread.

        Args:
            rank: this one.
            connection: what the controller has written for engines.
            shell: the rank's.
            capture: what its cells show.

        Raises:
            RuntimeError: the controller does not answer, or refuses.
        """
        config = Config(shell.config)
        config.pop("IPKernelApp", None)  # the shell keeps a mark for tqdm there, which is no option
        self = cls(
            config=config,
            id=rank,
            log=shell.kernel.log,
            connection_info_env=connection,
            enable_nanny=False,  # the daemon reaps, and signals go to the process itself
            max_heartbeat_misses=0,  # the lease decides how long a rank lives without a notebook
            user_ns=shell.user_ns,
            profile_dir=shell.profile_dir,
        )
        self.shell, self.capture = shell, capture
        self.log.addFilter(_is_news)
        self.load_connection_file()
        parts = shell.displayhook, shell.display_pub
        before = [(part, part.session, part.pub_socket, part.topic) for part in parts]
        try:
            await self.register()
        except BaseException:
            for part, session, socket, topic in before:
                part.session, part.pub_socket, part.topic = session, socket, topic
            if self.registrar is not None:
                self.registrar.close(linger=0)
            raise
        shell.kernel = IPKernelApp.instance().kernel = self.kernel
        app.IPEngine._instance = self  # noqa: SLF001 - the common singleton is the kernel's application
        return self

    def say_again(self) -> None:
        """Register once more: the controller may be another one on the same ports, which does not know this engine.

        One that knows it refuses. The answer is needed by nobody.
        """
        with suppress(zmq.Again):
            while True:
                self.registrar.recv_multipart(zmq.NOBLOCK)
        self.session.send(self.registrar, "registration_request", content={"uuid": self.ident, "id": self.id})

    async def register(self) -> None:
        """Register as any engine does, after unregistering a dead one that had the same rank."""
        session = self.session

        def take_leave_first(socket: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
            if kind == "registration_request":
                del session.send
                session.send(socket, "unregistration_request", content={"id": self.id})
            return session.send(socket, kind, *args, **kwargs)

        session.send = take_leave_first
        await super().register()

    async def complete_registration(self, *args: Any) -> None:
        """Register as any engine does, with a kernel that takes the place of the one before."""
        app.Kernel.clear_instance()
        IPythonKernel.clear_instance()
        await super().complete_registration(*args)

    def redirect_output(self, iopub_socket: Any) -> None:
        """Give ipyparallel's own cells their streams, behind the capture, which keeps what belongs to nbcomm's."""
        for name, stream in self.capture.streams.items():
            # watchfd would take descriptors 1 and 2, which belong to the capture.
            own = self.out_stream_factory(self.session, iopub_socket, name, watchfd=False)
            own.topic = f"engine.{self.id}.{name}".encode()
            stream.lead_to(own)
        hook = self.display_hook_factory(self.session, iopub_socket)
        hook.topic = f"engine.{self.id}.execute_result".encode()
        sys.displayhook = hook

    def init_signal(self) -> None:
        """Leave the signals to the rank."""

    def abort(self) -> NoReturn:
        """Raise an error: the controller does not answer."""
        raise RuntimeError(f"the controller did not answer within {self.timeout:g} s")

    def exit(self, exit_status: int | str | None = 0) -> NoReturn:
        """Raise the error that is being handled, instead of ending the process."""
        raise RuntimeError(f"the engine failed ({exit_status}): {sys.exc_info()[1]}")


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line belongs in a rank's log: not that ipykernel has no debugger here, where none can work."""
    return not str(record.msg).startswith("debugpy_stream")
