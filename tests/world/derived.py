"""Every function of nbcomm on the way of a request, an answer, an event or an order is found, and made to fail.

Nobody lists them. Each scenario (a cell, an interrupt, a hang, …) is done once while the notebook and a rank note which
functions they call, and on which thread. Then each of these functions raises, once or for as long as the scenario
lasts, while the scenario is done again; and one oracle judges, see `Derived.outcome`.

``python -m tests.world.derived --scenario hang --side rank`` does them by hand, and tells as it goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import socket
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import autopsy
from .notebook import SESSION, Cell, Notebook

SIDES = ("notebook", "rank")

RANK = 2
"""The rank on which functions fail."""

_VICTIM = 3
"""The rank that dies."""

_BOUND = 25.0
"""Seconds in which each cell ends, whatever fails once: a hang is judged in one, an interrupt given up in five."""

_PRESSED = 12.0
"""The same from ■ on, where a function fails for ever."""

_JUDGED = 25
"""Behind so many faults, a hang is judged once more."""

EXCLUDED = {
    "nbcomm.faults:": "it is what catches and tells a fault: if that fails, too, there are two faults at a time",
    "nbcomm.threads:": "the same, for threads",
}
"""What is not made to fail, by the beginnings of names, and why."""

KNOWN = {
    r":allow_no_body$": "IPython calls it for each cell, and shows what it raises: for ever, that is each cell",
    r"Head\.release$|Link\.close$": "a world whose release has failed stays with this kernel until that ends",
}
"""What is known to cost more than it should, as patterns of names, and why."""


@dataclass(frozen=True)
class Fault:
    """A function that fails: where, on which thread, in which scenario."""

    scenario: str
    side: str
    thread: str
    function: str

    def __str__(self) -> str:
        return f"{self.scenario}: {self.function} on the {self.side}'s {self.thread}"


class Derived:
    """A world of four ranks in a real kernel, in which functions fail.

    Args:
        folder: for its sockets and the kernel's files.

    Attributes:
        failed: the functions that have failed, each with its side and thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = itertools.count(1)
        self._sockets: dict[str, Path] = {}
        self._killed: set[int] = set()
        self._count = 0
        self.failed: set[tuple[str, str, str]] = set()
        self.notebook: Notebook
        self._begin()

    # ── the world ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        self.notebook = Notebook(str(self._folder))
        self.notebook.run("%load_ext nbcomm")
        self.notebook.run("%distributed start -n 4", timeout=120)
        self.notebook.run(f"import nbcomm, os, time\n{SESSION}")
        self.notebook.run("%%distributed\nimport os, time")
        self._enter("notebook", "")
        self._enter("rank", f"%%distributed -r {RANK}\n")
        self.keep()

    def _enter(self, side: str, where: str) -> None:
        """Load the spoiler into a process."""
        path = self._folder / f"{side}-{next(self._number)}"
        file = Path(__file__).with_name("spoiler.py")
        names = f"{{'__name__': 'spoiler', '_path': {str(path)!r}}}"
        self.notebook.run(
            f"{where}exec(compile({file.read_text() + '_it = Spoiler(_path)'!r}, {str(file)!r}, 'exec'), {names})"
        )
        self._sockets[side] = path

    def keep(self) -> None:
        """Let each rank have a variable, which must not be lost."""
        self.notebook.run("%%distributed\nkept, pid = f'kept on {rank}', os.getpid()")

    def close(self) -> None:
        """End it, as closing the notebook does."""
        self.notebook.close()

    def begin_again(self) -> None:
        """Put another world in the place of one that is beyond help."""
        with suppress(Exception):
            self.notebook.close()
        self._begin()

    # ── orders to the processes ─────────────────────────────────────────────────────────────────────

    def order(self, side: str, do: str, **how: Any) -> Any:
        """Order the spoiler of a process, past all of nbcomm."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20)
            one.connect(str(self._sockets[side]))
            with one.makefile("rw") as lines:
                lines.write(json.dumps({"do": do, **how}) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def find(self, scenario: Scenario) -> list[Fault]:
        """Do a scenario; return the functions that were called in it, with their threads, in an order of their own.

        Raises:
            AssertionError: it did not go as it should.
        """
        for side in SIDES:
            self.order(side, "trace")
        try:
            complaints = scenario.act(self, once=True)
        finally:
            traced = {side: self.order(side, "traced") for side in SIDES}
        complaints += self.look()
        assert not complaints, complaints
        return [
            Fault(scenario.name, side, thread, function)
            for side in SIDES
            for function, thread, _ in sorted(traced[side])
            if thread != "spoiler"
            and not function.startswith(tuple(EXCLUDED))
            and not any(re.search(name, function) for name in KNOWN)
        ]

    # ── the oracle ──────────────────────────────────────────────────────────────────────────────────

    def outcome(self, fault: Fault, *, once: bool, again: bool = True) -> list[str] | None:
        """Do a scenario while a function fails; return what is wrong with the session then, None if it did not fail.

        All requests are answered in bounded time, or by ■ where the function fails for ever. What failed is told in
        words. Nothing is lost: no variable, no output of other ranks. The next cell is right.
        """
        assert self.order(fault.side, "spoil", key=fault.function, thread=fault.thread, once=once)
        try:
            complaints = SCENARIOS[fault.scenario].act(self, once=once)
        except autopsy.OutOfTimeError as error:
            complaints = [f"it is stuck: {error}\n{self._stacks()}"]
        try:
            fired = self.order(fault.side, "mend")
        except OSError as error:
            if once:
                self.begin_again()
                # A rank whose link's thread fails many times in a minute cannot be reached, and ends: faults add up.
                ended = f"the {fault.side}'s process has ended: {error}"
                return self.outcome(fault, once=once, again=False) if again else [*complaints, ended]
            self._killed.add(RANK)
            fired = 1
        try:
            complaints += self.look(once=once)
        except (AssertionError, autopsy.OutOfTimeError) as error:
            complaints.append(f"the world is beyond help: {error}\n{self._stacks()}")
            self.begin_again()
        if fired:
            self.failed.add((fault.side, fault.thread, fault.function))
            self._count += 1
            if self._count % _JUDGED == 0:
                complaints += [f"behind the last {_JUDGED}: {it}" for it in SCENARIOS["hang"].act(self, once=True)]
        return complaints if fired else None

    def left(self, found: Sequence[Fault], more: int) -> list[Fault]:
        """Return those that have not failed in an earlier scenario, and a sample of the others."""
        fresh = [one for one in found if (one.side, one.thread, one.function) not in self.failed]
        return [*fresh, *sample([one for one in found if one not in fresh], more)]

    def _stacks(self) -> str:
        with suppress(OSError):
            stacks = {side: self.order(side, "stacks") for side in SIDES}
            return "\n".join(
                f"{side}, {thread}:\n{stack}"
                for side, threads in stacks.items()
                for thread, stack in threads.items()
                if thread == "MainThread" or thread.startswith("nbcomm")
            )
        return ""

    def look(self, *, once: bool = True) -> list[str]:
        """Tell what is wrong in the next cell, when nothing fails any more."""
        self.notebook.end_all()
        if not once:  # what was held up for seconds arrives now
            busy = "until = time.monotonic() + 10\nwhile session.busy and time.monotonic() < until: time.sleep(0.05)"
            self.notebook.run(busy)
        complaints = []
        if (
            "nothing"
            in self.notebook.run(
                "print('here' if any(one.running for one in nbcomm.notebook.session.registry.running()) else 'nothing')"
            ).text
        ):
            self.notebook.run("%distributed attach", timeout=60)
            self.notebook.run(SESSION)
        if self._killed:
            self.notebook.run("%distributed heal", timeout=60)
            for rank in self._killed:
                named = "import os, time\nkept, pid = f'kept on {rank}', os.getpid()"
                self.notebook.run(f"%%distributed -r {rank}\n{named}")
            if RANK in self._killed:
                self._enter("rank", f"%%distributed -r {RANK}\n")
            self._killed.clear()
        cell = self.notebook.submit("%%distributed\nprint(kept, pid == os.getpid())\nall_reduce(rank)")
        self.notebook.finish(cell, _BOUND)
        if cell.error is not None:
            complaints.append(f"the next cell failed: {cell.error_text}")
        else:
            complaints += [f"the next cell lacks {text!r}: {cell.text}" for text in _missing(cell, _KEPT)]
        if complaints:
            self.begin_again()
        return complaints

    # ── what a scenario does ────────────────────────────────────────────────────────────────────────

    def ended(self, cell: Cell, *, once: bool) -> list[str]:
        """Wait for the end of a cell; where a function fails for ever, press ■ in the end."""
        if once:
            try:
                self.notebook.finish(cell, _BOUND)
            except autopsy.OutOfTimeError:
                complaint = f"it did not end within {_BOUND:g} s: {cell.text}\n{self._stacks()}"
                return [complaint, *self.stopped(cell)]
            return []
        with suppress(autopsy.OutOfTimeError):
            self.notebook.finish(cell, 4.0)
            return []
        return self.stopped(cell)

    def stopped(self, cell: Cell) -> list[str]:
        """Press ■, and wait for the end of a cell."""
        self.notebook.interrupt()
        try:
            self.notebook.finish(cell, _PRESSED)
        except autopsy.OutOfTimeError:
            return [f"■ did not end it: {cell.text}\n{self._stacks()}"]
        return []

    def right(self, cell: Cell, *texts: str, error: str = "") -> list[str]:
        """Tell what is wrong with a cell that has ended: it shows these texts and this error, or says what failed."""
        lacks = [*_missing(cell, texts), *([error] if error not in cell.error_text else [])]
        if not cell.idle or not lacks:
            return []
        told = ("spoiled" in cell.text + cell.error_text) or "nbcomm: " in cell.text or cell.error is not None
        return [] if told else [f"nothing is said, but it lacks {lacks}: {cell.text}\n{cell.error_text}"]

    def number(self) -> int:
        """Return another number."""
        return next(self._number)

    def killed(self) -> None:
        """Note that a rank is killed."""
        self._killed.add(_VICTIM)


_KEPT = (*(f"kept on {rank} True" for rank in range(4)), "[0-3] 6")


def _missing(cell: Cell, texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text not in cell.text]


# ── the scenarios ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Scenario:
    """Something that is done in a notebook; returns what is wrong with how it went."""

    name: str
    act: Callable[..., list[str]]
    slow: bool = False


def _cell(world: Derived, *, once: bool) -> list[str]:
    """A cell prints, and calls a collective; what other ranks print is not lost, unless it says so."""
    n = world.number()
    cell = world.notebook.submit(f"%%distributed\nprint('cell {n} on', rank, flush=True)\nall_reduce(rank)")
    late = world.ended(cell, once=once)
    return late + world.right(cell, *(f"cell {n} on {rank}" for rank in range(4)), "[0-3] 6")


def _wait(world: Derived, *, once: bool) -> list[str]:
    """A cell that takes long enough to be looked at while it runs."""
    n = world.number()
    code = f"%%distributed\nprint('wait {n} on', rank, flush=True)\ntime.sleep(0.7)\nall_reduce(rank)"
    cell = world.notebook.submit(code)
    return world.ended(cell, once=once) + world.right(cell, *(f"wait {n} on {rank}" for rank in range(4)), "[0-3] 6")


def _transfer(world: Derived, *, once: bool) -> list[str]:
    n = world.number()
    cell = world.notebook.submit(
        f"session.push(sent={n})\nprint('pulled', session.pull('sent'), session.call(lambda: sent + 1))\n"
        "len(session.who(['sent'])), len(session.status())"
    )
    return world.ended(cell, once=once) + world.right(cell, f"pulled {[n] * 4} {[n + 1] * 4}", "(1, 4)")


def _interrupted(world: Derived, code: str, *, once: bool) -> list[str]:
    n = world.number()
    cell = world.notebook.submit(f"%%distributed\nprint('on {n}', flush=True)\n{code}")
    with suppress(autopsy.OutOfTimeError):  # what is printed is lost, too, if the fault is there
        world.notebook.until(lambda: f"[0-3] on {n}" in cell.text or cell.idle, 4, "it did not begin", cell)
    if cell.idle:
        return world.right(cell, error="KeyboardInterrupt")
    world.notebook.interrupt()
    return world.ended(cell, once=once) + world.right(cell, error="KeyboardInterrupt")


def _interrupt(world: Derived, *, once: bool) -> list[str]:
    return _interrupted(world, "time.sleep(60)", once=once)


def _interrupt_of_a_collective(world: Derived, *, once: bool) -> list[str]:
    return _interrupted(world, "if rank == 1: time.sleep(60)\nelse: barrier()", once=once)


def _input(world: Derived, *, once: bool) -> list[str]:
    n = world.number()
    cell = world.notebook.submit(f"%%distributed -r {RANK}\nword = input('what? ')\nprint('got', word)")
    try:
        box = world.notebook._box_or_end(cell, 10 if once else 4)
    except autopsy.OutOfTimeError:
        if once:
            return [f"no box comes: {cell.text}\n{world._stacks()}", *world.stopped(cell)]
        return world.stopped(cell)
    if box is not None:
        world.notebook.type(cell, box, f"this {n}")
    ended = world.ended(cell, once=once)
    world.notebook.forget_boxes()
    return ended + world.right(cell, f"got this {n}")


def _hang(world: Derived, *, once: bool) -> list[str]:
    cell = world.notebook.submit("%%distributed\nif rank != 1: barrier()")
    return world.ended(cell, once=once) + world.right(cell, error="rank 1 has finished the cell")


def _death(world: Derived, *, once: bool) -> list[str]:
    world.killed()
    cell = world.notebook.submit(f"%%distributed\nif rank == {_VICTIM}: os._exit(7)\nbarrier()")
    complaints = world.ended(cell, once=once)
    complaints += world.right(cell, error=f"Rank {_VICTIM}")
    heal = world.notebook.submit("%distributed heal")
    complaints += world.ended(heal, once=once)
    if "spoiled" in cell.error_text and "All processes are alive" in heal.text:
        return complaints  # the cell has come to no rank
    return complaints + world.right(heal, f"Rank {_VICTIM} is back")


def _attach(world: Derived, *, once: bool) -> list[str]:
    left = world.notebook.submit("session.release()")
    complaints = world.ended(left, once=once)
    cell = world.notebook.submit("%distributed attach")
    complaints += world.ended(cell, once=once)
    world.notebook.run(
        "try:\n    from nbcomm.notebook.session import registry; session = registry.current()\nexcept Exception: pass"
    )
    return complaints + world.right(cell, "4 ranks")


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("cell", _cell),
        Scenario("wait", _wait, slow=True),
        Scenario("transfer", _transfer),
        Scenario("interrupt", _interrupt),
        Scenario("interrupt of a collective", _interrupt_of_a_collective),
        Scenario("input", _input),
        Scenario("hang", _hang),
        Scenario("death", _death, slow=True),
        Scenario("attach", _attach, slow=True),
    )
}


def sample(faults: Sequence[Fault], most: int) -> list[Fault]:
    """Return some of these faults, the same ones each time: of each scenario, side and thread in turns."""
    groups: dict[tuple[str, str, str], list[Fault]] = {}
    for fault in sorted(faults, key=lambda fault: zlib.crc32(str(fault).encode())):
        groups.setdefault((fault.scenario, fault.side, fault.thread), []).append(fault)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups.values()))
    return [*itertools.islice((fault for fault in turns if fault is not None), most)]


@contextmanager
def begun() -> Iterator[Derived]:
    """A world in which functions fail; its processes are ended."""
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        world = Derived(Path(folder))
        try:
            yield world
        finally:
            world.close()


def main() -> None:
    """Do them by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--side", choices=SIDES, action="append")
    parser.add_argument("--for-ever", action="store_true")
    parser.add_argument("--function", default="")
    parser.add_argument("--most", type=int, default=10**9)
    parser.add_argument("--after", default="", help="begin behind this function")
    parser.add_argument("--new", action="store_true", help="leave out what an earlier scenario has had")
    parser.add_argument("--told", type=Path, help="what this has told before; those that failed there are left out")
    asked = parser.parse_args()
    seen: set[tuple[str, str, str]] = set()
    if asked.told is not None:
        seen |= {
            (side, thread, function)
            for function, side, thread in re.findall(
                r"^(?:ok|WRONG) .* (\S+) on the (\w+)'s (.*)$", asked.told.read_text(), re.MULTILINE
            )
        }
    with begun() as world:
        for name in asked.scenario or SCENARIOS:
            found = world.find(SCENARIOS[name])
            faults = [
                fault for fault in found if fault.side in (asked.side or SIDES) and asked.function in fault.function
            ]
            if asked.new:
                faults = [one for one in faults if (one.side, one.thread, one.function) not in seen]
            faults = (
                [*itertools.dropwhile(lambda fault: asked.after not in str(fault), faults)] if asked.after else faults
            )
            print(f"{name}: {len(faults)} of {len(found)} functions", flush=True)
            for fault in sample(faults, asked.most) if asked.most < len(faults) else faults:
                began = time.monotonic()
                complaints = world.outcome(fault, once=not asked.for_ever)
                took = time.monotonic() - began
                if complaints is not None:
                    seen.add((fault.side, fault.thread, fault.function))
                said = "did not fire" if complaints is None else "ok" if not complaints else "WRONG"
                print(f"{said:12} {took:5.1f} s  {fault}", flush=True)
                for complaint in complaints or ():
                    print("    " + complaint.replace("\n", "\n        "), flush=True)


if __name__ == "__main__":
    main()
