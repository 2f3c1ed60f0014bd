"""Where there is no Dynamo that could be told anything, torch.compile is as it was."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from nbcomm.torch_internals.compiling import follow_compile


def test_a_torch_that_cannot_be_told_compiles_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    monkeypatch.setattr(torch, "compile", plain)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # its import fails
    undo = follow_compile()
    assert torch.compile is not plain
    assert torch.compile(1, backend="eager") == ((1,), {"backend": "eager"})  # type: ignore[comparison-overlap,call-overload]
    undo()
    assert torch.compile is plain
