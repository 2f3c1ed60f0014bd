"""The views as a widget: one module, opened and closed with the panel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nbcomm.panel import views

PANEL = Path(views.__file__).parent


def test_its_files_are_one_module_without_imports(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail("This test needs node 20 or newer, which is not on PATH: `apt-get install nodejs`.")
    bundle = tmp_path / "views.mjs"
    bundle.write_text(views.javascript(), encoding="utf-8")
    assert "\nimport " not in views.javascript()
    # A name that two of the files have would be an error here.
    read = "console.log(typeof module.default.initialize, module.fold([0, 1]))"
    script = f"import({str(bundle)!r}).then((module) => {read})"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("function 0-1\n", "")


def test_every_file_of_the_views_is_in_it() -> None:
    there = {path.name for path in PANEL.glob("views*.js")}
    assert there == set(views._FILES)


def test_it_leaves_no_widget_behind() -> None:
    from ipywidgets import Widget
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    close = views.open_views()
    assert len(set(_instances) - before) == 2  # it and its layout
    close()
    assert set(_instances) == before
    assert issubclass(views._widget_class(), Widget)
