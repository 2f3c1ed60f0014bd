"""What can be typed after ``%distributed`` and ``%%distributed``."""

from __future__ import annotations

import argparse
import ast
import functools
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from ...durations import seconds
from ...errors import SpecError
from ..cluster.start_options import SCHEDULERS, StartOptions
from ..output.cell_options import CHARTS
from ..session.world_names import check_name
from .examples import CELL, EXAMPLES, LINE
from .parser import Parser, UsageError

_SWITCHES = {
    "auto": "Show or set whether every cell runs on the ranks; a cell that begins with %%local runs here.",
    "time": "Show or set whether the run time of each cell is shown below it.",
}

_PIECE = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\S)+""")
"""The text between blanks that are not quoted."""


def line_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of ``%distributed``, and those of its words."""
    parser = Parser(
        prog=LINE,
        usage="%(prog)s SUBCOMMAND ...",
        does=f"Control the world of ranks that {CELL} cells run on. {LINE} alone shows the state of each rank.",
        examples=EXAMPLES[LINE],
    )
    words = parser.add_subparsers(dest="word", title="Subcommands", metavar="SUBCOMMAND ...", prog=LINE)
    made: dict[str, argparse.ArgumentParser] = {}

    def word(name: str, does: str) -> argparse.ArgumentParser:
        made[name] = words.add_parser(name, help=does.replace("%", "%%"), does=does, examples=EXAMPLES[name])
        _add_world(made[name])
        return made[name]

    start = word("start", "Start a world.")
    start.set_defaults(**{**vars(StartOptions()), "lines": []})
    start.add_argument(
        "-n",
        type=int,
        help="number of ranks; by default one per GPU; without a GPU 4, or 2 on a machine with one core",
    )
    start.add_argument(
        "--nodes",
        type=int,
        help="number of nodes; without --engines all are on this machine, as if they were several machines",
    )
    start.add_argument(
        "--oversubscribe",
        action="store_true",
        help="start as many ranks as -n says, also if this machine's cores, memory or limits are too few for them",
    )
    _add_machines(start)
    _add_job(start)
    start.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the ranks")
    start.add_argument(
        "--share",
        action="store_true",
        help="let more ranks than GPUs share the GPUs, over NCCL 2.30 or newer, else over gloo",
    )
    start.add_argument("--backend", help="torch.distributed backend to use instead of the default")
    start.add_argument("--timeout", type=float, help="time limit of the start, in seconds")
    start.add_argument("--grace", type=float, help="seconds that the world keeps running after the notebook has died")
    word("status", "Show the state of each rank.")
    word("panel", "Show the live panel here.")
    word("stop", "Stop the world, and remove its processes, sockets and files.")
    word("restart", "Stop the world and start a new one with the same options; variables are lost.")
    attach = word("attach", "Attach to a world that an earlier kernel left running, and to the cell that runs on it.")
    attach.add_argument("id", nargs="?", metavar="ID", help="id of the world; by default that of this notebook")
    word("interrupt", "Interrupt the running cell with KeyboardInterrupt.")
    heal = word(
        "heal", "Replace the processes of dead ranks, and form all groups again; variables of other ranks stay."
    )
    heal.add_argument(
        "ranks", nargs="?", metavar="SPEC", help="ranks to replace, dead or alive; by default all dead ranks"
    )
    _add_variables(word)
    for name, does in _SWITCHES.items():
        word(name, does).add_argument("state", nargs="?", choices=("on", "off"))
    debug = word("debug", "Open the debugger on a rank, at the place of its last error.")
    debug.add_argument("rank", type=int, metavar="RANK")
    word(
        "last",
        "Show the output and the errors of the last cell again; before it, what a page has missed that was reloaded.",
    )
    log = word("log", "Show the end of a rank's log.")
    log.add_argument("rank", type=int, metavar="RANK")
    save = word("save", "Write the cells that ran on the ranks as a script for torchrun.")
    save.add_argument("file", metavar="FILE", help="the script, such as train.py")
    save.add_argument("--all", action="store_true", help="include failed cells, as comments, and all repetitions")
    save.add_argument(
        "--force", action="store_true", help="overwrite a file even if nbcomm did not write it or it was edited since"
    )
    run = word("run", "Run a script on the ranks, as torchrun does; later cells can use its variables.")
    _add_cell_options(run)
    _add_fresh(run)
    run.add_argument("file", metavar="FILE", help="the script")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script")
    _add_charts(word)
    _add_lessons(word)
    word("help", "Show this help, or that of a subcommand, as in: %distributed help start.")
    return parser, made


def _add_machines(start: argparse.ArgumentParser) -> None:
    """Add the options that say on which machines the ranks are, and how they are reached."""
    start.add_argument(
        "--engines", choices=("local", "ssh", "slurm", "mpi", *SCHEDULERS), help="what starts the ranks' processes"
    )
    start.add_argument("--hosts", metavar="A:4,B:4", help="machines for ssh or MPI, with their numbers of ranks")
    start.add_argument("--via", metavar="COMMAND", help="command in place of ssh: 'kubectl exec -i {host} --'")
    start.add_argument(
        "--tunnel",
        action="store_true",
        help="the hosts cannot reach this machine, for example a laptop behind a router: all goes through ssh",
    )
    start.add_argument("--python", metavar="PATH", help="the interpreter on those machines")
    start.add_argument("--address", metavar="IP", help="address at which those machines reach this one")
    start.add_argument(
        "--guard",
        choices=("world", "node"),
        help="compare the calls of all ranks before data moves, or only of those on the same node, which is faster",
    )
    start.add_argument(
        "--profile",
        metavar="NAME",
        help="options from ~/.config/nbcomm/profiles.toml; by default those of the profile that $NBCOMM_PROFILE names",
    )
    start.add_argument(
        "--prologue", metavar="LINES", help="lines for a shell there before each program: 'module load python'"
    )
    start.add_argument(
        "--wrapper", metavar="COMMAND", help="command before the interpreter there: 'apptainer exec --nv image.sif'"
    )


def _add_job(start: argparse.ArgumentParser) -> None:
    start.add_argument("--partition", metavar="NAME", help="for a scheduler; the next options are for one, too")
    start.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs on each node")
    start.add_argument("--time", metavar="LIMIT", help="time limit, as the scheduler takes it: 2:00:00")
    start.add_argument("--account", metavar="NAME", help="who pays")
    start.add_argument(
        "--line",
        dest="lines",
        metavar="OPTION",
        action="append",
        help="any other option for the scheduler or mpiexec, --line=--constraint=a100; may be repeated",
    )
    start.add_argument(
        "--before-end",
        metavar="CODE",
        help="a cell that the ranks run two minutes before the time limit; it interrupts a cell that runs: 'save()'",
    )
    start.add_argument(
        "--idle", type=_duration, metavar="30m", help="give the nodes back after this time without a cell"
    )
    start.add_argument("--dry-run", action="store_true", help="show the job's script and the commands; start nothing")


def _duration(text: str) -> float:
    """Read a time: "90", "90s", "30m" or "2h"."""
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_NAMES = "names, or expressions such as model.fc.weight; a line such as x - 1 is read as one expression"


def _add_charts(word: Callable[[str, str], argparse.ArgumentParser]) -> None:
    bench = word("bench", "Measure a collective's time against its size, and what a call and a byte cost.")
    bench.add_argument(
        "op", nargs="?", default="all_reduce", metavar="OP", help="the collective, or pairs: messages between each pair"
    )
    bench.add_argument("--max", type=_size, default=16 << 20, metavar="64M", help="largest size of a rank's data")
    chart = word("chart", "Draw the memory, the samples or the shards that the ranks hold.")
    chart.add_argument("what", choices=("memory", "samples", "shards"), help="what of them")
    chart.add_argument("names", nargs="*", metavar="NAME", help=_NAMES)
    chart.add_argument("--epochs", type=int, default=3, metavar="N", help="of samples: how many epochs")


def _size(text: str) -> int:
    """Read a number of bytes: "65536", "64K", "64M" or "1G", with or without "iB".

    >>> _size("64K"), _size("1.5MiB")
    (65536, 1572864)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write for example 64K, 16M or 1G")
    return int(float(found[1]) * 1024 ** " KMG".index(found[2].upper() or " "))


def _add_lessons(word: Callable[[str, str], argparse.ArgumentParser]) -> None:
    check = word("check", "Check what you wrote for a puzzle; without a name, show how far you are.")
    check.add_argument("puzzle", nargs="?", metavar="PUZZLE", help="its name, which is the function's")
    check.add_argument("--hint", action="store_true", help="show the next hint instead")
    predict = word("predict", "Say what you expect, before you run an experiment. A prediction stays.")
    predict.add_argument("puzzle", metavar="PUZZLE", help="its name")
    predict.add_argument("value", nargs="*", metavar="VALUE", help="what you expect")
    for made in (check, predict):
        made.add_argument(
            "--course", metavar="FILE", default="", help="a file with a teacher's own puzzles, instead of nbcomm's"
        )


def _add_variables(word: Callable[[str, str], argparse.ArgumentParser]) -> None:
    push = word("push", "Copy variables of the notebook to every rank.")
    push.add_argument("names", nargs="+", metavar="NAME", help="a variable of the notebook")
    pull = word("pull", "Bind each name in the notebook to the list of its values on the ranks.")
    pull.add_argument("names", nargs="+", metavar="NAME", help="a variable of the ranks")
    pull.add_argument("-r", "--ranks", metavar="SPEC", help="from these ranks only")
    who = word("who", "List the ranks' variables, and show which are equal on all ranks.")
    who.add_argument("names", nargs="*", metavar="NAME", help=f"{_NAMES}; by default all variables")
    who.add_argument("-r", "--ranks", metavar="SPEC", help="of these ranks only")
    who.add_argument("--imports", action="store_true", help="list modules and imported names, too")
    diff = word("diff", "Show where variables differ between ranks.")
    diff.add_argument("names", nargs="+", metavar="NAME", help=_NAMES)
    diff.add_argument("-r", "--ranks", metavar="SPEC", help="between these ranks only")
    diff.add_argument(
        "--atol", type=float, default=0.0, metavar="X", help="treat numbers as equal if they differ by no more than X"
    )


def _add_world(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world", metavar="NAME", type=_world, default="", help="name of the world")


def _world(text: str) -> str:
    try:
        return check_name(text) if text else ""
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def cell_parser() -> argparse.ArgumentParser:
    """Return the parser of ``%%distributed``."""
    parser = Parser(prog=CELL, does="Run this cell on every rank.", examples=EXAMPLES[CELL])
    _add_world(parser)
    _add_cell_options(parser)
    _add_fresh(parser)
    parser.add_argument("--file", nargs="+", metavar=("FILE", "ARGS"), help="run a script instead of a cell")
    return parser


def _add_fresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fresh", action="store_true", help="run the script in new processes; the ranks' variables are lost"
    )


def _add_cell_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-r", "--ranks", metavar="SPEC", help="run on these ranks only: 0 | 0,2 | 0-3 | 0:8:2 | !1 | all"
    )
    parser.add_argument("--by-rank", action="store_true", help="show all of rank 0's output, then rank 1's, and so on")
    parser.add_argument(
        "--no-fold",
        dest="fold",
        action="store_false",
        help="show each rank's lines separately, even if they are the same",
    )
    parser.add_argument("--quiet", action="store_true", help="show no output; errors are still raised")
    parser.add_argument("--draw", action="store_true", help="show a picture of each collective, with its real values")
    parser.add_argument(
        "--chart",
        choices=CHARTS,
        metavar="WHAT",
        help="draw the cell's step (where its time went), pipeline (a schedule), or bytes (from rank to rank)",
    )
    parser.add_argument("--trace", metavar="FILE", help="write a trace of the cell, for https://ui.perfetto.dev")


def split(line: str) -> list[str]:
    """Split a line as a shell does; the Python expressions after `who` and `diff` keep their quotes.

    A request for a word's help becomes that word's ``--help``.

    Raises:
        UsageError: a quotation does not end.
    """
    word, _, rest = line.strip().partition(" ")
    if word in ("who", "diff"):
        return [word, *_PIECE.findall(rest)]
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"The line {line!r} is not understood: {str(error).lower()}.") from None
    asks = words[:1] == ["help"] and len(words) == 2 and not words[1].startswith("-")
    return [words[1], "--help"] if asks else words


def parse_cell(parser: argparse.ArgumentParser, line: str) -> argparse.Namespace:
    """Parse the options of a ``%%distributed``; ``file`` is a script with its arguments, or None.

    Everything after ``--file`` belongs to the script, so argparse does not see it.

    Raises:
        UsageError: the line is not understood.
    """
    if not line or line.isspace():  # mostly: argparse would take as long as all else that finds out what to do
        return argparse.Namespace(**_without_words(parser))
    words = split(line)
    if words == ["help"]:
        words = ["--help"]
    for place, word in enumerate(words):
        if word == "--file" or word.startswith("--file="):
            options = parser.parse_args(words[:place])
            options.file = [*([word.removeprefix("--file=")] if "=" in word else []), *words[place + 1 :]]
            return options
    return parser.parse_args(words)


@functools.lru_cache(maxsize=1)
def _without_words(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return vars(parser.parse_args([]))


def parse_line(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse the options of a ``%distributed``, whose first word must be one that the parser knows.

    Raises:
        UsageError: the line is not understood.
    """
    if words[0] == "run":
        # Everything after a script's name belongs to the script, also a "--", which argparse would interpret itself.
        words = [_TWO_DASHES if word == "--" else word for word in words]
    options, unknown = parser.parse_known_args(words)
    if unknown:
        _of_words(parser)[options.word].error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.word == "run":
        options.args = ["--" if word == _TWO_DASHES else word for word in options.args]
    elif options.word in ("who", "diff"):
        options.names = expressions(options.names)
    elif options.word in ("push", "pull"):
        options.names = [name for word in options.names for name in word.split(",") if name]
    return options


def expressions(pieces: Sequence[str]) -> list[str]:
    """Return the names or expressions that are typed after `who` and `diff`.

    Args:
        pieces: the text between blanks.

    >>> expressions(["x", "-", "1"]), expressions(["x", "y[0]"]), expressions(["x,", "y"])
    (['x - 1'], ['x', 'y[0]'], ['x', 'y'])
    """
    text = " ".join(pieces)
    whole = _expression(text)
    if isinstance(whole, ast.Tuple) and whole.elts and whole.elts[0].col_offset == 0:
        return [str(ast.get_source_segment(text, one)) for one in whole.elts]
    each = [piece.rstrip(",") for piece in pieces]
    several = whole is None and all(_expression(piece) is not None for piece in each)
    return each if several else [text]


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _of_words(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the words: only they know the options of each."""
    (words,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    return dict(words.choices)


_TWO_DASHES = "\0--"
"""The replacement for a "--" that argparse must not see; no line has this word."""
