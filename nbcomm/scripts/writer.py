"""The whole script, made from the history of a world.

The script contains all cells that succeeded, in the order in which they ran and as often as they ran, because a cell
that trains for an epoch does so each time. A repeated cell that only imports and defines, and whose names were not
bound to anything else in between, is written once. Failed and interrupted cells are left out, and a note says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..rank_spec import fold, named
from . import injected_names
from .cell import ScriptCell, read
from .history import Called, Entry, Pushed, Ran, RanFile, Replaced
from .source import EVERYWHERE, bound_for_sure, commented, compiles, indent, names_of
from .star_imports import names_in

_OURS = {"comm", "dist", "loop", "rank"}
"""Names that the script itself uses: a star import of unknown names may bind these, as torch's binds `dist`."""

_GAP = "\n\n\n"


@dataclass
class Saved:
    """A script and what the user should know about it.

    Attributes:
        text: the file's text.
        cells: the number of cells in it.
        notes: what the user should know, in sentences.
    """

    text: str
    cells: int
    notes: list[str]


def write(
    entries: Sequence[Entry], *, name: str, world_size: int, attached: bool = False, everything: bool = False
) -> Saved:
    """Write a script.

    Args:
        entries: the world's history, in order.
        name: the file's name, for the line that tells how to run it.
        world_size: the size of the notebook's world.
        attached: whether the world had another notebook before, whose cells are not known.
        everything: also write failed cells, as comments, and repeat cells that only define something.
    """
    return _Writer(entries, name, world_size, attached=attached, everything=everything).saved()


@dataclass
class _Part:
    """An entry while it is turned into a part of the script."""

    entry: Entry
    cell: ScriptCell | None = None
    why_not: str = ""
    again: bool = False
    brings: frozenset[str] = frozenset()
    """The names that it has by star imports."""
    missing: set[str] = field(default_factory=set)


class _Writer:
    def __init__(
        self, entries: Sequence[Entry], name: str, world_size: int, *, attached: bool, everything: bool
    ) -> None:
        self._name = name
        self._world_size = world_size
        self._attached = attached
        self._everything = everything
        self._wanted: set[str] = set()
        self._modules: set[str] = set()
        self._futures: dict[str, None] = {}
        self._bound: set[str] = set()
        self._brought: dict[str, frozenset[str] | None] = {}
        """By module, the names that a star import of it binds; None if they are not known."""
        self._parts: list[_Part] = []
        self._read(entries)
        self._taken = {word for part in self._parts if part.cell for word in _all_names(part.cell)} | self._bound
        self._comm = self._free("comm", "communicator", "nbcomm_comm")
        self._loop = self._free("loop", "event_loop", "nbcomm_loop")
        self._functions: set[str] = set()
        self._find_missing()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────

    def _read(self, entries: Sequence[Entry]) -> None:
        known: set[str] = set(EVERYWHERE | injected_names.OWN)
        sure: set[str] = set()
        latest: dict[str, object] = {}
        for entry in entries:
            part = _Part(entry)
            self._parts.append(part)
            if isinstance(entry, Pushed):
                bound = {*entry.literals, *entry.others}
                known |= bound
                self._bound |= bound
                sure |= bound if entry.ranks is None else set()
                latest.update(dict.fromkeys(bound))
            elif isinstance(entry, Ran):
                self._read_cell(entry, part, known)
                if part.cell is None:
                    continue
                key = entry.code, entry.ranks
                binds = part.cell.names.binds | part.brings
                part.again = part.cell.only_defines and all(latest.get(name) == key for name in binds | {key[0]})
                if self._unknown(part):
                    part.again = False
                    latest.clear()
                latest.update(dict.fromkeys({*part.cell.names.deletes}))
                latest.update(dict.fromkeys({*binds, key[0]}, key))
                self._note_names(part.cell, sure, everywhere=entry.ranks is None)
                known |= binds
                self._bound |= binds

    def _read_cell(self, entry: Ran, part: _Part, known: set[str]) -> None:
        if entry.outcome != "done":
            part.why_not = {"failed": "failed", "interrupted": "was interrupted"}[entry.outcome]
            return
        try:
            part.cell = read(entry.code, known)
            text = self._text(part.cell, "comm", "loop", "cell", injected_names.OWN)
        except (SyntaxError, ValueError, RecursionError):
            text = "="
        if not compiles(text):
            part.cell, part.why_not = None, "cannot be written as a part of a script"
            return
        assert part.cell is not None  # noqa: S101 - for mypy: else there would be no text that compiles
        for module in part.cell.names.stars - self._brought.keys():
            self._brought[module] = names_in(module)
        part.brings = frozenset[str]().union(*(self._brought[module] or () for module in part.cell.names.stars))
        if self._unknown(part):
            self._bound |= _OURS
        self._modules |= part.cell.plain.modules
        self._futures.update(dict.fromkeys(part.cell.futures))

    def _note_names(self, cell: ScriptCell, sure: set[str], *, everywhere: bool) -> None:
        """Record the names that a cell takes from nbcomm: those that it reads before the cells bind them."""
        for statement in cell.tree.body:
            found = names_of(statement)
            self._wanted |= (found.loads & injected_names.OWN) - sure
            sure -= found.deletes
            if everywhere:
                sure |= bound_for_sure(statement)

    def _unknown(self, part: _Part) -> list[str]:
        """Return the modules that a cell imports by a star and whose names are not known."""
        return sorted(name for name in part.cell.names.stars if self._brought[name] is None) if part.cell else []

    def _find_missing(self) -> None:
        """Find names that nothing in the script binds."""
        there = EVERYWHERE | injected_names.OWN | self._bound
        for part in self._parts:
            if part.cell is not None and not part.again:
                part.missing = set(part.cell.names.loads - there - part.cell.plain.modules)

    def _free(self, *wishes: str) -> str:
        """Return the first name that no cell binds, or the last one."""
        return next((name for name in wishes if name not in self._bound), wishes[-1])

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────

    def saved(self) -> Saved:
        """Return the script."""
        blocks = [block for block in map(self._block, self._parts) if block]
        notes = self._notes()
        head = self._head(notes)
        text = _GAP.join([head, *blocks, self._end()]) + "\n"
        return Saved(text, sum(part.cell is not None and not self._is_left(part) for part in self._parts), notes)

    def _is_left(self, part: _Part) -> bool:
        return part.again and not self._everything

    def _block(self, part: _Part) -> str:
        entry = part.entry
        if isinstance(entry, Pushed):
            return self._push_block(entry, part)
        if not isinstance(entry, Ran):
            return _beside(entry)
        title = _title(entry)
        if part.cell is None:
            left = f"{title} {part.why_not}, so it is left out."
            return f"{left}\n{commented(entry.code)}" if self._everything else left
        if self._is_left(part):
            return ""
        told = [f"# {word}: nothing in this script defines it{self._unless(word)}." for word in sorted(part.missing)]
        body = self._text(part.cell, self._comm, self._loop, self._function(entry.number), self._wanted)
        return "\n".join([title, *told, self._on_ranks(body, entry.ranks) if part.cell.tree.body else body])

    @staticmethod
    def _text(cell: ScriptCell, comm: str, loop: str, function: str, given: Collection[str]) -> str:
        return cell.coroutine(function, loop, comm, given) if cell.asynchronous else cell.statements(comm, given)

    def _function(self, number: int) -> str:
        base = name = f"cell_{number}"
        count = 1
        while name in self._functions or name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._functions.add(name)
        return name

    def _on_ranks(self, body: str, ranks: Sequence[int] | None) -> str:
        if ranks is None:
            return body
        rank = f"{self._comm}.rank"
        if "rank" not in self._bound:
            self._wanted.add("rank")
            rank = "rank"
        chosen = f"== {ranks[0]}" if len(ranks) == 1 else f"in {_group(ranks)}"
        return f"if {rank} {chosen}:\n{indent(body)}"

    def _push_block(self, entry: Pushed, part: _Part) -> str:
        lines = [f"{name} = {text}" for name, text in entry.literals.items()]
        behind = self._parts[self._parts.index(part) + 1 :]
        read_later = {word for other in behind if other.cell for word in other.cell.names.loads}
        for name, kind in entry.others.items():
            if name not in read_later:
                lines.append(f"# {name}, of type {kind}, has no text, and nothing in this script needs it.")
                continue
            sentence = (
                f"{name} was pushed from the notebook, and a value of type {kind} cannot be written into a script."
            )
            lines += [
                "# Create it here, and remove the next line.",
                f'raise SystemExit("{sentence} Create it in {_quoted(self._name)}, at this place.")',
            ]
        title = f"# Pushed from the notebook{_on(entry.ranks)}"
        body = "\n".join(lines)
        return f"{title}\n{body if all(line[0] == '#' for line in lines) else self._on_ranks(body, entry.ranks)}"

    def _end(self) -> str:
        """Return the lines that destroy the process group, as torch requires, if no cell has done so."""
        dist = "torch.distributed" if "dist" in self._bound else "dist"
        done_before = any(
            "destroy_process_group" in part.entry.code for part in self._parts if isinstance(part.entry, Ran)
        )
        # With a barrier: gloo may end a process whose peer leaves at the same time (torch 2.13 and 2.15, one script in
        # four).
        leave = f"{dist}.barrier()\n{dist}.destroy_process_group()"
        return f"if {dist}.is_initialized():\n{indent(leave)}" if done_before else leave

    def _head(self, notes: list[str]) -> str:
        imports = {f"import {module}" for module in self._modules}
        asynchronous = any(part.cell and part.cell.asynchronous and not self._is_left(part) for part in self._parts)
        if asynchronous:
            imports.add("import asyncio")
        if "dist" not in self._bound:
            self._wanted.add("dist")
        others = ["import nbcomm", *injected_names.imports(self._wanted)]
        if "dist" in self._bound:
            others.append("import torch.distributed")
        made = [f"{self._comm} = nbcomm.init()", *injected_names.bindings(self._wanted, self._comm)]
        if asynchronous:
            made.append(f"{self._loop} = asyncio.new_event_loop()")
        futures = [f"from __future__ import {', '.join(self._futures)}"] if self._futures else []
        parts = [self._docstring(notes), *futures, "\n".join(sorted(imports)), "\n".join(sorted(others, key=_module))]
        return "\n\n".join([part for part in parts if part] + ["\n".join(made)])

    def _docstring(self, notes: list[str]) -> str:
        whence = f"The cells that ran on the {self._world_size} rank{'s' * (self._world_size > 1)} of a notebook."
        command = f"torchrun --nproc-per-node {self._world_size} {shlex.quote(self._name)}"
        text = "\n".join([whence, "", "Run it with:", "", f"    {command}", *(["", *notes] if notes else [])])
        return f'"""{text}\n"""'.replace("\\", "\\\\") if '"""' not in text else f"{text!r}"

    def _notes(self) -> list[str]:
        notes = []
        if self._attached:
            notes.append(
                "The notebook was attached to a world that ran before it: its earlier cells are not in this script."
            )
        left = [(part, part.why_not or "defines only what is there already") for part in self._parts]
        left = [(part, why) for part, why in left if part.why_not or self._is_left(part)]
        if left:
            notes.append(f"Left out: {', '.join(f'{_label(part.entry)} ({why})' for part, why in left)}.")
        dropped = {magic for part in self._parts if part.cell and not part.again for magic in part.cell.plain.dropped}
        if dropped:
            notes.append(f"Turned into comments, because they mean nothing in a script: {', '.join(sorted(dropped))}.")
        there = False
        for part in self._parts:
            there |= part.cell is not None
            if there and isinstance(part.entry, Replaced):
                notes.append(
                    "New processes replaced ranks in between (--fresh): later cells did not find what earlier cells "
                    "had defined, but in this script they do."
                )
                break
        notes += self._notes_of_values()
        return notes

    def _doubtful(self) -> dict[str, list[str]]:
        """Return the star-imported modules whose names are not known, each with the cells that import it."""
        found: dict[str, list[str]] = {}
        for part in self._parts:
            for module in self._unknown(part) if not self._is_left(part) else []:
                found.setdefault(module, []).append(_label(part.entry))
        return found

    def _unless(self, name: str) -> str:
        """Say which star import may define a name; IPython's ``_`` comes from no module."""
        modules = self._doubtful() if name[:1] != "_" else {}
        return f", unless {' or '.join(map(_star, modules))} does" if modules else ""

    def _notes_of_values(self) -> list[str]:
        notes = []
        gone = {name for part in self._parts if isinstance(part.entry, Pushed) for name in part.entry.others}
        loads = {name for part in self._parts if part.cell for name in part.cell.names.loads}
        if gone & loads:
            notes.append(f"Pushed from the notebook; create in the script by hand: {', '.join(sorted(gone & loads))}.")
        outside = [part.entry for part in self._parts if isinstance(part.entry, Called | RanFile)]
        called = dict.fromkeys(f"{entry.name}()" for entry in outside if isinstance(entry, Called))
        called.update(dict.fromkeys(_one_line(entry.file) for entry in outside if isinstance(entry, RanFile)))
        if called:
            notes.append(f"Ran besides the cells, and is not in this script: {', '.join(called)}.")
        missing: dict[str, list[str]] = {}
        for part in self._parts:
            for name in sorted(part.missing):
                missing.setdefault(name, []).append(_label(part.entry))
        doubtful = [name for name in missing if self._unless(name)]
        if doubtful:
            imports = [f"{_star(module)} in {', '.join(where)}" for module, where in self._doubtful().items()]
            words = [f"{name} (needed by {', '.join(missing.pop(name))})" for name in doubtful]
            notes.append(
                f"Nothing in this script defines {', '.join(words)}, unless {' or '.join(imports)} does: "
                f"{'this import fails' if len(imports) == 1 else 'these imports fail'} in a fresh process, so the "
                f"names that {'it defines' if len(imports) == 1 else 'they define'} are unknown."
            )
        notes += [
            f"{name} is needed by {', '.join(where)}, but nothing in this script defines it."
            for name, where in missing.items()
        ]
        return notes


def _star(module: str) -> str:
    return f"`from {module} import *`"


def _title(entry: Ran | RanFile) -> str:
    return f"# In [{entry.number}]{_on(entry.ranks)}"


def _beside(entry: Called | RanFile | Replaced) -> str:
    """Write an entry that is not a cell as a comment."""
    if isinstance(entry, Called):
        return f"# {entry.name}() was called from the notebook{_on(entry.ranks)}; that is not in this script."
    if isinstance(entry, Replaced):
        whose = "all ranks" if entry.ranks is None else named(entry.ranks)
        return f"# Here new processes took the places of {whose}, without variables."
    how = "" if entry.outcome == "done" else f", and {_went(entry.outcome)}"
    return f"{_title(entry)} ran the script {_one_line(entry.file)}{how}; that is not in this one."


def _all_names(cell: ScriptCell) -> frozenset[str]:
    return cell.names.loads | cell.names.binds | cell.names.deletes


def _label(entry: Entry) -> str:
    return f"In [{entry.number}]" if isinstance(entry, Ran | RanFile) else ""


def _went(outcome: str) -> str:
    return "failed" if outcome == "failed" else "was interrupted"


def _on(ranks: Sequence[int] | None) -> str:
    if ranks is None:
        return ""
    return f" on rank{'s' * (len(ranks) > 1)} {fold(list(ranks))}"


def _group(ranks: Sequence[int]) -> str:
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"range({ranks[0]}, {ranks[-1] + 1})"
    return f"({', '.join(map(str, ranks))})"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(text: str) -> str:
    return text.encode("unicode_escape").decode().replace('"', '\\"')


def _module(line: str) -> str:
    return f"{line.startswith('from')} {line.split()[1]}"
