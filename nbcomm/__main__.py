"""``python -m nbcomm``: the ``nbcomm`` command, for when the folder of its script is not on the PATH."""

import sys

if __name__ == "__main__":
    from .cli import main

    sys.exit(main())
