"""``python -m nbcomm.kernel -f CONNECTION_FILE``: the command in the kernel's spec, which Jupyter starts."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # As ipykernel_launcher does: a notebook's folder may contain a random.py. IPython adds the folder again for cells.
    if sys.path[0] == "" or Path(sys.path[0]) == Path.cwd():
        del sys.path[0]

    from .app import ClusterKernelApp

    ClusterKernelApp.launch_instance()
