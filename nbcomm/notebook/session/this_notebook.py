"""The notebook that this process belongs to, so that a later kernel of it can recognize its world."""

from __future__ import annotations

import os
import sys


def this_notebook() -> str:
    """Return Jupyter's name for the notebook of this kernel; empty outside of one.

    It is the notebook's path if a Jupyter server has started the kernel. Otherwise (a terminal, nbclient) it is the
    kernel's connection file, which stays the same when that kernel is restarted.
    """
    name = os.environ.get("JPY_SESSION_NAME", "").encode(errors="replace").decode()  # it is written as JSON
    kernels = sys.modules.get("ipykernel.kernelapp")
    if name or kernels is None or not kernels.IPKernelApp.initialized():
        return name
    return str(kernels.IPKernelApp.instance().abs_connection_file)


def is_known(name: str) -> bool:
    """Return whether a name is that of a notebook, and not only of a kernel, which may be any notebook's.

    >>> is_known("/home/me/a.ipynb"), is_known("/run/user/0/kernel-1.json"), is_known("")
    (True, False, False)
    """
    return bool(name) and not name.endswith(".json")
