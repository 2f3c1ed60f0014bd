"""A kernel that is restarted keeps its worlds; one that is shut down takes them along."""

from __future__ import annotations

import pytest

from nbcomm.notebook.session import kernel_restart


class Kernel:
    """Ends as ipykernel does."""

    def __init__(self) -> None:
        self.ended: list[bool] = []
        self.keeps_worlds = True

    def do_shutdown(self, restart: bool) -> dict[str, object]:
        self.ended.append(restart)
        return {"status": "ok", "restart": restart}


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_how_a_kernel_ends_is_noticed_and_not_changed(
    restart: bool, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in ("_restarting", "_kept", "_keeps"):
        monkeypatch.setattr(kernel_restart, flag, False)
    kernel = Kernel()
    kernel.keeps_worlds = keeps
    kernel_restart.follow(kernel)
    kernel_restart.follow(kernel)  # the extension is loaded twice
    assert not kernel_restart.worlds_are_kept()
    assert kernel_restart.would_keep_worlds() is keeps
    assert kernel.do_shutdown(restart) == {"status": "ok", "restart": restart}
    assert kernel_restart.restarting() is restart
    assert kernel_restart.worlds_are_kept() is (restart and keeps)
    assert kernel.ended == [restart]


def test_without_a_kernel_there_is_nothing_to_follow() -> None:
    kernel_restart.follow(None)
    assert not kernel_restart.worlds_are_kept()
