"""Values in transit between the notebook and the ranks: pickled, with their bytes beside the pickle.

Pickle protocol 5 passes large buffers out of band instead of copying them into the pickle. NumPy supports
this itself, and `_Pickler` adds it for torch's tensors. Buffers then travel as raw frames, or, if both ends
share a file system, in one file that the receiver maps: copied once, by the sender.

A receiver's arrays and tensors are writable and its own: a mapped file is private to the mapping.
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import by_name
from ..errors import TransferError
from . import stays
from .common import Payload

FILE_FROM = 1 << 20
"""Buffers of at least this many bytes together travel in a file, if both ends share a file system."""

_ALIGN = 64

_CHUNK = 16 << 20
"""Bytes that are written at once: an interrupt waits for one write, and gigabytes would take seconds."""


class _Pickler(by_name.Pickler):
    """A pickler that takes tensors by their raw bytes."""

    parts = 0
    """How many sharded tensors it has met, of which this rank's own parts travel."""

    met: Any = None
    """The last object that it has met: where it cannot go on, that is the reason."""

    def reducer_override(self, obj: Any) -> Any:
        self.met = obj
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter):
            reduced = _reduce_tensor(torch, obj)
            if reduced is not None:
                return reduced
        elif torch is not None and isinstance(obj, torch.Tensor) and hasattr(obj, "to_local"):
            self.parts += 1
            return _itself, (_own_part(obj),)
        elif stays.remedy(obj) is not None:  # where it arrives, its class would say something else
            raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
        return super().reducer_override(obj)


def _itself(value: Any) -> Any:
    return value


def _own_part(sharded: Any) -> Any:
    """Return this rank's part of a DTensor: a mesh is worth nothing where its ranks are not."""
    own = sharded.detach().to_local()
    own = own.wait() if hasattr(own, "wait") else own
    return own.requires_grad_(sharded.requires_grad) if own.is_floating_point() else own


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    """Reduce a dense tensor to its bytes; return None for a tensor that torch's own pickling must handle."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    plain = tensor.detach().cpu().contiguous()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    # A tensor of one element is contiguous for any strides, but can be viewed as bytes only with strides of 1.
    flat = plain.as_strided((plain.numel(),), (1,))
    data = flat.view(torch.uint8).numpy() if plain.numel() else None
    return _rebuild_tensor, (
        pickle.PickleBuffer(data) if data is not None else None,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
    )


def _rebuild_tensor(
    data: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,  # noqa: FBT001 - pickle calls this, by position
    parameter: bool,  # noqa: FBT001
) -> Any:
    # Imported by name: a notebook that only steers never loads torch, but one that pulls a tensor must.
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    if data is None:
        tensor = torch.empty(shape, dtype=kind)
    else:
        tensor = torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def pack(
    value: Any, bulk: Path | None = None, notes: list[str] | None = None, *, to_ranks: bool = False
) -> tuple[Payload, list[Any]]:
    """Pickle a value.

    Args:
        value: anything that cloudpickle accepts; CUDA tensors arrive on the CPU.
        bulk: a directory that the receiver can read too; large buffers go to a file there.
        notes: gets what the receiver should know.
        to_ranks: whether it goes from the notebook to the ranks: then a remedy speaks of that.

    Of a sharded tensor this rank's own part travels, as a plain tensor.

    Returns:
        The blob, and the raw buffers that must follow its message as frames.

    Raises:
        TransferError: the value cannot be pickled; the message says what in it, why, and what to do.
    """
    raw: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=raw.append)
    try:
        pickler.dump(value)
    except Exception as error:
        raise TransferError(stays.told(value, error, pickler.met, to_ranks=to_ranks)) from error
    if pickler.parts and notes is not None:
        what = "a sharded tensor" if pickler.parts == 1 else f"{pickler.parts} sharded tensors"
        notes.append(f"only a part of {what} was sent; call full_tensor() on all ranks in a cell to get the whole.")
    buffers = [buffer.raw() for buffer in raw]
    sizes = [buffer.nbytes for buffer in buffers]
    if bulk is not None and sum(sizes) >= FILE_FROM:
        blob = Payload(stream.getvalue(), sizes, str(bulk / secrets.token_hex(8)))
        if _write(Path(blob.path), buffers):
            return blob, []
    return Payload(stream.getvalue(), sizes), buffers


@contextmanager
def packed(value: Any, bulk: Path | None = None) -> Iterator[tuple[Payload, list[Any]]]:
    """Pickle a value for the ranks, as `pack` does; its file is removed after the block, when all have mapped it."""
    blob, buffers = pack(value, bulk, to_ranks=True)
    try:
        yield blob, buffers
    finally:
        release(blob)


def unpack(blob: Payload, frames: Sequence[Any], load: Callable[..., Any] = pickle.loads) -> Any:
    """Rebuild a value; frames are the message's buffers (bytes, memoryviews or ZMQ frames).

    Args:
        blob: from `pack`.
        frames: see above.
        load: takes what `pickle.loads` takes, and does it.

    Raises:
        TransferError: the value cannot be rebuilt here (for example, a module is missing).
    """
    buffers: list[Any] = _map(blob) if blob.path else [bytearray(memoryview(frame)) for frame in frames]
    try:
        return load(blob.pickled, buffers=buffers)  # only from an authenticated peer
    except Exception as error:
        raise TransferError(f"A value cannot be rebuilt here: {type(error).__name__}: {error}") from error


def release(blob: Payload) -> None:
    """Remove the blob's file. Call this after every receiver has mapped it; the mappings stay valid."""
    if blob.path:
        Path(blob.path).unlink(missing_ok=True)


def _write(path: Path, buffers: list[memoryview]) -> bool:
    """Write the buffers to one new file.

    Return False if the directory is not ours alone, or has no room for twice as much, or no file may be as large. If
    anything else interrupts it, no file is left.
    """
    bulk = path.parent
    try:
        with suppress(FileExistsError):
            bulk.mkdir(mode=0o700)
        status = bulk.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False  # all users can write to /dev/shm, and the name is in the list of processes
        room = os.statvfs(bulk)
        if 2 * sum(buffer.nbytes for buffer in buffers) > room.f_bavail * room.f_frsize:
            return False
        with open(path, "xb", buffering=0, opener=_private) as file:
            for buffer in buffers:
                file.seek(-file.tell() % _ALIGN, os.SEEK_CUR)
                sent = 0
                while sent < buffer.nbytes:
                    sent += file.write(buffer[sent : sent + _CHUNK])
    except OSError:  # RLIMIT_FSIZE, or another process has taken the room
        path.unlink(missing_ok=True)
        return False
    except BaseException:  # ■
        path.unlink(missing_ok=True)
        raise
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _map(blob: Payload) -> list[memoryview]:
    with Path(blob.path).open("rb") as file:
        # A private mapping: writable, copied page by page when it is written, never visible to other processes.
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers, start = [], 0
    for size in blob.sizes:
        start += -start % _ALIGN
        buffers.append(view[start : start + size])
        start += size
    return buffers
