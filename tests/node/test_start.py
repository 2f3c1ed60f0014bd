"""What a process that starts in another folder finds in its environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbcomm.node.start import environment


def test_relative_folders_of_pythonpath_are_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", "", "/usr/lib", "../other"]))
    found = environment({"ADDED": "1"})
    assert found["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "lib"), "", "/usr/lib", str(tmp_path / "../other")])
    assert found["ADDED"] == "1"
    assert found["HOME"] == os.environ["HOME"]
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in environment()


def test_where_this_folder_was_removed_they_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert environment()["PYTHONPATH"] == "lib"
