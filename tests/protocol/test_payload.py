"""Values on their way: what arrives is equal, and the receiver's own."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbcomm.errors import TransferError
from nbcomm.protocol import payload
from nbcomm.protocol.payload import FILE_FROM, pack, packed, release, unpack


def there(value: Any, bulk: Path | None = None) -> Any:
    """What arrives."""
    blob, buffers = pack(value, bulk)
    return unpack(blob, [bytes(buffer) for buffer in buffers])


TENSORS = {
    "whole numbers": torch.arange(6).reshape(2, 3),
    "a number": torch.tensor(1.5),
    "nothing": torch.empty(0, 3),
    "a view": torch.arange(12.0).reshape(3, 4).t()[1:],
    "one of many": torch.arange(8.0)[3::8],
    "truth": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.float16),
    "brain float": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.randn(3, dtype=torch.complex64).conj(),
    "imaginary parts": torch.randn(3, dtype=torch.complex64).conj().imag,
    "one value many times": torch.ones(2).expand(3, 2),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors(kind: str) -> None:
    sent = TENSORS[kind]
    got = there(sent)
    assert got.dtype == sent.dtype
    assert got.shape == sent.shape
    assert torch.equal(got.to_dense() if got.is_sparse else got, sent.to_dense() if sent.is_sparse else sent)


_DTYPES = [
    value
    for name in sorted(dir(torch))
    if isinstance(value := getattr(torch, name), torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", dict.fromkeys(_DTYPES), ids=str)
def test_tensors_of_every_dtype_keep_their_bytes(dtype: torch.dtype) -> None:
    sent = torch.arange(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    got = there(sent)
    assert got.dtype == dtype
    assert got.view(torch.uint8).tolist() == sent.view(torch.uint8).tolist()


ARRAYS = {
    "nothing": np.empty((0, 3)),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "every third": np.arange(10)[::3],
    "objects": np.array([1, "a", None], dtype=object),
    "dates": np.array(["2020-01-01"], dtype="M8[s]"),
    "records": np.zeros(2, dtype=[("a", int), ("b", float)]),
    "a number": np.array(5),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_alone_and_behind_a_large_one_in_a_file(kind: str, tmp_path: Path) -> None:
    sent = ARRAYS[kind]
    _, beside = there([np.zeros(FILE_FROM, dtype=np.uint8), sent], tmp_path / "bulk")
    for got in (there(sent), beside):
        assert got.dtype == sent.dtype
        assert np.array_equal(got, sent)


def test_parameters_and_what_requires_gradients_stay_so() -> None:
    assert isinstance(there(torch.nn.Parameter(torch.ones(2))), torch.nn.Parameter)
    assert there(torch.ones(2, requires_grad=True)).requires_grad
    model = there(torch.nn.Linear(2, 3))
    assert [type(p) for p in model.parameters()] == [torch.nn.Parameter] * 2


def test_the_bytes_of_tensors_and_arrays_are_not_in_the_pickle() -> None:
    for value in (torch.zeros(10_000), np.zeros(10_000)):
        blob, buffers = pack({"value": value})
        assert len(blob.pickled) < 2_000
        assert blob.sizes == [memoryview(buffer).nbytes for buffer in buffers] == [value.nbytes]


def test_what_arrives_can_be_written_and_is_nobody_elses() -> None:
    sent = {"tensor": torch.zeros(3), "array": np.zeros(3)}
    got = there(sent)
    got["tensor"] += 1
    got["array"] += 1
    assert sent["tensor"].sum() == 0
    assert sent["array"].sum() == 0


def test_large_buffers_go_through_a_private_file(tmp_path: Path) -> None:
    bulk = tmp_path / "bulk"
    value = [torch.arange(FILE_FROM), np.arange(7), "text"]
    blob, buffers = pack(value, bulk)
    assert buffers == []
    file = Path(blob.path)
    assert (stat.S_IMODE(bulk.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    first, second = unpack(blob, []), unpack(blob, [])
    release(blob)
    assert not file.exists()
    first[0] += 1
    assert torch.equal(second[0], value[0])
    assert np.array_equal(first[1], value[1])
    assert first[2] == "text"


@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """■ is taken after the write that runs: at once, before the last one, and when all is written."""
    written: list[int] = []

    class Pressed(io.FileIO):
        def write(self, data: Any) -> int:
            written.append(super().write(data))
            if len(written) == after:
                os.kill(os.getpid(), signal.SIGINT)
            return written[-1]

    monkeypatch.setattr(
        payload, "open", lambda path, mode, opener, **_: Pressed(path, mode, opener=opener), raising=False
    )
    value = np.zeros(4 * payload._CHUNK, dtype=np.uint8)
    with pytest.raises(KeyboardInterrupt), packed(value, tmp_path / "bulk"):
        pass
    assert written == [payload._CHUNK] * after
    assert list((tmp_path / "bulk").iterdir()) == []


def test_a_directory_that_was_planted_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    planted = tmp_path / "bulk"
    planted.symlink_to(tmp_path / "theirs")
    blob, buffers = pack(np.zeros(FILE_FROM), planted)
    assert (blob.path, len(buffers)) == ("", 1)
    assert list(planted.iterdir()) == []


def test_small_buffers_do_not(tmp_path: Path) -> None:
    blob, buffers = pack(np.zeros(10), tmp_path)
    assert blob.path == ""
    assert len(buffers) == 1
    release(blob)


def test_a_function_of_the_notebook_travels_by_value() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("factor = 3\ndef triple(x): return factor * x\nclass Config:\n    rate = 0.1", scope)  # noqa: S102 - as a notebook runs a cell
    blob, _ = pack((scope["triple"], scope["Config"]))
    function, config = unpack(blob, [])
    assert function is not scope["triple"]
    assert (function(2), config.rate) == (6, 0.1)


@pytest.mark.parametrize("value", [threading.Lock(), (i for i in ()), sys._getframe()])
def test_what_cannot_travel_is_named(value: Any) -> None:
    with pytest.raises(TransferError, match=f"type {type(value).__name__} cannot travel"):
        pack(value)


def test_what_cannot_be_rebuilt_is_said() -> None:
    blob, _ = pack(1)
    broken = type(blob)(b"cnot_a_module\nname\n.", [])
    with pytest.raises(TransferError, match="not_a_module"):
        unpack(broken, [])


def test_where_no_directory_can_be_made_the_bytes_travel_in_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    blob, buffers = pack(np.zeros(FILE_FROM, dtype=np.uint8), tmp_path / "bulk")
    assert (blob.path, len(buffers)) == ("", 1)
