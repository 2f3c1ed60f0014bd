"""The ``nbcomm`` command: a tour that needs no browser, the notebooks, the doctor, and the kernel's spec."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from . import __version__, doctor
from .errors import StartError, SteeringError

if TYPE_CHECKING:
    # Loaded only by the command that plays a notebook: `nbcomm --help` answers at once.
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

_CELL_SECONDS = 600
_WORLD_ENDS_SECONDS = 10

_LOOK = 2.0
"""Seconds between two looks at the files of a class."""

_CLEAR = "\x1b[H\x1b[2J"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LEVEL_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: those after ``nbcomm``; by default the process's own.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # else Python flushes at its exit, and prints a long error if nobody reads
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe: `head`, or a pager
        # Else Python prints an error when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="nbcomm", description="Run every notebook cell on N torch.distributed ranks.")
    parser.add_argument("--version", action="version", version=f"nbcomm {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser(
        "demo",
        help="run the first-steps notebook here in the terminal, on four CPU ranks",
    ).set_defaults(run=lambda _: play(tour()))
    healer = commands.add_parser(
        "doctor",
        help="check that this machine has what nbcomm needs, and say how to fix what it lacks",
        epilog="With options of %%distributed start, such as --engines ssh --hosts a:4,b:4, it tries that start.",
    )
    healer.set_defaults(run=lambda chosen: examine_start(chosen.start) if chosen.start else examine())
    for name, what in (("notebooks", "notebooks, first steps and more,"), ("lessons", "lessons with puzzles")):
        copier = commands.add_parser(name, help=f"copy nbcomm's {what} into a folder")
        copier.add_argument(
            "folder", metavar="DIR", type=Path, help="target folder; it is created if it does not exist"
        )
        copier.add_argument("--force", action="store_true", help="overwrite notebooks that were changed there")
        copier.set_defaults(run=copy_notebooks, what=name)
    teacher = commands.add_parser(
        "class", help="show how far each learner of a class is, from the files of NBCOMM_CLASS"
    )
    teacher.add_argument("folder", metavar="DIR", type=Path, help="the folder that NBCOMM_CLASS names for the learners")
    teacher.add_argument("--once", action="store_true", help="show it once, instead of again every two seconds")
    teacher.set_defaults(run=show_class)
    kernel = commands.add_parser("kernel", help="add or remove a Jupyter kernel in which every cell runs on all ranks")
    _describe_kernel(kernel)
    options, rest = parser.parse_known_args(arguments)
    options.start = rest
    words = sys.argv[1:] if arguments is None else arguments
    if rest and words[0] != "doctor":  # the doctor takes those of %distributed start
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "run" not in options:
        parser.print_help()
        return 0
    return int(options.run(options))


def tour(package: Path = Path(__file__).parent) -> Path:
    """Find the first-steps notebook: inside an installed package, beside the package in a checkout.

    Raises:
        FileNotFoundError: it is in neither place.
    """
    inside, beside = (folder / "notebooks" / "01_first_steps.ipynb" for folder in (package, package.parent))
    for path in (inside, beside):
        if path.is_file():
            return path
    raise FileNotFoundError(f"The first-steps notebook is not at {inside}; install nbcomm again.")


# ── a class ─────────────────────────────────────────────────────────────────────────────────────────


def show_class(options: argparse.Namespace) -> int:
    """Show how far each learner of a class is, until Ctrl-C, or once; return the exit code."""
    # Imported here: only a teacher needs it.
    from .notebook.lessons import class_table

    once = options.once or not sys.stdout.isatty()
    while True:
        try:
            text = class_table.text(class_table.read(options.folder))
        except OSError as error:
            print(f"The class in {options.folder} cannot be read: {error.strerror}.", file=sys.stderr)
            return 1
        print(text if once else f"{_CLEAR}{text}\n\nCtrl-C ends this view.", flush=True)
        if once:
            return 0
        time.sleep(_LOOK)


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────


def copy_notebooks(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, all or none, print what to type next, and return the exit code."""
    folder: Path = options.folder
    # By their numbers: a developer's checkout may have other notebooks there.
    source = tour().parent / "lessons" if options.what == "lessons" else tour().parent
    notebooks = sorted(source.glob("[0-9][0-9]_*.ipynb"))
    try:
        there = {path.name: (folder / path.name).read_bytes() for path in notebooks if (folder / path.name).exists()}
        new = [path for path in notebooks if there.get(path.name) != path.read_bytes()]
        changed = [path.name for path in new if path.name in there]
        if changed and not options.force:
            print(
                f"In {folder}, {', '.join(changed)} differ{'s' if len(changed) == 1 else ''} from nbcomm's version, so "
                "nothing was copied. Name another folder, or add --force to overwrite what is there.",
                file=sys.stderr,
            )
            return 1
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            shutil.copyfile(path, folder / path.name)
    except OSError as error:
        print(f"The {options.what} cannot be copied to {folder}: {error.strerror or error}.", file=sys.stderr)
        return 1
    names = ", ".join(path.name for path in new)
    print(f"Copied to {folder}: {names}." if new else f"All {len(notebooks)} {options.what} are in {folder} already.")
    lab = f"jupyter lab {shlex.quote(str(folder))}"
    if shutil.which("jupyter-lab"):
        print(f"To open them, type: {lab}")
    else:
        print(f"To open them, install JupyterLab (pip install jupyterlab), then type: {lab}")
    return 0


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────────


def examine() -> int:
    """Print each of the doctor's verdicts when it is known, and return 1 if one is a failure, else 0."""
    return _print_verdicts(doctor.findings(), "nbcomm can run here. `nbcomm demo` shows it at work.")


def examine_start(words: list[str]) -> int:
    """Try a start on several machines, print the verdicts, and return 1 if one is a failure, else 0.

    Returns 2 if the options are not understood.
    """
    from . import doctor_nodes
    from .notebook.shell import profiles
    from .notebook.shell.arguments import line_parser

    try:
        start_options = profiles.start_options_of(profiles.parsed(line_parser()[0], ["start", *words]))
    except (SteeringError, StartError) as error:
        sys.stderr.write(f"nbcomm doctor: {error}\n")
        return 2
    return _print_verdicts(doctor_nodes.findings(start_options), "This start works.")


def _print_verdicts(findings: Iterable[tuple[str, doctor.CheckResult]], well: str) -> int:
    page = _Page(sys.stdout)
    failures = 0
    for subject, verdict in findings:
        failures += verdict.level == "fail"
        level = page.coloured(f"{verdict.level:<4}", _LEVEL_COLOURS[verdict.level])
        page.write(f"{level}  {subject:<17}  {verdict.sentence}")
    page.write(
        f"\nnbcomm will not run well here until you fix what is marked fail ({failures})." if failures else f"\n{well}"
    )
    return 1 if failures else 0


# ── kernel ──────────────────────────────────────────────────────────────────────────────────────────


def _describe_kernel(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    install = actions.add_parser("install", help="add the kernel; it replaces an earlier one of that name")
    install.add_argument(
        "-n",
        type=int,
        help="number of ranks; by default one per GPU; without a GPU 4, or 2 on a machine with one core",
    )
    install.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device of the ranks")
    remove = actions.add_parser("remove", help="remove the kernel")
    for action, run in ((install, install_kernel), (remove, remove_kernel)):
        action.add_argument("--name", default="nbcomm", help="name of the kernel in Jupyter; by default nbcomm")
        where = action.add_mutually_exclusive_group()
        where.add_argument("--user", action="store_true", help="use this user's kernels")
        where.add_argument(
            "--sys-prefix", dest="prefix", action="store_const", const=sys.prefix, help="use this Python's environment"
        )
        where.add_argument("--prefix", help="use the environment in this folder")
        action.set_defaults(run=run)


def install_kernel(options: argparse.Namespace) -> int:
    """Install the kernel's spec, print where, and return the exit code."""
    from .kernel import spec

    try:
        place = spec.install(
            spec.kernels_of(options.prefix, user=options.user), options.n, device=options.device, name=options.name
        )
    except SteeringError as error:
        print(error, file=sys.stderr)
        return 1
    shown = spec.described(options.n, options.device)["display_name"]
    console = f"jupyter console --kernel {place.name} (pip install jupyter-console)"
    print(f"Installed in {place}: choose {shown!r} in Jupyter, or type {console}.")
    return 0


def remove_kernel(options: argparse.Namespace) -> int:
    """Remove the kernel's spec, print which, and return the exit code."""
    from .kernel import spec

    try:
        chosen = options.user or options.prefix is not None
        place = spec.remove(options.name, spec.kernels_of(options.prefix, user=options.user) if chosen else None)
    except SteeringError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Removed {place}.")
    return 0


# ── demo ────────────────────────────────────────────────────────────────────────────────────────────


def play(path: Path, stream: TextIO | None = None) -> int:
    """Run a notebook in a kernel of its own and print it cell by cell, as its reader would see it.

    The kernel is this Python's, whatever kernels are installed. When it ends, also by Ctrl-C, all processes
    that it started end.

    Args:
        path: the notebook; the file stays as it is.
        stream: where to print; by default stdout.

    Returns:
        The exit code: 0, or 1 if a cell failed that is not tagged ``raises-exception``, or 130 on Ctrl-C.
    """
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    page = _Page(stream or sys.stdout)
    try:
        asyncio.run(_play(path, page))
    except KeyboardInterrupt:
        page.write("\nInterrupted; the kernel and its ranks have ended.")
        return 130
    except CellControlSignal as error:
        # A failed cell's traceback is printed already; a timeout has printed nothing yet.
        reason = "failed, as shown above" if hasattr(error, "ename") else f"did not end within {_CELL_SECONDS} s"
        print(f"{path.name} stopped: its last cell {reason}. `nbcomm doctor` checks this machine.", file=sys.stderr)
        return 1
    except DeadKernelError:
        print(f"{path.name} stopped: its kernel died. `nbcomm doctor` checks this machine.", file=sys.stderr)
        return 1
    return 0


async def _play(path: Path, page: _Page) -> None:
    import nbformat
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from .node.seed.inheritance import PLAYED_VARIABLE
    from .world_dir import WorldDir

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    mark, others = secrets.token_hex(8), {home.id for home in WorldDir.all()}
    # With no directory to search, only this Python's own kernel is left: an installed "python3" may be another Python.
    specs = KernelSpecManager(kernel_dirs=[])
    kernel = AsyncKernelManager(kernel_name=NATIVE_KERNEL_NAME, kernel_spec_manager=specs)
    kernel.shutdown_wait_time = _WORLD_ENDS_SECONDS
    if kernel.has_trait("transport_encryption"):  # since jupyter_client 8.9
        kernel.set_trait("transport_encryption", "auto")
    client = NotebookClient(notebook, km=kernel, timeout=_CELL_SECONDS)
    client.reset_execution_trackers()
    try:
        await client.async_start_new_kernel(env={**os.environ, PLAYED_VARIABLE: mark})
        await client.async_start_new_kernel_client()
        for index, cell in enumerate(notebook.cells):
            page.show_source(cell, client.code_cells_executed + 1)
            try:
                await client.async_execute_cell(cell, index)
            except CellTimeoutError:
                await _interrupt(kernel, client.kc)
                raise
            except DeadKernelError:
                if not await kernel.is_alive():
                    raise
                # It was Ctrl-C, which nbclient mistakes for a dead kernel.
                await _interrupt(kernel, client.kc)
                raise asyncio.CancelledError from None
            finally:
                page.show_outputs(cell)
    finally:
        await _end(kernel, client, mark, others)


async def _interrupt(kernel: AsyncKernelManager, connection: Any) -> None:
    """End the running cell before the kernel ends: a kernel that ends during a cell prints long errors."""
    await kernel.interrupt_kernel()
    with suppress(RuntimeError):  # it does not answer, so it will be killed
        await connection.wait_for_ready(timeout=_WORLD_ENDS_SECONDS)


async def _end(kernel: AsyncKernelManager, client: NotebookClient, mark: str, others: set[str]) -> None:
    """End the kernel, which ends its world, then what is left of both (the kernel may have been killed).

    The ``others`` are the worlds that were there before: one may have been left by a kernel of the same pid.
    """
    import psutil

    from .node.fence import fence
    from .node.seed.inheritance import PLAYED_VARIABLE
    from .world_dir import WorldDir

    pid = getattr(kernel.provisioner, "pid", None)
    if kernel.has_kernel:
        # Not shutdown_kernel, which interrupts first: an idle kernel may then lose the request that follows.
        await kernel.request_shutdown()
        await kernel.finish_shutdown()
        await kernel.cleanup_resources()
    if client.kc is not None:
        client.kc.stop_channels()
    for home in WorldDir.all():
        if home.id not in others and pid and home.holder() == pid:
            fence(home)
    # Found by the mark that all inherit: when a parent dies, its children are no longer its descendants.
    left = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(PLAYED_VARIABLE) == mark
    ]
    _, left = psutil.wait_procs(left, timeout=2)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(left, timeout=2)


class _Page:
    """A stream for text, with colours only if the stream is a terminal and NO_COLOR is not set."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = stream.isatty() and "NO_COLOR" not in os.environ

    def write(self, text: str) -> None:
        """Write a line and flush it, so that a reader of a pipe sees it at once."""
        print(text if self._colours else _ANSI.sub("", text), file=self._stream, flush=True)

    def coloured(self, text: str, colour: str) -> str:
        """Put text in one of Pygments' colours."""
        from pygments.console import colorize

        return str(colorize(colour, text)) if self._colours else text

    def show_source(self, cell: Any, number: int) -> None:
        """Show a cell before it runs: prose as it is, code after its ``In [n]:``."""
        if cell.cell_type != "code":
            self.write(f"\n{cell.source}")
        elif cell.source.strip():
            prompt = f"In [{number}]: "
            rest = "...: ".rjust(len(prompt))
            first, *more = self._highlighted(cell.source).splitlines()
            lines = [self.coloured(prompt, "green") + first, *(self.coloured(rest, "green") + line for line in more)]
            self.write("\n" + "\n".join(lines))

    def show_outputs(self, cell: Any) -> None:
        """Show a cell's outputs after its end: the last state of displays and progress bars."""
        for stream, outputs in groupby(cell.get("outputs", []), lambda output: output.get("name")):
            if stream is not None:
                # What is printed at once may come in several messages, cut anywhere.
                text = "".join(output.text for output in outputs).removesuffix("\n")
                # A bar returns to the start of its line with \r: a reader sees what it wrote last.
                self.write("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))
                continue
            for output in outputs:
                if output.output_type == "error":
                    self.write("\n".join(output.traceback))
                elif "text/plain" in output.data:
                    self.write(output.data["text/plain"])

    def _highlighted(self, source: str) -> str:
        if not self._colours:
            return source
        from pygments import highlight
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import get_lexer_by_name

        return str(highlight(source, get_lexer_by_name("ipython3"), TerminalFormatter()))


if __name__ == "__main__":
    sys.exit(main())
