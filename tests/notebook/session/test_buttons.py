"""Which of the panel's buttons would change something."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nbcomm.notebook.cluster import GROUPS
from nbcomm.notebook.session.buttons import in_words
from nbcomm.notebook.session.registry import actions
from nbcomm.panel import useful_buttons as useful


def test_while_nothing_runs_and_all_live_there_is_nothing_to_interrupt_and_nothing_to_heal() -> None:
    assert useful(busy=False, hurt=False) == ["stop", "restart"]


def test_what_runs_can_be_interrupted_and_what_has_ended_healed() -> None:
    assert useful(busy=True, hurt=False) == ["interrupt", "stop", "restart"]
    assert useful(busy=False, hurt=True) == ["heal", "stop", "restart"]


def test_each_useful_button_is_a_button() -> None:
    assert useful(busy=True, hurt=True) == list(actions(cast("Any", None)))


@pytest.mark.parametrize(
    ("healed", "living", "says"),
    [
        ([1], [0, 1, 2, 3], "Rank 1 is back after 0.2 s, without variables; the others kept theirs."),
        ([0, 1, 2, 3], [0, 1, 2, 3], "Ranks 0-3 are back after 0.2 s, without variables."),
        ([1, 2, 3], [0, 1, 2, 3], "Ranks 1-3 are back after 0.2 s, without variables; rank 0 kept its own."),
        ([1], [0, 1, 3], "Rank 1 is back after 0.2 s, without variables; ranks 0,3 kept theirs."),
        ([], [0, 1, 2, 3], "All processes are alive, so there was nothing to heal."),
    ],
)
def test_a_heal_says_who_kept_variables_and_nothing_of_others_where_there_are_none(
    healed: list[int], living: list[int], says: str
) -> None:
    assert in_words([f"rank {rank}" for rank in healed], 0.21, range(4), living) == says


def test_where_all_live_a_heal_has_formed_the_groups_again() -> None:
    says = "All processes are alive. Their process groups were formed again, and all variables are kept."
    assert in_words([GROUPS], 0.21, range(4), range(4)) == says
