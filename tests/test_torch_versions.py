"""Which torch was tested; and of the program that tests them, what needs no environment."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nbcomm.torch_versions import NEWEST, OLDEST, limits, untested

from .versions import suites, table, wanted
from .versions.__main__ import is_good
from .versions.processes import Ended, run
from .versions.table import Row

ROOT = Path(__file__).parents[1]

# ── the range ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "version", [f"{OLDEST}.0", f"{OLDEST}.1+cpu", "2.13.0", f"{NEWEST}.0", f"{NEWEST}.99+cu130", "2.14.0a0+git1"]
)
def test_versions_in_the_range_are_tested(version: str) -> None:
    assert untested(version) == ""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.5.1", "older than any"),
        ("1.13.0+cpu", "older than any"),
        ("2.16.0", "newer than any"),
        ("3.0", "newer than any"),
        ("2.16.0.dev20261101+cpu", "newer than any"),
        ("mine", "not one of the versions"),
    ],
)
def test_others_are_told_in_a_sentence(version: str, said: str) -> None:
    sentence = untested(version)
    assert said in sentence
    assert sentence.startswith(f"torch {version} is ")
    assert sentence.endswith(f"which are {OLDEST} to {NEWEST}.")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.15.0", []),
        ("2.12.1+cpu", []),
        ("2.11.0", ["ascending", "torch 2.12 has no such limit."]),
        ("2.8.0+cu128", ["ascending", "reduce_scatter", "torch 2.12 has no such limits."]),
        ("mine", []),
    ],
)
def test_what_an_older_torch_cannot_do_is_told_in_a_sentence(version: str, words: list[str]) -> None:
    sentence = limits(version)
    assert bool(sentence) == bool(words)
    assert [word for word in words if word not in sentence] == []


def test_pyproject_asks_for_the_versions_that_were_tested() -> None:
    found = re.search(r'^    "torch(.*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    asked = SpecifierSet(found[1])
    major, minor = (int(part) for part in NEWEST.split("."))
    assert asked == SpecifierSet(f">={OLDEST},<{major}.{minor + 1}")
    assert not [version for version in asked.filter([OLDEST, NEWEST, f"{NEWEST}.7"]) if untested(version)]


@pytest.mark.parametrize("page", ["README.md", "docs/versions.md"])
def test_what_pages_tell_to_install_are_versions_that_were_tested(page: str) -> None:
    text = (ROOT / page).read_text()
    assert re.search(rf"{OLDEST} to {NEWEST}\b", text)
    major, minor = NEWEST.split(".")
    assert re.findall(r"^pip install .*torch(.*?)'? --index-url", text, re.MULTILINE) == [f"<{major}.{int(minor) + 1}"]


# ── what is installed ───────────────────────────────────────────────────────────────────────────────

LINES = [
    "numpy",
    "psutil>=5.9",
    "torch<2.16,>=2.13",
    "traitlets~=5.4",
    "pytest>=8; extra == 'dev'",
    "ruff; extra == 'dev'",
]


def test_a_wheels_requirements_are_sorted_out() -> None:
    found = wanted.sorted_out(LINES)
    assert [requirement.name for requirement in found.runtime] == ["numpy", "psutil", "torch", "traitlets"]
    assert {name: str(tool) for name, tool in found.tools.items()} == {"pytest": "pytest>=8"}
    assert found.torch == SpecifierSet(">=2.13,<2.16")


def test_the_lowest_versions_are_pinned_but_for_torch() -> None:
    assert wanted.lowest_pins(wanted.sorted_out(LINES).runtime) == ["psutil==5.9", "traitlets==5.4"]
    assert wanted.lowest(Requirement("numpy<3")) is None


def test_every_dependency_has_a_lowest_version_and_every_tool_is_one_of_development() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    at_run_time, development = re.findall(r"^(?:dependencies|dev) = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    needs = [Requirement(line) for line in re.findall(r'^    "(.*)",', at_run_time, re.MULTILINE)]
    assert not [need for need in needs if wanted.lowest(need) is None]
    tools = {Requirement(line).name for line in re.findall(r'^    "(.*)",', development, re.MULTILINE)}
    assert tools.issuperset({*wanted.NEEDED, *wanted.WANTED})


# ── what is run ─────────────────────────────────────────────────────────────────────────────────────


def test_every_file_of_worlds_is_in_one_suite() -> None:
    world, recovery = (set(suites.paths_of(name)) for name in ("world", "recovery"))
    assert not world & recovery
    assert len(recovery) == 9
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "world").glob("test_*.py")}
    assert here - world - recovery == {"tests/world/test_gpu.py", "tests/world/test_soak.py"}
    for name in set(table.SUITES) - {"world", "recovery"}:
        assert all((ROOT / path).is_dir() for path in suites.paths_of(name))


@pytest.mark.parametrize(
    ("code", "last", "cell"),
    [
        (0, "118 passed in 34.51s", "118"),
        (0, "1 passed, 2 skipped, 1 xfailed, 3 warnings in 94.51s (0:01:34)", "1, 3 skipped"),
        (1, "2 failed, 118 passed, 1 error in 4.51s", "3 of 121 fail"),
        (3, "118 passed in 34.51s", "breaks off"),
        (5, "no tests ran in 0.02s", "breaks off"),
        (4, "ERROR: usage: pytest", "breaks off"),
        (None, "118 passed in 34.51s", "did not end"),
    ],
)
def test_a_suites_cell_is_read_from_its_last_line(tmp_path: Path, code: int | None, last: str, cell: str) -> None:
    assert suites.result(Ended(code, f"....\nSKIPPED [1] tests/a.py:1: no GPU in 1 s\n{last}\n", tmp_path)) == cell


@pytest.mark.parametrize(
    ("code", "level", "world", "capped", "cell", "fallback"),
    [
        (0, "ok", "ok", False, "ok", "no"),
        (0, "ok", "warn", False, "ok", "yes"),
        (1, "fail", "ok", True, "ok, warns", "no"),
        (1, "fail", "ok", False, "fails: packages", "no"),
        (1, "ok", "fail", True, "fails: world", "?"),
        (1, "ok", "ok", True, "fails: at once", "no"),
    ],
)
def test_the_doctors_cell_is_read_from_his_verdicts(
    tmp_path: Path, code: int, level: str, world: str, capped: bool, cell: str, fallback: str
) -> None:
    lines = [f"{level:<4}  {'packages':<17}  So it is.", f"{world:<4}  {'world':<17}  Ranks are so."]
    assert suites.diagnosis(Ended(code, "\n".join(lines), tmp_path), capped=capped) == (cell, fallback)


@pytest.mark.ranks
def test_what_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    code = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])"
    began = time.monotonic()
    ended = run([sys.executable, "-c", code], within=10, log=log)
    assert time.monotonic() - began < 60
    assert ended.code is None
    assert ended.text.startswith("begun")
    assert ended.told().endswith(f"It did not end in time; all that it wrote is in {log}.")
    assert not ended.well


# ── the table ───────────────────────────────────────────────────────────────────────────────────────


def a_page(*rows: Row) -> str:
    lines = "".join(f"{row}\n" for row in rows)
    return f"# Versions\n\n{table.BEGIN}\n{table.HEAD}{lines}{table.END}\n\nThe end.\n"


def test_rows_stand_in_the_order_of_versions() -> None:
    rows = [Row("2.6.0", "3.10", "lowest"), Row("2.9.1", "3.11", "newest"), Row("2.13.0", "3.9", "newest")]
    rows.append(Row("2.13.0", "3.12", "newest", "no", {"doctor": "ok", "world": "310, 2 skipped"}))
    page = a_page()
    for row in (rows[2], rows[0], rows[3], rows[1]):
        page = table.with_row(page, row)
    assert page == a_page(*rows)
    assert "| 2.13.0 | 3.12 | newest | no | ok | – | – | 310, 2 skipped | – | – | – | – |\n" in page


def test_a_check_that_was_not_made_again_keeps_its_cell() -> None:
    before = Row("2.9.1", "3.11", "newest", "yes", {"doctor": "ok", "world": "1 of 9 fail", "comm": "700"})
    again = Row("2.9.1", "3.11", "newest", "no", {"doctor": "ok", "world": "9"})
    both = Row("2.9.1", "3.11", "newest", "no", {"doctor": "ok", "world": "9", "comm": "700"})
    assert table.with_row(a_page(before), again) == a_page(both)


def test_a_page_without_a_table_is_told() -> None:
    with pytest.raises(ValueError, match="has no table"):
        table.with_row("# Versions\n", Row("2.9.1", "3.11", "newest"))


def test_the_page_takes_rows() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    row = Row("2.6.0", "3.10", "newest", "no", {"doctor": "ok"})
    assert table.with_row(table.with_row(page, row), row) == table.with_row(page, row)


@pytest.mark.parametrize(
    ("cell", "good"),
    [
        ("ok", True),
        ("ok, warns", True),
        ("310, 2 skipped", True),
        ("1 of 9 fail", False),
        ("fails: packages", False),
        ("breaks off", False),
        ("did not end", False),
    ],
)
def test_a_row_is_good_if_all_that_was_tried_is(cell: str, good: bool) -> None:
    assert is_good(Row("2.9.1", "3.11", "newest", "no", {"doctor": "ok", "world": cell})) is good
