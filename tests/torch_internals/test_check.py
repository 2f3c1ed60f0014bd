"""What is used of torch's private interfaces: present here, and missed in words elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbcomm.torch_internals import check
from nbcomm.torch_internals.c10d import _C, c10d, dist
from nbcomm.torch_internals.gloo_sockets import GlooSockets


def test_this_torch_has_all_of_it() -> None:
    assert check.self_check(GlooSockets()) == ""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (c10d, "_new_process_group_helper"),
        (c10d, "_new_group_with_tag"),
        (dist.ProcessGroupGloo, "create_device"),
        (dist.ProcessGroup, "allreduce"),
    ],
)
def test_a_torch_without_it_is_told_by_what_it_lacks(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, name)
    assert check.self_check(GlooSockets()) == f"torch {torch.__version__} has no {name}"


def test_a_torch_that_does_not_call_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no trampolines here")

    monkeypatch.setattr(_C, "_register_process_group", refuse)
    monkeypatch.setattr(_C, "_unregister_process_group", lambda _: None)
    assert "does not call process groups written in Python: no trampolines here" in check.self_check(GlooSockets())


@pytest.mark.parametrize(
    ("owner", "name", "elsewhere", "told"),
    [
        (c10d, "_new_group_with_tag", (dist, "new_group"), "bypasses _new_group_with_tag"),
        (_C.Work, "wait", (check.operator, "methodcaller"), "bypasses wait"),
    ],
)
def test_a_torch_that_goes_another_way_is_told(
    owner: Any, name: str, elsewhere: tuple[Any, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = getattr(owner, name)
    monkeypatch.setattr(*elsewhere, lambda *_: lambda *_: None)
    assert check.self_check(GlooSockets()) == f"torch {torch.__version__} {told}"
    assert getattr(owner, name) is before


def test_a_torch_that_asks_the_backend_for_a_groups_numbers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check._Probe, "getSize", lambda _: 1)  # as torch 2.14 would, had the group not its own
    told = check.self_check(GlooSockets())
    assert told == (
        f"torch {torch.__version__} takes the rank, size or name of a process group from elsewhere: "
        "(1, 1, 'nbcomm-probe')"
    )


def test_without_gloo_there_is_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert check.self_check(GlooSockets()) == "this torch has no gloo"
