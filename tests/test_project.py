"""Each package says what it is for, and the pages about the code have its threads, locks, files and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbcomm

PACKAGE = Path(nbcomm.__file__).parent
PACKAGES = sorted(PACKAGE.rglob("__init__.py"))
ROOT = Path(__file__).parents[1]
THREADS = ROOT / "docs" / "internals" / "threads.md"
TESTS = ROOT / "tests" / "README.md"
PAGES = [ROOT / "ARCHITECTURE.md", TESTS, *sorted(THREADS.parent.glob("*.md"))]
MODULES = sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "threads.py"})  # that one starts threads for the others

_PROCESSES = {
    "launch": "kernel",
    "notebook": "kernel",
    "panel": "kernel",
    "comm": "rank",
    "rank": "rank",
    "torch_internals": "rank",
    "node": "daemon",
}
"""Where the threads of a package are."""

_NAMELESS = ("Keys", "ThreadPoolExecutor", "Timer")
_LOCKS = ("Lock", "RLock", "Condition")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.parent.relative_to(PACKAGE.parent)))
def test_a_package_says_in_one_sentence_what_it_is_for(package: Path) -> None:
    said = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8")))
    assert said
    assert said.splitlines()[0].endswith(".")


def test_the_page_has_every_thread() -> None:
    """Its table has the threads that the code starts, each with its process, and no other ones."""
    started = {
        (name, _PROCESSES[module.relative_to(PACKAGE).parts[0]])
        for module in MODULES
        for name in _threads(ast.parse(module.read_text(encoding="utf-8")))
    }
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| ([^|]+) \|", _section(THREADS, "Threads"), re.MULTILINE)
    assert len({name for name, _ in started}) > 15
    assert {(name, process) for name, processes in rows for process in processes.split(", ")} == started


def test_the_page_names_no_lock_that_is_not_there() -> None:
    named = set(re.findall(r"`(\w+\.\w+)`", _section(THREADS, "Locks")))
    assert len(named) > 20
    assert named <= {lock for module in MODULES for lock in _locks(ast.parse(module.read_text(encoding="utf-8")))}


def test_the_page_has_every_module_without_a_test_of_its_name() -> None:
    named = set()
    for row in re.findall(r"^\| (`.*?) \|", _section(TESTS, "Modules without a test of their own name"), re.MULTILINE):
        for part in row.split("; "):
            package = re.match(r"`([\w/]+/)`: ", part)
            named |= {f"{package[1] if package else ''}{name}" for name in re.findall(r"`([\w/]+\.py)`", part)}
    every = {module.relative_to(PACKAGE) for module in PACKAGE.rglob("*.py")} - {
        package.relative_to(PACKAGE) for package in PACKAGES
    }
    tests = Path(__file__).parent
    assert named == {str(one) for one in every if not (tests / one.parent / f"test_{one.name}").exists()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_no_file_that_is_not_there(page: Path) -> None:
    """A file may be named by the end of its path, where its folder was named before."""
    named = set(re.findall(r"(?<=`)[\w/.]+\.(?:py|mjs|js|css|json|md|toml)(?=`)", page.read_text(encoding="utf-8")))
    there = [f"/{file.relative_to(ROOT)}" for part in ("nbcomm", "tests", "docs", "bench") for file in _files(part)]
    there += [f"/{file.name}" for file in ROOT.iterdir()]
    assert named
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in there)} == set()


def _files(folder: str) -> Iterator[Path]:
    return (file for file in (ROOT / folder).rglob("*.*") if "__pycache__" not in file.parts)


def _section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _threads(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the threads that a module starts; of those without one, what makes them."""
    ours = {alias.name for node in ast.walk(tree) for alias in _from_threads(node)}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        made = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(call.func, ast.Name) and made in ours:
            yield from _named(call.args[{"keep": 0, "after": 1}[made]], tree)
        elif made == "Thread":
            (name,) = (keyword.value for keyword in call.keywords if keyword.arg == "name")
            yield from _named(name, tree)
        elif made in _NAMELESS:
            yield made


def _from_threads(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == "threads" else []


def _named(name: ast.expr, tree: ast.Module) -> list[str]:
    """Return what a thread may be called; where that is a variable, all such names that the module passes on."""
    if isinstance(name, ast.JoinedStr):
        name = name.values[0]
    found = [name] if isinstance(name, ast.Constant) else [node for node in ast.walk(tree) if _is_passed_on(node)]
    texts = [str(each.value).rstrip("-") for each in found if isinstance(each, ast.Constant)]
    assert texts
    return texts


def _is_passed_on(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("nbcomm-")


def _locks(tree: ast.Module) -> Iterator[str]:
    """Yield the locks that the objects of a module's classes have."""
    for holder in ast.walk(tree):
        if not isinstance(holder, ast.ClassDef):
            continue
        for made in ast.walk(holder):
            if not isinstance(made, ast.Assign | ast.AnnAssign) or made.value is None:
                continue
            if not any(isinstance(part, ast.Attribute) and part.attr in _LOCKS for part in ast.walk(made.value)):
                continue
            for target in made.targets if isinstance(made, ast.Assign) else [made.target]:
                for part in ast.walk(target):
                    attribute = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                    yield f"{holder.name}.{attribute}"
