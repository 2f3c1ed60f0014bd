"""What a display is told by, whatever it holds."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import json_packer

from nbcomm.notebook.display.items import version
from nbcomm.protocol import Display

from ..cells import Cell

KEYS = st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text() | st.tuples(st.integers())
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(st.characters()),
    lambda inside: st.lists(inside) | st.dictionaries(KEYS, inside),
    max_leaves=20,
)


def deep(levels: int) -> Any:
    value: Any = {1: 2}
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.filterwarnings("ignore:Message serialization failed")  # Jupyter has no NaN either, and writes "nan"
@given(st.dictionaries(st.text(), VALUES))
def test_whatever_it_holds_it_has_a_digest_and_can_be_sent(data: dict[str, Any]) -> None:
    made = version(data, {})
    assert made.digest == version(data, {}).digest
    json.dumps(made.data, default=lambda part: part.hex())
    json_packer(made.data)


@pytest.mark.parametrize("odd", [{"a\udcff": "\udcff"}, 1 << 70, {1, 2}, object(), deep(50), deep(100_000)], ids=type)
def test_nothing_is_too_odd(odd: object) -> None:
    json_packer(version({"application/json": odd}, {"odd": odd}).data)


@pytest.mark.parametrize(
    ("key", "text"),
    [(1, "1"), (1.5, "1.5"), (True, "true"), (None, "null"), ((1, 2), "(1, 2)"), (b"a", "b'a'"), (math.inf, "inf")],
)
def test_keys_are_those_of_json_and_fold_with_them(key: object, text: str) -> None:
    made = version({"application/json": {key: 2}}, {})
    assert made.data == {"application/json": {text: 2}}
    assert made == version({"application/json": {text: 2}}, {})


def test_what_differs_has_another_digest() -> None:
    values = [1, 1.5, "1", None, True, b"1", [1], {"1": 1}, {(1,): 1}, math.nan]
    assert len({version({"application/json": value}, {}).digest for value in values}) == len(values)


def test_an_address_in_the_text_beside_a_richer_kind_does_not_count() -> None:
    made = [version({"text/html": "<b>x</b>", "text/plain": f"<Frame at 0x{end}>"}, {}) for end in ("7f1", "7f2")]
    assert made[0].digest == made[1].digest
    assert made[1].data["text/plain"] == "<Frame at 0x7f2>"


def test_the_order_of_keys_does_not_count() -> None:
    assert version({"a": {1: 2, 3: 4}}, {}).digest == version({"a": {3: 4, 1: 2}}, {}).digest


def test_what_comes_behind_a_display_with_odd_keys_is_shown() -> None:
    cell = Cell(range(2))
    for rank in range(2):
        cell.feed(rank, Display({"application/json": {1: 2}, "text/plain": "<JSON>"}))
        cell.write(rank, "behind\n")
    assert cell.close() == ["[0-1]\n", "<application/json={'1': 2}, text/plain=<JSON>>", "[0-1] behind\n"]
