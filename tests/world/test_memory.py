"""Memory runs out, really: a kernel and its world live in a control group that has little of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcomm.rank_spec import capital, named, parse

from .notebook import Notebook

_LIMIT = 3 << 30


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory; the test is skipped where none can be made."""
    mine = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    root = Path("/sys/fs/cgroup/memory") / mine.split(":")[2].strip("/") if mine else Path("/sys/fs/cgroup")
    # Of this process alone: two runs on one machine must not meet. What a killed run has left under this name is
    # removed here, not below, where a failure means that there are no groups.
    made = root / f"nbcomm-test-{os.getpid()}"
    if made.exists():
        made.rmdir()
    try:
        made.mkdir()
        (made / ("memory.limit_in_bytes" if mine else "memory.max")).write_text(str(_LIMIT))
        swap = made / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    except OSError as error:
        if made.exists():
            made.rmdir()
        pytest.skip(f"no control group with little memory can be made here: {error}")
    yield made
    made.rmdir()


def test_a_rank_that_takes_all_memory_is_ended_and_its_cause_is_named(group: Path, tmp_path: Path) -> None:
    notebook = Notebook(str(tmp_path))
    try:
        (group / "cgroup.procs").write_text(str(notebook.pid))
        notebook.run("%load_ext nbcomm")
        notebook.run("%distributed start -n 3")
        notebook.run("%%distributed\nkept, hoard = rank * 10, []")
        code = "if rank == 1:\n  while True: hoard.append(b'x' * (1 << 26))\nbarrier()"
        cell = notebook.run(f"%%distributed\n{code}", fails=True)
        # Where the machine is busy, the memory of the first comes back late, and the system kills another one, too.
        said = re.search(r"Ranks? ([\d,-]+) w\w+ killed by SIGKILL because memory ran out", cell.error_text)
        assert said is not None, cell.error_text
        dead = parse(said[1], 3)
        assert 1 in dead
        healed = notebook.run("%distributed heal").text
        assert f"{capital(named(dead))} {'is' if len(dead) == 1 else 'are'} back" in healed
        lines = notebook.run("%%distributed --no-fold\n(globals().get('kept'), all_reduce(1))").lines
        assert lines == [f"[{rank}] ({None if rank in dead else rank * 10}, 3)" for rank in range(3)]
    finally:
        notebook.close()
        for process in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(process)  # one that is about to end
