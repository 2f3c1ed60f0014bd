"""How a request is ended that does not end by itself: because ■ was pressed, or because it waits for ever."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from .cells.runner import signal_main

if TYPE_CHECKING:
    from .cells.runner import CellRunner
    from .groups.world import World

_INSIST, _HURRY = 0.3, 0.05
"""Seconds after which a cell that was told to end, and did not, is told again."""


@dataclass
class Termination:
    """A request that is to end.

    Attributes:
        run: the request.
        generation: of the groups that may have to be aborted for it; 0 if they are to stay.
        error: what it raises; None for KeyboardInterrupt.
        heard: what `CellRunner.interrupts` said when this was ordered: an earlier one may have been caught.
        signalled: when the main thread was signalled last, in seconds; 0 if it was not.
        told: the cell has been given the error once.
        insisted: it has been ended in a way that ``except Exception`` does not catch.
    """

    run: int
    generation: int
    error: BaseException | None = None
    heard: tuple[int, int] = (0, 0)
    signalled: float = 0.0
    told: bool = False
    insisted: bool = False

    def proceed(self, world: World, runner: CellRunner) -> None:
        """Do what is due now; called again and again, on the link's thread, until the request has ended.

        What waits for other ranks is freed, what computes is signalled, and what goes on all the same is told again::

            ■            at once        SIGINT, which raises KeyboardInterrupt
                         if it waits    abort the groups, and free its wait, in which the signal would be stuck
                         0.3 s later    all of that, until the signal has reached it
            an error     if it waits    free its wait, which raises the error
                         if it computes SIGINT, which raises the error
                         0.3 s later    it has caught that: SIGINT each 0.05 s, as what no `except Exception` catches
        """
        blocked = world.stuck.blocked()
        if self.error is None:
            self._interrupt(world, runner, blocked=blocked)
        else:
            self._fail(self.error, world, runner, blocked=blocked)

    def _interrupt(self, world: World, runner: CellRunner, *, blocked: bool) -> None:
        if runner.interrupted_since(self.heard):
            return
        deaf = bool(self.signalled) and time.monotonic() - self.signalled > _INSIST
        if deaf or not self.signalled:  # os.system ignores it for as long as its child runs
            self.signalled = time.monotonic()
            signal_main()
            _signal_children()
        if blocked or deaf:  # the signal waits behind C++, which is to let go
            world.abort(self.generation, KeyboardInterrupt())
            world.free_again()

    def _fail(self, error: BaseException, world: World, runner: CellRunner, *, blocked: bool) -> None:
        if world.broken is None:
            world.abort(self.generation, error)  # that has failed before; nothing if these groups are gone
        if blocked:
            world.free_again()
            self.signalled = time.monotonic()  # it fails by itself now, unless it catches that
            self.told = True
        elif time.monotonic() - max(self.signalled, world.told) > (_HURRY if self.insisted else _INSIST):
            self.signalled = time.monotonic()
            self.insisted = self.told or world.told > 0  # it has caught that, and gone on
            self.told = True
            runner.end_with(error, insist=self.insisted)
            signal_main()


def _signal_children() -> None:
    """Interrupt what the cell has started, as a terminal does: Python may wait for a child without hearing us."""
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                if os.getpgid(child.pid) == os.getpgid(0):
                    child.send_signal(signal.SIGINT)
