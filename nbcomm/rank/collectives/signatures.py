"""What a call of a process group is: its name for users, what must agree among the ranks, and its words.

The arguments are those that torch passes to `ProcessGroup`'s methods, from Python and from C++ alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...torch_internals.c10d import hash_of
from .fingerprints import Fingerprint, entry

NAMES = {
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""Methods of a process group whose name is not the one in `torch.distributed`."""

UNEVEN = ("all_to_all_single", "alltoall", "alltoall_base")
"""Methods whose ranks may send each other parts of different sizes."""

ROOTED = ("broadcast", "gather", "reduce", "scatter")
"""Methods that some ranks may leave before all have arrived."""


def returns_at_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the caller does not wait for a call: C++ (DDP) waits for it, or Python does later."""
    options = args[-1] if args else kwargs.get("opts")
    return bool(getattr(options, "asyncOp", True))


def describer(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Fingerprint]:
    """Return what `describe` does for the calls of one name; for one tensor to reduce in fewer steps.

    They are small steps, but each of them is one that a small collective waits for.
    """
    if name != "allreduce":
        return functools.partial(describe, name)
    known: dict[Any, Fingerprint] = {}

    def reduced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprint:
        try:
            tensors, options = args
            (tensor,) = tensors
            key = tensor.shape, tensor.dtype, hash(options.reduceOp)
            return known[key]
        except KeyError:
            if len(known) >= _CACHED:
                known.clear()
            return known.setdefault(key, describe(name, args, kwargs))
        except Exception:  # noqa: BLE001 - unusual arguments
            return describe(name, args, kwargs)

    return reduced


def describe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprint:
    """Return the fingerprint of a call, from a cache: the same call is made over and over."""
    try:
        key = name, _KEYS[name](*args, **kwargs)
    except Exception:  # noqa: BLE001 - unusual arguments: torch will say what is wrong with them
        key = name, ()
    try:
        return _cache[key]
    except KeyError:
        if len(_cache) >= _CACHED:
            _cache.clear()
        return _cache.setdefault(key, _entry(*key))


def message(kind: str, tensors: Sequence[Any]) -> Fingerprint:
    """Return the fingerprint of a message: sender and receiver agree if the number of elements and their dtype do."""
    (tensor,) = tensors
    return entry(hash_of(f"{tensor.dtype} {tensor.numel()}"), f"{kind} of {_dtype(tensor.dtype)} {tuple(tensor.shape)}")


def splits_of(name: str, args: tuple[Any, ...], size: int) -> tuple[list[int], list[int]]:
    """Return how many elements an all-to-all receives from, and sends to, each of ``size`` ranks."""
    try:
        if name == "alltoall":
            return [tensor.numel() for tensor in args[0]], [tensor.numel() for tensor in args[1]]
        output, given, received, sent = args[:4]
        return _split(output, received, size), _split(given, sent, size)
    except Exception:  # noqa: BLE001 - unusual arguments: torch will say what is wrong with them
        return [], []


def gloo_takes(name: str, args: tuple[Any, ...], splits: tuple[list[int], list[int]], me: int) -> bool:
    """Return whether gloo takes an all-to-all with these splits, as far as this rank alone (``me``) can say."""
    if name == "alltoall" and len({tensor.shape for tensor in (*args[0], *args[1])}) > 1:
        return False
    return all(len(counts) > me for counts in splits) and splits[0][me] == splits[1][me]


def _split(tensor: Any, rows: Sequence[int], size: int) -> list[int]:
    if not rows:  # equal shares; torch refuses a tensor that cannot be split so
        return [tensor.numel() // size] * size
    if sum(rows) != tensor.shape[0]:
        raise ValueError
    each = tensor.shape[1:].numel() if tensor.ndim else 1
    return [count * each for count in rows]


_CACHED = 4096
_cache: dict[tuple[str, tuple[Any, ...]], Fingerprint] = {}


def _entry(name: str, parts: tuple[Any, ...]) -> Fingerprint:
    words = []
    for part in parts:
        if part and isinstance(part, tuple) and isinstance(part[0], tuple):
            words.append(", ".join(f"{_dtype(dtype)} {tuple(shape)}" for shape, dtype in part))
        else:
            words.append(str(part))
    text = ", ".join(word for word in words if word)
    # The name that users know: two ways to call the same collective agree.
    full = f"{NAMES.get(name, name)}({text})"
    return entry(hash_of(full), full)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _of(tensors: Sequence[Any]) -> tuple[Any, ...]:
    if len(tensors) == 1:
        tensor = tensors[0]
        return ((tensor.shape, tensor.dtype),)
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


_ops: dict[int, str] = {}


def reduction(options: Any) -> str:
    """Return the name of the op in a call's options: "sum"."""
    op = options.reduceOp
    key = hash(op)  # torch's hash is the kind of op; to compare ops themselves would take as long as all the rest here
    try:
        return _ops[key]
    except KeyError:
        return _ops.setdefault(key, str(op.op).rpartition(".")[2].lower())


def _root(options: Any) -> str:
    return f"src {options.rootRank}"


def _dst(options: Any) -> str:
    return f"dst {options.rootRank}"


_KEYS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "_allgather_base": lambda _, given, *__: (_of([given]),),
    "_reduce_scatter_base": lambda _, given, options, *__: (_of([given]), reduction(options)),
    "all_gather_single": lambda _, given, *__: (_of([given]),),
    "all_gather_single_coalesced": lambda _, given, *__: (_of(given),),
    "all_to_all_single": lambda _, given, *__: (((given.shape[1:], given.dtype),),),
    "allgather": lambda _, given, *__: (_of(given),),
    "allgather_coalesced": lambda _, given, *__: (_of(given),),
    "allgather_into_tensor_coalesced": lambda _, given, *__: (_of(given),),
    "allreduce": lambda tensors, options, *_: (_of(tensors), reduction(options)),
    "allreduce_coalesced": lambda tensors, options, *_: (_of(tensors), reduction(options)),
    "alltoall": lambda _, given, *__: (str(given[0].dtype),),
    "alltoall_base": lambda _, given, *__: (((given.shape[1:], given.dtype),),),
    "barrier": lambda *_, **__: (),
    "broadcast": lambda tensors, options, *_: (_of(tensors), _root(options)),
    "gather": lambda _, given, options, *__: (_of(given), _dst(options)),
    "monitored_barrier": lambda *_, **__: (),
    "reduce": lambda tensors, options, *_: (_of(tensors), reduction(options), _dst(options)),
    "reduce_scatter": lambda _, given, options, *__: (_of(given[0]), reduction(options)),
    "reduce_scatter_single": lambda _, given, options, *__: (_of([given]), reduction(options)),
    "reduce_scatter_single_coalesced": lambda _, given, options, *__: (_of(given), reduction(options)),
    "reduce_scatter_tensor_coalesced": lambda _, given, options, *__: (_of(given), reduction(options)),
    "scatter": lambda got, _, options, *__: (_of(got), _root(options)),
}
