"""Execution of a user's program in this process."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import spirograd as sg
from spirograd.base.profiles import PROFILES
from spirograd.compat import stand_in

FAMILY = ("taichi", "quadrants")  # packages that spirograd can stand in for


def profile_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --profile."""
    about = f"restrict the device to what another one has: {', '.join(PROFILES)}"
    parser.add_argument("--profile", default="", choices=tuple(PROFILES), metavar="PROFILE", help=about)


def compat_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --compat."""
    about = "for a program that imports a member of the Taichi family: run it on spirograd, as `python -m spirograd.compat.NAME` does"
    parser.add_argument("--compat", default="", choices=FAMILY, help=about)


def _import_hint(error: Exception) -> str:
    """Return a line about --compat if a script imports a missing package that it could replace; else nothing."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in FAMILY:
        return ""
    return f"hint: `--compat {error.name}` runs a program that imports {error.name} on spirograd\n"


def run_script(script: Path, arguments: Sequence[str], arch: str = "", profile: str = "", compat: str = "") -> int:
    """Run ``script`` as Python would: its folder first on the path, its arguments in sys.argv. ``arch`` and ``profile``: the back end and
    the profile to use instead of the script's. ``compat``: the member of the family that the script imports, for which spirograd stands
    in. End its session, and return its exit status: 1 with a traceback, as Python would show it, if an exception ends it."""
    if compat:
        stand_in.replace(compat)
    if arch:
        os.environ["SG_ARCH"] = arch
    if profile:
        os.environ["SG_PROFILE"] = profile
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    script = script.absolute()  # as Python's own `__file__`
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except Exception as error:
        shown = error.with_traceback(_frames_of(script, error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        print(_import_hint(error), end="", file=sys.stderr)
        return 1
    finally:
        sg.reset()
    return 0


def _frames_of(script: Path, trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of the script on; None for an error without one, such as wrong syntax."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    return trace
