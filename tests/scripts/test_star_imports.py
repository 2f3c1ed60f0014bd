"""What a star import brings, told without running the module: compared with what Python really binds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nbcomm.scripts.star_imports import names_in

FILES = {
    "plain.py": "import os as _os, json\nfrom string import digits\nx = _y = 1\ndef f(): inner = 1\nclass C: pass\n",
    "listed.py": "__all__ = ['a', '_b']\n__all__ += ('c',)\n__all__.append('d')\n__all__.extend(['e'] + ['f'])\n"
    "a = _b = c = d = e = f = hidden = 1\nassert sorted(__all__) == __all__ or True\n",
    "branches.py": "try:\n    from no_such_module import *\nexcept ImportError:\n    from plain import *\nif x: y = 1",
    "package/__init__.py": "from .inner.deep import *\nfrom . import side as _side\nown = 1\n",
    "package/inner/__init__.py": "raise SystemExit('this must not run')\n",
    "package/inner/deep.py": "deep = _hidden = 1\n",
    "package/side.py": "",
    "ring.py": "from ring2 import *\none = 1\n",
    "ring2.py": "from ring import *\ntwo = 2\n",
    "c.py": "from _bisect import *\n",
    "broken.py": "x = = 1\n",
    "computed.py": "globals().update(a=1)\n",
    "computed2.py": "__all__ = [name for name in dir() if name[0] != '_']\n",
    "computed3.py": "__all__ = ['a']\n__all__.remove('a')\n",
    "computed4.py": "from computed import *\n",
    "computed5.py": "class E:\n    exec('x = 1')\n",
    "missing.py": "from no_such_module import *\n",
}


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
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); del sys\nfrom {module} import *\nprint(*dir())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return frozenset(name for name in done.stdout.split() if name[:2] != "__")


@pytest.mark.ranks
@pytest.mark.parametrize("module", ["plain", "listed", "branches", "ring", "c", "math", "string", "cmath", "os.path"])
def test_the_names_are_those_that_python_binds(folder: Path, module: str) -> None:
    before = set(sys.modules)
    found = names_in(module)
    assert found is not None
    assert found == really(module, folder)
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {Path(file).stem for file in FILES}


def test_a_package_is_not_run_and_its_submodules_are_among_the_names(folder: Path) -> None:
    assert names_in("package") == frozenset({"deep", "own", "inner", "side"})
    assert names_in("package.inner.deep") == frozenset({"deep"})
    assert "package" not in sys.modules
    assert folder.is_dir()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "module",
    [
        "broken",
        "computed",
        "computed2",
        "computed3",
        "computed4",
        "computed5",
        "missing",
        "no.such",
        ".a",
        "",
        "plain.x",
    ],
)
def test_what_is_not_sure_is_not_known(module: str) -> None:
    assert names_in(module) is None


def test_what_is_imported_already_knows_its_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.is_dir()
    computed = type(sys)("computed2")
    vars(computed).update(__all__=["_a", "b"], other=1)
    monkeypatch.setitem(sys.modules, "computed2", computed)
    assert names_in("computed2") == frozenset({"_a", "b"})
    del computed.__all__
    assert names_in("computed2") == frozenset({"other"})


@pytest.mark.ranks
def test_torch_is_read_and_not_imported() -> None:
    code = "import sys; from nbcomm.scripts.star_imports import names_in; n = names_in('torch.nn')"
    code += "\nassert {'Linear', 'Module', 'functional'} <= n and 'torch' not in sys.modules, n"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
