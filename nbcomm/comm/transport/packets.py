"""Any Python value as bytes that a collective can carry, and back.

A value becomes a `Packet`: a *head* of fixed size, so that every rank can receive it without knowing anything,
and beside it what did not fit in. Tensors, wherever in the value they are, and pickle's out-of-band buffers (numpy
arrays) are never copied into the pickle: small ones are packed into one buffer, big ones travel from where they lie.

::

    head    kind, lengths, and up to ROOM bytes inline: a small value costs one message
    host    bytes on the CPU: small tensors, widest items first, then the pickle  (or the bytes of one bare tensor)
    device  the same for the accelerator, if the group can carry that
    alone   big tensors, one by one

Widest items first, because then every tensor lies at a multiple of its item size and can be viewed without padding.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from ... import by_name
from ...errors import CollectiveError

HEAD_BYTES = 512
ALONE_FROM = 1 << 20  # from this size on, one more message is cheaper than two more copies
_HEAD = struct.Struct("<BBHHIIQQ")  # kind, rounds, call, inline length, meta length, line, lengths
ROOM = HEAD_BYTES - _HEAD.size

Side = Literal["host", "device"]
ERROR, BARE, OBJECT, NOTICE = range(4)  # a NOTICE has a head only

_DTYPES = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_GRAD, _PARAMETER, _ON_DEVICE, _CARRIED, _ALONE = 1, 2, 4, 8, 16
_BYTES = _CODES[torch.uint8]
_IN_NUMPY = {
    *(torch.float16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


class Spec(NamedTuple):
    """A tensor without its bytes."""

    code: int
    flags: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor."""
        return _DTYPES[self.code]

    @property
    def nbytes(self) -> int:
        """How long the tensor is, in bytes."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    @property
    def requires_grad(self) -> bool:
        """Whether the sender's tensor did."""
        return bool(self.flags & _GRAD)

    @property
    def side(self) -> Side:
        """In which part of the packet the bytes travel."""
        return "device" if self.flags & _CARRIED else "host"


@dataclass
class Packet:
    """A value on its way; see the module's text for the four parts.

    On a CPU group, ``{"w": <4 MB>, "b": <200 floats>, "n": 3}`` is::

        head    OBJECT, lengths                     512 bytes, in which what follows does not fit
        host    200 floats | meta: specs of w and b, 2, the pickle of {"w": #0, "b": #1, "n": 3}
        alone   w, from where it lies               not in a gather, a scatter or an all_to_all: there it is in host

    Attributes:
        kind: ERROR, BARE (one tensor), OBJECT (any other value), or NOTICE (no value).
        meta: what is needed to open it: an error's text, a tensor's spec, an object's specs and pickle.
        specs: of the tensors and out-of-band buffers in it, in the order in which pickle met them.
        inline: what travels in the head: host and meta, if there is room; a bare tensor's spec in any case.
        host: the part of that name; None until it is there, and if it is inline or there is none.
        device: likewise.
        alone: those that have come, or that are to be sent.
        host_bytes: how long host is.
        device_bytes: how long device is.
        meta_bytes: how long meta is, for the receiver.
        rounds: which parts any rank will send, as bits: see `exchange`.
        call: which collective this is for.
        line: the line that called it; 0 if that is not known.
        payload: how many of the specs are tensors; the pickle itself.
    """

    kind: int
    meta: bytes = b""
    specs: list[Spec] = field(default_factory=list)
    inline: bytes = b""
    host: torch.Tensor | None = None
    device: torch.Tensor | None = None
    alone: list[torch.Tensor] = field(default_factory=list)
    host_bytes: int = 0
    device_bytes: int = 0
    meta_bytes: int = 0
    rounds: int = 0
    call: int = 0
    line: int = 0
    payload: tuple[int, bytes] = (0, b"")

    @classmethod
    def error(cls, text: str) -> Packet:
        """Return a packet that says why this rank has nothing to send; the other ranks raise that, too."""
        meta = text.encode(errors="replace")[:ROOM]
        return cls(ERROR, meta, inline=meta)

    # ---- the head, out and in

    def head(self) -> torch.Tensor:
        """Return the fixed-size block, uint8 on the CPU."""
        block = bytearray(HEAD_BYTES)
        lengths = (len(self.inline), len(self.meta), self.line, self.host_bytes, self.device_bytes)
        _HEAD.pack_into(block, 0, self.kind, self.rounds, self.call, *lengths)
        block[_HEAD.size : _HEAD.size + len(self.inline)] = self.inline
        return torch.frombuffer(block, dtype=torch.uint8)

    @classmethod
    def from_head(cls, block: torch.Tensor) -> Packet:
        """Begin to receive: what fitted into the head is there; `size` says what is still to come."""
        raw = block.numpy().tobytes()
        kind, rounds, call, inline, meta, line, host, device = _HEAD.unpack_from(raw)
        content = raw[_HEAD.size : _HEAD.size + inline]
        packet = cls(kind, inline=content, host_bytes=host, device_bytes=device, meta_bytes=meta, rounds=rounds)
        packet.call, packet.line = call, line
        if kind == ERROR or not (kind == OBJECT and host):
            packet._read_meta(content[len(content) - meta :])
        return packet

    def size(self, side: Side) -> int:
        """Bytes in the host or in the device part."""
        return self.device_bytes if side == "device" else self.host_bytes

    def part(self, side: Side) -> torch.Tensor | None:
        """Return the host or the device part; None if there is none, or if it has not arrived."""
        return self.device if side == "device" else self.host

    def take(self, part: torch.Tensor, side: Side) -> None:
        """Accept the host or the device part: uint8, 1-D, as long as `size` says."""
        if side == "device":
            self.device = part
            return
        self.host = part
        if self.kind == OBJECT:
            self._read_meta(part[part.numel() - self.meta_bytes :].numpy().tobytes())

    def expected_alone(self) -> list[Spec]:
        """Return the tensors that are still to arrive one by one, once the host part is there."""
        return [spec for spec in self.specs if spec.flags & _ALONE]

    def _read_meta(self, meta: bytes) -> None:
        self.meta = meta
        if self.kind == BARE:
            code, flags, *shape = struct.unpack(f"<BB{(len(meta) - 2) // 8}q", meta)
            self.specs = [Spec(code, flags, tuple(shape))]
        elif self.kind == OBJECT:
            specs, count, payload = pickle.loads(meta)  # noqa: S301  # from a member of our own process group
            self.specs = [Spec(*spec) for spec in specs]
            self.payload = (count, payload)

    @property
    def bare(self) -> Spec | None:
        """The tensor that this is, if it is nothing but one tensor."""
        return self.specs[0] if self.kind == BARE else None

    @property
    def text(self) -> str:
        """What an error says."""
        return self.meta.decode(errors="replace")

    # ---- back to a value

    def open(self, device: torch.device, *, own: bool = True, sent: bool = False) -> Any:
        """Rebuild the value.

        Args:
            device: where tensors that came from an accelerator go.
            own: give each tensor memory of its own. Without it they may share one buffer, which is right only for
                values that are combined at once.
            sent: this is a packet that was packed here, so its big parts still lie in the sender's own tensors.
        """
        if self.kind == BARE:
            return self._open_tensor(device, own=own, sent=sent)
        letter = self.host
        if letter is None:
            letter = torch.frombuffer(bytearray(self.inline), dtype=torch.uint8)
        buffers = _slices(self.specs, letter, self.device, self.alone)
        tensors: dict[int, torch.Tensor] = {}

        def copied(spec: Spec) -> bool:
            return sent if spec.flags & _ALONE else own

        def tensor(place: int) -> torch.Tensor:
            if place not in tensors:  # the same tensor twice in a value is the same tensor twice again
                spec = self.specs[place]
                tensors[place] = _tensor(spec, buffers[place], device, clone=copied(spec))
            return tensors[place]

        count, payload = self.payload
        raw = [buffers[place].numpy() for place in range(count, len(self.specs))]
        raw = [part.copy() if copied(spec) else part for spec, part in zip(self.specs[count:], raw, strict=True)]
        return _Unpickler(io.BytesIO(payload), tensor, raw).load()

    def _open_tensor(self, device: torch.device, *, own: bool, sent: bool) -> torch.Tensor:
        (spec,) = self.specs
        data = self.device if self.device is not None else self.host
        if data is not None:
            return _tensor(spec, data, device, clone=sent)
        in_head = torch.frombuffer(bytearray(self.inline), dtype=torch.uint8)[: len(self.inline) - len(self.meta)]
        return _tensor(spec, in_head, device, clone=sent or own)


def pack(value: Any, carries: Callable[[torch.Tensor], bool], *, alone: bool = False) -> Packet:
    """Make a value ready to travel. Nothing is copied but what is packed together.

    Args:
        value: anything that pickle or cloudpickle takes.
        carries: whether the group can carry this tensor on its own (accelerator) device.
        alone: let big tensors travel one by one; only for collectives in which every rank sees every head.

    Raises:
        CollectiveError: the value cannot be pickled.
    """
    if plain(value):
        return _pack_bare(value, carries)
    tensors: list[torch.Tensor] = []
    buffers: list[torch.Tensor] = []
    payload = _pickled(value, tensors, buffers)
    specs = [_spec(tensor, carries, alone=alone) for tensor in tensors]
    specs += [Spec(_BYTES, _ALONE if alone and raw.numel() >= ALONE_FROM else 0, (raw.numel(),)) for raw in buffers]
    data = [as_bytes(tensor, spec) for tensor, spec in zip([*tensors, *buffers], specs, strict=True)]
    meta = pickle.dumps(([tuple(spec) for spec in specs], len(tensors), payload), protocol=5)
    on_host, on_device, single = _places(specs)
    packet = Packet(OBJECT, meta, specs, alone=[data[place] for place in single], payload=(len(tensors), payload))
    size = sum(data[place].numel() for place in on_host) + len(meta)
    letter = torch.cat([*(data[place] for place in on_host), torch.frombuffer(bytearray(meta), dtype=torch.uint8)])
    if size <= ROOM:
        packet.inline = letter.numpy().tobytes()
    else:
        packet.host, packet.host_bytes = letter, size
    if on_device:
        packet.device = torch.cat([data[place] for place in on_device])
        packet.device_bytes = packet.device.numel()
    return packet


def small_head(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the head of a plain tensor of the CPU that fits into it, as `pack` and `Packet.head` would; or None."""
    meta = struct.pack(f"<BB{tensor.ndim}q", _CODES[tensor.dtype], 0, *tensor.shape)
    size = tensor.numel() * tensor.itemsize
    if not 0 < size <= ROOM - len(meta) or tensor.dtype not in _IN_NUMPY:
        return None
    block = bytearray(HEAD_BYTES)
    _HEAD.pack_into(block, 0, BARE, 0, 0, size + len(meta), len(meta), 0, 0, 0)
    end = _HEAD.size + size
    block[_HEAD.size : end] = tensor.numpy().tobytes()
    block[end : end + len(meta)] = meta
    return torch.frombuffer(block, dtype=torch.uint8)


def from_small_head(head: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor of the CPU that a head has all of; None if there is something else in it."""
    raw = head.numpy().data
    kind, _, _, inline, meta, _, host, device = _HEAD.unpack_from(raw)
    end = _HEAD.size + inline - meta
    if kind != BARE or host or device or end == _HEAD.size:
        return None
    code, flags, *shape = struct.unpack_from(f"<BB{(meta - 2) // 8}q", raw, end)
    if flags & ~_GRAD:
        return None
    return torch.frombuffer(raw[_HEAD.size : end], dtype=_DTYPES[code]).view(shape).clone()


def _pack_bare(tensor: torch.Tensor, carries: Callable[[torch.Tensor], bool]) -> Packet:
    spec = _spec(tensor, carries, alone=False)
    spec = spec._replace(flags=spec.flags & ~_PARAMETER)  # its values are wanted, not the module's slot
    meta = struct.pack(f"<BB{len(spec.shape)}q", spec.code, spec.flags, *spec.shape)
    data = as_bytes(tensor, spec)
    packet = Packet(BARE, meta, [spec], inline=meta)
    if spec.side == "device":
        packet.device, packet.device_bytes = data, data.numel()
    elif data.numel() + len(meta) <= ROOM:
        packet.inline = data.numpy().tobytes() + meta
    else:
        packet.host, packet.host_bytes = data, data.numel()
    return packet


def _spec(tensor: torch.Tensor, carries: Callable[[torch.Tensor], bool], *, alone: bool) -> Spec:
    flags = _GRAD if tensor.requires_grad else 0
    if isinstance(tensor, torch.nn.Parameter):
        flags |= _PARAMETER
    if tensor.device.type != "cpu":
        flags |= _ON_DEVICE | (_CARRIED if carries(tensor) else 0)
    if alone and tensor.nbytes >= ALONE_FROM:
        flags |= _ALONE
    return Spec(_CODES[tensor.dtype], flags, tuple(tensor.shape))


def as_bytes(tensor: torch.Tensor, spec: Spec | None = None) -> torch.Tensor:
    """Return the tensor's bytes, 1-D uint8: a view if its memory is contiguous, otherwise a copy."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if spec is not None and spec.flags & _ON_DEVICE and spec.side == "host":
        flat = flat.cpu()
    if flat.stride(0) != 1:  # it has one element, and so counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _tensor(spec: Spec, data: torch.Tensor, device: torch.device, *, clone: bool) -> torch.Tensor:
    if clone:
        data = data.clone()
    value = data.view(spec.dtype).view(spec.shape)
    if spec.flags & _ON_DEVICE:
        value = value.to(device)
    if spec.flags & _PARAMETER:
        return torch.nn.Parameter(value, requires_grad=spec.requires_grad)
    return value


def _places(specs: Sequence[Spec]) -> tuple[list[int], list[int], list[int]]:
    """Return which tensors are in the host and in the device part, in their order there, and which are sent alone."""
    widest_first = sorted(range(len(specs)), key=lambda place: -specs[place].dtype.itemsize)
    packed = [place for place in widest_first if not specs[place].flags & _ALONE]
    host = [place for place in packed if specs[place].side == "host"]
    device = [place for place in packed if specs[place].side == "device"]
    return host, device, [place for place, spec in enumerate(specs) if spec.flags & _ALONE]


def _slices(
    specs: Sequence[Spec], letter: torch.Tensor, device: torch.Tensor | None, alone: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    on_host, on_device, single = _places(specs)
    found: dict[int, torch.Tensor] = dict(zip(single, alone, strict=True))
    for places, buffer in ((on_host, letter), (on_device, device)):
        if places and buffer is not None:
            sizes = [specs[place].nbytes for place in places]
            parts = buffer[: sum(sizes)].split(sizes)
            found.update(zip(places, parts, strict=True))
    return [found[place] for place in range(len(specs))]


# ---- pickle


def plain(value: Any) -> bool:
    """Return whether this is a tensor that is nothing but its shape, its dtype and its bytes."""
    # Sparse and quantized tensors, and subclasses such as DTensor, have their own ways to be pickled.
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_meta)
    )


class _TensorsApart:
    """A pickler's mixin: tensors are put in a list, and their indices pickled."""

    tensors: list[torch.Tensor]
    seen: dict[int, int]

    def persistent_id(self, value: Any) -> int | None:
        if not plain(value):
            return None
        if id(value) not in self.seen:
            self.seen[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self.seen[id(value)]


class _Pickler(_TensorsApart, pickle.Pickler):
    pass


class _ByName(_TensorsApart, by_name.Pickler):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensor: Callable[[int], torch.Tensor], buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._tensor = tensor

    def persistent_load(self, place: Any) -> torch.Tensor:
        return self._tensor(place)


def _pickled(value: Any, tensors: list[torch.Tensor], buffers: list[torch.Tensor]) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        if raw.nbytes == 0:
            buffers.append(torch.empty(0, dtype=torch.uint8))
        else:
            # torch has no read-only tensors and warns of them; a read-only array is rare enough to be copied.
            buffers.append(torch.frombuffer(bytearray(raw) if raw.readonly else raw, dtype=torch.uint8))

    # pickle is tried first, for speed. Either sends an instance as one of the receiver's own class.
    errors = []
    for kind in (_Pickler, _ByName):
        file = io.BytesIO()
        tensors.clear()
        buffers.clear()
        pickler: Any = kind(file, protocol=5, buffer_callback=keep)
        pickler.tensors, pickler.seen = tensors, {}
        try:
            pickler.dump(value)
        except Exception as error:  # noqa: BLE001  # a __reduce__ may raise anything
            errors.append(error)
        else:
            return file.getvalue()
    raise CollectiveError(
        f"the data cannot be sent, because neither pickle nor cloudpickle can serialize it: {errors[-1]}. Send its "
        "parts instead."
    ) from errors[-1]
