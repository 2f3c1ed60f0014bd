"""What the watch says of a call that a death cut off."""

from __future__ import annotations

from nbcomm.analysis.wait_graph import RankReport
from nbcomm.notebook.execution.hang_watch import _cut_off
from nbcomm.protocol import CollectiveState, PendingCall


def test_a_call_that_deaths_cut_off_names_each_with_its_own_end() -> None:
    op = PendingCall("collective", "all_reduce", "0", [0, 1, 2, 3], 1, "", "line 2: all_reduce(x)", 0.0, lost=True)
    standings = {
        0: RankReport(0, "running", doing=CollectiveState({"0": 1}, waits=[op])),
        1: RankReport(1, "dead", "was killed by SIGKILL"),
        2: RankReport(2, "dead", "ended with exit code 3"),
        3: RankReport(3, "dead", "was killed by SIGKILL"),
    }
    assert _cut_off(standings) == (
        "all_reduce #1 (line 2: all_reduce(x)) was cut off: "
        "ranks 1,3 were killed by SIGKILL and rank 2 ended with exit code 3."
    )
