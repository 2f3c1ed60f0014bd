"""``python -m nbcomm``: the ``nbcomm`` command, where the folder that it was installed into is not on the PATH."""

import sys

if __name__ == "__main__":
    from .cli import main

    sys.exit(main())
