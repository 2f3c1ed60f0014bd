"""How many examples hypothesis tries of a law that has a number of its own: fewer in `make quick`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK = 5
"""So many examples of 100 are tried in `make quick`: it notices what is plainly wrong; `make test` tries all."""

# The same examples each time; how long one takes is the machine's affair. Here, and not in conftest.py, because a rank
# that unpickles a function imports the file of its test, and nothing else of pytest.
settings.register_profile("nbcomm", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("nbcomm"), max_examples=QUICK)


def examples(number: int, **more: Any) -> settings:
    """Settings with so many examples, or their part of it in `make quick`.

    They are there when a file of tests is imported, and the profile was chosen before.
    """
    return settings(max_examples=max(1, round(number * part())), **more)


def part() -> float:
    """The part of all examples that is tried in this run."""
    return settings.default.max_examples / settings.get_profile("nbcomm").max_examples
