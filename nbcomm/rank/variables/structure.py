"""What a value consists of: data and plain values at its leaves, and the parts of everything else.

The hash of a value and the search for differences of two values both walk along this. Pickles would not do: the same
value has many, depending on which of its parts are one object, and on the order in which a set was filled.
"""

from __future__ import annotations

import copyreg
import dataclasses
import sys
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

PLAIN = (int, float, complex, bool, str, bytes, bytearray, type(None), type(...), type(NotImplemented))
"""Types whose values have no parts; values of their subclasses may have."""

BLOCK = 1 << 24
"""Bytes of data that are read in one step: an interrupt can come between two steps."""

_DICTS = (dict, OrderedDict, defaultdict, Counter, types.MappingProxyType)
_SETS = (set, frozenset)

_MADE = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate_func__"),
    *("__annotations_cache__", "__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"),
    *("__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__", "__slotnames__"),
}
"""What Python itself stores in a class."""


class ValueParts(NamedTuple):
    """What a value consists of.

    Attributes:
        kind: its type, and the function that would make it.
        items: its parts, each with what follows the value's name to refer to it: ``[0]``, ``['a']``, ``.x``.
        ordered: the order of the parts counts.
        sealed: the parts are not to be shown: a function's, a class's.
        place: where in a sharded value this rank's part is; empty if all ranks have the same.
    """

    kind: str
    items: list[tuple[str, Any]]
    ordered: bool = True
    sealed: bool = False
    place: str = ""


class IncomparableError(Exception):
    """A value that cannot be looked into: a lock, a generator, an open file."""


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, bytes or the like."""
    return type(value) in PLAIN


def data_of(value: Any) -> torch.Tensor | np.ndarray[Any, Any] | None:
    """Return the dense tensor or array that a value is; None for all else, and for a sharded tensor."""
    if isinstance(value, torch.Tensor):
        if _is_wrapper(value) or value.is_nested or value.is_quantized or value.layout is not torch.strided:
            return None
        if value.device.type == "meta":
            raise IncomparableError("it is on the meta device, and has no data")
        tensor: torch.Tensor = value.detach()
        return tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if type(value) in (np.ndarray, np.memmap, np.recarray) and not value.dtype.hasobject:
        return np.asarray(value)
    return None


def own_part(value: Any) -> Any:
    """Return this rank's part of a sharded tensor; any other value as it is."""
    return value.to_local() if hasattr(type(value), "to_local") else value


def dtype_of(data: torch.Tensor | np.ndarray[Any, Any]) -> str:
    """Return the name of the data's dtype: ``float32``."""
    return str(data.dtype).removeprefix("torch.")


def blocks(shape: tuple[int, ...], itemsize: int, most: int = BLOCK) -> Iterator[tuple[Any, ...]]:
    """Index the parts of an array of this shape one after the other, in logical order, none of them large.

    >>> list(blocks((2, 3), 8, most=16))
    [(0, slice(0, 2, None)), (0, slice(2, 4, None)), (1, slice(0, 2, None)), (1, slice(2, 4, None))]
    """
    size = itemsize
    for length in shape:
        size *= length
    if not size:
        return
    if size <= most or not shape:
        yield (...,)  # not (): for an array without dimensions NumPy would give a scalar, perhaps of another dtype
        return
    row = size // shape[0]
    if row > most:
        for place in range(shape[0]):
            for rest in blocks(shape[1:], itemsize, most):
                yield (place, *rest)
    else:
        step = most // row
        for start in range(0, shape[0], step):
            yield (slice(start, start + step),)


def bytes_of(block: torch.Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bytes of a dense tensor or array in logical order; copied only if not contiguous on the CPU."""
    if isinstance(block, torch.Tensor):
        plain = block.resolve_conj().resolve_neg().cpu().contiguous()
        # With strides of 1: a single element with another stride counts as contiguous, but cannot be viewed as bytes.
        return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8)


def parts_of(value: Any) -> ValueParts:  # noqa: C901, PLR0911 - a table of kinds
    """Split a value that is neither plain nor dense data into its parts.

    Raises:
        IncomparableError: the value cannot be looked into.
    """
    kind = name_of(type(value))
    if type(value) in (list, tuple):
        return ValueParts(kind, [(f"[{place}]", item) for place, item in enumerate(value)])
    if type(value) in _DICTS:
        return ValueParts(kind, _items(value.items()), ordered=False)
    if type(value) in _SETS:
        return ValueParts(kind, [("{…}", item) for item in value], ordered=False)
    if isinstance(value, torch.nn.Module):
        tensors = (*value.named_parameters(), *value.named_buffers())
        return ValueParts(kind, [(f"[{name!r}]", tensor) for name, tensor in tensors], ordered=False)
    if hasattr(type(value), "device_mesh") and hasattr(type(value), "to_local"):
        return _sharded(value)
    if isinstance(value, torch.Tensor):
        return ValueParts(kind, _tensor(value))
    if kind == "torch.distributed.device_mesh.DeviceMesh":  # it knows its own rank, too
        return ValueParts(kind, [(f".{name}", getattr(value, name)) for name in ("mesh", "mesh_dim_names")])
    if isinstance(value, np.ndarray) and value.dtype.hasobject and value.dtype.names is None:
        places = [(str(list(place)), value[place]) for place in np.ndindex(value.shape)]
        return ValueParts(f"{kind} {value.shape}", places)
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, types.ModuleType):
        return ValueParts(f"module {value.__name__}", [], sealed=True)
    if dataclasses.is_dataclass(value):
        return ValueParts(kind, [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)])
    return _reduced(kind, value)


def name_of(kind: Any) -> str:
    """Return the full name of a class or a function."""
    return f"{kind.__module__}.{getattr(kind, '__qualname__', '?')}"


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "__tensor_flatten__")


def _items(pairs: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in pairs:
        simple = is_plain(key) or (type(key) is tuple and all(map(is_plain, key)))
        found.append((f"[{key!r}]", item) if simple else (f"[key {len(found)}]", (key, item)))
    return found


def _sharded(tensor: Any) -> ValueParts:
    """Split a DTensor into how it is laid out, and this rank's part: that of another place is another one."""
    mesh, placements = tensor.device_mesh, tensor.placements
    layout = f"{', '.join(map(str, placements))} over {tuple(mesh.shape)} ranks"
    at = mesh.get_coordinate() or []
    place = [str(one) for one, placement in zip(at, placements, strict=False) if not placement.is_replicate()]
    kind = f"DTensor {tuple(tensor.shape)} {layout}"
    return ValueParts(kind, [("", tensor.to_local())], place=f"{','.join(place)} of {layout}" if place else "")


def _tensor(tensor: Any) -> list[tuple[str, Any]]:
    """Return the parts of a tensor that is not dense."""
    if _is_wrapper(tensor):
        return [(f".{name}", getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    if tensor.is_nested:
        return [(f"[{place}]", part) for place, part in enumerate(tensor.detach().unbind())]
    shape = (" (shape)", tuple(tensor.shape))
    if tensor.layout is torch.sparse_coo:
        whole = tensor.detach().coalesce()
        return [shape, (".indices()", whole.indices()), (".values()", whole.values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        names = ("crow_indices", "col_indices", "values")
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = ("ccol_indices", "row_indices", "values")
    else:
        raise IncomparableError("it is neither a dense nor a sparse tensor")
    return [shape, *((f".{name}()", getattr(tensor.detach(), name)()) for name in names)]


def _is_found_by_name(value: Any) -> bool:
    """Return whether all ranks can import it, so that its name identifies it."""
    found: Any = sys.modules.get(value.__module__ or "") if value.__module__ != "__main__" else None
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _function(function: types.FunctionType) -> ValueParts:
    kind = f"function {name_of(function)}"
    if _is_found_by_name(function):
        return ValueParts(kind, [], sealed=True)
    closure = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    defaults = function.__defaults__, function.__kwdefaults__
    items = [(" (code)", _code(function.__code__)), (" (defaults)", defaults), (" (closure)", closure)]
    return ValueParts(kind, items, sealed=True)


def _code(code: types.CodeType) -> list[Any]:
    """Return what a function does, without its line numbers."""
    constants = [_code(constant) if isinstance(constant, types.CodeType) else constant for constant in code.co_consts]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    return [code.co_code, constants, names, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]


def _class(kind: type) -> ValueParts:
    if _is_found_by_name(kind):
        return ValueParts(f"class {name_of(kind)}", [], sealed=True)
    members: list[tuple[str, Any]] = [(" (bases)", list(kind.__bases__))]
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, staticmethod | classmethod):
            members.append((name, (type(member).__name__, member.__func__)))
        elif isinstance(member, property):
            members.append((name, (member.fget, member.fset, member.fdel)))
        elif name not in _MADE and not isinstance(member, types.GetSetDescriptorType | types.MemberDescriptorType):
            members.append((name, member))
    return ValueParts(f"class {name_of(kind)}", members, sealed=True)


def _reduced(kind: str, value: Any) -> ValueParts:
    """Split any other object into its parts, as pickle does."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    except TypeError as error:  # Python's own words: cannot pickle '_thread.lock' object
        raise IncomparableError(str(error)) from error
    if isinstance(reduced, str):
        return ValueParts(f"{kind} {getattr(value, '__module__', '')}.{reduced}", [], sealed=True)
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle's own name for cls.__new__
        arguments = arguments[1:]
    elif function is not type(value):
        kind = f"{kind} {getattr(function, '__qualname__', type(function).__qualname__)}"
    found = [(f" (argument {place})", argument) for place, argument in enumerate(arguments)]
    states = state if type(state) is tuple and len(state) == 2 and isinstance(state[1], dict) else (state,)
    for one in states:
        if isinstance(one, dict):
            found += [(f".{name}", item) for name, item in sorted(one.items(), key=lambda pair: str(pair[0]))]
        elif one is not None:
            found.append((" (state)", one))
    found += [(f"[{place}]", item) for place, item in enumerate(items or ())]
    return ValueParts(kind, [*found, *_items(pairs or ())])
