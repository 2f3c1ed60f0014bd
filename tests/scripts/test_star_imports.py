"""What a star import brings, found without an import here: compared with what Python really binds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nbcomm.scripts import star_imports
from nbcomm.scripts.star_imports import names_in

FILES = {
    "plain.py": "import os as _os, json\nfrom string import digits\nx = _y = 1\ndef f(): inner = 1\nclass C: pass\n",
    "listed.py": "__all__ = ['a', '_b']\n__all__ += ('c',)\na = _b = c = hidden = 1\n",
    "branches.py": "try:\n    from no_such_module import *\nexcept ImportError:\n    from plain import *\nif x: y = 1",
    "package/__init__.py": "from .inner import deep\nown = 1\nprint('loud')\n",
    "package/inner.py": "deep = _hidden = 1\n",
    "computed.py": "globals().update(a=1)\nimport atexit\natexit.register(print, 'late')\n",
    "computed2.py": "b = 1\n__all__ = [name for name in dir() if name[0] != '_']\n",
    "broken.py": "x = = 1\n",
    "missing.py": "from no_such_module import *\n",
    "leaves.py": "raise SystemExit(0)\n",
    "stuck.py": "while True: pass\n",
}
TORCH = "torch.nn"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, which can be imported here, and end the test if they are."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def really(module: str, folder: Path) -> frozenset[str]:
    """What a star import binds, in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); del sys\nfrom {module} import *\nprint('these:', *dir())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    (names,) = [line.partition(":")[2] for line in done.stdout.splitlines() if line.startswith("these:")]
    return frozenset(name for name in names.split() if name[:2] != "__")


@pytest.mark.ranks
@pytest.mark.parametrize(
    "module",
    ["plain", "listed", "branches", "package", "package.inner", "computed", "computed2", "math", "os.path", TORCH],
)
def test_the_names_are_those_that_python_binds_and_nothing_is_imported_here(folder: Path, module: str) -> None:
    before = set(sys.modules)
    found = names_in(module)
    assert found is not None
    assert found == really(module, folder)
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {*FILES, "package", "torch"}


@pytest.mark.ranks
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("module", ["broken", "missing", "leaves", "stuck", "plain.x"])
def test_what_cannot_be_imported_has_no_names(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star_imports, "_PATIENCE", 10.0 if module != "stuck" else 0.5)
    assert names_in(module) is None


@pytest.mark.parametrize("module", ["no.such", ".a", ""])
def test_what_nobody_can_find_has_no_names(module: str) -> None:
    assert names_in(module) is None


def test_what_is_imported_already_knows_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = type(sys)("computed2")
    vars(computed).update(__all__=["_a", "b"], other=1)
    monkeypatch.setitem(sys.modules, "computed2", computed)
    assert names_in("computed2") == frozenset({"_a", "b"})
    del computed.__all__
    assert names_in("computed2") == frozenset({"other"})
