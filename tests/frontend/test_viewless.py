"""What a page gets is one module, made of several files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbcomm import panel
from nbcomm.frontend import viewless

PANEL = Path(panel.__file__).parent / "js"


@pytest.mark.outside
@pytest.mark.parametrize("name", ["panel.js", "views.js", "../../explorer/js/explorer.js"])
def test_its_files_are_one_module_without_imports(tmp_path: Path, name: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail("This test needs node 20 or newer, which is not on PATH: `apt-get install nodejs`.")
    bundle = tmp_path / "bundle.mjs"
    text = viewless.module(PANEL / name)
    bundle.write_text(text, encoding="utf-8")
    assert "\nimport " not in text
    # A name that two of the files have would be an error here.
    read = "console.log(typeof module.default.initialize, module.fold([0, 1]))"
    script = f"import({str(bundle)!r}).then((module) => {read})"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("function 0-1\n", "")


@pytest.mark.parametrize("name", ["panel", "views", "../../explorer/js/explorer"])
def test_every_file_is_in_it(name: str) -> None:
    main = PANEL / f"{name}.js"
    text = viewless.module(main)
    for path in main.parent.glob(f"{main.stem}*.js"):
        last = path.read_text(encoding="utf-8").rstrip().rpartition("\n\n")[2]
        assert last in text, path.name


def test_each_widget_has_its_own_styles_in_the_page() -> None:
    opened = [viewless.open_widget(PANEL / name) for name in ("panel.js", "views.js", "../../explorer/js/explorer.js")]
    try:
        assert len({widget._anywidget_id for widget in opened}) == 3
        assert len({widget._css for widget in opened}) == 3
    finally:
        for widget in opened:
            viewless.close_widget(widget)


def test_a_page_that_has_missed_messages_gets_the_present_state(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"version": 1}
    widget = viewless.open_widget(PANEL / "panel.js", lambda: state)
    sent: list[object] = []
    try:
        assert widget.get_state()["key"] == widget.model_id, "the page finds the model by it"
        monkeypatch.setattr(widget, "send", sent.append)
        state = {"version": 2}
        for message in ({"kind": "press"}, "missed", None, {"kind": "missed"}):
            widget._handle_custom_msg(message, [])
        assert sent == [{"version": 2}]
    finally:
        viewless.close_widget(widget)


def test_what_a_page_says_goes_where_the_page_says_and_not_to_the_subshell_of_one_that_is_gone() -> None:
    comm = SimpleNamespace(_reply_subshell_for=lambda _data, _default: "of a page that is gone")
    viewless._hear_each_page(comm)
    assert comm._reply_subshell_for is None, "ipykernel asks then for what the message says"
    viewless._hear_each_page(object())  # no such comm takes an attribute


def test_where_a_widget_cannot_be_opened_one_that_does_nothing_stands_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    viewless._widget_class.cache_clear()
    for name in ("panel.js", "views.js"):
        widget = viewless.open_widget(PANEL / name)
        widget.on_msg(print)
        widget.send({"kind": "delta"})
        viewless.close_widget(widget)
    [said] = caplog.messages
    assert said.startswith("nbcomm: the panel is a plain table in this notebook")
    assert "ModuleNotFoundError" in said


def test_a_file_comes_before_what_needs_it_and_once(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nimport {\n  c,\n} from "./c.js";\na;\n')
    (tmp_path / "b.js").write_text('import { c } from "./c.js";\nb;\n')
    (tmp_path / "c.js").write_text("c;\n")
    assert viewless.module(tmp_path / "a.js").split() == ["c;", "b;", "a;"]
