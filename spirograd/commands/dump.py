"""Run a script and write every stage of every kernel that it compiles: IR, SPIR-V, disassembly, LLVM IR, assembly.

    spirograd dump script.py --to dumps -- --arguments --of --the --script

The back end is the script's own choice; SG_ARCH overrides it (`SG_ARCH=vulkan spirograd dump ...` shows shaders)."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

import spirograd as sg

HELP = "run a script and write the stages of its kernels"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The script and the folder; the script's own arguments come after ``--``."""
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("--to", type=Path, default=Path("spirograd_dumps"), metavar="DIR", help="folder (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the script with SG_DUMP set; list the files that are new or changed. Exit status: the script's, or 1 if nothing was compiled."""
    if not args.script.is_file():
        print(f"spirograd dump: there is no file {args.script}", file=sys.stderr)
        return 2
    before = _times(args.to)
    status = _run_script(args.script, args.rest, args.to)
    written = sorted(path for path, time in _times(args.to).items() if before.get(path) != time)
    for path in written:
        print(f"{path.stat().st_size:>9}  {path}")
    if not written:
        print(f"{args.script} compiled no kernel; nothing was written to {args.to}")
    return status or (0 if written else 1)


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else {}


def _run_script(script: Path, arguments: list[str], folder: Path) -> int:
    """Run ``script`` as Python would: its folder first on the path, its arguments in sys.argv. Returns its exit status."""
    os.environ["SG_DUMP"] = str(folder.resolve())
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    finally:
        sg.reset()
    return 0
