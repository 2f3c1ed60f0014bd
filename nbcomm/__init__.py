"""nbcomm: every notebook cell on N torch.distributed ranks.

In a notebook: ``%load_ext nbcomm``, then cells that begin with ``%%distributed``. From Python:
``nbcomm.start(4)``. In a script under torchrun: ``comm = nbcomm.init()``.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from .annotations import as_written
from .errors import (
    CellError,
    CellSyntaxError,
    CollectiveError,
    ExitError,
    HangError,
    MismatchError,
    NbcommError,
    OpError,
    RankDiedError,
    ScriptError,
    SpecError,
    StartError,
    StateError,
    SteeringError,
    SubsetError,
    TransferError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from IPython.core.interactiveshell import InteractiveShell

    from .comm import Communicator
    from .fabric import Fabric as Fabric
    from .notebook.session.session import Session
    from .pictures.picture import Picture

__version__ = "0.1.0"

__all__ = [
    "CellError",
    "CellSyntaxError",
    "CollectiveError",
    "ExitError",
    "HangError",
    "MismatchError",
    "NbcommError",
    "OpError",
    "RankDiedError",
    "ScriptError",
    "SpecError",
    "StartError",
    "StateError",
    "SteeringError",
    "SubsetError",
    "TransferError",
    "attach",
    "current",
    "draw",
    "explore",
    "init",
    "spawn",
    "start",
]


@as_written
def start(n: int | None = None, **options: Any) -> Session:
    """Start a world on this machine and return its `Session`, a context manager.

    Args:
        n: number of ranks; by default one per GPU; without a GPU 4, or 2 on a machine with one core.
        **options: ``device`` ("auto", "cpu" or "cuda"), ``backend``, ``timeout`` and ``grace`` in seconds,
            ``oversubscribe`` (start as many ranks as asked for, also if this machine does not hold them), ``share``
            (let them share GPUs over NCCL, where its version can), and ``name``, with which its title begins.

    Raises:
        StartError: the world did not start; no process of it is left. What cannot work is refused before one starts.

    Example:
        >>> with nbcomm.start(4) as session:  # doctest: +SKIP
        ...     session.run("all_reduce(rank)")
        [0-3] 6
    """
    from .notebook.session import registry

    try:
        return registry.start(n, **options)
    except SteeringError as error:
        raise error.with_traceback(None) from None  # the sentence helps, and not where nbcomm has written it


@as_written
def current(name: str = "") -> Session:
    """Return the `Session` of the notebook's own world, in which its ``%%distributed`` cells run.

    Args:
        name: the name of a world that was started with ``--world NAME``; by default the world without a name.

    Raises:
        StateError: no such world runs in this kernel.

    Example:
        >>> client = nbcomm.current().client  # ipyparallel's, for %px and %%px on the same ranks  # doctest: +SKIP
    """
    from .notebook.session import registry

    try:
        return registry.current(name)
    except SteeringError as error:
        raise error.with_traceback(None) from None


@as_written
def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs_dict: Mapping[str, Any] | None = None,
    nproc_per_node: int | None = None,
) -> list[Any]:
    """Call ``fn(local_rank, *args, **kwargs_dict)`` on every rank, and return what it returned on each.

    It is Ignite's ``idist.spawn`` without the argument ``backend``. If the notebook's world has the right number of
    ranks, the function runs there and sees its variables and names; else on ranks that live only for this call.

    Args:
        fn: the function; it may be typed in the notebook.
        args: its other arguments.
        kwargs_dict: its keyword arguments.
        nproc_per_node: number of ranks; None takes the notebook's world, or as many ranks as `start`.

    Raises:
        CellError: it raised on at least one rank.
        TransferError: the function, an argument or a result cannot be pickled.
        StartError: the ranks did not start.

    Example:
        >>> nbcomm.spawn(lambda local_rank, x: all_reduce(local_rank) * x, (2,), nproc_per_node=4)  # doctest: +SKIP
        [12, 12, 12, 12]
    """
    from .notebook.session import registry

    return registry.spawn(fn, args, kwargs_dict, nproc_per_node)


@as_written
def draw(name: str, values: Sequence[Any] | None = None, **how: Any) -> Picture:
    """Draw a collective: what each rank has before and after, and what moves where. No world is needed.

    Args:
        name: barrier, broadcast, scatter, gather, all_gather, reduce, all_reduce, reduce_scatter, all_to_all, scan,
            send or sendrecv.
        values: what each rank brings, in rank order: numbers, texts, lists, arrays or tensors. Of scatter the items
            that ``src`` has; of reduce_scatter and all_to_all a list of lists; of barrier the seconds after which each
            rank arrives. By default, example values are used.
        **how: ``n`` (how many ranks, where values do not say so), ``op``, ``src``, ``dst``, ``mode``, ``exclusive`` as
            in the collective itself, and ``ranks``, the global ranks of a group.

    Returns:
        A picture; a notebook shows it, ``.svg`` is its text, ``print`` writes it in words.

    Raises:
        CollectiveError: the collective does not exist, or the values do not fit it.
        OpError: the op does not exist, or is not defined for the values.

    >>> print(draw("broadcast", ["hello", None, None]))
    broadcast · src 0: out[r] = data of rank 0, on every rank r
    rank 0: 'hello' → 'hello'
    rank 1: – → 'hello'
    rank 2: – → 'hello'
    """
    from .pictures.picture import draw as drawn

    return drawn(name, values, **how)


@as_written
def explore(name: str = "all_reduce", *, n: int = 4) -> None:
    """Show the explorer of collectives here: choose one, step through it, count its steps and bytes, predict, break it.

    It needs no world. After a cell with ``--draw`` it can load the calls that the cell made.

    Args:
        name: the collective to begin with.
        n: the number of ranks to begin with, 2 to 16.

    Raises:
        CollectiveError: the collective does not exist.
    """
    from .explorer.explorer import explore as show

    show(name, n=n)


@as_written
def attach(identity: str | None = None) -> Session:
    """Attach to a world that another process of this user left running, and return its `Session`.

    Args:
        identity: the world's short name; it can be omitted for the world that an earlier kernel of this notebook has
            left, and in a kernel that does not know its notebook for one that such a kernel has left in this folder.

    Raises:
        StateError: there is no such world, it must be named, or another notebook steers it.
    """
    from .notebook.session import registry

    try:
        return registry.attach(identity)
    except SteeringError as error:
        raise error.with_traceback(None) from None


@as_written
def init() -> Communicator:
    """Join the process group of this script's torchrun and return the `Communicator` that cells call ``comm``.

    Every rank must call this. A group that exists already is used; inside a cell, you get the cell's communicator.

    Raises:
        CollectiveError: the script was not started by torchrun (or something that sets its variables).
    """
    from .comm.torchrun import init as join

    return join()


def __getattr__(name: str) -> Any:
    """Return `nbcomm.Fabric`, for saved scripts. It loads torch, so no ``import *`` brings it."""
    if name == "Fabric":
        from .fabric import Fabric

        return Fabric
    from .cell_names import ALL

    more = f"; write {name} in a %%distributed cell, and nbcomm.init().{name} in a script" if name in ALL else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, and let torch be imported meanwhile: ``%load_ext nbcomm``; a rank has its own."""
    if hasattr(shell, "begin_page"):
        return
    collects = gc.isenabled()
    gc.disable()  # each of many collections would go through all that the kernel has loaded: a fifth of the time
    try:
        from .node.seed import client

        client.hold()  # first: what a notebook needs is imported beside torch
        from .notebook.shell import extension

        extension.load(shell)
    finally:
        if collects:
            gc.enable()


def unload_ipython_extension(shell: InteractiveShell) -> None:  # noqa: ARG001 - IPython's signature
    """Stop the world, if one runs, and remove the magics: ``%unload_ext nbcomm``."""
    from .notebook.shell import extension

    extension.unload()
