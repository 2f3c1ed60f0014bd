"""The views as a widget: one module, opened and closed with the panel."""

from __future__ import annotations

from nbcomm.panel import output_views


def test_it_leaves_no_widget_behind() -> None:
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    close = output_views.open_views()
    assert len(set(_instances) - before) == 2  # it and its layout
    close()
    assert set(_instances) == before
