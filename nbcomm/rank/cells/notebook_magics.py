"""The notebook's own magics in a cell on a rank: each says where it belongs."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError

_TEXT = "{} runs in the notebook, but this line runs on a rank: write it as the first line of a cell of its own."


def refuse_steering(shell: Any) -> None:
    """Make ``%distributed``, ``%%distributed`` and ``%%local`` inside a rank's cell say what to do.

    In a startup file, which the notebook has run, too, they do nothing.
    """

    def refuse(word: str) -> None:
        if shell.cells is not None:
            raise UsageError(_TEXT.format(word))

    def distributed(line: str, cell: str | None = None) -> None:  # noqa: ARG001 - IPython passes it
        refuse("%distributed" if cell is None else "%%distributed")

    def local(line: str, cell: str) -> None:  # noqa: ARG001
        refuse("%%local")

    shell.register_magic_function(distributed, "line_cell", "distributed")
    shell.register_magic_function(local, "cell", "local")
    # Below the first line IPython reads these as magics of one line whose names begin with a percent sign.
    shell.register_magic_function(lambda line: distributed(line, ""), "line", "%distributed")
    shell.register_magic_function(lambda line: local(line, ""), "line", "%local")
