"""The names that ``from module import *`` binds: a process of its own imports the module.

The notebook does not: a notebook that only steers must not load torch. Names of a module that it has imported anyway
are taken from there.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

_PATIENCE = 60.0
"""Seconds that an import may take."""

_ASK = """
import json, os, sys
module, sys.path[:] = sys.argv[1], json.loads(sys.argv[2])
found = {}
exec(f"from {module} import *", found)
print("\\n" + json.dumps([name for name in found if name != "__builtins__"]), flush=True)
os._exit(0)  # what the module does at its end is no answer
"""


def names_in(module: str) -> frozenset[str] | None:
    """Return the names that a star import of a module binds; None if it cannot be imported.

    >>> sorted(names_in("string"))[:2], names_in("no_such_module")
    (['Formatter', 'Template'], None)
    """
    if not all(part.isidentifier() for part in module.split(".")):  # a relative import, which has no package in a cell
        return None
    there = sys.modules.get(module)
    if there is not None:
        named = getattr(there, "__all__", None)
        return frozenset(named if named is not None else (name for name in vars(there) if name[:1] != "_"))
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            return None
        asked = subprocess.run(  # noqa: S603 - our own code, and a module that cells have imported
            [sys.executable, "-c", _ASK, module, json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
        return frozenset(json.loads(asked.stdout.splitlines()[-1]))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
