"""The environment of a rank's process."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest
import torch

from nbcomm.errors import StartError
from nbcomm.rank.groups import environment
from nbcomm.rank.groups.environment import interface_of


def test_the_interface_is_the_one_that_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_of("127.0.0.1") in {"lo", "lo0"}
    addresses = {
        "eth0": [SimpleNamespace(address="10.0.0.1"), SimpleNamespace(address="fe80::1%eth0")],
        "ib0": [SimpleNamespace(address="10.1.0.1")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    assert interface_of("10.1.0.1") == "ib0"
    assert interface_of("fe80::1") == "eth0"
    with pytest.raises(
        StartError, match=rf"^No network interface of {socket.gethostname()} has the address 10\.2\.0\.1"
    ):
        interface_of("10.2.0.1")


def test_what_is_known_of_a_gpu_is_told_and_nothing_where_it_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    assert environment.gpu(torch.device("cpu")) == environment.Gpu()
    assert environment.gpu(gpu) == environment.Gpu(), "to ask would begin CUDA"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (30, 100))
    kept = {"allocated_bytes.all.current": 20, "reserved_bytes.all.current": 40}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: kept)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert environment.gpu(gpu) == (70, 100, "NVIDIA H200", 20, 40)

    def failed(_: torch.device) -> tuple[int, int]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", failed)
    assert environment.gpu(gpu) == environment.Gpu()
