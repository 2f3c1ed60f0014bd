"""Which of the panel's buttons would change something."""

from __future__ import annotations

from typing import Any, cast

from nbcomm.notebook.session.registry import actions
from nbcomm.panel import useful_buttons as useful


def test_while_nothing_runs_and_all_live_there_is_nothing_to_interrupt_and_nothing_to_heal() -> None:
    assert useful(busy=False, hurt=False) == ["stop", "restart"]


def test_what_runs_can_be_interrupted_and_what_has_ended_healed() -> None:
    assert useful(busy=True, hurt=False) == ["interrupt", "stop", "restart"]
    assert useful(busy=False, hurt=True) == ["heal", "stop", "restart"]


def test_each_useful_button_is_a_button() -> None:
    assert useful(busy=True, hurt=True) == list(actions(cast("Any", None)))
