"""Builds of torch, and drivers, with which not everything can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .notebook import Notebook

NO_DISTRIBUTED = '''
import importlib.abc, sys


class WithoutDistributed(importlib.abc.MetaPathFinder):
    """What torch's own check finds in a build with USE_DISTRIBUTED=0."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed":
            import torch._C

            for part in [part for part in vars(torch._C) if part in {"_c10d_init", "_rpc_init", "_dist_autograd_init"}]:
                delattr(torch._C, part)
        return None


sys.meta_path.insert(0, WithoutDistributed())
'''


@pytest.mark.parametrize("warm", ["0", "1s"])
def test_a_torch_without_distributed_is_told_in_a_sentence(
    open_notebook: Callable[..., Notebook], tmp_path: Path, warm: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_DISTRIBUTED)
    notebook = open_notebook(PYTHONPATH=str(tmp_path), NBCOMM_WARM=warm)
    cell = notebook.run("%distributed start -n 2", fails=True, timeout=120)
    lines = cell.error_text.flat.removeprefix("StartError: ")
    assert lines.startswith("The process that starts the ranks ended. Its log ends: torch ")
    assert "was built without torch.distributed (USE_DISTRIBUTED=0), so it has no process groups. Install " in lines
    assert "Traceback" not in lines
