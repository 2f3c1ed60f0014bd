"""What was imported, and whether a fresh process would import the same."""

from __future__ import annotations

import importlib
import os
import shutil
import site
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from nbcomm.node.seed.imports import Imports


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that was imported, in a folder of the path, behind an empty one."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    file = tmp_path / "second" / "odd_module.py"
    file.write_text("x = 1")
    os.utime(file, (1, 1))
    monkeypatch.setattr(sys, "path", [*map(os.fspath, (tmp_path / "first", tmp_path / "second")), *sys.path])
    monkeypatch.setattr(site, "getsitepackages", lambda: [os.fspath(tmp_path)])
    importlib.import_module("odd_module")
    yield file
    del sys.modules["odd_module"]


def test_nothing_has_changed(module: Path) -> None:
    imports = Imports()
    imports.take_stock()
    assert imports.change() == ""
    assert imports.hidden() == ""


def _write(file: Path) -> None:
    file.write_text("x = 2")


def _date(file: Path) -> None:
    os.utime(file, (2, 2))


def _remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("change", [_write, _date, _remove])
def test_a_file_has_changed(module: Path, change) -> None:  # type: ignore[no-untyped-def]
    imports = Imports()
    imports.take_stock()
    change(module)
    assert imports.change() == f"{module} has changed since it was imported."


def test_what_is_imported_later_counts_too(module: Path) -> None:
    imports = Imports()
    kept = sys.modules.pop("odd_module")
    imports.take_stock()
    sys.modules["odd_module"] = kept
    os.utime(module, (2, 2))
    assert imports.change() == ""
    imports.take_stock()
    os.utime(module, (3, 3))
    assert str(module) in imports.change()


def test_a_file_that_was_edited_while_it_was_imported_never_holds(module: Path) -> None:
    imports = Imports()
    os.utime(module, ns=(time.time_ns(),) * 2)
    imports.take_stock()
    assert str(module) in imports.change()


def test_what_torch_writes_for_itself_is_no_change(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch up to 2.9 does; no version of torch at hand need be so old."""
    writer = SimpleNamespace(INSTANTIATED_TEMPLATE_DIR_PATH=os.fspath(module.parent))
    monkeypatch.setitem(sys.modules, "torch.distributed.nn.jit.instantiator", writer)
    os.utime(module, ns=(time.time_ns(),) * 2)
    imports = Imports()
    imports.take_stock()
    module.unlink()
    assert imports.change() == ""


def test_a_clock_that_is_ahead_costs_no_seed(module: Path) -> None:
    imports = Imports()
    os.utime(module, (time.time() + 1000,) * 2)
    imports.take_stock()
    assert imports.change() == ""


def test_a_new_file_of_paths_counts(module: Path) -> None:
    imports = Imports()
    imports.take_stock()
    (module.parent.parent / "new.pth").touch()
    assert "changes where Python looks" in imports.change()


def _told(other: str | Path, module: Path) -> str:
    return f"in this folder Python imports {other}, and the seed has imported {module}."


def test_a_module_earlier_in_the_path_hides_it_if_it_differs(module: Path) -> None:
    imports = Imports()
    imports.take_stock()
    other = module.parent.parent / "first" / "odd_module.py"
    other.touch()
    assert imports.hidden() == _told(other, module)
    other.write_bytes(module.read_bytes())
    assert imports.hidden() == ""


@pytest.mark.parametrize("part", ["__init__.py", "inner/part.py", "fast.so"])
def test_a_checkout_hides_the_package_that_was_installed_from_it_if_any_part_differs(
    module: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    installed, checkout = (module.parent.parent / folder / "odd_package" for folder in ("second", "first"))
    for file in (*("__init__.py", "inner/part.py", "fast.so"), "notebook.ipynb"):
        (installed / file).parent.mkdir(parents=True, exist_ok=True)
        (installed / file).touch()
    importlib.invalidate_caches()
    package = importlib.import_module("odd_package")
    del sys.modules["odd_package"]
    monkeypatch.setitem(sys.modules, "odd_package", package)  # only for this test
    imports = Imports()
    imports.take_stock()
    shutil.copytree(installed, checkout, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    assert imports.hidden() == ""
    (checkout / part).write_text("x = 3")
    assert imports.hidden() == _told(checkout / "__init__.py", installed / "__init__.py")
    (checkout / part).unlink()
    if part != "__init__.py":
        assert imports.hidden() == _told(checkout / "__init__.py", installed / "__init__.py")


def test_a_module_in_an_archive_hides_it(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = Imports()
    imports.take_stock()
    archive = module.parent.parent / "archive.zip"
    with ZipFile(archive, "w") as file:
        file.writestr("odd_module.py", "x = 2")
    monkeypatch.setattr(sys, "path", [os.fspath(archive), *sys.path])
    assert imports.hidden() == _told(f"{archive}/odd_module.py", module)
