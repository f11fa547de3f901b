"""``python -m spirograd`` is the command `spirograd`."""

import sys

from spirograd.cli import main

sys.exit(main())
