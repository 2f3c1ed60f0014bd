"""A start's time; what a start does is in tests/world/test_breaking.py and tests/nodes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.notebook.cluster import startup
from nbcomm.notebook.cluster.start_options import StartOptions
from nbcomm.notebook.cluster.startup import Startup
from nbcomm.protocol import Failure


@pytest.mark.parametrize("queued", [True, False])
def test_the_time_in_a_queue_is_not_the_starts(queued: bool) -> None:
    heard: list[tuple[str, int, int]] = []
    start = Startup(StartOptions(timeout=0.2), cast("Any", None), cast("Any", None), lambda *step: heard.append(step))
    start._n = 4
    nodes = [SimpleNamespace(daemons=0), SimpleNamespace(daemons=0)]

    def await_run(tell: Any, joins: Any) -> bool:
        tell("PBS job 1 waits in the queue")
        assert not joins()
        nodes[1].daemons = 1
        assert joins()
        time.sleep(0.5)
        return queued

    deadline = start._join_by(cast("Any", SimpleNamespace(await_run=await_run)), cast("Any", nodes))
    assert (deadline > time.monotonic()) == queued
    assert deadline == start._deadline
    assert heard == [("PBS job 1 waits in the queue", 0, 4), *[("joining nodes", 0, 4)] * queued]
    assert start._join_by(None, []) == deadline


class _Forms:
    """Generations that form on gloo only."""

    plain = ""
    lost = False
    port = 0

    def __init__(self, rank_table: Any) -> None:
        self._rank_table = rank_table
        self.tried: list[str] = []

    def form(self, _await: Any) -> None:
        backend = self._rank_table.places[0].backend
        self.tried.append(backend)
        if "nccl" in backend:
            said = "NCCL error in: …\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 0."
            raise startup._CannotFormError({1: Failure("DistBackendError", said, "")})


def _on_one_gpu(backend: str | None = None) -> tuple[Startup, _Forms]:
    table = SimpleNamespace(places=[], hellos={0: SimpleNamespace(torch="2.13.0")})
    options = StartOptions(2, share=True, backend=backend)
    start = Startup(options, cast("Any", None), cast("Any", table), lambda *_: None)
    start._n, start._shares = 2, [NodeShare(2, 4, gpus=1, nccl="2.30.7")]
    start._choose_device(1, "2.30.7")
    assert start.notice.startswith("2 ranks share 1 GPU, over NCCL 2.30.7")
    start._notices.append("Something else.")
    table.places = assign_places(start._shares, start._device, start._backend)
    return start, _Forms(table)


def test_where_nccl_cannot_share_a_gpu_after_all_the_ranks_do_so_over_gloo() -> None:
    start, forms = _on_one_gpu()
    start.form_group(cast("Any", forms))
    assert forms.tried == ["cpu:gloo,cuda:nccl", "gloo"]
    assert [(place.device, place.backend) for place in forms._rank_table.places] == [("cuda:0", "gloo")] * 2
    assert start.notice == (
        "The ranks share their GPUs over gloo, because NCCL could not: Duplicate GPU detected : rank 0 and rank 1 both "
        "on CUDA device 0. Something else."
    )


def test_where_nccl_was_asked_for_by_name_its_error_is_the_starts() -> None:
    start, forms = _on_one_gpu("nccl")
    with pytest.raises(StartError, match=r"(?s)Rank 1 could not join .*Duplicate GPU detected"):
        start.form_group(cast("Any", forms))
    assert set(forms.tried) == {"nccl"}
