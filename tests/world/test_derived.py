"""Each function on the way of a request, an answer, an event or an order fails, and the session goes on.

See `derived`. `make test` does a sample, the same one each time; `make test-all` does each of them, once and for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .derived import EXCLUDED, KNOWN, SCENARIOS, Derived, Fault, begun, sample

_SECONDS = 40.0
"""What the sample of `make test` takes at most; it has those that are left out then in another order."""

_AGAIN, _FOR_EVER = 60, 60
"""So many functions fail in a scenario that have failed in an earlier one, and so many for ever."""


@pytest.fixture(scope="module")
def world() -> Iterator[Derived]:
    """A world in which functions fail."""
    with begun() as one:
        yield one


def _wrong(world: Derived, faults: Sequence[Fault], *, once: bool, until: float = float("inf")) -> dict[str, list[str]]:
    """Do these; return what is wrong, and assert that most of them have failed as they were told to."""
    wrong, done, fired = dict[str, list[str]](), 0, 0
    for fault in faults:
        done += 1
        complaints = world.outcome(fault, once=once)
        fired += complaints is not None
        if complaints:
            wrong[str(fault)] = complaints
        if time.monotonic() > until:
            break
    assert not done or fired > done / 4, "hardly any of them was called: what is traced is not what is spoiled"
    return wrong


def _told(wrong: dict[str, list[str]]) -> str:
    return "\n".join(f"{fault}\n    {'; '.join(complaints)}" for fault, complaints in wrong.items())


@pytest.mark.timeout(200)
def test_some_functions_fail_once(world: Derived) -> None:
    names = [name for name in SCENARIOS if not SCENARIOS[name].slow]
    found = [fault for name in names for fault in world.find(SCENARIOS[name])]
    assert len({fault.function for fault in found}) > 500, "hardly any function is found"
    assert {fault.thread for fault in found} >= {"main", "nbcomm-link", "nbcomm-watch"}
    wrong = _wrong(world, sample(found, 120), once=True, until=time.monotonic() + _SECONDS)
    assert not wrong, _told(wrong)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("once", [True, False], ids=["once", "for ever"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_function_fails(world: Derived, name: str, once: bool) -> None:
    found = world.find(SCENARIOS[name])
    wrong = _wrong(world, world.left(found, _AGAIN) if once else sample(found, _FOR_EVER), once=once)
    assert not wrong, _told(wrong)


def test_what_is_left_out_has_a_reason() -> None:
    assert all({**EXCLUDED, **KNOWN}.values())


def test_a_sample_has_each_group_in_turns() -> None:
    faults = [Fault("cell", side, "main", f"f{number}") for side in ("notebook", "rank") for number in range(3)]
    assert [fault.side for fault in sample(faults, 4)].count("rank") == 2
    assert sample(faults, 4) == sample(faults[::-1], 4)
    assert len(sample(faults, 99)) == len(faults)


def test_no_module_that_carries_bytes_is_named() -> None:
    text = Path(__file__).with_name("derived.py").read_text()
    assert not re.findall(
        r"nbcomm\.(?:node|launch|protocol)\b", re.sub(r"KNOWN = \{.*?\n\}", "", text, flags=re.DOTALL)
    )
