"""What a user may have meant, where only the rank can tell: it has the error itself, and what the names stand for.

Each is said only where it is certain. The notebook has hints of its own (`notebook.shell.hints`).
"""

from __future__ import annotations

import ast
import re
from typing import Any

import torch
import torch.distributed as dist

from ...cell_names import ALL, METHODS, PROPERTIES, imported_from_us, meant
from ...errors import CollectiveError
from . import none_results
from .none_results import Statement

_NO_GPU = re.compile(r"not compiled with CUDA|_cuda_setDevice|no NVIDIA driver|No CUDA GPUs")

_FOR_GOOD = re.compile(
    r"CUDA error: (device-side assert|an illegal (memory access|instruction)|unspecified launch failure|"
    r"misaligned address|invalid (program counter|address space)|hardware stack error|"
    r"uncorrectable (ECC|NVLink) error|the launch timed out)"
)
"""Errors after which CUDA refuses everything in the process: the driver's own (Xid) among them."""


def remedies(error: BaseException, shell: Any) -> list[str]:
    """Return what to say of the error of a cell, behind the ranks that have it.

    Args:
        error: with its traceback.
        shell: the rank's.
    """
    if isinstance(error, CollectiveError):  # says it itself
        return []
    found = _of_gpu(error, shell.user_ns) or _of_message(error, shell.user_ns)
    if not found and isinstance(error, TypeError | AttributeError):
        at = none_results.statement(error, shell.user_ns)
        if at is not None:
            found = none_results.explain(error, at) or _of_statement(error, at, shell)
    return [found] if found else []


def _of_gpu(error: BaseException, scope: dict[str, Any]) -> str:
    """Return what to do after an error of the GPU's own."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            "the memory of the GPU is used up: del what is not needed. _ and Out keep results of cells, and the last "
            "error keeps the variables of its functions. torch.cuda.empty_cache() gives back what torch keeps. "
            "%distributed status shows how much that is, and which ranks share the GPU."
        )
    if (why := _FOR_GOOD.search(str(error))) is None:
        return ""
    rank = getattr(scope.get("comm"), "rank", "RANK")
    return (
        f"CUDA does nothing more in this process after {why[1]}: type %distributed heal {rank} in a cell of its own to "
        "put a new process in its place; the other ranks keep their variables. To see the line that did it, restart "
        "with os.environ['CUDA_LAUNCH_BLOCKING'] = '1' in the notebook."
    )


def _of_message(error: BaseException, scope: dict[str, Any]) -> str:
    """Return what the error's own words and its traceback allow to say."""
    device = getattr(scope.get("comm"), "device", None)
    if _NO_GPU.search(str(error)) and device is not None and device.type == "cpu":
        return f'there is no GPU: write device, which is {device} here, in place of "cuda" or the number of a GPU.'
    if isinstance(error, ImportError):
        imported = imported_from_us(error)
        return f"{imported} needs no import: cells have it by its name." if imported else ""
    if isinstance(error, AttributeError):
        return _of_attribute(error, scope)
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.spawn":
            return (
                "the cell already runs once on each rank: call the function itself, with rank, in place of mp.spawn. "
                "nbcomm.spawn does that from the notebook."
            )
        step = step.tb_next
    return ""


def _of_attribute(error: AttributeError, scope: dict[str, Any]) -> str:
    owner = error.obj
    name = next((name for name in ("comm", "dist", "fabric") if owner is not None and scope.get(name) is owner), "")
    near = meant(str(error.name), [one for one in dir(owner) if one[:1] != "_"]) if name else ""
    return f"{name} has no {error.name}; did you mean {name}.{near}?" if near else ""


def _of_statement(error: BaseException, at: Statement, shell: Any) -> str:
    """Return what the failing statement allows to say of an error of its types."""
    said = str(error)

    def ours(name: str) -> bool:
        return name in ALL and shell.user_ns.get(name) is shell.user_ns_hidden.get(name)

    for node in at.parts:
        match node:
            case ast.Call(func=ast.Name(id=name)) if "is not callable" in said and name in PROPERTIES and ours(name):
                return f"{name} is a value, and no function: write {name}, without parentheses."
            case ast.For(iter=ast.Name(id=name)) | ast.comprehension(iter=ast.Name(id=name)) if (
                "'int' object is not iterable" in said and ours(name)
            ):
                return f"{name} is a number; range(world_size) counts all ranks."
            case ast.Await(value=ast.Call(func=ast.Name(id=name))) if "await" in said and ours(name):
                return f"{name} returns its result once it is there: leave await out."
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="dist"))) if (
                "of type torch.Tensor" in said and name in METHODS and shell.user_ns.get("dist") is dist
            ):
                return f"dist.{name} takes tensors only; {name}, without dist., takes any data, and returns the result."
    return ""
