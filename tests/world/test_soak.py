"""The short form of `make soak`."""

from __future__ import annotations

import pytest

from .soak import Soak


@pytest.mark.timeout(180)
@pytest.mark.nightly
def test_a_world_goes_through_forty_random_cells_and_faults() -> None:
    soak = Soak(seed=20)
    try:
        assert soak.run(40, 150.0) == 40
    finally:
        soak.close()
