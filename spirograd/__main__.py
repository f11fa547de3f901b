"""``python -m spirograd`` is the command `spirograd`."""

import sys

from spirograd.cli import main

if __name__ == "__main__":
    sys.exit(main())
