"""The work of a daemon before its first order: import what its children will need, and count GPUs."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import traceback
from contextlib import suppress

from ...profile_file import PRELOAD_VARIABLE
from ...protocol import Ready
from . import child

_ALSO = (
    "nbcomm.comm",
    "nbcomm.comm.subset",
    "sqlite3",  # the rest are IPython's, which a shell imports as it is made
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)


def prepare() -> Ready:
    """Import what children need, and what the user wants them to have; return what a daemon reports then."""
    why, note = _warm_up()
    gpus = count_gpus()
    return Ready(not why, gpus, why, note, _nccl_version() if gpus else "")


def _warm_up() -> tuple[str, str]:
    """Do the imports; return why children cannot be forked, and what the user should know, or empty texts."""
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}", ""
    if os.environ.get("NBCOMM_START") == "spawn":
        return "NBCOMM_START=spawn", ""
    # Each of many collections would go through all modules so far, and what they free leaves holes in pages that forks
    # share: a fifth of the whole time, for a megabyte or two that is kept once for all ranks.
    gc.disable()
    try:
        _check_torch()
        for module in (child.MODULES["engine"], *_ALSO):
            importlib.import_module(module)
        note = _preload()
        why = freeze()
        return f"{why} (with {PRELOAD_VARIABLE}={os.environ[PRELOAD_VARIABLE]})" if why and _asked() else why, note
    finally:
        gc.enable()


def _check_torch() -> None:
    """End this process, with a sentence for its log, if torch is a build with which no world can be."""
    import torch

    if not torch.distributed.is_available():
        said = (
            f"torch {torch.__version__} was built without torch.distributed (USE_DISTRIBUTED=0), so it has no process "
            "groups. Install a build that has it: https://pytorch.org/get-started.\n"
        )
        os.write(2, said.encode())
        raise SystemExit(1)


def _asked() -> list[str]:
    return [name for part in os.environ.get(PRELOAD_VARIABLE, "").split(",") if (name := part.strip())]


def _preload() -> str:
    """Import what the user asks for; return, in a sentence, what could not be imported."""
    failed = []
    for name in _asked():
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            traceback.print_exc()
            failed.append(f"{name} ({type(error).__name__}: {error})")
    return f"{PRELOAD_VARIABLE}: these could not be imported: {', '.join(failed)}." if failed else ""


def freeze() -> str:
    """Prepare this process for forks, and return why it cannot fork, or an empty text."""
    threads = count_threads()
    if threads > 1:
        return f"{threads} threads run after the imports"
    gc.freeze()  # or the collector would write to every shared page, and so copy it
    return ""


def count_threads() -> int:
    """Count this process's threads, also those of C; Linux only."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - asked at each fork of a seed


def _nccl_version() -> str:
    """Return the version of NCCL that ranks will have; empty if there is none."""
    if "torch" not in sys.modules:
        return _asked_of_another("from nbcomm.torch_internals.nccl import version; print(version())")
    from ...torch_internals import nccl

    return nccl.version()


def _asked_of_another(code: str) -> str:
    """Return what a Python program prints."""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip()


def count_gpus() -> int:
    """Count CUDA devices in a child process: the count may initialise the driver, which forks cannot inherit."""
    if "torch" not in sys.modules:
        return int(_asked_of_another("import torch; print(torch.cuda.device_count())") or 0)
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
