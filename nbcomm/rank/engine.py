"""The process of a rank: an ipyparallel engine with nbcomm's link in it.

Started by the fork server in a forked child (`main`), or as ``python -m nbcomm.rank.engine`` where
processes cannot be forked.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from typing import Any

from ipyparallel.engine.app import IPEngine

from ..world_dir import HOME_VARIABLE, WorldDir
from .link import RankLink
from .output import progress_bars


def _leave_debugger_out() -> None:
    """Make ipykernel treat debugpy as missing, as no front end can debug an engine.

    Each engine would spend half a second on importing it. A cell may still import it by itself.
    """
    before = sys.modules.get("debugpy")
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # Python's own way to make an import fail
    try:
        importlib.import_module("ipykernel.debugger")
    finally:
        del sys.modules["debugpy"]
        if before is not None:
            sys.modules["debugpy"] = before


_leave_debugger_out()  # in the fork server, before an engine is forked
progress_bars.watch_imports()


class RankEngine(IPEngine):  # type: ignore[misc]  # ipyparallel has no types
    """An ipyparallel engine whose id is its rank and whose cells come over nbcomm's link."""

    rank_link: RankLink

    def initialize(self, argv: list[str] | None = None) -> None:
        """Start the link at once: it says hello while the engine is still registering."""
        super().initialize(argv)
        self.log.addFilter(_is_news)
        home = WorldDir(os.environ[HOME_VARIABLE])
        self._has_controller = not home.read_link().tunnelled
        self.rank_link = RankLink(self.id, home)

    def init_signal(self) -> None:
        """Handle SIGTERM as ipyparallel does; SIGINT is the cell runner's, set when the link attaches."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._signal_stop)

    def redirect_output(self, iopub_socket: Any) -> None:
        """Give ipyparallel's own cells their streams, with the capture for nbcomm's cells in front of them."""
        for name in ("stdout", "stderr"):
            # watchfd would take descriptors 1 and 2, which belong to the capture.
            own = self.out_stream_factory(self.session, iopub_socket, name, watchfd=False)
            own.topic = f"engine.{self.id}.{name}".encode()
            setattr(sys, name, self.rank_link.capture.stream(name, own))
        hook = self.display_hook_factory(self.session, iopub_socket)
        hook.topic = f"engine.{self.id}.execute_result".encode()
        sys.displayhook = hook

    async def register(self) -> None:
        """Register as any engine does, after unregistering a dead one that had the same rank.

        Where the controller cannot be reached, it is as if that had agreed, and nothing is connected.
        """
        if not self._has_controller:
            agreed = self.session.msg("registration_reply", content={"status": "ok", "id": self.id, "hb_period": 0})
            await self.complete_registration(self.session.serialize(agreed), _connect_nothing, str)
            return
        send = self.session.send

        def take_leave_first(socket: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
            if kind == "registration_request":
                send(socket, "unregistration_request", content={"id": self.id})
            return send(socket, kind, *args, **kwargs)

        self.session.send = take_leave_first
        try:
            await super().register()
        finally:
            del self.session.send

    async def complete_registration(self, *args: Any) -> None:
        """Register as any engine does, then hand the shell to the link."""
        await super().complete_registration(*args)
        for prompt in ("ps1", "ps2", "ps3"):
            # A rank is an ordinary program, as under torchrun, and no interactive prompt: libraries that look for one
            # (Lightning Fabric, to refuse strategies that would start processes) must not find one.
            vars(sys).pop(prompt, None)
        self.rank_link.attach(self.kernel.shell, self.loop.asyncio_loop)

    def start_heartbeat(self, *args: Any) -> None:
        """Answer the controller's heartbeats, if there is one."""
        if self._has_controller:
            super().start_heartbeat(*args)


def _connect_nothing(*_: Any, **__: Any) -> None:
    """Leave a socket without a peer: what is sent there is dropped."""


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line belongs in a rank's log: not that ipykernel has no debugger here, where none can work."""
    return not str(record.msg).startswith("debugpy_stream")


def main(argv: list[str]) -> None:
    """Run an engine until it is stopped; argv as for ``ipengine``."""
    RankEngine.launch_instance(argv=argv)


if __name__ == "__main__":
    main(sys.argv[1:])
