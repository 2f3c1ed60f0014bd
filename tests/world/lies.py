"""A torch that lies, for the ranks of a notebook: what a version that nobody has tested may do."""

from __future__ import annotations

import os
from pathlib import Path

_CUSTOMIZE = """
import importlib.abc, importlib.machinery, sys

class Liar(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        plain = spec.loader.exec_module
        def exec_module(module):
            plain(module)
            lie(module)
        spec.loader.exec_module = exec_module
        return spec

import importlib.util

{lie}

sys.meta_path.insert(0, Liar())
"""

SIZE = (
    "nbcomm.rank.groups.process_group",
    "def lie(module):\n    module.RankGroup.size = module.RankGroup.getSize = lambda group: 1",
)
"""Groups of ours say that they have one member: as with torch 2.14, when C++ asks the default backend."""

INSIDE = (
    "nbcomm.torch_internals.process_groups",
    "def lie(module):\n    module.new_inner = lambda *args: 1 / 0",
)
"""What our groups are made of is not there."""

SUMS = (
    "nbcomm.rank.groups.selftest",
    "def lie(module):\n    module.dist.all_reduce = lambda tensor, *args, **kwargs: None",
)
"""Nothing is reduced, by whatever group."""


OLD = ("nbcomm.torch_versions", "def lie(module):\n    module.NEWEST = '2.7'")
"""Nobody has tested this torch."""


def told(folder: Path, lie: tuple[str, str]) -> dict[str, str]:
    """Return the environment in which a process, and those that it starts, are lied to."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(module=lie[0], lie=lie[1]))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
