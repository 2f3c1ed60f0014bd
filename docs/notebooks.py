"""Plays the notebooks, and writes copies with what they showed: ``python docs/notebooks.py``.

A site that shows repositories draws a copy's texts, tables and pictures, and needs no kernel. Those in ``notebooks/``
stay without outputs. tests/test_docs.py holds the copies to the notebooks' cells.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"
COPIES = HERE / "notebooks"

_SECONDS = 120


def played(path: Path) -> Any:
    """A notebook with its outputs, without what is of this machine alone."""
    notebook = nbformat.read(path, as_version=4)
    # The views of widgets need a kernel; beside them stands what is seen without one.
    NotebookClient(notebook, timeout=_SECONDS, kernel_name="python3", store_widget_state=False).execute()
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it began
        for output in cell.get("outputs", []):
            _clean(output)
    return notebook


def _clean(value: Any) -> None:
    for key, inner in value.items():
        if isinstance(inner, str):
            value[key] = _plain(inner)
        elif isinstance(inner, list):
            value[key] = [_plain(text) if isinstance(text, str) else text for text in inner]
        elif isinstance(inner, dict):
            _clean(inner)


def _plain(text: str) -> str:
    text = text.replace(socket.gethostname(), "laptop").replace(str(HERE.parent), "~/nbcomm")
    return re.sub(re.escape(sys.prefix) + r"/lib/python[\d.]+/site-packages", "~/site-packages", text)


if __name__ == "__main__":
    (COPIES / "lessons").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBCOMM_CLASS"] = folder  # whoever plays them is no learner
        for notebook in sorted(NOTEBOOKS.rglob("[0-9]*.ipynb")):
            name = notebook.relative_to(NOTEBOOKS)
            nbformat.write(played(notebook), COPIES / name)
            print(f"{name} played.")
