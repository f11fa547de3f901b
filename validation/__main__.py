"""Compile a corpus of kernels for every profile, have each module checked and translated, run all on every back end, write one table."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import spirograd as sg
from validation import rdna3
from validation.case import Case, load
from validation.collecting import kernels_of
from validation.compiling import compile_case
from validation.matrix import Row, totals, write_html, write_markdown
from validation.profiles import DEVICES, PROFILES
from validation.running import run_cases
from validation.tools import ABSENT, LIMITS, Limit

_ARCH = (
    "run on these back ends; by default on all that work here. rdna3 is an emulator of AMD's RDNA3, which runs the machine code of target "
    "amdgpu for gfx1100; it needs `pip install tinygrad`. radv is the same emulator with the machine code that AMD's Vulkan driver of Mesa "
    "makes of the modules of target vulkan, and radv64 with that for waves of 64 lanes; both need `ci/drivers --prepare`. vulkan-m1 is "
    "a session on vulkan with the profile m1, and so on"
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m validation", description=__doc__, epilog="The exit status is 1 if anything failed. See docs/validation.md."
    )
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases whose name fits, like 'atomic_*' (may be repeated)")
    parser.add_argument("--profiles", nargs="*", choices=list(PROFILES), default=list(PROFILES), help="compile for these (none: for none)")
    parser.add_argument("--arch", nargs="*", help=_ARCH)
    parser.add_argument("--no-run", action="store_true", help="only compile and check")
    parser.add_argument("--jobs", type=int, default=2, help="how many things to do at a time (default 2)")
    parser.add_argument("--out", type=Path, default=Path("out/validation"), help="folder of matrix.md, matrix.html and what failed")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    return parser.parse_args()


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar where rich is installed and the output is a terminal; ``advance()`` may be called from any thread."""
    try:
        from rich.progress import Progress
    except ImportError:
        yield lambda: None
        return
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("validating", total=total)
        yield lambda: progress.advance(task)


def _back_ends() -> list[str]:
    """Return the back ends that work here, and the emulators."""
    names = ("interpreter", "cpu", "cuda", "amdgpu", "vulkan", "wgpu", "metal")
    emulators = [name for name in rdna3.EMULATED if not rdna3.missing(name)]
    return [*[arch for arch in names if arch in sg.available_archs()], *emulators]


def _restricted(present: list[str]) -> list[str]:
    """Return the sessions with a profile that work here, "vulkan-m1"."""
    return [name for name in DEVICES if name.partition("-")[0] in present]


def main() -> int:
    options = _options()
    cases = [c for c in load() if not options.only or any(fnmatch.fnmatch(c.name, pattern) for pattern in options.only)]
    if not cases:
        sys.exit("no case fits; `--list` shows the names")
    if options.list:
        print("\n".join(f"{c.name}  {c.place}" for c in cases))
        return 0
    present = _back_ends()
    archs = [] if options.no_run else options.arch or present
    known = [*present, *_restricted(present)]
    unknown = [arch for arch in archs if arch not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)} cannot be used here; there are {', '.join(known)}")
    rows = _validate(cases, options, archs)
    options.out.mkdir(parents=True, exist_ok=True)
    write_markdown(rows, options.profiles, archs, options.out / "matrix.md")
    write_html(rows, options.profiles, archs, options.out / "matrix.html")
    return _summary(rows, options, archs)


def _validate(cases: list[Case], options: argparse.Namespace, archs: list[str]) -> list[Row]:
    """Fill a row for each case: back ends run in processes beside the compiler, tools in threads."""
    rows = {case.name: Row(case) for case in cases}
    with _progress(len(cases) * (len(archs) + bool(options.profiles))) as advance, ThreadPoolExecutor(options.jobs) as pool:

        def told(arch: str) -> Callable[..., None]:
            def tell(name: str, run: object) -> None:
                rows[name].runs[arch] = run  # type: ignore[assignment]
                advance()

            return tell

        pending = [pool.submit(run_cases, arch, cases, told(arch)) for arch in archs]
        compiler = threading.Lock()  # a session at a time

        def compile_one(case: Case) -> None:
            with compiler:
                kernels = kernels_of(case)
            for profile in options.profiles:
                rows[case.name].compiled[profile] = compile_case(kernels, case, PROFILES[profile], options.out / profile)
            advance()

        if options.profiles:
            pending += [pool.submit(compile_one, case) for case in cases]
        for future in pending:
            future.result()
    return list(rows.values())


def absent(rows: list[Row]) -> dict[str, list[str]]:
    """Return the checks that did not look at every module because a tool is missing, by the message that names the tool."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for profile, compiled in row.compiled.items():
            for check, verdict in compiled.verdicts.items():
                if verdict.status == ABSENT:
                    found.setdefault(verdict.text, set()).add(check if check != "valid" else f"{check} ({PROFILES[profile].target_name})")
    return {reason: sorted(checks) for reason, checks in found.items()}


def idle_limits(rows: list[Row]) -> list[Limit]:
    """Return the limits that no case meets any more, among those whose tools looked at every module."""
    met = {text for row in rows for compiled in row.compiled.values() for text in compiled.limits}
    skipped = {check.split()[0] for checks in absent(rows).values() for check in checks}
    return [limit for limit in LIMITS if limit.why not in met and limit.tool not in skipped]


def _summary(rows: list[Row], options: argparse.Namespace, archs: list[str]) -> int:
    for line in totals(rows, options.profiles, archs):
        print(line)
    failed = [row for row in rows if row.failures]
    for row in failed:
        print(f"\n{row.case.name}  ({row.case.place})")
        for line in row.failures:
            print(f"  {line}")
    for reason, checks in absent(rows).items():
        print(f"\nnot checked: {', '.join(checks)}: {reason}")
    whole = not options.only and set(options.profiles) == set(PROFILES)
    idle = idle_limits(rows) if whole else []
    for limit in idle:
        print(f"\nno case meets this limit any more; take it off the list in validation/tools.py: {limit.why}")
    print(f"\n{len(rows)} cases, {len(failed)} with failures; {options.out}/matrix.html")
    return 1 if failed or idle else 0


if __name__ == "__main__":
    sys.exit(main())
