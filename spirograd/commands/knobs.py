"""List every environment variable that spirograd reads, with the current values."""

from __future__ import annotations

import argparse
import os

from spirograd.base.knobs import KNOBS
from spirograd.commands.table import table

HELP = "list the environment variables"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the table of environment variables."""
    rows = [(name, os.environ.get(name) or "-", knob.default or "-", knob.doc) for name, knob in KNOBS.items()]
    print(table(("variable", "set to", "default", "meaning"), rows, indent=""))
    print("\nOptions of `init` can be set too: SG_<OPTION>, for example SG_DEFAULT_FP=f64. `help(spirograd.config.Config)` lists them.")
    return 0
