"""The check that this version of torch has what nbcomm uses of it, made once before a world is formed."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from .c10d import _C, c10d, dist, put
from .gloo_sockets import GlooSockets
from .process_groups import give_default

_NEEDED_FROM_CPP = ("allgather", "allreduce", "broadcast")
"""The methods that C++ (DDP's reducer, functional collectives) calls on a group written in Python."""


def self_check(gloo: GlooSockets) -> str:
    """Return why this torch cannot hand out our groups; an empty text if it can.

    Args:
        gloo: what the groups will have.
    """
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch has no gloo"
    missing = [
        name
        for owner, names in (
            (
                c10d,
                ("_new_process_group_helper", "_world", "BackendConfig", "_new_group_with_tag", "_get_default_group"),
            ),
            (dist.ProcessGroup, ("_register_backend", "_set_default_backend", "_get_backend", *_NEEDED_FROM_CPP)),
            (_C, ("Work",)),
            (dist.ProcessGroupGloo, ("create_device", "_Options", "_set_default_timeout")),
            (dist.ProcessGroupGloo._Options, ("_devices", "_timeout", "_threads")),
        )
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        return f"torch {torch.__version__} has no {', '.join(missing)}"
    return _try_to_watch() or _try_a_group(gloo)


class _SeenError(Exception):
    """A replacement of a function of torch's was called."""


def _try_to_watch() -> str:
    """Replace the functions for waits and new groups, and check that users' calls reach the replacements."""

    def seen(*_: Any, **__: Any) -> None:
        raise _SeenError

    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(None)
    work = _C._create_work_from_future(done)
    for owner, name, call in (
        (_C.Work, "wait", functools.partial(operator.methodcaller("wait"), work)),
        (c10d, "_new_group_with_tag", functools.partial(dist.new_group, [0])),
    ):
        try:
            undo = put(owner, name, seen)
        except (AttributeError, TypeError):
            return f"torch {torch.__version__} does not let nbcomm observe {name}"
        try:
            call()
        except _SeenError:
            continue
        except Exception as error:  # noqa: BLE001 - any other error means that the replacement was not called
            return f"torch {torch.__version__} bypasses {name}: {error}"
        finally:
            undo()
        return f"torch {torch.__version__} bypasses {name}"
    return ""


_PLACE = (1, 3)
_NAME = "nbcomm-probe"


class _Probe(torch.distributed.ProcessGroup):
    """A group written in Python, like ours, whose default backend has another rank, size and name."""

    called = False

    def __init__(self, gloo: GlooSockets) -> None:
        rank, size = _PLACE
        super().__init__(rank, size)  # type: ignore[call-arg]
        give_default(self, gloo)

    def getBackendName(self) -> str:  # noqa: N802 - torch's C++ names
        return "gloo"

    def getGroupName(self) -> str:  # noqa: N802
        return _NAME

    def getRank(self) -> int:  # noqa: N802
        return _PLACE[0]

    def getSize(self) -> int:  # noqa: N802
        return _PLACE[1]

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        self.called = True
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(tensors)
        return _C._create_work_from_future(future)


def _try_a_group(gloo: GlooSockets) -> str:
    """Call a collective of a group written in Python from C++, and read its rank, size and name."""
    probe, how = _Probe(gloo), f"torch {torch.__version__} does not call process groups written in Python"
    try:
        _C._register_process_group(_NAME, probe)
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce(torch.zeros(1), "sum", _NAME))
        told = (probe.rank(), probe.size(), probe.group_name)
    except Exception as error:  # noqa: BLE001 - any failure here would happen later, too
        return f"{how}: {error}"
    finally:
        _C._unregister_process_group(_NAME)
    if not probe.called:
        return how
    if told != (*_PLACE, _NAME):
        return f"torch {torch.__version__} takes the rank, size or name of a process group from elsewhere: {told}"
    return ""
