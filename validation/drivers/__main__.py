"""Run the corpus and random programs under drivers of devices that this machine does not have, and write the results as a page.

A setup is a driver and the system that it comes from. Drivers that execute compute on the CPU, and their numbers are compared. All others
only compile: errors, crashes and resources of the machine code count. A command after -- runs under one setup that executes instead:

    ci/drivers --only lavapipe@sid -- python -m tests.fuzz tapes --on vulkan --minutes 20

Environment: SYSTEMS, the folder of the systems (default: out/drivers/systems); MIRROR, where Debian's packages come from. The exit status
is 1 if anything failed, or if a setup named by --only cannot be used.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import logging
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.__main__ import commit
from validation.case import Case, load
from validation.drivers import page, records
from validation.drivers.compiling import Named, compile_all, corpus_sources, random_sources
from validation.drivers.executing import run_all
from validation.drivers.records import Record
from validation.drivers.setups import SETUPS, Setup
from validation.drivers.systems import OUT, ROOT, Unavailable

_RECORDS = OUT / "records"
_PAGE = ROOT / "docs" / "drivers.md"


def _options(given: Sequence[str]) -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="ci/drivers", description=__doc__, formatter_class=shape)
    parser.add_argument("--list", action="store_true", help="print the setups, and what they lack, and end")
    parser.add_argument("--prepare", action="store_true", help="unpack the systems of the setups if they are not there, and end")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="setups whose name fits, like 'radv-*@sid'; by default all that can be used"
    )
    parser.add_argument("--cases", nargs="+", metavar="PATTERN", help="cases of the corpus whose name fits; by default all")
    parser.add_argument("--programs", type=int, default=100, help="random programs for drivers that only compile (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=2.0, help="random programs on drivers that execute (default %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the first random program of each kind; by default any")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="?",
        const=_PAGE,
        metavar="FILE",
        help="write the page from these and earlier results; rows of other setups stay",
    )
    options = parser.parse_args(given)
    names = list(SETUPS) if options.only is None else [n for pattern in options.only for n in fnmatch.filter(SETUPS, pattern)]
    if not names:
        parser.error(f"no setup fits; there are {', '.join(SETUPS)}")
    options.seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    options.setups = [SETUPS[name] for name in dict.fromkeys(names)]
    return options


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for, and return the exit status."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = _options(arguments[:split]), list(arguments[split + 1 :])
    logging.getLogger("spirograd").setLevel(logging.ERROR)  # Random programs cause many warnings.
    if options.list:
        for setup in options.setups:
            kind = "executes" if setup.archs else "compiles"
            print(f"{setup.name:22} {kind:9} {setup.why_not() or 'ready'}")
        return 0
    if options.prepare:
        return max([_prepare(setup) for setup in options.setups])
    if command:
        return _under(options.setups, command)
    status = _run(options)
    if options.page is not None:
        found = [record for name in SETUPS if (record := records.load(_RECORDS, name)) is not None]
        previous = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
        options.page.write_text(page.text(found, previous, list(SETUPS)), encoding="utf-8")
    return status


def _prepare(setup: Setup) -> int:
    try:
        setup.system.prepare()
    except Unavailable as error:
        print(f"{setup.name}: {error}", file=sys.stderr)
        return 1
    return 0


def _under(setups: Sequence[Setup], command: list[str]) -> int:
    """Run a command, which begins with `python`, under each setup, one after the other."""
    if command[0] != "python" or any(not setup.archs for setup in setups):
        sys.exit("ci/drivers: a command must begin with python, and needs --only with setups that execute")
    status = 0
    for setup in setups:
        if why_not := setup.why_not():
            sys.exit(f"ci/drivers: {setup.name}: {why_not}")
        python, variables = setup.python()
        status = subprocess.run([*python, *command[1:]], cwd=ROOT, env=variables, check=False).returncode or status
    return status


def _run(options: argparse.Namespace) -> int:
    """Run the setups, save and print a record of each."""
    cases = [c for c in load() if not options.cases or any(fnmatch.fnmatch(c.name, pattern) for pattern in options.cases)]
    usable = [setup for setup in options.setups if not setup.why_not()]
    status = 0
    for setup in options.setups:
        if why_not := setup.why_not():
            print(f"{setup.name}: {why_not}")
            status = 1 if options.only else status
    corpus: list[Named] = []
    programs: list[Named] = []
    if not all(setup.archs for setup in usable):
        corpus, programs = corpus_sources(cases), list(random_sources(options.programs, options.seed))
    for setup in usable:
        record = Record(setup.name, "", f"{datetime.date.today()}", commit())
        try:
            _fill(setup, record, cases, corpus, programs, options)
        except Unavailable as error:
            print(f"{setup.name}: {error}")
            status = 1
            continue
        if not options.cases:  # The page shows whole runs.
            record.save(_RECORDS)
        print(page.summary(record), flush=True)
        status = 1 if record.failed else status
    return status


def _fill(setup: Setup, record: Record, cases: list[Case], corpus: list[Named], programs: list[Named], options: argparse.Namespace) -> None:
    if setup.archs:
        run_all(setup, record, cases, options.minutes, options.seed)
    else:
        record.programs, record.seed = options.programs, options.seed
        compile_all(setup, record, corpus, programs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
