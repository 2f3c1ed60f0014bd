"""A script's file is written as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbcomm.errors import ScriptError
from nbcomm.scripts import files


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_what_is_untouched_is_written_over_and_what_is_not_is_kept(there: Path) -> None:
    for text in ("x = 1\n", "x = 2\n"):
        files.write(files.check("~/a.py"), text)
    lines = (there / "a.py").read_text().splitlines()
    assert lines[0].startswith("# Made by nbcomm")
    assert lines[1:] == ["x = 2"]
    (there / "a.py").write_text("\n".join([lines[0], "x = 3"]))
    with pytest.raises(ScriptError, match="nothing was changed"):
        files.check("a.py")
    files.write(files.check("a.py", force=True), "x = 4\n")
    assert (there / "a.py").read_text().endswith("x = 4\n")
    assert list(there.iterdir()) == [there / "a.py"]


def test_a_link_stays_one(there: Path) -> None:
    (there / "b.py").symlink_to(there / "real.py")
    files.write(files.check("b.py"), "x = 1\n")
    assert (there / "b.py").is_symlink()
    assert "x = 1" in (there / "real.py").read_text()


@pytest.mark.parametrize("path", ["", " ", "a\0b", ".", "nowhere/a.py", "loop/a.py", "x" * 300])
def test_what_cannot_be_written_is_told(there: Path, path: str) -> None:
    (there / "loop").symlink_to(there / "loop")
    before = set(there.iterdir())
    with pytest.raises(ScriptError, match=r"\.$"):
        files.write(files.check(path), "x = 1\n")
    assert set(there.iterdir()) == before


def test_no_program_is_written_that_does_not_compile(there: Path) -> None:
    with pytest.raises(ScriptError, match="would not compile"):
        files.write(there / "a.py", "x = = 1\n")
    assert list(there.iterdir()) == []
