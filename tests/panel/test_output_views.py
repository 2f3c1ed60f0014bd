"""The views as a widget: one module, opened and closed with the panel; and what a page has missed."""

from __future__ import annotations

from typing import Any

import pytest

from nbcomm.errors import StateError
from nbcomm.panel import output_views
from nbcomm.panel.output_views import CellView


def test_it_leaves_no_widget_behind() -> None:
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    close = output_views.open_views()
    assert len(set(_instances) - before) == 2  # it and its layout
    close()
    assert set(_instances) == before


class Ran:
    """A cell that has run."""

    def __init__(self, began: float, outputs: list[dict[str, Any]] | None) -> None:
        self.missed = False
        self._began = began
        self._outputs = outputs

    def view(self) -> CellView:
        return CellView(4, "c2", self._began, None)

    def outputs(self) -> list[dict[str, Any]]:
        if self._outputs is None:
            raise StateError("too large")
        return self._outputs


class Widget:
    """A page's side."""

    def __init__(self, read: Any) -> None:
        self.read = read
        self.sent: list[dict[str, Any]] = []
        self.on_msg = lambda hear: setattr(self, "hear", hear)
        self.send = self.sent.append


def test_a_page_tells_what_it_lacks_and_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_views, "open_widget", lambda _main, read: widgets.append(Widget(read)) or widgets[0])
    widgets: list[Any] = []
    shown = [{"output_type": "stream", "name": "stdout", "text": "a"}]
    ran = [Ran(1.5, shown), Ran(2.5, None), Ran(3.5, shown)]
    output_views.open_views(ran)
    page = widgets[0]
    assert page.read()["cells"] == [cell.view() for cell in ran]
    assert page.read()["opened"] <= page.read()["now"]
    page.hear(page, {"kind": "lacks", "cells": [1.5, 2.5]}, [])
    assert [cell.missed for cell in ran] == [True, True, False]
    for began in (1.5, 2.5, 9.5):
        page.hear(page, {"kind": "show", "cell": began}, [])
    assert page.sent == [
        {"kind": "output", "cell": 1.5, "outputs": shown},
        {"kind": "output", "cell": 2.5, "said": "too large"},
    ]
    assert [cell.missed for cell in ran] == [False, True, False], "what was too large is shown by %distributed last"
