"""The notebooks as slides: what is told together is seen together, without scrolling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

PLAYED = sorted((Path(__file__).parents[2] / "docs" / "notebooks").rglob("*.ipynb"))
HEIGHTS = "cells => cells.map(cell => cell.getBoundingClientRect().height)"
WIDE, HIGH = 960, 700
"""Pixels of reveal.js's slide."""


@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
def test_only_one_cell_by_itself_is_higher_than_a_slide(browser: Any, path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    shown, _ = HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "shown.html").write_text(shown, encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": WIDE, "height": HIGH})
    try:
        page = context.new_page()
        page.goto((tmp_path / "shown.html").as_uri(), wait_until="domcontentloaded")
        page.wait_for_function("[...document.images].every(image => image.complete)")
        heights = page.locator(".jp-Cell").evaluate_all(HEIGHTS)
    finally:
        context.close()
    slides: list[list[float]] = []
    for cell, height in zip(notebook.cells, heights, strict=True):
        if cell.metadata["slideshow"]["slide_type"] in ("slide", "subslide"):
            slides.append([])
        slides[-1].append(height)
    assert len(slides) > 10
    assert [slide for slide in slides if len(slide) > 1 and sum(slide) > HIGH] == []
