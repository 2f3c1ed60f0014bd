"""What is kept of past cells: no more of them than so many, and no more in them than so much."""

from __future__ import annotations

from typing import Any, cast

from nbcomm.notebook.display.displays import DisplayRegistry
from nbcomm.notebook.display.items import Rich, version
from nbcomm.notebook.output.past_cells import PastOutputs
from nbcomm.protocol import Clear, Display, Text


def _outputs(sizes: list[int], **bounds: int) -> tuple[PastOutputs, list[int]]:
    past = PastOutputs(**bounds)
    for request, size in enumerate(sizes):
        past.add(request, cast("Any", object()))
        past.note(request, [Text("stdout", "x" * size), Clear()])
    return past, [request for request in range(len(sizes)) if past.get(request) is not None]


def test_the_oldest_goes_where_there_are_too_many() -> None:
    assert _outputs([1] * 5, cells=3)[1] == [2, 3, 4]


def test_those_that_hold_much_go_when_the_next_begins() -> None:
    assert _outputs([60, 60, 10, 10], letters=100)[1] == [1, 2, 3]
    past, kept = _outputs([10, 500], letters=100)
    assert kept == [0, 1], "the last one is still being shown"
    past.add(2, cast("Any", object()))
    assert [past.get(request) is None for request in range(3)] == [True, True, False]


def test_data_count_and_what_is_forgotten_does_not() -> None:
    past, _ = _outputs([10], letters=100)
    past.note(0, [Display({"image/png": "x" * 200, "application/json": {"a": 1}})])
    past.add(1, cast("Any", object()))
    past.note(0, [Text("stdout", "x" * 1000)])
    past.add(2, cast("Any", object()))
    assert len(past) == 2


def test_numbers_and_lists_count_as_what_they_take() -> None:
    past, _ = _outputs([10], letters=100_000)
    past.note(0, [Display({"application/json": list(range(10_000))})])
    past.add(1, cast("Any", object()))
    assert past.get(0) is None


def test_displays_that_hold_much_can_be_updated_no_longer() -> None:
    registry = DisplayRegistry(held=100)
    for number in range(3):
        registry.add(0, Rich(version({"text/html": "x" * 60}, {}), f"d{number}"))
    new = version({"text/html": "y"}, {})
    assert [registry.update(0, f"d{number}", new) is not None for number in range(3)] == [False, False, True]


def test_the_values_on_which_ranks_do_not_agree_have_a_bound() -> None:
    part = Rich(version({"text/html": "x"}, {}), "d")
    for number in range(20):
        part.change(version({"text/html": str(number % 10) * (4 << 20)}, {}))
    assert sum(each.size for each in part.versions) <= 16 << 20
    assert part.versions[-1].data["text/html"][:1] == "9"
