"""Execution of programs that import a member of the Taichi family on spirograd: ``python -m spirograd.compat.taichi program.py``."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from pathlib import Path


def replace(member: str) -> None:
    """Have ``import taichi`` (``member`` is "taichi" or "quadrants"), and imports below it, import spirograd's module of that name.

    Call it before the program imports the member. Raises RuntimeError if the member itself is already imported.
    """
    ours = f"spirograd.compat.{member}"
    importlib.import_module(ours)
    present = sys.modules.get(member)
    if present is not None and present is not sys.modules[ours]:
        raise RuntimeError(f"{member} is already imported from {present.__file__}; call this before the first import of it")
    for name, module in list(sys.modules.items()):
        if name == ours or name.startswith(f"{ours}."):
            sys.modules[member + name.removeprefix(ours)] = module


def main(member: str, arguments: list[str] | None = None) -> None:
    """Run the command line of ``python -m spirograd.compat.<member>``: a program or, after ``-m``, a module, as ``python`` does."""
    parser = argparse.ArgumentParser(
        prog=f"python -m spirograd.compat.{member}",
        description=f"Run a program that imports {member} on spirograd: `import {member}` gives spirograd.compat.{member}.",
        epilog="Processes that the program starts are not changed.",
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, with its arguments")
    target.add_argument("program", nargs="?", help="file of the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    options = parser.parse_args(arguments)
    replace(member)
    if options.module:
        sys.argv = options.module
        sys.path[0] = ""
        runpy.run_module(options.module[0], run_name="__main__", alter_sys=True)
        return
    if not Path(options.program).exists():
        parser.error(f"there is no file {options.program}")
    sys.argv = [options.program, *options.arguments]
    sys.path[0] = str(Path(options.program).resolve().parent)
    runpy.run_path(str(Path(options.program).absolute()), run_name="__main__")  # `__file__` is absolute, as Python has it
