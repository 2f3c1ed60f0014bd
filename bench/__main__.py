"""Print the table: ``python -m bench [--only NAME …] [--full] [--quick] [--deadline SECONDS] [--json FILE]``.

``python -m bench --breakdown`` prints where the time of a trivial cell goes instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from . import breakdown, cells, collectives, completion, growth, link, panel, recording, start, values
from .deadline import SECONDS, deadline
from .rows import print_table

SUBJECTS = {
    "link": link,
    "start": start,
    "cells": cells,
    "values": values,
    "collectives": collectives,
    "recording": recording,
    "panel": panel,
    "completion": completion,
    "growth": growth,
}


def main() -> None:
    """Measure what was asked for, and print each subject's rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="these subjects alone")
    parser.add_argument("--full", action="store_true", help="larger worlds and tensors too; takes minutes")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works")
    parser.add_argument("--deadline", type=float, default=SECONDS, metavar="SECONDS", help="that each may take at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--breakdown", action="store_true", help="the parts of a trivial cell, and nothing else")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.breakdown:
        with deadline(options.deadline, "a cell's parts"):
            breakdown.print_breakdown(quick=options.quick)
        return
    rows = []
    for name in options.only:
        with deadline(options.deadline, name):
            measured = SUBJECTS[name].measure(5 if options.quick else 50, full=options.full)
        print_table(measured)
        rows += measured
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
