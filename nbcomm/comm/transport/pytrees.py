"""Nested data: dicts, lists, tuples, namedtuples and dataclasses, down to the leaves that are sent.

A *node* is one of those five; everything else is a *leaf*. Structure and types are kept: what is built from a node has
the node's own class, with its keys in its own order. Nodes are walked in an order that does not depend on how a dict
was filled: ``{"loss": …, "acc": …}`` on one rank fits ``{"acc": …, "loss": …}`` on another.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import CollectiveError


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the (key, child) pairs of a node in walking order; None for a leaf."""
    kind = _kind(type(value))  # type: ignore[arg-type]  # mypy doubts that a class is hashable
    if kind is None:
        return None
    if kind is dict:
        return [(key, value[key]) for key in _ordered(list(value))]
    if kind is list or kind is tuple:
        return list(enumerate(value))
    names = (field.name for field in dataclasses.fields(value))
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


@functools.lru_cache(maxsize=1024)  # called for every leaf
def _kind(cls: Any) -> type | None:
    """Return the kind of node that a class is, ``object`` for dataclasses; None for leaves."""
    if issubclass(cls, (dict, list)):
        return dict if issubclass(cls, dict) else list
    # torch.Size and other tuples with rules of their own are leaves; namedtuples and torch.return_types can be rebuilt.
    if issubclass(cls, tuple):
        return tuple if cls is tuple or hasattr(cls, "_make") or hasattr(cls, "n_sequence_fields") else None
    return object if dataclasses.is_dataclass(cls) else None


def rebuild(node: Any, values: Sequence[Any]) -> Any:
    """Return a new node like ``node`` with other children, given in walking order."""
    if isinstance(node, dict):
        filled = copy.copy(node)  # keeps the class, the order of the keys, and attributes of a subclass
        for key, value in zip(_ordered(list(node)), values, strict=True):
            filled[key] = value
        return filled
    if isinstance(node, list):
        if type(node) is list:
            return list(values)
        listed = copy.copy(node)
        listed[:] = values
        return listed
    if isinstance(node, tuple):
        make = getattr(type(node), "_make", type(node))  # a namedtuple, or a tuple and torch's return types
        return make(values)
    made = copy.copy(node)
    for (name, _), value in zip(children(node) or (), values, strict=True):
        object.__setattr__(made, name, value)  # works for a frozen dataclass, too
    return made


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to every leaf.

    >>> map_leaves(lambda leaf: leaf * 2, {"a": 1, "b": (2, [3])})
    {'a': 2, 'b': (4, [6])}
    """
    pairs = children(value)
    if pairs is None:
        return function(value)
    return rebuild(value, [map_leaves(function, child) for _, child in pairs])


def leaves(value: Any, path: str = "data") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, as a user would type it: ``data['loss'][0]``."""
    pairs = children(value)
    if pairs is None:
        yield path, value
        return
    for key, child in pairs:
        yield from leaves(child, _step(path, value, key))


def flat(value: Any) -> list[Any]:
    """Return the leaves alone, in walking order: faster than `leaves` if no paths are needed."""
    found: list[Any] = []
    _collect(value, found.append)
    return found


def _collect(value: Any, keep: Callable[[Any], None]) -> None:
    kind = _kind(type(value))  # type: ignore[arg-type]  # mypy doubts that a class is hashable
    if kind is None:
        keep(value)
    elif kind is list or kind is tuple:
        for child in value:
            _collect(child, keep)
    else:
        for _, child in children(value) or ():
            _collect(child, keep)


def fill(value: Any, new: Iterator[Any]) -> Any:
    """Return the same structure with its leaves taken from ``new``, in walking order."""
    return map_leaves(lambda _: next(new), value)


def merge(
    values: Sequence[Any],
    own: int,
    by_rank: Callable[[Sequence[str]], str],
    leaf: Callable[[str, Sequence[Any]], Any],
    path: str = "data",
) -> Any:
    """Walk the values of several ranks together and combine the leaves at each place.

    Args:
        values: one per rank, all of the same structure.
        own: the index of the value whose classes the result has.
        by_rank: says for the message which rank has which of these texts, one for each value.
        leaf: combines the leaves at one path.
        path: the path of ``values``.

    Raises:
        CollectiveError: the structures differ; the message says where, and what each rank has.
    """
    pairs = [children(value) for value in values]
    mine = pairs[own]
    if all(other is None for other in pairs):
        return leaf(path, values)
    shapes = [
        (_name(type(v)), None if p is None else [key for key, _ in p]) for v, p in zip(values, pairs, strict=True)
    ]
    if mine is None or any(shape != shapes[own] for shape in shapes):
        raise CollectiveError(
            f"The ranks passed data of different structure at {path}:\n{by_rank([describe(v) for v in values])}\n"
            "Pass the same structure on every rank,\nor mode='object' to collect whatever each rank has."
        )
    merged = [
        merge([p[place][1] for p in pairs if p is not None], own, by_rank, leaf, _step(path, values[own], key))
        for place, (key, _) in enumerate(mine)
    ]
    return rebuild(values[own], merged)


def outline(value: Any, leaf: Callable[[Any], str]) -> str:
    """Return the structure as text, equal on two ranks exactly if their data fits; ``leaf`` describes the leaves."""
    pairs = children(value)
    if pairs is None:
        return leaf(value)
    inner = ",".join(f"{key!r}:{outline(child, leaf)}" for key, child in pairs)
    return f"{_name(type(value))}({inner})"


# ---- words


def describe(value: Any) -> str:
    """Describe a value in a few words for a message.

    >>> describe(torch.zeros(2, 3)), describe({"a": 1}), describe([1, 2]), describe(None)
    ('a float32 tensor of shape (2, 3)', "a dict with the keys 'a'", 'a list of 2', 'None')
    """
    if isinstance(value, torch.Tensor):
        return _tensor_in_words(value.dtype, value.shape)
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    if isinstance(value, dict):
        keys = [repr(key) for key in _ordered(list(value))]
        shown = ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
        return f"{article} {name} with the keys {shown}" if keys else f"an empty {name}"
    if isinstance(value, (list, tuple)):
        return f"{article} {name} of {len(value)}"
    return "None" if value is None else f"{article} {name}"


@functools.lru_cache(maxsize=1024)  # called for every leaf
def _tensor_in_words(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"a {str(dtype).removeprefix('torch.')} tensor of shape {tuple(shape)}"


def _ordered(keys: list[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types; the order of insertion may differ between ranks
        return sorted(keys, key=lambda key: (_name(type(key)), repr(key)))


def _step(path: str, node: Any, key: Any) -> str:
    return f"{path}[{key!r}]" if isinstance(node, (dict, list, tuple)) else f"{path}.{key}"


def _name(kind: type) -> str:
    # By name: a class of a cell is another object on every rank, but the same class.
    return f"{kind.__module__}.{kind.__qualname__}"
