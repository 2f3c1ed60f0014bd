"""``%distributed`` and ``%%distributed``: what a user types, turned into calls of `Session`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from ...console import write
from ...errors import Interrupted, NbcommError, StateError, TransferError
from ...faults import Faults
from ...rank_spec import checked
from ...reserve import Reserve
from ...sentences import wrapped
from ..output.cell_options import CellOptions
from ..session import buttons, registry, script_cells
from ..session.world_names import addressed
from . import hints, profiles
from .arguments import cell_parser, line_parser, parse_cell, split
from .parser import Helped, UsageError, unknown_word
from .routing import Auto, lines_above, takes
from .start_progress import StartProgress

if TYPE_CHECKING:
    from ..session.session import Session


def _with_help(parser: Callable[[], argparse.ArgumentParser]) -> Callable[[Any], Any]:
    """Let ``?`` behind a magic's name show the help of its parser, which is not made before."""

    def decorate(magic: Any) -> Any:
        magic.getdoc = lambda: parser().format_help()  # IPython asks for that
        return magic

    return decorate


@magics_class
class DistributedMagics(Magics):
    """The two magics, bound to one notebook.

    Args:
        shell: the notebook's.
        routing: decides where plain cells run.
        advice: says what to do about the errors of cells.
    """

    def __init__(self, shell: InteractiveShell, routing: Auto, advice: hints.Hints) -> None:
        super().__init__(shell)
        self._shell = shell
        self._routing = routing
        self._hints = advice
        self._parser, self._words = line_parser()
        self._words["start"].set_defaults(**registry.defaults())
        self._cell_parser = cell_parser()
        self._begun_by_cell: Session | None = None
        self._announced = False
        self._timing = False
        self._faults = Faults()
        self._reserve = Reserve()

    @line_magic("distributed")
    @_with_help(lambda: line_parser()[0])
    def steer(self, line: str) -> Any:
        """Control the world of ranks that %%distributed cells run on."""
        with suppress(Helped), self._reserve.telling():
            return self._steer(line)
        return None

    @cell_magic("distributed")
    @_with_help(cell_parser)
    def distributed(self, line: str, cell: str) -> None:
        """Run this cell on every rank."""
        with suppress(Helped), self._reserve.telling():
            self._run(line, cell)

    @cell_magic("local")  # type: ignore[arg-type]  # IPython's decorator is typed for plain functions
    def local(self, line: str, cell: str) -> None:
        """Run this cell in the notebook's own process, also while %distributed auto is on."""
        # Seldom reached: `routing` removes the line before the cell runs, so that the rest is as any cell.
        if takes(line):
            raise UsageError("%%local takes no arguments, so nothing was run; write the code below its line.")
        self._shell.run_cell(cell)

    # ── %%distributed ───────────────────────────────────────────────────────────────────────────────

    def _run(self, line: str, cell: str) -> None:
        options = parse_cell(self._cell_parser, line)
        if options.file is not None:
            self._run_file(options, cell)
            return
        if options.fresh:
            raise UsageError(
                "--fresh applies only to a script, so nothing was run; write it before --file. For a cell, type "
                "%distributed restart first."
            )
        if not cell.strip():
            raise UsageError("This %%distributed cell is empty, so nothing was run; write code below its first line.")
        above = lines_above(_running_cell(self._shell), cell)
        self._perform(options, lambda session: partial(session.run, cell, above=above))

    def _run_file(self, options: argparse.Namespace, cell: str) -> None:
        if not options.file:
            raise UsageError("--file needs a script's name, such as train.py; nothing was run.")
        if cell.strip():
            raise UsageError(
                "This cell has --file and code below it, so nothing was run; give the code a cell of its own."
            )
        self._perform_file(options, *options.file)

    def _perform_file(self, options: argparse.Namespace, file: str, *args: str) -> None:
        script_cells.order(file, args)  # refuses what does not exist before a world is started for it
        before = registry.running()  # one that begins with this script is as fresh as possible

        def run(session: Session) -> Callable[..., None]:
            return partial(session.run_file, file, args, fresh=options.fresh and session in before)

        self._perform(options, run)

    def _perform(self, options: argparse.Namespace, what: Callable[[Session], Callable[..., None]]) -> None:
        with (
            _addressed_to(options.world),
            self._hints.suggesting(partial(hints.of_ranks, options.world), registry.left_of_mine),
            self._interruptible(),
        ):
            session, number = self._session_for(options.ranks, options.world), _number_of_running_cell(self._shell)
            try:
                what(session)(
                    options.ranks,
                    number=number,
                    **{field.name: getattr(options, field.name) for field in fields(CellOptions)},
                )
            finally:
                if self._timing and not options.quiet:
                    self._tell_time(session, number)

    def _tell_time(self, session: Session, number: int) -> None:
        with self._faults.beside("its run time could not be shown"):
            took = session.took(number)
            if took:
                print(took)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._take_one_interrupt_only()
            raise

    def _take_one_interrupt_only(self) -> None:
        """Ignore further interrupts until this cell has ended.

        Two presses of ■ mean this cell. The second press would hit IPython while it shows the first, and then the cell
        would count as successful.
        """
        with suppress(ValueError):  # signals belong to the main thread, and a cell may run on another
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

            def restore(*_: Any) -> None:
                signal.signal(signal.SIGINT, handler)
                self._shell.events.unregister("post_run_cell", restore)

            self._shell.events.register("post_run_cell", restore)

    def _session_for(self, spec: str | None, name: str) -> Session:
        session = registry.known(name)
        if session is not None:
            return session
        if name:  # it may be a typing error: it must not start a second world
            return registry.current(name)
        if spec is not None:
            _check_shape(spec)
        start_options = profiles.start_options_of(profiles.parsed(self._parser, ["start"]))
        self._begun_by_cell = session = self._start(vars(start_options), panel=False)
        if self._announced and (left := registry.left_of_mine(name)):
            print(wrapped(left))
        self.announce()
        return session

    def announce(self) -> None:
        """Print, once, which worlds could be attached."""
        if self._announced:
            return
        self._announced = True
        for told in registry.left_worlds():
            print(wrapped(told))

    # ── %distributed ────────────────────────────────────────────────────────────────────────────────

    def _steer(self, line: str) -> Any:
        words = split(line)
        if not words or words[0].partition("=")[0] == "--world":  # it may also be before the word
            named = 1 if "=" in "".join(words[:1]) else 2
            words = [*(words[named : named + 1] or ["status"]), *words[:named], *words[named + 1 :]]
        if words[0] in ("-h", "--help", "help"):
            self._parser.print_help()
            return None
        if words[0] not in self._words:
            raise UsageError(unknown_word(words, self._cell_parser))
        options = profiles.parsed(self._parser, words)
        act: Callable[[argparse.Namespace], Any] = getattr(self, f"_do_{options.word}")
        with _addressed_to(options.world):
            return act(options)

    def _do_start(self, options: argparse.Namespace) -> None:
        start_options = profiles.start_options_of(options)
        if options.dry_run:
            from ..cluster.joining import in_words

            print(in_words(start_options))
            return
        running = registry.known(options.world)
        if running is not None:
            if running is self._begun_by_cell and registry.serves(running, start_options):
                # The user did not ask for it: a notebook may have cells above this one that run on ranks in one kernel
                # and not in another, and must run in both.
                self._begun_by_cell = None
                print(f"{running.title}, {running.backend}, ready since the first cell.")
                _show_panel(running)
                return
            raise StateError(
                f"A world of {running.title} is already running; use it, or type %distributed restart, or type "
                "%distributed stop first. To start another world beside it, name that one: %distributed start "
                "--world NAME."
            )
        self._start(vars(start_options), panel=True)
        if left := registry.left_of_mine():
            print(wrapped(left))

    def _start(self, options: dict[str, Any], *, panel: bool) -> Session:
        return self._show_start(lambda progress: registry.start(progress=progress, **options), panel=panel)

    @staticmethod
    def _show_start(start: Callable[[StartProgress], Session], *, panel: bool) -> Session:
        progress = StartProgress()
        try:
            session = start(progress)
        except KeyboardInterrupt:
            progress.clear()
            raise Interrupted("the world was not started.") from None
        except BaseException:
            progress.clear()
            raise
        registry.use(session)
        progress.finish(f"{session.title}, {session.backend}, ready in {progress.seconds:.1f} s.")
        for text in filter(None, [wrapped(session.notice), session.printed]):
            print(text)
        if panel:
            _show_panel(session)
        elif session.panel is not None:
            session.panel.offer_views()
        return session

    def _do_status(self, options: argparse.Namespace) -> None:
        try:
            session = registry.current(options.world)
        except StateError as error:
            print(error)
            return
        write(sys.stdout, f"{session.status_text()}\n")
        for sentence in filter(None, [session.how_started, *session.troubles]):
            print(wrapped(sentence))
        others = [f"  {other.title}" for other in registry.running() if other is not session]
        if others:
            print("\n".join(["Other worlds:", *others]))

    def _do_panel(self, options: argparse.Namespace) -> None:
        _show_panel(registry.current(options.world))

    def _do_stop(self, options: argparse.Namespace) -> None:
        print(registry.stop(registry.current(options.world)))

    def _do_restart(self, options: argparse.Namespace) -> None:
        self._show_start(
            lambda progress: registry.restart(registry.current(options.world), progress=progress), panel=True
        )

    def _do_interrupt(self, options: argparse.Namespace) -> None:
        registry.current(options.world).interrupt()

    def _do_run(self, options: argparse.Namespace) -> None:
        self._perform_file(options, options.file, *options.args)

    def _do_save(self, options: argparse.Namespace) -> None:
        print(registry.current(options.world).save(options.file, force=options.force, everything=options.all))

    def _do_heal(self, options: argparse.Namespace) -> None:
        print(wrapped(buttons.heal(registry.current(options.world), options.ranks)))

    def _do_check(self, options: argparse.Namespace) -> Any:
        lessons = registry.current(options.world).lessons(options.course)
        if not options.puzzle:
            print(lessons.overview())
            return None
        if options.hint:
            print(wrapped(lessons.hint(options.puzzle)))
            return None
        return lessons.check(options.puzzle)

    def _do_bench(self, options: argparse.Namespace) -> Any:
        session = registry.current(options.world)
        if options.op != "pairs":
            return session.bench(options.op, options.max)
        for table in session.bench_pairs():
            display(table)
        return None

    def _do_chart(self, options: argparse.Namespace) -> Any:
        return registry.current(options.world).chart(options.what, *options.names, epochs=options.epochs)

    def _do_predict(self, options: argparse.Namespace) -> None:
        print(
            wrapped(
                registry.current(options.world).lessons(options.course).predict(options.puzzle, " ".join(options.value))
            )
        )

    def _do_attach(self, options: argparse.Namespace) -> None:
        session, which = registry.attach_and_use(options.id, options.world)
        print(f"Attached to {session.title}, {session.backend}.")
        if which:
            print(wrapped(which))
        _show_panel(session)
        with self._interruptible():
            session.resume()

    def _do_push(self, options: argparse.Namespace) -> None:
        refused = hints.unpushed(options.names, self._shell.user_ns, partial(hints.of_ranks, options.world))
        if refused:
            raise TransferError(refused)
        registry.current(options.world).push_many({name: self._shell.user_ns[name] for name in options.names})

    def _do_pull(self, options: argparse.Namespace) -> None:
        session = registry.current(options.world)
        try:
            values = session.pull_many(options.names, options.ranks)
        except TransferError as error:
            remedy = hints.unpulled(options.names, self._shell.user_ns, session.holders)
            error.reword(lambda text: f"{text} {remedy}".rstrip())
            raise
        self._shell.user_ns.update(values)

    def _do_auto(self, options: argparse.Namespace) -> None:
        if options.world:
            raise UsageError(
                "%distributed auto applies to the whole notebook, so nothing was changed. With auto on, cells run in "
                f"the world without a name. Write %%distributed --world {options.world} at the top of a cell for that "
                "world."
            )
        if options.state is not None:
            self._routing.on = options.state == "on"
        print(
            "Every cell runs on all ranks; a cell that begins with %%local runs here."
            if self._routing.on
            else "Cells run here; a cell that begins with %%distributed runs on the ranks."
        )

    def _do_time(self, options: argparse.Namespace) -> None:
        if options.world:
            raise UsageError("%distributed time applies to the whole notebook; leave --world out. Nothing was changed.")
        if options.state is not None:
            self._timing = options.state == "on"
        print(
            "The run time of each cell is shown below it."
            if self._timing
            else "The run time of a cell is shown in the panel; %distributed time on shows it below each cell, too."
        )

    def _do_debug(self, options: argparse.Namespace) -> None:
        session = registry.current(options.world)
        with self._interruptible():
            session.run("%debug", [options.rank], number=_number_of_running_cell(self._shell))

    def _do_who(self, options: argparse.Namespace) -> None:
        from ..variables import table

        session = registry.current(options.world)
        with self._interruptible():
            rows = session.who(options.names, options.ranks)
        imports = options.imports or bool(options.names)
        text, page = table.table_text(rows, imports=imports), table.table_html(rows, imports=imports)
        display({"text/plain": text, "text/html": page}, raw=True)

    def _do_diff(self, options: argparse.Namespace) -> None:
        session = registry.current(options.world)
        with self._interruptible():
            found = [session.diff(name, options.ranks, options.atol) for name in options.names]
        print(*found, sep="\n")

    def _do_last(self, options: argparse.Namespace) -> None:
        registry.current(options.world).replay()

    def _do_log(self, options: argparse.Namespace) -> None:
        session = registry.current(options.world)
        checked([options.rank], len(session.ranks))
        print(session.log(options.rank))


@contextmanager
def _addressed_to(name: str) -> Iterator[None]:
    """Make the remedies in errors of the world of this name name that world."""
    try:
        yield
    except NbcommError as error:
        error.reword(lambda text: addressed(text, name))
        raise


def _show_panel(session: Session) -> None:
    if session.panel is not None:
        session.panel.show()


def _number_of_running_cell(shell: InteractiveShell) -> int:
    """Return the number that the notebook shows as In [n] beside the running cell.

    `shell.execution_count` is n in some versions of IPython and n + 1 in others; the input history always ends with the
    running cell.
    """
    return len(shell.history_manager.input_hist_parsed) - 1 if shell.history_manager else shell.execution_count


def _running_cell(shell: InteractiveShell) -> str:
    """Return the running cell as it was typed."""
    return shell.history_manager.input_hist_raw[-1] if shell.history_manager else ""


def _check_shape(spec: str) -> None:
    """Refuse a SPEC that no world could satisfy before a world is started for it."""
    from ...rank_spec import parse

    parse(spec, 1 << 20)
