"""The table of speeds prints; its figures are nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_table_prints_and_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench", "--only", "link", "panel", "--quick", "--json", str(file)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert "round trip of the link, 32 ranks" in done.stdout
    assert [row["what"] for row in json.loads(file.read_text())] == [
        line.split("  ")[0] for line in done.stdout.splitlines()[1:]
    ]
