"""What a zygote imports before it forks."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
from nbcomm.node.processes.warmup import prepare
prepare()
from IPython.core.profiledir import ProfileDir
from nbcomm.rank import engine
from nbcomm.rank.groups.environment import seed_differently
from nbcomm.world_dir import WorldDir
before, home = set(sys.modules), WorldDir.create()
try:
    shell = engine._make_shell(ProfileDir(location=str(engine.make_profile(home, 0))), 0, "")
    seed_differently()
    shell.run_cell("1 + 1", silent=True)
    print("imported:", sorted(set(sys.modules) - before))
finally:
    home.remove()
"""


def test_a_rank_imports_nothing_more_for_its_shell_and_its_seeds() -> None:
    said = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False)
    assert said.stdout.splitlines()[-1:] == ["imported: []"], said
