"""Run a program and show how long each task of its kernels takes on the device. The program is not changed.

    spirograd profile program.py --trace out.json --sort count
    spirograd profile program.py --arguments --of --the --program
    spirograd profile program.py --sort count -- --arch of-the-program

Options of the command come before or right after the program.

The trace shows compilation, launches, copies and tasks in https://ui.perfetto.dev or chrome://tracing.
All sessions of the program count."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spirograd.commands.scripts import compat_argument, profile_argument, run_script
from spirograd.profiler import chrome, tables
from spirograd.profiler.tracing import TraceSink, recorded

HELP = "run a program and show how long its kernels take on the device"
_OPTIONS = ("--trace", "--sort", "--arch", "--profile", "--compat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, the program and its arguments."""
    _add_options(parser)
    parser.add_argument("program", type=Path, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace in the format of Chrome and Perfetto")
    parser.add_argument("--sort", choices=tuple(tables.SORTS), default="time", help="column that the table is sorted by (default: time)")
    parser.add_argument("--arch", default="", help="back end to use instead of the program's")
    profile_argument(parser)
    compat_argument(parser)


def _take_options(args: argparse.Namespace) -> None:
    """Move the options of the command at the beginning of ``args.arguments``, which all have one value, to their attributes."""
    words, count = args.arguments, 0
    while count < len(words) and words[count].partition("=")[0] in _OPTIONS:
        count += 1 if "=" in words[count] else 2
    parser = argparse.ArgumentParser(prog="spirograd profile", add_help=False)
    _add_options(parser)
    parser.parse_args(words[:count], namespace=args)
    args.arguments = words[count:]


def run(args: argparse.Namespace) -> int:
    """Run the program, then print the table. Exit status: that of the program, or 1 if it launched nothing."""
    _take_options(args)
    if not args.program.is_file():
        print(f"spirograd profile: there is no file {args.program}", file=sys.stderr)
        return 2
    trace = None if args.trace is None else args.trace.absolute()  # the program may change the working directory
    if trace is not None and not trace.parent.is_dir():
        print(f"spirograd profile: there is no folder {trace.parent} for the trace", file=sys.stderr)
        return 2
    recording = None
    try:
        with recorded() as recording:
            status = run_script(args.program, [*args.arguments, *args.rest], args.arch, args.profile, args.compat)
    finally:  # if the program fails, show the launches so far
        if recording is not None:
            _show(recording, trace, args)
    return status or (0 if recording.tasks else 1)


def _show(recording: TraceSink, trace: Path | None, args: argparse.Namespace) -> None:
    if trace is not None:
        chrome.write(trace, recording.begin, recording.spans, recording.host, recording.tasks)
    print(tables.counts(recording.tasks, args.sort) if recording.tasks else f"{args.program} launched no kernel")
