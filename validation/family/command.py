"""What the commands that compare programs of others have in common: options, a run of all programs, the table."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from validation.family.programs import Program
from validation.family.running import Compared, compare, with_times
from validation.family.table import markdown, read, renew, runs_on_both, totals, write


def options_parser(command: str, description: str | None, out: Path) -> argparse.ArgumentParser:
    """Return a parser of the options that all these commands have. ``out``: the folder of results by default."""
    parser = argparse.ArgumentParser(
        prog=command, description=description, epilog="The exit status is 1 if memory differs. See docs/family.md."
    )
    parser.add_argument("--taichi", default=sys.executable, metavar="PYTHON", help="a python that has taichi 1.7.4 (default: this one)")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="programs whose name fits, like '*/mpm*' (may be repeated)")
    parser.add_argument("--arch", default="cpu", help="back end of spirograd (default cpu); Taichi runs on the CPU")
    parser.add_argument("--frames", type=int, default=3, help="compare after this many frames (default 3)")
    parser.add_argument("--timed-frames", type=int, default=12, help="frames of a timed run (default 12; 0: no timed runs)")
    parser.add_argument("--rounds", type=int, default=2, help="timed runs of each; the shortest time of each frame counts (default 2)")
    parser.add_argument("--times", action="store_true", help="only take times, of the programs that run on both in the table so far")
    parser.add_argument("--seconds", type=float, default=60, help="limit of one run (default 60)")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time; times need 1 (default 1)")
    parser.add_argument("--out", type=Path, default=out, help=f"folder of table.md and of what each run printed (default {out})")
    parser.add_argument("--page", type=Path, help="a page whose table is renewed, instead of OUT/table.md")
    parser.add_argument("--list", action="store_true", help="print the names of the programs and end")
    return parser


def run(programs: Sequence[Program], options: argparse.Namespace) -> int:
    """Compare the programs that the options select, write the table, and return the exit status."""
    programs = [p for p in programs if not options.only or any(fnmatch.fnmatch(p.name, pattern) for pattern in options.only)]
    if not programs:
        sys.exit("no program fits; `--list` shows the names")
    if options.list:
        print("\n".join(p.name for p in programs))
        return 0

    page = options.page or options.out / "table.md"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.times:
        programs = [p for p in programs if runs_on_both(read(page), p.name)]
    measure = with_times if options.times else compare

    def row(program: Program) -> Compared:
        compared = measure(program, options)
        print(f"{program.name}: {compared.speed or 'no times' if options.times else compared.verdict}", flush=True)
        return compared

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(row, programs))
    rows = renew(read(page), results, times_only=options.times)
    write(page, markdown(rows, options))
    print(f"\n{totals(rows)}; {page}")
    return int(any(compared.differing for compared in results))
