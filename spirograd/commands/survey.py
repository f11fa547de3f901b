"""Compile the kernels of a script for many GPUs, none of which need be here, and show what each compiler makes of them.

    spirograd survey script.py                                      a table for each kernel
    spirograd survey script.py --devices 'radv-*,ptxas-sm_90'       some devices only; names may be patterns
    spirograd survey script.py --root sid --fail-on errors,spills   drivers of the Debian in the folder sid; for CI
    spirograd survey script.py --html report.html -- --arguments    the page of `spirograd dump`, with machine code of all devices

The script runs once, on the CPU. Then the compilers of the devices get its kernels: LLVM (AMD) always; NVIDIA's ptxas and SPIRV-Cross
(Metal) if they are on the path; the Vulkan drivers of AMD, NVIDIA, Qualcomm and Apple GPUs if Mesa is installed with its null devices, on
the machine (packages mesa-vulkan-drivers and mesa-drm-shim) or in the folder --root."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spirograd import dumps
from spirograd.base.errors import SpirogradValueError
from spirograd.base.wording import counted
from spirograd.commands.scripts import compat_argument, run_script
from spirograd.commands.table import table
from spirograd.report.page import page
from spirograd.survey import tables
from spirograd.survey.collecting import Source, collecting
from spirograd.survey.devices import SurveyDevice, chosen_devices
from spirograd.survey.document import survey_document
from spirograd.survey.results import FAILURES
from spirograd.survey.surveying import Progress, survey

HELP = "compile a script's kernels for many GPUs, and compare them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the script, the devices and the kinds of output; the script's own arguments come after ``--``."""
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("--devices", type=_names, default=[], metavar="NAME[,NAME]", help="devices to survey (default: all that are found)")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="folder of another system, whose drivers are used")
    parser.add_argument("--arch", default="cpu", help="back end that runs the script (default: %(default)s)")
    compat_argument(parser)
    parser.add_argument("--tasks", action="store_true", help="a table for each task of each kernel")
    parser.add_argument("--html", type=Path, metavar="FILE", help="HTML page to write; it is self-contained")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON file to write, with all statistics of the drivers")
    parser.add_argument(
        "--fail-on",
        type=_kinds,
        default=[],
        metavar="KIND[,KIND]",
        help="exit with status 1 on `errors` (a kernel does not compile), on `spills` (registers go to memory), or on both",
    )


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _kinds(text: str) -> list[str]:
    kinds = _names(text)
    for kind in kinds:
        if kind not in FAILURES:
            raise argparse.ArgumentTypeError(f"there is no kind `{kind}`; there are {' and '.join(FAILURES)}")
    return kinds


def run(args: argparse.Namespace) -> int:
    """Run the script, survey its kernels, show the tables. Exit status: that of the script; 1 if nothing was compiled, if a device that
    ``--devices`` names is missing, or if something failed that ``--fail-on`` names; 2 for misuse."""
    try:
        _check_paths(args)
        devices = chosen_devices(args.devices, args.root)
    except SpirogradValueError as error:
        print(f"spirograd survey: {error}", file=sys.stderr)
        return 2
    compilations: list[dumps.Compilation] = []
    status, sources = _run_script(args, compilations)
    if not sources:
        print(f"{args.script} compiled no kernel", file=sys.stderr)
        return status or 1
    if status:
        print(f"{args.script} ended with status {status}: what follows are the kernels that it had compiled", file=sys.stderr)
    with _progress(devices, sources) as progress:
        found = survey(devices, sources, progress)
    print(tables.text(found, table, args.tasks))
    if args.json is not None:
        args.json.write_text(json.dumps(found.document(), indent=1), encoding="utf-8")
    if args.html is not None:
        args.html.write_text(page(survey_document(compilations, sources, found, args.script.name)), encoding="utf-8")
    failures = found.failures(args.fail_on)
    if failures:
        print(f"\n{counted(len(failures), 'task')} failed because of --fail-on {','.join(args.fail_on)}:", file=sys.stderr)
        print("\n".join(tables.failure(result) for result in failures), file=sys.stderr)
    absent = [device.name for device in devices if args.devices and device.name in found.missing]
    if absent:
        print(f"\nDevices of --devices are missing here: {', '.join(absent)}", file=sys.stderr)
    return status or int(bool(failures or absent))


def _check_paths(args: argparse.Namespace) -> None:
    """Raise SpirogradValueError if a file or folder is missing, and make paths absolute: the script may change the working directory."""
    if not args.script.is_file():
        raise SpirogradValueError(f"there is no file {args.script}")
    if not args.root.is_dir():
        raise SpirogradValueError(f"there is no folder {args.root}: --root takes the folder of a system")
    args.root = args.root.resolve()
    for name in ("html", "json"):
        path = getattr(args, name)
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise SpirogradValueError(f"there is no folder {path.parent} for --{name}")
        setattr(args, name, path.absolute())


def _run_script(args: argparse.Namespace, compilations: list[dumps.Compilation]) -> tuple[int, list[Source]]:
    """Run the script; return its exit status and its kernels. If it fails, those that it compiled before."""
    listener = compilations.append
    if args.html is not None:
        dumps.listeners.append(listener)
    try:
        with collecting() as collector:
            status = run_script(args.script, args.rest, args.arch, compat=args.compat)
        return status, collector.sources()
    finally:
        if args.html is not None:
            dumps.listeners.remove(listener)


@contextmanager
def _progress(devices: list[SurveyDevice], sources: list[Source]) -> Iterator[Progress]:
    """Show a progress bar on a terminal, if the package rich is installed."""
    try:
        rich = importlib.import_module("rich.progress")
    except ImportError:
        rich = None
    if rich is None or not sys.stderr.isatty():
        yield lambda device, kernel: None
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(*rich.Progress.get_default_columns(), console=console, transient=True) as bar:
        task = bar.add_task("", total=len(devices) * len(sources))
        order = {device.name: number for number, device in enumerate(devices)}
        done = dict.fromkeys(order, 0)

        def show(device: str, kernel: str) -> None:
            bar.update(task, completed=order[device] * len(sources) + done[device], description=f"{device}: {kernel}")
            done[device] += 1

        yield show
