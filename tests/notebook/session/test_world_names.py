"""Worlds with names, and the remedies that name them."""

from __future__ import annotations

import pytest

from nbcomm.errors import CellError, SpecError, StateError
from nbcomm.notebook.session.world_names import addressed, check_name


@pytest.mark.parametrize("name", ["b", "B2", "left-hand", "a.b_c", "7"])
def test_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-b", "a b", "a/b", ".", "'b'", "b\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid world name"):
        check_name(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Type %distributed heal to", "Type %distributed heal --world b to"),
        ("%distributed heal 1-2,5 puts", "%distributed heal 1-2,5 --world b puts"),
        (
            "%distributed heal 3, or %distributed restart.",
            "%distributed heal 3 --world b, or %distributed restart --world b.",
        ),
        ("%distributed start --world c", "%distributed start --world c"),
        ("%distributed healed", "%distributed healed"),
        ("a %%distributed cell", "a %%distributed cell"),
    ],
)
def test_remedies_name_the_world(text: str, said: str) -> None:
    assert addressed(text, "b") == said
    assert addressed(text, "") == text


def test_errors_are_reworded_whole() -> None:
    error = StateError("type %distributed stop first")
    error.reword(lambda text: addressed(text, "b"))
    assert str(error) == "type %distributed stop --world b first"
    failed = CellError("1 of 2: %distributed heal", {0: "%distributed heal"}, "[0] %distributed heal 0")
    failed.reword(lambda text: addressed(text, "b"))
    assert failed._render_traceback_() == [
        "[0] %distributed heal 0 --world b",
        "CellError: 1 of 2: %distributed heal --world b",
    ]
