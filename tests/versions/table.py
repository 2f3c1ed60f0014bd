"""The table of docs/versions.md: a row for each environment that was tested."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from packaging.version import Version

BEGIN = "<!-- rows: written by make test-torch -->"
END = "<!-- end of rows -->"

SUITES = ("world", "comm", "recovery", "peers", "kernel")
CHECKS = ("doctor", "demo", "notebook", *SUITES)
COLUMNS = ("torch", "Python", "the others", "fallback", *CHECKS)

NOT_RUN = "–"
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"


@dataclass
class Row:
    """One environment.

    Attributes:
        torch: its version, without the part that says how it was built.
        python: its version, major and minor.
        others: "newest" or "lowest", which is what the other packages are.
        fallback: "yes" if worlds have torch's own groups there, "no" if they have nbcomm's.
        cells: for each check that was made, what came of it.
    """

    torch: str
    python: str
    others: str
    fallback: str = NOT_RUN
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Version, Version, str]:
        return Version(self.torch), Version(self.python), self.others

    def __str__(self) -> str:
        checks = (self.cells.get(check, NOT_RUN) for check in CHECKS)
        return f"| {' | '.join([self.torch, self.python, self.others, self.fallback, *checks])} |"

    def over(self, earlier: Row) -> Row:
        """This row, with the earlier one's cells where this run made no check."""
        return Row(*self.key_texts, self.fallback, {**earlier.cells, **self.cells})

    @property
    def key_texts(self) -> tuple[str, str, str]:
        return self.torch, self.python, self.others


def parsed(line: str) -> Row:
    """The row that a line of the page is."""
    torch, python, others, fallback, *checks = (cell.strip() for cell in line.strip().strip("|").split("|"))
    found = {check: cell for check, cell in zip(CHECKS, checks, strict=True) if cell != NOT_RUN}
    return Row(torch, python, others, fallback, found)


def with_row(page: str, row: Row) -> str:
    """The page with this row in its table, in its place by version.

    Raises:
        ValueError: the page has no markers, between which the table stands.
    """
    found = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    if not found:
        raise ValueError(f"The page has no table: it must stand between {BEGIN} and {END}.")
    lines = [line for line in found[1].splitlines() if re.match(r"\| *\d", line)]
    rows = {old.key: old for old in map(parsed, lines)}
    rows[row.key] = row.over(rows[row.key]) if row.key in rows else row
    text = HEAD + "".join(f"{rows[key]}\n" for key in sorted(rows))
    return f"{page[: found.start(1)]}{text}{page[found.end(1) :]}"
