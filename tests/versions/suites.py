"""What is tried in an environment: the package's commands, a notebook, and the suites; each is read from its output."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .environments import Environment
from .processes import Ended

CHECKOUT = Path(__file__).parents[2]

_CAP_TROUBLES = {"packages", "torch"}
"""What the doctor may complain of where torch is none that nbcomm asks for."""

_RECOVERY = ("attach", "breaking", "destroy", "faults", "fence", "handles", "hangs", "healing", "interrupts")
# test_gpu needs a GPU and torch's CUDA build; test_soak is an endurance test, of all that the others do one by one.
_LEFT_OUT = ("gpu", "soak")

_DAY = ("-m", "not nightly", "--hypothesis-profile=day")

_DOCTOR_SECONDS = 300.0
_NOTEBOOK_SECONDS = 900.0
_SUITE_SECONDS = 2400.0

_PLAY = "import sys, pathlib, nbcomm.cli; sys.exit(nbcomm.cli.play(pathlib.Path(sys.argv[1])))"


def paths_of(suite: str, root: Path = CHECKOUT) -> list[str]:
    """The tests of a suite, as pytest is told them in the root of a copy."""
    if suite not in {"world", "recovery"}:
        return {
            "comm": ["tests/comm", "tests/fabric", "tests/rank"],
            "peers": ["tests/peers"],
            "kernel": ["tests/kernel"],
        }[suite]
    recovery = {f"test_{name}" for name in _RECOVERY}
    here = sorted((root / "tests" / "world").glob("test_*.py"))
    if suite == "recovery":
        chosen = [path for path in here if path.stem in recovery]
    else:
        chosen = [path for path in here if path.stem not in recovery | {f"test_{name}" for name in _LEFT_OUT}]
    return [str(path.relative_to(root)) for path in chosen]


def doctor(environment: Environment, empty: Path, *, capped: bool) -> tuple[str, str, str]:
    """Ask the doctor; returns the cell of the table, whether worlds fall back, and what went wrong."""
    ended = environment.run("doctor", ["nbcomm", "doctor"], within=_DOCTOR_SECONDS, cwd=empty)
    return *diagnosis(ended, capped=capped), "" if ended.well else ended.told()


def diagnosis(ended: Ended, *, capped: bool) -> tuple[str, str]:
    """Read the doctor's verdicts.

    Args:
        ended: the doctor's run.
        capped: whether torch is none that nbcomm asks for: the doctor must say so, and may say nothing else.
    """
    verdicts = {what: level for level, what in re.findall(r"^(ok|warn|fail) +(\S.*?)  ", ended.text, re.MULTILINE)}
    fallback = {"ok": "no", "warn": "yes"}.get(verdicts.get("world", ""), "?")
    failed = [what for what, level in verdicts.items() if level == "fail"]
    if ended.well:
        return "ok", fallback
    if capped and failed and _CAP_TROUBLES.issuperset(failed):
        return "ok, warns", fallback
    return f"fails: {', '.join(failed) or 'at once'}", fallback


def demo(environment: Environment, empty: Path) -> tuple[str, str]:
    """Play the tour that the wheel brings."""
    ended = environment.run("demo", ["nbcomm", "demo"], within=_NOTEBOOK_SECONDS, cwd=empty)
    return ("ok", "") if ended.well else ("fails", ended.told())


def notebook(environment: Environment, empty: Path, name: str = "02_collectives.ipynb") -> tuple[str, str]:
    """Let the wheel copy its notebooks, and play one more of them."""
    ended = environment.run("copies", ["nbcomm", "notebooks", "notebooks"], within=_NOTEBOOK_SECONDS, cwd=empty)
    if not ended.well:
        return "fails", ended.told()
    command = [environment.python, "-c", _PLAY, f"notebooks/{name}"]
    ended = environment.run("notebook", command, within=_NOTEBOOK_SECONDS, cwd=empty)
    return ("ok", "") if ended.well else ("fails", ended.told())


def copy_tests(folder: Path) -> Path:
    """Copy what the tests read, and not the package."""
    for name in ("tests", "notebooks", "docs"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, folder)
    return folder


def suite(environment: Environment, folder: Path, name: str, workers: int) -> tuple[str, str]:
    """Run a suite in a copy of the tests, as `make test` runs them: without those that take hours."""
    command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_DAY, *paths_of(name, folder)]
    if workers:
        command[3:3] = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    ended = environment.run(name, command, within=_SUITE_SECONDS, cwd=folder)
    return result(ended), "" if ended.well else f"{failures(ended.text)}\n{ended.told(1)}"


def result(ended: Ended) -> str:
    """The cell of a suite: how many passed, were skipped and failed."""
    if ended.code is None:
        return "did not end"
    lines = [line for line in ended.text.splitlines() if re.search(r"\d+ \w+.* in [\d.]+s", line)]
    found = {what.rstrip("s"): int(n) for n, what in re.findall(r"(\d+) ([a-z]+)", lines[-1])} if lines else {}
    failed = found.get("failed", 0) + found.get("error", 0)
    passed = found.get("passed", 0) + found.get("xpassed", 0)
    if failed:
        return f"{failed} of {failed + passed} fail"
    if not ended.well or not passed:
        return "breaks off"
    skipped = found.get("skipped", 0) + found.get("xfailed", 0)
    return f"{passed}, {skipped} skipped" if skipped else str(passed)


def failures(text: str) -> str:
    """The tests that failed, as pytest's summary has them; without one, the end of what it wrote."""
    lines = re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE)
    return "\n".join(lines or text.splitlines()[-25:])
