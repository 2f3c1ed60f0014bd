"""``%distributed`` and ``%%distributed``: what a user types, turned into calls of `Session`."""

from __future__ import annotations

import argparse
import ast
import difflib
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from ..errors import CellSyntaxError, SpecError, StateError, TransferError
from ..panel import table_text
from . import buttons, keeping, programs, worlds
from .progress import StartProgress
from .session import Session
from .usage import Helped, UsageError, cell_parser, line_parser, parse_cell, parse_line, split


@magics_class
class DistributedMagics(Magics):
    """The two magics, bound to one notebook."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self._parser, self._words = line_parser()
        self._cell_parser = cell_parser()

    @line_cell_magic("distributed")  # type: ignore[arg-type]  # IPython's decorator is typed for plain functions
    def distributed(self, line: str, cell: str | None = None) -> None:
        """Steer the world (one percent sign), or run this cell on its ranks (two). Try %distributed help."""
        try:
            if cell is None:
                self._steer(line)
            else:
                self._run(line, cell)
        except Helped:
            pass

    # ── %%distributed ───────────────────────────────────────────────────────────────────────────────

    def _run(self, line: str, cell: str) -> None:
        options = parse_cell(self._cell_parser, line)
        if options.file is not None:
            self._run_file(options, cell)
            return
        if not cell.strip():
            raise UsageError("This %%distributed cell is empty, so nothing was run; write code below its first line.")
        check_syntax(cell)
        self._perform(options, lambda session: partial(session.run, cell))

    def _run_file(self, options: argparse.Namespace, cell: str) -> None:
        if not options.file:
            raise UsageError("--file needs a script's name, such as train.py; nothing was run.")
        if cell.strip():
            raise UsageError(
                "This cell has --file and code below it, so nothing was run; give the code a cell of its own."
            )
        self._perform_file(options, *options.file)

    def _perform_file(self, options: argparse.Namespace, file: str, *args: str) -> None:
        programs.order(file, args)  # refuses what is not there before a world is started for it
        self._perform(options, lambda session: partial(session.run_file, file, args))

    def _perform(self, options: argparse.Namespace, what: Callable[[Session], Callable[..., None]]) -> None:
        session = self._session_for(options.ranks)
        try:
            what(session)(
                options.ranks,
                number=_number_of_running_cell(self._shell),
                fold=not options.no_fold,
                by_rank=options.by_rank,
                quiet=options.quiet,
                draw=options.draw,
                trace=options.trace,
            )
        except KeyboardInterrupt:
            self._take_one_interrupt_only()
            raise

    def _take_one_interrupt_only(self) -> None:
        """Ignore further interrupts until this cell has ended.

        Who presses ■ twice means this cell. The second press would hit IPython while it shows the first, and then
        the cell would count as well ended.
        """
        with suppress(ValueError):  # signals belong to the main thread, and a cell may run on another
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

            def restore(*_: Any) -> None:
                signal.signal(signal.SIGINT, handler)
                self._shell.events.unregister("post_run_cell", restore)

            self._shell.events.register("post_run_cell", restore)

    def _session_for(self, spec: str | None) -> Session:
        try:
            return worlds.current()
        except StateError:
            if spec is not None:
                _check_shape(spec)
            return self._start({}, panel=False)

    # ── %distributed ────────────────────────────────────────────────────────────────────────────────

    def _steer(self, line: str) -> None:
        words = split(line) or ["status"]
        if words[0] in ("-h", "--help", "help"):
            self._parser.print_help()
            return
        if words[0] not in self._words:
            near = difflib.get_close_matches(words[0], self._words, 3, 0.5) or sorted(self._words)
            raise UsageError(f"%distributed knows no {words[0]!r}; did you mean {' or '.join(near)}?")
        options = parse_line(self._parser, words)
        act: Callable[[argparse.Namespace], None] = getattr(self, f"_do_{options.word}")
        act(options)

    def _do_start(self, options: argparse.Namespace) -> None:
        try:
            running = worlds.current()
        except StateError:
            pass
        else:
            raise StateError(
                f"A world of {running.title} is running already; "
                "go on with it, or type %distributed stop first, or %distributed restart."
            )
        chosen = {name: value for name, value in vars(options).items() if name != "word"}
        self._start(chosen, panel=True)

    def _start(self, options: dict[str, Any], *, panel: bool) -> Session:
        return self._show_start(lambda progress: worlds.start(progress=progress, **options), panel=panel)

    @staticmethod
    def _show_start(start: Callable[[StartProgress], Session], *, panel: bool) -> Session:
        progress = StartProgress()
        try:
            session = start(progress)
        except BaseException:
            progress.clear()
            raise
        worlds.use(session)
        progress.finish(f"{session.title}, {session.backend}, ready in {progress.seconds:.1f} s.")
        if session.notice:
            print(session.notice)
        if panel and session.panel is not None:
            session.panel.show()
        return session

    def _do_status(self, _options: argparse.Namespace) -> None:
        try:
            session = worlds.current()
        except StateError:
            print("No world is running; start one with %distributed start, or run a %%distributed cell.")
            return
        print(table_text(session.status(), session.title))
        for trouble in session.troubles:
            print(trouble)

    def _do_panel(self, _options: argparse.Namespace) -> None:
        panel = worlds.current().panel
        if panel is not None:
            panel.show()

    def _do_stop(self, _options: argparse.Namespace) -> None:
        print(buttons.stop(worlds.current()))

    def _do_restart(self, _options: argparse.Namespace) -> None:
        self._show_start(lambda progress: worlds.restart(worlds.current(), progress=progress), panel=True)

    def _do_interrupt(self, _options: argparse.Namespace) -> None:
        worlds.current().interrupt()

    def _do_run(self, options: argparse.Namespace) -> None:
        self._perform_file(options, options.file, *options.args)

    def _do_save(self, options: argparse.Namespace) -> None:
        print(worlds.current().save(options.file, force=options.force, everything=options.all))

    def _do_heal(self, options: argparse.Namespace) -> None:
        print(buttons.heal(worlds.current(), options.ranks))

    def _do_attach(self, options: argparse.Namespace) -> None:
        try:
            running = worlds.current()
        except StateError:
            pass
        else:
            raise StateError(f"This notebook steers a world of {running.title} already; type %distributed stop first.")
        session = worlds.attach(options.id)
        worlds.use(session)
        print(f"Attached to {session.title}, {session.backend}.")
        if session.panel is not None:
            session.panel.show()
        try:
            session.resume()
        except KeyboardInterrupt:
            self._take_one_interrupt_only()
            raise

    def _do_push(self, options: argparse.Namespace) -> None:
        missing = [name for name in options.names if name not in self._shell.user_ns]
        if missing:
            raise TransferError(f"{', '.join(missing)} is not defined in the notebook; nothing was pushed.")
        worlds.current().push(**{name: self._shell.user_ns[name] for name in options.names})

    def _do_pull(self, options: argparse.Namespace) -> None:
        self._shell.user_ns.update(worlds.current().pull_many(options.names, options.ranks))

    def _do_log(self, options: argparse.Namespace) -> None:
        session = worlds.current()
        if options.rank not in session.ranks:
            raise SpecError(f"There is no rank {options.rank} in this world of {len(session.ranks)}.")
        print(session.log(options.rank))


def _number_of_running_cell(shell: InteractiveShell) -> int:
    """What the notebook shows as In [n] beside the cell that runs.

    `shell.execution_count` is n in some versions of IPython and n + 1 in others; the input history always ends with
    the running cell.
    """
    return len(shell.history_manager.input_hist_parsed) - 1 if shell.history_manager else shell.execution_count


def check_syntax(cell: str) -> None:
    """Refuse a cell that cannot be compiled here, once, rather than on every rank.

    Raises:
        CellSyntaxError: with the SyntaxError as its cause.
    """
    try:
        source = TransformerManager().transform_cell(cell)
        # As IPython compiles cells: with await at the top. A warning is the ranks' to give.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        raise CellSyntaxError(f"{error.msg} (line {error.lineno})") from error


def _check_shape(spec: str) -> None:
    """Refuse a SPEC that no world could satisfy before a world is started for it."""
    from ..ranks import parse

    parse(spec, 1 << 20)


def _others(shell: InteractiveShell) -> list[Callable[[list[str]], list[str]]]:
    """The input transformers that are not ours; ours may be of an earlier `%load_ext`."""
    own = programs.allow_no_body.__qualname__
    return [each for each in shell.input_transformers_cleanup if getattr(each, "__qualname__", "") != own]


_loaded: DistributedMagics | None = None


def load(shell: InteractiveShell) -> None:
    """Register the magics in a shell and warm up the fork server."""
    global _loaded  # noqa: PLW0603 - kept so that a second %load_ext replaces it
    _loaded = DistributedMagics(shell)
    shell.register_magics(_loaded)
    shell.input_transformers_cleanup[:] = [*_others(shell), programs.allow_no_body]
    keeping.follow(getattr(shell, "kernel", None))
    for world in worlds.left_behind():
        print(
            f"{world.info.title[0].upper()}{world.info.title[1:]} of an earlier kernel live on for {world.left:.0f} s: "
            f"%distributed attach {world.home.id} takes them up again."
        )
    worlds.warm_up()


def unload(shell: InteractiveShell) -> None:
    """Stop what runs and take the magics away."""
    with suppress(StateError):
        worlds.current().stop()
    worlds.use(None)
    worlds.cool_down()
    shell.input_transformers_cleanup[:] = _others(shell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("distributed", None)
