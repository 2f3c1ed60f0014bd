#!/bin/sh
# Install nbcomm from this checkout, and what a class needs beside it, into the Python whose pip comes first:
#   sh environments/install.sh
# First torch, alone, from the index of its small build for the CPU: PyPI's brings gigabytes of CUDA libraries. The
# version is the one that nbcomm's own tests run with. TORCH_INDEX names another index, such as a mirror.
set -eu
checkout=$(cd "$(dirname "$0")/.." && pwd)
pip install --no-cache-dir torch==2.13.0 --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
pip install --no-cache-dir "$checkout" jupyterlab matplotlib
nbcomm doctor
