"""Run public programs, from a folder of checkouts, on Taichi and on spirograd; compare their memory after some frames, and time frames."""

from __future__ import annotations

import sys
from pathlib import Path

from validation.clients.programs import CLIENTS, programs
from validation.family.command import options_parser, run


def main() -> int:
    parser = options_parser("python -m validation.clients", __doc__, Path("out/clients"))
    parser.add_argument("--checkouts", type=Path, required=True, help="folder with a checkout of each repository, by its name on GitHub")
    options = parser.parse_args()
    found = list(programs(options.checkouts))
    missing = sorted({client.repository for client in CLIENTS} - {program.folder.name for program in found})
    if missing:
        print(f"without a checkout in {options.checkouts}: {', '.join(missing)}", file=sys.stderr)
    return run(found, options)


if __name__ == "__main__":
    sys.exit(main())
