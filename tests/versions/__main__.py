"""``python -m tests.versions --torch 2.15.0``: the built wheel, with one torch and one Python, outside the checkout.

The wheel is installed in an environment of its own, with nothing but what its metadata ask for. There the doctor, the
demo and a notebook run in an empty folder; then the tests come, copied without the package, and run suite by suite.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from packaging.version import InvalidVersion

from . import suites
from .environments import NIGHTLY, BrokenOffError, Environment, build, version_of
from .table import HEAD, SUITES, Row, with_row
from .wanted import Wanted, full, lowest, read

OLDEST = "oldest"
"""In place of a version: the lowest that nbcomm's metadata allow."""

_GOOD = ("ok", *"0123456789")


def main() -> int:
    """Test one environment; returns the exit code."""
    options = _parser().parse_args()
    # Who ends this program ends what it runs: that is in process groups of its own, and would go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        row = _tested(options)
    except BrokenOffError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; what was begun has ended.", file=sys.stderr)
        return 130
    say("The row of the table:")
    print(f"{HEAD}{row}", flush=True)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(with_row(page, row), encoding="utf-8")
    return 0 if is_good(row) else 1


def _parser() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument(
        "--torch", required=True, type=_torch, help=f"its version, {OLDEST!r}, or {NIGHTLY!r} for a pre-release"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python; by default the one that runs this")
    parser.add_argument("--lowest", action="store_true", help="take the lowest version of each other package")
    parser.add_argument(
        "--suites", type=_suites, default=SUITES, help=f"some of {','.join(SUITES)}, or none; by default all"
    )
    parser.add_argument("--into", type=Path, default=cache / "nbcomm" / "versions", help="where environments are kept")
    parser.add_argument("--fresh", action="store_true", help="make the environment anew")
    parser.add_argument("--workers", type=int, default=2, help="processes that the tests run in")
    parser.add_argument("--write", type=Path, help="put the row into the table of this page")
    return parser


def _torch(text: str) -> str:
    if text in {OLDEST, NIGHTLY}:
        return text
    try:
        return full(text)
    except InvalidVersion:
        raise argparse.ArgumentTypeError(f"{text!r} is no version of torch, such as 2.13.0") from None


def _suites(text: str) -> tuple[str, ...]:
    names = [] if text == "none" else text.replace(",", " ").split()
    if unknown := sorted(set(names) - set(SUITES)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(SUITES)}")
    return tuple(name for name in SUITES if name in names)


def _tested(options: argparse.Namespace) -> Row:
    python = version_of(options.python)
    # Tests put Unix sockets below this folder: its path is short.
    with tempfile.TemporaryDirectory(prefix="nv-", ignore_cleanup_errors=True) as scratch:
        place = Path(scratch)
        say("Building the wheel of this checkout.")
        wheel = build(suites.CHECKOUT, place)
        wanted = read(wheel)
        torch = _oldest(wanted) if options.torch == OLDEST else options.torch
        environment, capped = _installed(options, wheel, wanted, torch, python)
        version = environment.version("torch")
        row = Row(version.split("+")[0], python, "lowest" if options.lowest else "newest")
        _try_the_package(environment, place / "empty", row, capped=capped)
        if options.suites:
            say("Installing what the tests need, beside what is there.")
            for sentence in environment.bring_tools(wanted, wanted.tools.values()):
                print(sentence, flush=True)
            if environment.version("torch") != version:
                raise BrokenOffError("A tool of the tests has brought another torch.")
            folder = place / "copy"
            folder.mkdir()
            environment.check_that_nbcomm_is_its_own(suites.copy_tests(folder))
        for name in options.suites:
            say(f"Running the suite {name!r}.")
            _note(row, name, *suites.suite(environment, folder, name, options.workers))
    return row


def _oldest(wanted: Wanted) -> str:
    torch = next(requirement for requirement in wanted.runtime if requirement.name == "torch")
    return full(lowest(torch) or "0")


def _installed(
    options: argparse.Namespace, wheel: Path, wanted: Wanted, torch: str, python: str
) -> tuple[Environment, bool]:
    """Make the environment; returns it, and whether torch is none that nbcomm asks for."""
    folder = options.into.expanduser().resolve() / f"torch-{torch}-python-{python}{'-lowest' * options.lowest}"
    say(f"Making an environment in {folder}.")
    environment = Environment(folder)
    print(environment.make(options.python, fresh=options.fresh or torch == NIGHTLY), flush=True)
    what = "the lowest versions of what it asks for" if options.lowest else "what it asks for"
    say(f"Installing the wheel with torch {torch} and {what}.")
    if said := environment.bring(wheel, wanted, torch, lowest=options.lowest):
        print(said, flush=True)
    say("Asking pip whether all goes together.")
    capped = not wanted.torch.contains(environment.version("torch"), prereleases=True)
    cap, others = environment.conflicts()
    print("\n".join([*cap, *others]) or "It does.", flush=True)
    if others or (cap and not capped):
        raise BrokenOffError("The packages do not go together, as pip says above.")
    return environment, capped


def _try_the_package(environment: Environment, empty: Path, row: Row, *, capped: bool) -> None:
    """Run what a user runs first, where nothing else is."""
    empty.mkdir()
    environment.check_that_nbcomm_is_its_own(empty)
    say("Asking the doctor, in an empty folder.")
    cell, row.fallback, trouble = suites.doctor(environment, empty, capped=capped)
    _note(row, "doctor", cell, trouble)
    say("Playing the demo.")
    _note(row, "demo", *suites.demo(environment, empty))
    say("Playing the notebook of collectives.")
    _note(row, "notebook", *suites.notebook(environment, empty))


def _note(row: Row, check: str, cell: str, trouble: str) -> None:
    row.cells[check] = cell
    print("\n".join(filter(None, [trouble, f"{check}: {cell}"])), flush=True)


def is_good(row: Row) -> bool:
    """Whether all that was tried went well."""
    return all(cell.startswith(_GOOD) and not cell.endswith("fail") for cell in row.cells.values())


def say(sentence: str) -> None:
    """Say a step as it begins."""
    print(f"\n── {time.strftime('%H:%M:%S')}  {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
