"""Cells through a real Jupyter kernel: the trivial one, and a flood of output.

No wait here has a time of its own: all of them end with `deadline`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from .rows import Row, interleaved

_TRIVIAL = "x = 1"
_FLOOD = "for i in range(20_000): print({what}, i)"


@contextmanager
def kernel(n: int) -> Iterator[tuple[BlockingKernelClient, Callable[[str], list[str]]]]:
    """A kernel with n ranks, or with nothing of nbcomm for 0.

    Yields:
        Its client, and a function that runs a cell and returns the text that it streamed.
    """
    manager = KernelManager(shutdown_wait_time=30.0)  # one that is killed leaves its world behind
    client: BlockingKernelClient | None = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            manager.start_kernel(cwd=folder)
            client = manager.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=None)
            if n:
                _run(client, "%load_ext nbcomm")
                _run(client, f"%distributed start -n {n}")
            yield client, lambda code: _run(client, code)
        except BaseException:
            if manager.has_kernel:
                manager.interrupt_kernel()  # else it hears of its end only when its cell has ended
            raise
        finally:
            if client is not None:
                client.stop_channels()
            if manager.has_kernel:
                manager.shutdown_kernel()


def _run(client: BlockingKernelClient, code: str) -> list[str]:
    identity = client.execute(code)
    texts: list[str] = []
    shown: dict[str, int] = {}  # where the text of a display is that may be updated
    while True:
        message = client.get_iopub_msg(timeout=None)
        if message["parent_header"].get("msg_id") != identity:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if kind == "stream":
            texts.append(content["text"])
        elif kind in ("display_data", "update_display_data"):
            identity_shown = content["transient"].get("display_id", f"only {len(texts)}")
            place = shown.setdefault(identity_shown, len(texts))
            texts[place : place + 1] = [content["data"].get("text/plain", "")]
        elif kind == "status" and content["execution_state"] == "idle":
            client.get_shell_msg(timeout=None)
            return texts


_PX = """
from nbcomm.notebook.session import registry
client = registry.current().client
_ = client.wait_for_engines({n})
view = client[:]
view.block = True
view.activate()
"""


def measure(rounds: int, *, full: bool) -> list[Row]:
    """The trivial cell against the plain kernel and %%px; the flood against %%px."""
    rows = []
    with kernel(4) as (_, run):
        run(_PX.format(n=4))
        distributed, px = f"%%distributed\n{_TRIVIAL}", f"%%px\n{_TRIVIAL}"
        for code in (distributed, px):
            run(code)
        plain, ours, theirs = interleaved(rounds, lambda: run(_TRIVIAL), lambda: run(distributed), lambda: run(px))
        figures = f"plain {plain * 1e3:.1f} ms, %%distributed {ours * 1e3:.1f} ms, %%px {theirs * 1e3:.1f} ms"
        rows.append(Row("trivial cell, 4 ranks / plain kernel", figures, ours / plain, 1.5))
        added = max(ours - plain, 0.0), theirs - plain
        rows.append(
            Row(
                "what it adds / what %%px adds",
                f"{added[0] * 1e3:.1f} / {added[1] * 1e3:.1f} ms",
                added[0] / added[1],
                0.25,
            )
        )
    with kernel(8) as (_, run):
        rows += _floods(run)
    if full:
        with kernel(64) as (_, run):
            run(f"%%distributed\n{_TRIVIAL}")
            (ours,) = interleaved(rounds, lambda: run(f"%%distributed\n{_TRIVIAL}"))
            rows.append(Row("trivial cell, 64 ranks / 50 ms", f"{ours * 1e3:.1f} ms", ours / 0.05, 1.0))
    return rows


def _floods(run: Callable[[str], list[str]]) -> list[Row]:
    run(_PX.format(n=8))
    run("%%distributed\nme = rank")  # %%px knows no rank
    rows = []
    for name, code, shown in (
        ("20,000 equal lines", _FLOOD.format(what="'all'"), 20_000),
        ("20,000 different lines", _FLOOD.format(what="me"), 160_000),
        ("3,000 flushed lines", "for i in range(3_000): print(me, i, flush=True)", 24_000),
    ):
        lines = sum(len(text.splitlines()) for text in run(f"%%distributed\n{code}"))
        ours, theirs = interleaved(
            3,
            lambda code=code: run(f"%%distributed\n{code}"),  # type: ignore[misc]
            lambda code=code: run(f"%%px\n{code}"),  # type: ignore[misc]
        )
        lost = shown - lines if lines < shown else 0
        figures = f"{ours:.2f} s, %%px {theirs:.2f} s, {lost} of {shown} lines lost"
        rows.append(Row(f"{name} on each of 8 ranks / %%px", figures, ours / theirs, 1.0))
    return rows
