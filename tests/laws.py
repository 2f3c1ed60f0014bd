"""How many examples hypothesis tries of a law: fewer in `make test`, and fewer still in `make quick`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK, DAY = 5, 40
"""So many examples of 100 are tried in `make quick` and in `make test`; `make test-all` tries all."""

# The same examples each time; how long one takes is the machine's affair. Here, and not in conftest.py, because a rank
# that unpickles a function imports the file of its test, and nothing else of pytest.
settings.register_profile("nbcomm", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("nbcomm"), max_examples=QUICK)
settings.register_profile("day", settings.get_profile("nbcomm"), max_examples=DAY)


def examples(number: int, **more: Any) -> settings:
    """Settings with so many examples, or the part of it that is tried in this run.

    They are there when a file of tests is imported, and the profile was chosen before.
    """
    return settings(max_examples=max(1, round(number * part())), **more)


def part() -> float:
    """The part of all examples that is tried in this run."""
    return settings.default.max_examples / settings.get_profile("nbcomm").max_examples
