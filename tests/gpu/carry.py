"""``python -m tests.gpu.carry``: `make gpu` for a machine without a network, which has torch and not the rest.

It fills a folder with wheels and a program for that machine::

    sh build/gpu/run       in the checkout there; its arguments are those of python -m tests.gpu

If the folder has ``libnccl.so.2``, also compressed by xz, the ranks have that NCCL.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

THERE = ("torch", "numpy")
"""What such a machine has."""

RUN = """\
#!/bin/sh
# Try on this machine's GPU what no other machine can show: run it in the checkout.
set -e
folder=$(cd "$(dirname "$0")" && pwd)
install="python3 -m pip install --quiet --no-index --upgrade --target $folder/site"
$install --find-links "$folder/wheels" -r "$folder/wanted.txt"
$install --no-deps "$folder"/wheels/nbcomm-*.whl
[ ! -f "$folder/libnccl.so.2.xz" ] || xz -dkf "$folder/libnccl.so.2.xz"
[ ! -f "$folder/libnccl.so.2" ] || export LD_PRELOAD="$folder/libnccl.so.2"
PYTHONPATH="$PWD:$folder/site" exec python3 -m tests.gpu "$@"
"""


def main() -> int:
    """Fill the folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.carry", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "gpu")
    parser.add_argument("--python", default="3.12", help="the version of Python there")
    options = parser.parse_args()
    wheels = options.folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    wanted = _wanted(options.python)
    (options.folder / "wanted.txt").write_text("\n".join([*wanted, ""]), encoding="utf-8")
    (options.folder / "run").write_text(RUN, encoding="utf-8")
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    which = ["--only-binary=:all:", f"--python-version={options.python}", *platforms, f"--dest={wheels}"]
    _pip("download", "--quiet", *which, *wanted)
    for old in wheels.glob("nbcomm-*.whl"):
        old.unlink()
    _pip("wheel", "--quiet", "--no-deps", f"--wheel-dir={wheels}", str(ROOT))
    size = sum(file.stat().st_size for file in wheels.iterdir()) >> 20
    print(f"{size} MiB of wheels for Python {options.python}. On that machine: sh {options.folder / 'run'}")
    return 0


def _wanted(python: str) -> list[str]:
    """Return what nbcomm requires there, beside what is there."""
    lines = map(Requirement, importlib.metadata.requires("nbcomm") or [])
    known = {"python_version": python, "extra": ""}
    return [
        f"{line.name}{line.specifier}"
        for line in lines
        if line.name not in THERE and (line.marker is None or line.marker.evaluate(known))
    ]


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
