"""Which front ends replace what they have shown, and what is shown in those that do not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.notebook.display.frontends import NO_UPDATES, id_of_running_cell, is_console, shows_updates


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 /home/ada/.local/bin/jupyter-console --kernel nbcomm",
        "python -m jupyter_console",
        "/usr/bin/jupyter-qtconsole",
        "python3 -m qtconsole",
    ],
)
def test_these_consoles_replace_nothing(command: str) -> None:
    assert is_console(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python3 /usr/bin/jupyter-lab",
        "python3 -m jupyterlab jupyter-console",
        "papermill qtconsole.ipynb out.ipynb",
    ],
)
def test_others_do(command: str) -> None:
    assert not is_console(command.split())


def test_a_variable_tells_it_of_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shows_updates()
    monkeypatch.setenv(NO_UPDATES, "1")
    assert not shows_updates()


def test_the_running_cells_id_is_what_the_front_end_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert id_of_running_cell() == "", "no kernel"
    told: dict[str, Any] = {}
    shell = SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda: told))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert id_of_running_cell() == "", "a front end that tells none"
    told["metadata"] = {"cellId": "c2"}
    assert id_of_running_cell() == "c2"
    told["metadata"] = {"cellId": 2}
    assert id_of_running_cell() == ""
