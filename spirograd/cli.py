"""The command `spirograd`. Each subcommand is a module of `spirograd.commands` with HELP, `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import spirograd
from spirograd.base.errors import SpirogradError
from spirograd.commands import cache, demo, doctor, dump, knobs, profile, survey

COMMANDS = {"demo": demo, "doctor": doctor, "dump": dump, "profile": profile, "survey": survey, "cache": cache, "knobs": knobs}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="spirograd", description=(spirograd.__doc__ or "").splitlines()[0], epilog="`spirograd COMMAND --help` explains one command."
    )
    top.add_argument("--version", action="version", version=f"spirograd {spirograd.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in COMMANDS.items():
        sub = commands.add_parser(name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process); return the exit status: 0, 1 for failure, 2 for misuse."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Arguments after "--" are for the script that `dump` runs; argparse does not separate them from options everywhere.
    split = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:split])
    args.rest = words[split + 1 :]
    if args.command is None:
        parser().print_help()
        return 0
    try:
        status: int = COMMANDS[args.command].run(args)
    except SpirogradError as error:
        print(f"spirograd {args.command}: {error}", file=sys.stderr)
        return 1
    return status
