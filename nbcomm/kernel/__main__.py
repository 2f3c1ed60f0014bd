"""``python -m nbcomm.kernel -f CONNECTION_FILE``: what the kernel's spec tells Jupyter to start."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # As ipykernel_launcher does: a notebook's folder may hold a random.py. IPython puts it back for the cells.
    if sys.path[0] == "" or Path(sys.path[0]) == Path.cwd():
        del sys.path[0]

    from .app import ClusterKernelApp

    ClusterKernelApp.launch_instance()
