"""A rank's variables: found by name, and described in plain words and numbers, since a notebook never loads torch."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch

from ...cell_names import hides
from ...errors import SubsetError, TransferError
from ...short_repr import sketch
from .digest import shared
from .structure import IncomparableError, data_of, dtype_of, own_part

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST, _SENTENCE = 80, 400
"""The most characters of a value, and of an error's description."""


def users(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> list[str]:
    """Return the names that a user made, ascending: those that ``%whos`` lists.

    Args:
        namespace: the user's.
        hidden: what the shell put there by itself.
    """
    nobody = object()
    found = list(namespace.items())  # a thread of the user's may add to it meanwhile
    return sorted(name for name, value in found if name[:1] != "_" and value is not hidden.get(name, nobody))


def find(namespace: dict[str, Any], name: str) -> Any:
    """Return the value of a name, or of an expression of names.

    Raises:
        TransferError: there is none; the message says why, but not on which rank.
    """
    if name in namespace:
        return namespace[name]
    try:
        tree = ast.parse(name.strip(), "<variable>", "eval")
    except (SyntaxError, ValueError) as error:
        raise TransferError(f"{_clean(name)} is neither a name nor an expression") from error
    if any(isinstance(node, ast.NamedExpr) for node in ast.walk(tree)):
        raise TransferError(f"{_clean(name)} would assign a name, but inspecting variables changes nothing")
    try:
        return eval(compile(tree, "<variable>", "eval", dont_inherit=True), namespace)  # noqa: S307 - as a cell does
    except NameError as error:
        raise TransferError(f"{error.name or name} is not defined") from error
    except SubsetError as error:
        raise TransferError(f"{name} needs other ranks; run it in a cell, and inspect the result") from error
    except (Exception, SystemExit) as error:  # no expression ends the rank
        raise TransferError(f"{name} raises {_clean(f'{type(error).__name__}: {error}', _SENTENCE)}") from error


def survey(
    namespace: dict[str, Any], hidden: Mapping[str, Any], names: Iterable[str], *, hashes: bool
) -> dict[str, dict[str, Any]]:
    """Describe variables.

    Args:
        namespace: the user's.
        hidden: what the shell put there by itself.
        names: names or expressions; none means all that a user made.
        hashes: hash the values, so that they can be compared.

    Returns:
        For each name the result of `describe`; for a missing one ``absent`` says why.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names or users(namespace, hidden):
        try:
            value = find(namespace, name)
        except TransferError as error:
            found[name] = {"absent": str(error)}
        else:
            found[name] = describe(value, hashes=hashes)
            if hides(name, namespace, hidden):
                found[name]["hides"] = True
            if _is_import(name, value):
                found[name]["imported"] = True
    return found


def _is_import(name: str, value: Any) -> bool:
    """Return whether this is a module, or what one has under this name."""
    if inspect.isroutine(value) or isinstance(value, type):
        return getattr(value, "__name__", "") == name and getattr(value, "__module__", "") != "__main__"
    return isinstance(value, types.ModuleType)


def describe(value: Any, *, hashes: bool) -> dict[str, Any]:
    """Describe a value of any type.

    Returns:
        The fields of `nbcomm.notebook.variables.table.Seen`; what does not apply is left out.
    """
    said: dict[str, Any] = {"type": _clean(type(value).__name__)}
    for look in (_size, _place):
        try:
            said |= look(value)
        except Exception:  # noqa: BLE001, S112 - a user's own class may raise whatever it likes
            continue
    said["value"] = _value(value)
    if hashes:
        try:
            said |= shared(value)
        except IncomparableError as error:
            said["note"] = f"cannot be compared: {_clean(str(error))}"
    return said


def _place(value: Any) -> dict[str, Any]:
    """Describe where a value is stored, and whether it is a part of something."""
    said: dict[str, Any] = {}
    if isinstance(value, torch.nn.Module):
        devices = {str(tensor.device) for tensor in (*value.parameters(), *value.buffers())}
        said["device"] = ", ".join(sorted(devices))
    elif isinstance(value, torch.Tensor):
        said["device"] = str(value.device)
        if hasattr(value, "to_local"):
            placements: Any = getattr(value, "placements", ())
            said["shard"] = f"this rank's part of {tuple(value.shape)}, {', '.join(map(str, placements))}"
    return said


def _size(value: Any) -> dict[str, Any]:
    """Describe shape and dtype, bytes, and the number of entries."""
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        parameters = sum(parameter.numel() for parameter in value.parameters())
        return {"parameters": parameters, "nbytes": sum(tensor.numel() * tensor.itemsize for tensor in tensors)}
    if isinstance(value, torch.Tensor):
        local = own_part(value)
        said = {"dtype": dtype_of(local), "shape": tuple(local.shape)}
        return said if local.layout is not torch.strided else {**said, "nbytes": local.numel() * local.itemsize}
    # The class is asked: an object may make up any attribute that it is asked for, and keep it.
    shape = getattr(value, "shape", None) if hasattr(type(value), "shape") else None
    if isinstance(shape, tuple) and all(isinstance(length, int) for length in shape):
        said = {"shape": tuple(map(int, shape))}
        dtype, nbytes = getattr(value, "dtype", None), getattr(value, "nbytes", None)
        return {
            **said,
            **({"dtype": str(dtype)} if dtype is not None else {}),
            **({"nbytes": int(nbytes)} if isinstance(nbytes, int) else {}),
        }
    if isinstance(value, bool | int | float | complex):
        return {"nbytes": _bytes_of_number(value)}
    return {"length": len(value)} if isinstance(value, Sized) else {}


def _bytes_of_number(number: complex) -> int:
    """Return the bytes as in an array; only Python's integers grow."""
    if isinstance(number, bool):
        return 1
    if isinstance(number, int):
        return max(8, number.bit_length() // 8 + 1)
    return 8 if isinstance(number, float) else 16


def _value(value: Any) -> str:
    try:
        if inspect.isroutine(value):
            return _clean(f"{value.__name__}{inspect.signature(value)}")
        if isinstance(value, type):
            return _clean(f"{value.__module__}.{value.__qualname__}".removeprefix("__main__."))
        if isinstance(value, types.ModuleType):
            return _clean(value.__name__)
        data = data_of(own_part(value)) if isinstance(value, torch.Tensor) else None
        if isinstance(value, torch.Tensor) and data is None:
            return f"{str(value.layout).removeprefix('torch.')} tensor"
        return _clean(sketch(value if data is None else data))
    except Exception:  # noqa: BLE001 - as above, and a tensor without data
        return ""


def _clean(text: str, longest: int = _LONGEST) -> str:
    """Return one short line of printable characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in _ADDRESS.sub("", text[: 4 * longest]))
    line = " ".join(line.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
