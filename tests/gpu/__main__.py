"""``python -m tests.gpu``: what no machine without a GPU can show, on one GPU, in at most eight minutes.

Each step has half a minute. The table at the end is also written to a file, as evidence. Without a GPU, the steps that
need none run on the CPU with gloo, so that this program itself is known to work.

It needs no front end and no network: nbcomm, what that imports, and this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import torch

from nbcomm.torch_internals import nccl

from .steps import STEPS, Place, Step

SECONDS = 30
"""What each step may take, and the end of its worlds."""


class LateError(BaseException):
    """A step took too long; nothing that guards against errors takes it for one of its own."""


class Row(NamedTuple):
    """How a step went: "ok", "skipped", "LATE" or "FAILED"."""

    number: int
    verdict: str
    seconds: float
    what: str
    said: str

    def __str__(self) -> str:
        return f"{self.number:2} | {self.verdict:7} | {self.seconds:5.1f} s | {self.what} | {self.said}"


def main() -> int:
    """Try the steps; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--only", default="", help="numbers of steps: 1,4,15")
    parser.add_argument("--into", type=Path, default=Path("gpu-evidence.txt"), help="where the table goes")
    options = parser.parse_args()
    chosen = {int(one) for one in options.only.split(",") if one}
    place, began = Place(torch.cuda.device_count() > 0, nccl.version()), time.monotonic()
    signal.signal(signal.SIGALRM, _ring)
    rows = []
    for step in STEPS:
        if not chosen or step.number in chosen:
            rows.append(_tried(step, place))
            print(rows[-1], flush=True)
    _end(place)
    verdicts = [row.verdict for row in rows]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in ("ok", "skipped", "LATE", "FAILED"))
    where = "on a GPU" if place.gpu else "on the CPU"
    whole = f"{counts}, {where}, in {time.monotonic() - began:.0f} s"
    options.into.write_text("\n".join([whole, *map(str, rows), ""]), encoding="utf-8")
    print(f"{whole}; the table is in {options.into}.")
    return int(any(one in {"LATE", "FAILED"} for one in verdicts))


def _ring(*_: object) -> None:
    raise LateError


def _tried(step: Step, place: Place) -> Row:
    what = (step.run.__doc__ or "").strip().splitlines()[0]
    if why := step.why_not(place):
        return Row(step.number, "skipped", 0.0, what, why)
    began = time.monotonic()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            verdict, said = "ok", step.run(place)
    except LateError:
        verdict, said = "LATE", f"it did not end within {SECONDS} s"
    except Exception as error:  # noqa: BLE001 - the other steps must be tried
        traceback.print_exc()
        verdict, said = "FAILED", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    finally:
        signal.alarm(0)
    if verdict != "ok":
        _end(place)  # nobody knows what it has left
    return Row(step.number, verdict, time.monotonic() - began, what, said)


def _end(place: Place) -> None:
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            place.end()
    except (Exception, LateError):  # noqa: BLE001 - as above
        traceback.print_exc()
        place.kept.clear()
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
