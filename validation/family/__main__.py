"""Run the examples that Taichi ships on Taichi and on spirograd, compare their memory after some frames, time frames, write one table."""

from __future__ import annotations

import sys
from pathlib import Path

from validation.family.command import options_parser, run
from validation.family.programs import examples, examples_folder


def main() -> int:
    options = options_parser("python -m validation.family", __doc__, Path("out/family")).parse_args()
    return run(examples(examples_folder(options.taichi)), options)


if __name__ == "__main__":
    sys.exit(main())
