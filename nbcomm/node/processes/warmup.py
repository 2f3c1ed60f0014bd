"""The work of a fork server before its first order: import what its children will need, and count GPUs."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_ALSO = (
    "nbcomm.comm",
    "nbcomm.comm.subset",
    "sqlite3",  # the rest are IPython's, which a shell imports as it is made
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)


def warm_up(modules: Iterable[str]) -> str:
    """Import what children need, and return why they cannot be forked, or an empty text."""
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}"
    if os.environ.get("NBCOMM_START") == "spawn":
        return "NBCOMM_START=spawn"
    # Each of many collections would go through all modules so far, and what they free leaves holes in pages that forks
    # share: a fifth of the whole time, for a megabyte or two that is kept once for all ranks.
    gc.disable()
    try:
        for module in (*modules, *_ALSO):
            importlib.import_module(module)
        return freeze()
    finally:
        gc.enable()


def freeze() -> str:
    """Prepare this process for forks, and return why it cannot fork, or an empty text."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"{threads} threads run after the imports"
    gc.freeze()  # or the collector would write to every shared page, and so copy it
    return ""


def count_gpus() -> int:
    """Count CUDA devices in a child process: the count may initialise the driver, which forks cannot inherit."""
    if "torch" not in sys.modules:
        code = "import torch; print(torch.cuda.device_count())"
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        return int(answer.stdout.strip() or 0)
    import torch

    if not torch.backends.cuda.is_built():
        return 0
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0
        with suppress(Exception):
            count = torch.cuda.device_count()
        os.write(writing, str(count).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer_of_child:
        count = int(answer_of_child.read() or 0)
    os.waitpid(pid, 0)
    return count
