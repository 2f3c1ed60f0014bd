"""Runs explorer.test.mjs under node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def test_the_pure_functions_of_explorer_js() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail("The tests of explorer.js need node 20 or newer, which is not on PATH: `apt-get install nodejs`.")
    tests = Path(__file__).with_name("explorer.test.mjs")
    done = subprocess.run([node, "--test", str(tests)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
