"""Completion of what is on a rank, through a real Jupyter kernel."""

from __future__ import annotations

from .cells import kernel
from .rows import Row, seconds

_BUSY = """
import threading
from nbcomm.notebook.session import registry
session = registry.current()
threading.Thread(target=lambda: session.run("while True: pass"), daemon=True).start()
while not session.busy: pass
"""


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """From Tab to the answer, while four ranks are idle and while all of them run Python."""
    rows = []
    with kernel(4) as (client, run):
        run("%%distributed\nmodel = torch.nn.Linear(2, 2)")
        code = "%%distributed\nmodel.we"

        def complete() -> None:
            reply = client.complete(code, len(code), reply=True)
            if "weight" not in " ".join(reply["content"]["matches"]):
                raise RuntimeError(f"The answer did not come from a rank: {reply['content']['matches']}")

        for what in ("idle", "busy"):
            if what == "busy":
                run(_BUSY)
            complete()
            took = sorted(seconds(complete) for _ in range(rounds))
            middle, worst = took[len(took) // 2], took[-1]
            figures = f"median {middle * 1e3:.0f} ms, at most {worst * 1e3:.0f} ms"
            rows.append(Row(f"Tab, 4 ranks {what} / 50 ms", figures, middle / 0.05, 1.0))
        run("%distributed interrupt")
    return rows
