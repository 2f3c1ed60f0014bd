"""Plain tables, as text and as HTML without styles: GitHub strips styles, and a terminal has none."""

from __future__ import annotations

import html
from itertools import zip_longest

Table = tuple[list[str], list[list[str]]]
"""The names of the columns, and the cells of each row; a cell may have several lines."""


def aligned(table: Table) -> list[str]:
    """Return the lines of a table as text, with aligned columns.

    >>> aligned((["rank", "state"], [["0", "idle"]]))
    ['rank  state', '0     idle']
    """
    rows = ([cell.split("\n") for cell in row] for row in (table[0], *table[1]))
    lines = [line for row in rows for line in zip_longest(*row, fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def marked_up(table: Table, *, row_headers: bool = False) -> str:
    """Return a table as HTML.

    Args:
        table: its cells.
        row_headers: whether the first cell of a row is its header.
    """
    names, rows = table
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    first, end = ('<th scope="row">', "</th>") if row_headers else ("<td>", "</td>")
    body = "".join(
        f"<tr>{first}{_lines(row[0])}{end}" + "".join(f"<td>{_lines(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(cell: str) -> str:
    return html.escape(cell).replace("\n", "<br>")
