"""Real gloo ranks for tests: a function goes in, each rank's result or exception comes out, and no test waits for ever.

The ranks are forked from a fork server that has imported torch once and run nothing. They stay for many tests; a
world in which a rank did not answer in time is ended, process by process, and a fresh one takes its place.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

from nbcomm.protocol import FormGroups, RankPlacement, rank_lists
from nbcomm.world_info import LinkInfo

from .autopsy import OutOfTimeError
from .node.loops import ServedStore

if TYPE_CHECKING:
    from nbcomm.rank.groups.world import World as NbcommWorld

DEADLINE_SECONDS = 60.0
_context = mp.get_context("forkserver")
# The last is what the first optimizer imports: each rank would need longer for it than for all else.
_context.set_forkserver_preload(["torch", "numpy", "nbcomm.rank.groups.world", "torch._dynamo"])


class Failed:
    """What a rank raised, in place of a result."""

    def __init__(self, error: Exception) -> None:
        self.kind = type(error)
        self.text = str(error)
        self.trace = traceback.format_exc()

    def __repr__(self) -> str:
        return f"{self.kind.__name__}: {self.text}"


class World:
    """``size`` ranks; each keeps one Communicator over all of them."""

    def __init__(self, size: int, *, plain: str = "", **environment: str) -> None:
        self.size = size
        self._plain = plain
        self._environment = environment
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(
        self, function: Callable[..., Any], *args: Any, fails: bool = False, deadline: float = DEADLINE_SECONDS
    ) -> list[Any]:
        """Call ``function(comm, *args)`` on every rank and return what each returned.

        Args:
            function: anything that cloudpickle takes.
            *args: as many as it wants.
            fails: the caller expects exceptions: they are returned, as `Failed`, instead of failing the test.
            deadline: seconds for all ranks together.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(cloudpickle.dumps((function, args)))
        until = time.monotonic() + deadline
        blobs: list[bytes] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                blobs.append(pipe.recv_bytes())
            except (EOFError, OSError) as error:
                if isinstance(error, TimeoutError):
                    # Made before the ranks are ended: it looks at them.
                    failed = OutOfTimeError(f"Rank {rank} of {self.size} did not answer within {deadline:g} s.")
                else:
                    failed = AssertionError(f"Rank {rank} of {self.size} has ended.")
                self.close()
                raise failed from None
        results = [cloudpickle.loads(blob) for blob in blobs]
        if not fails:
            for rank, result in enumerate(results):
                assert not isinstance(result, Failed), f"Rank {rank} of {self.size} failed:\n{result.trace}"
        return results

    @property
    def folder(self) -> str:
        """Where its ranks meet."""
        if self._folder is None:
            self._start()
        assert self._folder is not None
        return self._folder.name

    def close(self) -> None:
        """End the ranks that this world has started, and no other process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nbcomm-test-")
        for rank in range(self.size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_rank,
                args=(rank, self.size, self._folder.name, theirs, self._plain, self._environment),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


class Worlds:
    """One world of each size that is asked for."""

    def __init__(self) -> None:
        self._worlds: dict[int, World] = {}

    def __getitem__(self, size: int) -> World:
        return self._worlds.setdefault(size, World(size))

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()


@pytest.fixture(scope="module", name="worlds")
def worlds_of_a_module() -> Iterator[Worlds]:
    """The worlds of one test module."""
    made = Worlds()
    try:
        yield made
    finally:
        made.close()


here: NbcommWorld | None = None
"""In the process of a rank: its membership in the world."""

_store: ServedStore | None = None
"""There, too: the store that it serves."""


def store_socket(folder: str) -> Callable[[int], Path]:
    """Where the ranks of a generation meet."""
    return lambda generation: Path(folder) / f"store{generation}"


def form_order(
    rank: int, size: int, folder: str, generation: int = 1, *, absent: tuple[int, ...] = (), plain: str = ""
) -> FormGroups:
    """What the notebook tells a rank to form a generation. The lowest rank serves its store, as a daemon does."""
    global _store  # noqa: PLW0603 - one process is one rank
    place = RankPlacement(rank, size, rank, size, 0, 1, "cpu", "gloo", 1)
    if _store is not None:
        _store.close()
        _store = None
    if rank == min(set(range(size)) - set(absent)):
        _store = ServedStore(store_socket(folder)(generation))
    return FormGroups(0, place, generation, "127.0.0.1", 1, 60.0, rank_lists.written(absent), plain=plain)


def _rank(rank: int, size: int, folder: str, pipe: Connection, plain: str, environment: dict[str, str]) -> None:
    """The life of one rank; it ends when the test's end of the pipe does."""
    os.environ.update(environment)
    global here  # noqa: PLW0603 - one process is one rank
    from nbcomm.rank.groups.world import World as Membership

    here = Membership(store_socket(folder), Path(folder) / "board", LinkInfo("", "", "", ""))
    comm = here.form(form_order(rank, size, folder, plain=plain))
    with contextlib.suppress(EOFError):
        while True:
            function, args = cloudpickle.loads(pipe.recv_bytes())
            here.begin(0, None)
            try:
                result = function(comm, *args)
            except Exception as error:  # noqa: BLE001  # the test judges it
                result = Failed(error)
            try:
                blob = cloudpickle.dumps(result)
            except Exception as error:  # noqa: BLE001  # the test judges it
                blob = cloudpickle.dumps(Failed(error))
            pipe.send_bytes(blob)
