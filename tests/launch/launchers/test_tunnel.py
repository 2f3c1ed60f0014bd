"""The end of tunnels whose ssh does not answer; `tests/nodes/inside_tunnel.py` has real ones."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import psutil
import pytest

from nbcomm.launch.launchers import tunnel as module
from nbcomm.launch.launchers.tunnel import Tunnels
from nbcomm.protocol.nodes import name_of
from nbcomm.world_info import JoinedInfo, Launcher, LinkInfo

from ...node.served import await_that

SILENT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if {deaf} else signal.SIG_DFL)
pathlib.Path({begun!r}).open("a").write("b")
sys.exit(0) if "rm -f" in sys.argv[-1] and {cleared} else time.sleep(3600)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize(("cleared", "deaf"), [(False, False), (True, False), (True, True)])
def test_nobody_waits_for_an_ssh_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cleared: bool, deaf: bool, removes: bool
) -> None:
    """It hangs where it removes the socket of an earlier one, or as the tunnel; that ends, or must be killed.

    Where the world ends, the socket is removed at last, for the node's program may never have begun.
    """
    monkeypatch.setattr(module, "_TIMEOUT", 3600.0)
    monkeypatch.setattr(module, "_LAST", 3.0)
    code = SILENT.format(begun=str(begun := tmp_path / "begun"), cleared=cleared, deaf=deaf)
    link = LinkInfo(f"ipc://{tmp_path}/socket", "", "", "", name_of(1), tunnelled=True)
    launcher = Launcher(sys.executable, prefix=[sys.executable, "-c", code, "host"])
    before = set(psutil.Process().children())
    tunnels = Tunnels()
    tunnels.begin([JoinedInfo(number, number, link, launcher, port=1) for number in (1, 2)])
    await_that(lambda: begun.exists() and len(begun.read_text()) == 2 * (1 + cleared), "they did not begin")
    tunnels.close(removes=removes)
    assert len(begun.read_text()) == 2 * (1 + cleared + removes)
    assert not [thread for thread in threading.enumerate() if thread.name == "nbcomm-tunnel"]
    assert not set(psutil.Process().children()) - before
