"""What is asked of a world before one is started."""

from __future__ import annotations

import math

import pytest

from nbcomm.errors import StartError
from nbcomm.notebook.cluster.wishes import Wishes
from nbcomm.notebook.session import registry
from nbcomm.protocol import Claim
from nbcomm.protocol.codec import decode_order, encode


def test_a_world_may_live_for_ever_which_is_a_long_time() -> None:
    sound = registry._sound(Wishes(grace=math.inf, timeout=math.inf))
    assert sound.timeout < math.inf
    claim = decode_order(encode(Claim(1, 2, sound.grace)))
    assert isinstance(claim, Claim)
    assert claim.lease > 1e6


def test_nothing_is_prepared_for_times_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_prepared", lambda: pytest.fail("it was"))
    for wishes in ({"grace": math.nan}, {"grace": -1.0}, {"timeout": 0.0}, {"timeout": math.nan}):
        with pytest.raises(StartError, match="must be a number of seconds"):
            registry.start(2, **wishes)
