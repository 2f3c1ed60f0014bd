"""Which cells ask for nothing but help."""

from __future__ import annotations

import pytest

from nbcomm.kernel.areas import asks_for_help


@pytest.mark.parametrize(
    "code",
    ["x?", "x??", "?x", "*reduce*?", "torch.nn.Linear?", "%pinfo x", "%psource x", "# what?\n\nx?\ny?\n", "%page x"],
)
def test_help(code: str) -> None:
    assert asks_for_help(code)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "# x?",
        "x",
        "x = 1\nx?",
        "print('x?')",
        "x % 2",
        "%time x",
        "!ls",
        "x = %sx ls",
        "%%time\nx?",
        "x = = ?",
        "(",
    ],
)
def test_other_cells(code: str) -> None:
    assert not asks_for_help(code)
