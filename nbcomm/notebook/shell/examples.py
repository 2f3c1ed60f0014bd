"""Examples in the help of the magics: two for each subcommand, which a test lets the parsers read."""

from __future__ import annotations

from typing import NamedTuple

LINE, CELL = "%distributed", "%%distributed"
"""The magic that steers the world, and the one that runs a cell on its ranks."""


class Example(NamedTuple):
    """What can be typed, and what it does."""

    code: str
    does: str

    @property
    def text(self) -> str:
        """The example as it is shown if it is a cell: what it does, and its lines below that."""
        lines = "".join(f"\n    {line}" for line in self.code.splitlines())
        return f"  {self.does}{lines}"


EXAMPLES: dict[str, tuple[Example, ...]] = {
    CELL: (
        Example(f"{CELL}\nall_reduce(rank)", "Add up a number of all ranks:"),
        Example(f"{CELL} -r 0,2 --by-rank\nprint(device)", "Run on two of the ranks, and show one after the other:"),
    ),
    LINE: (
        Example(f"{LINE} start -n 4", "start a world of four ranks"),
        Example(f"{LINE} push lr", "copy the notebook's variable lr to every rank"),
    ),
    "start": (
        Example(f"{LINE} start -n 4", "four ranks on this machine"),
        Example(f"{LINE} start --engines ssh --hosts a:4,b:4", "four on each of two machines"),
    ),
    "status": (
        Example(f"{LINE} status", "as a table"),
        Example(f"{LINE} status --world eval", "of the world of this name"),
    ),
    "panel": (
        Example(f"{LINE} panel", "below this cell"),
        Example(f"{LINE} panel --world eval", "of the world of this name"),
    ),
    "stop": (
        Example(f"{LINE} stop", "the world that cells run on"),
        Example(f"{LINE} stop --world eval", "the world of this name"),
    ),
    "restart": (
        Example(f"{LINE} restart", "the world that cells run on"),
        Example(f"{LINE} restart --world eval", "the world of this name"),
    ),
    "attach": (
        Example(f"{LINE} attach", "if only one world is left"),
        Example(f"{LINE} attach 3f2a", "the world with this id"),
    ),
    "interrupt": (
        Example(f"{LINE} interrupt", "as the button ■ does"),
        Example(f"{LINE} interrupt --world eval", "in the world of this name"),
    ),
    "heal": (
        Example(f"{LINE} heal", "all dead ranks"),
        Example(f"{LINE} heal 2", "rank 2, even if it lives"),
    ),
    "push": (
        Example(f"{LINE} push lr", "the variable lr"),
        Example(f"{LINE} push lr config make_model", "several; a function may be among them"),
    ),
    "pull": (
        Example(f"{LINE} pull loss", "loss becomes a list with one value for each rank"),
        Example(f"{LINE} pull loss -r 0", "a list with the value of rank 0"),
    ),
    "who": (
        Example(f"{LINE} who", "all variables"),
        Example(f"{LINE} who loss model.fc.weight", "these two"),
    ),
    "diff": (
        Example(f"{LINE} diff loss model.fc.weight", "of both"),
        Example(f"{LINE} diff loss - target -r 0,1 --atol 1e-6", "of an expression"),
    ),
    "auto": (
        Example(f"{LINE} auto on", f"from now on, cells need no {CELL}"),
        Example(f"{LINE} auto", "show where cells run"),
    ),
    "time": (
        Example(f"{LINE} time on", "show it below each cell from now on"),
        Example(f"{LINE} time", "show what is set"),
    ),
    "debug": (
        Example(f"{LINE} debug 1", "rank 1"),
        Example(f"{LINE} debug 1 --world eval", "rank 1 of the world of this name"),
    ),
    "last": (
        Example(f"{LINE} last", "of the world that cells run on"),
        Example(f"{LINE} last --world eval", "of the world of this name"),
    ),
    "log": (
        Example(f"{LINE} log 1", "of rank 1"),
        Example(f"{LINE} log 1 --world eval", "of rank 1 of the world of this name"),
    ),
    "save": (
        Example(f"{LINE} save train.py", "for: torchrun train.py"),
        Example(f"{LINE} save train.py --force", "even if the file was edited"),
    ),
    "run": (
        Example(f"{LINE} run train.py", "on all ranks"),
        Example(f"{LINE} run -r 0-1 train.py --lr 0.1", "on two, with arguments"),
    ),
    "bench": (
        Example(f"{LINE} bench", "all_reduce up to 16 MiB"),
        Example(f"{LINE} bench broadcast --max 64M", "another one, up to 64 MiB"),
    ),
    "chart": (
        Example(f"{LINE} chart memory model optimizer", "memory, by what it is for"),
        Example(f"{LINE} chart shards model", "who holds which part"),
    ),
    "check": (
        Example(f"{LINE} check gather_all", "what you wrote for a puzzle"),
        Example(f"{LINE} check gather_all --hint", "its next hint"),
    ),
    "predict": (
        Example(f"{LINE} predict part_of_rank_2 8", "you expect 8"),
        Example(f"{LINE} predict total 6 --course mine.py", "in a course of your own"),
    ),
    "help": (
        Example(f"{LINE} help", "all subcommands"),
        Example(f"{LINE} help push", "one of them"),
    ),
}
"""By magic, and by subcommand."""

WORDS = [word for word in EXAMPLES if word not in (LINE, CELL)]
"""The subcommands."""
