"""A script that is to run on the ranks: checked here, once, before any rank gets it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...errors import CellSyntaxError, ScriptError
from ...launch.working_folder import here


class ScriptOrder(NamedTuple):
    """A script for the ranks.

    Attributes:
        code: the cell that runs it; it calls `nbcomm.rank.cells.script_runner`.
        content: the file's.
    """

    code: str
    content: bytes


def order(path: str, args: Iterable[object]) -> ScriptOrder:
    """Read a script that is to run on the ranks, and return the order for it.

    Raises:
        ScriptError: there is no such file.
        CellSyntaxError: it is not Python.
    """
    if not path.strip() or "\0" in path:
        raise ScriptError("The file name of the script is missing, such as train.py; nothing was run.")
    try:
        file = Path(path).expanduser()
        resolved = file.resolve()
        content = file.read_bytes()
        check_program(file, content)
    except FileNotFoundError:
        where = repr(here()) if here() else "this notebook's folder, which does not exist any more"
        raise ScriptError(f"There is no script {path!r} in {where}; nothing was run.") from None
    except IsADirectoryError:
        raise ScriptError(f"{path!r} is a folder; name the script in it. Nothing was run.") from None
    except (OSError, RuntimeError) as error:  # circular links, or a home of an unknown user
        why = getattr(error, "strerror", None) or error
        raise ScriptError(f"The script {path!r} cannot be read: {why}. Nothing was run.") from error
    argv = [str(file), *map(str, args)]
    call = f"run({str(resolved)!r}, {argv!r})"
    return ScriptOrder(f"__import__('nbcomm.rank.cells.script_runner', fromlist=['run']).{call}", content)


def check_program(file: Path, content: bytes) -> None:
    """Refuse a script that is not Python here, once, rather than on every rank.

    Raises:
        CellSyntaxError: with the SyntaxError as its cause.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks give warnings
            compile(content, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        rendered = "".join(traceback.format_exception_only(error))
        raise CellSyntaxError(f"{error.msg} ({file}, line {error.lineno})", rendered) from error
    except ValueError as error:  # null bytes, on older Pythons
        raise ScriptError(f"The script {str(file)!r} is not valid Python: {error}. Nothing was run.") from error


def allow_no_body(lines: list[str]) -> list[str]:
    """Let IPython pass on a ``%%distributed`` without a body: with ``--file`` it needs no code below it.

    It belongs in a shell's ``input_transformers_cleanup``.
    """
    if len(lines) == 1 and lines[0].split()[:1] == ["%%distributed"]:
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines


# For IPython: leave it out of the check whether a cell is complete. In a terminal, Enter leads to the cell's next line.
allow_no_body.has_side_effects = True  # type: ignore[attr-defined]
