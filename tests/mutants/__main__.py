"""``python tests/mutants nbcomm/rank_spec.py``: which small changes of a pure module does no test notice?

mutmut makes the changes, and runs for each the tests that come to the changed function. ``pyproject.toml`` tells which
modules and which tests. ``equivalent.md`` lists the changes that no test could notice.

It is started as a file, not by ``-m``: the package ``tests`` has to be the copy that mutmut makes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.mutation import file_mutation
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import read_mutant_function, read_mutants_module, read_original_function
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

ENOUGH = 0.95
"""So many of the changes of behaviour are to be noticed, in each module."""

_EQUIVALENT = Path(__file__).with_name("equivalent.md")

Change = tuple[str, str]
"""What a line was, and what it became."""


def main() -> int:
    """Change and test; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as nbcomm/rank_spec.py; by default all")
    parser.add_argument("--children", type=int, default=1, help="so many changes are tested at the same time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try one change of N, for a first look")
    parser.add_argument("--unnoticed", action="store_true", help="try again only what was not noticed the last time")
    parser.add_argument("--report", action="store_true", help="only tell what the last run has found")
    options = parser.parse_args()
    modules = [Path(module) for module in options.modules] or sorted(walk_mutatable_files())
    if unknown := [module for module in modules if not module.is_file()]:
        parser.error(f"There is no file {unknown[0]}; name one such as nbcomm/rank_spec.py.")
    if not options.report:
        _with_decorators()
        _some(unnoticed=options.unnoticed, every=options.every)
        _quick_tests_first()
        mutmut._run([f"{'.'.join(module.with_suffix('').parts)}.*" for module in modules], options.children)
    return _report(modules)


# ── what is asked of mutmut beyond what it does by itself ──


def _with_decorators() -> None:
    """Change properties and cached functions, too: mutmut leaves a function alone that has a decorator."""
    skip = file_mutation.MutationVisitor._skip_node_and_children
    arrange = file_mutation.function_trampoline_arrangement

    def bare(function: cst.FunctionDef) -> cst.FunctionDef:
        names = {each.decorator.value for each in function.decorators if isinstance(each.decorator, cst.Name)}
        return function if names & {"staticmethod", "classmethod"} else function.with_changes(decorators=[])

    def skip_bare(visitor: file_mutation.MutationVisitor, node: cst.CSTNode) -> bool:
        return skip(visitor, bare(node) if isinstance(node, cst.FunctionDef) else node)

    def arrange_bare(function: cst.FunctionDef, mutants: Iterable[Any], class_name: str | None) -> tuple[Any, ...]:
        plain = bare(function)
        declared, (first, *others), assigned, names = arrange(plain, mutants, class_name)
        if plain is not function:
            first = first.with_changes(decorators=[*function.decorators, *first.decorators])
        return declared, [first, *others], assigned, names

    file_mutation.MutationVisitor._skip_node_and_children = skip_bare
    file_mutation.function_trampoline_arrangement = arrange_bare


def _some(*, unnoticed: bool, every: int) -> None:
    collect = mutmut.collect_source_file_mutation_data

    def some(*, mutant_names: Any) -> tuple[Any, Any]:
        mutants, data = collect(mutant_names=mutant_names)
        return [each for each in mutants if not (unnoticed and _is_noticed(each[2]))][::every], data

    mutmut.collect_source_file_mutation_data = some


def _quick_tests_first() -> None:
    """Of a change's tests the quick ones come first: the first that fails is the last that runs."""
    get_runner = mutmut.get_mutant_runner

    def quick_first(max_workers: int) -> Any:
        runner = get_runner(max_workers)
        submit = runner.submit

        def submit_sorted(name: str, tests: list[str], *limits: Any) -> None:
            submit(name, sorted(tests, key=lambda test: state().duration_by_test[test]), *limits)

        runner.submit = submit_sorted
        return runner

    mutmut.get_mutant_runner = quick_first


# ── what was found ──


@dataclass
class Found:
    """A module's changes.

    Attributes:
        tried: how many were tried.
        equivalent: so many of them change nothing.
        unnoticed: those of the others that no test noticed, by mutmut's name.
    """

    tried: int
    equivalent: int = 0
    unnoticed: dict[str, Change] = field(default_factory=dict)

    @property
    def noticed(self) -> int:
        """How many the tests noticed."""
        return self.tried - self.equivalent - len(self.unnoticed)

    @property
    def share(self) -> float:
        """Of the changes that change behaviour, the part that the tests notice."""
        return self.noticed / max(1, self.tried - self.equivalent)


def _report(modules: list[Path]) -> int:
    equivalent, poor = _equivalent(), []
    print(f"\n{'module':<38}{'changes':>9}{'equivalent':>12}{'noticed':>9}")
    for path in modules:
        found = _found(path, equivalent.get(str(path), Counter()))
        if not found.tried:
            continue
        print(f"{path!s:<38}{found.tried:>9}{found.equivalent:>12}{found.noticed:>9}{found.share:>8.1%}")
        for name, (before, after) in found.unnoticed.items():
            print(f"    {name}\n      - {before}\n      + {after}")
        if found.share < ENOUGH:
            poor.append(str(path))
    if poor:
        print(f"\nFewer than {ENOUGH:.0%} are noticed in {', '.join(poor)}.", file=sys.stderr)
    return 1 if poor else 0


def _equivalent() -> dict[str, Counter[Change]]:
    """How often each change is listed, by module."""
    found: dict[str, Counter[Change]] = {}
    module, before = "", ""
    for line in _EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            module = line.removeprefix("## ").strip()
        elif line.startswith("- "):
            before = line.removeprefix("- ").strip()
        elif line.startswith("+ "):
            found.setdefault(module, Counter())[before, line.removeprefix("+ ").strip()] += 1
    return found


def _found(path: Path, equivalent: Counter[Change]) -> Found:
    data = SourceFileMutationData(path=path)
    data.load()
    tried = {name: code for name, code in data.exit_code_by_key.items() if code is not None}
    found, left = Found(len(tried)), equivalent.copy()
    unnoticed = [name for name, code in tried.items() if not _is_noticed(code)]
    module = read_mutants_module(path) if unnoticed else None
    for name in unnoticed:
        change = _difference(read_original_function(module, name), read_mutant_function(module, name))
        if left[change]:
            left[change] -= 1
            found.equivalent += 1
        else:
            found.unnoticed[name.rpartition(".")[2]] = change
    return found


def _is_noticed(code: int | None) -> bool:
    """Whether the tests' exit code says so; a change that makes them run for ever, or ends Python, is noticed, too."""
    return status_by_exit_code[code] in {"killed", "timeout", "segfault"}


def _difference(before: cst.FunctionDef, after: cst.FunctionDef) -> Change:
    """What differs, without the lines that both begin or end with."""
    one, other = ([line.strip() for line in cst.Module([each]).code.split("\n")] for each in (before, after))
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return " ".join(one), " ".join(other)


if __name__ == "__main__":
    sys.exit(main())
