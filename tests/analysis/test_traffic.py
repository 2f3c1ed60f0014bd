"""Bytes from rank to rank."""

from __future__ import annotations

from nbcomm.analysis.traffic import traffic

from .calls import step


def test_messages_and_shares_add_up_and_nobody_gives_himself_any() -> None:
    steps = {
        0: [
            step("send", 1, 0.0, kind="send", peer=2, nbytes=10),
            step("send", 2, 0.0, kind="send", peer=2, nbytes=5),
            step("all_gather", 1, 0.0, nbytes=8, gave=[8, 8, 8, 8]),
        ],
        2: [step("recv", 1, 0.0, kind="recv", peer=0), step("all_to_all", 1, 0.0, members=[2, 0], gave=[3, 4])],
    }
    assert traffic(steps) == {(0, 2): 23, (0, 1): 8, (0, 3): 8, (2, 0): 4}


def test_what_was_not_traced_is_not_known() -> None:
    assert traffic({0: [step("all_reduce", 1, 0.0, nbytes=100)]}) == {}
