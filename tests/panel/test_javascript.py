"""Runs every ``*.test.mjs`` of the tests under node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

PATHS = sorted(Path(__file__).parents[1].rglob("*.test.mjs"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_the_pure_functions_of(path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail(
            "The tests of the panel's JavaScript need node 20 or newer, which is not on PATH: `apt-get install nodejs`."
        )
    done = subprocess.run([node, "--test", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
