"""Long runs: ``python -m tests.fuzz --count 2000 --seed 0``. Prints each program that fails, shortened, and goes on."""

from __future__ import annotations

import argparse
import random
import time

from . import run
from .evaluate import TooLong
from .expressions import Choices
from .programs import Program, write
from .shrink import shrunk


def from_seed(seed: int) -> Program:
    r = random.Random(seed)
    return write(Choices(r.randint))


def failure(program: Program) -> str:
    """What is wrong with a program, in one line; empty if nothing is."""
    try:
        run.check(program)
    except TooLong:
        return ""
    except run.Difference as error:
        return str(error).splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def kind(text: str) -> str:
    """What must stay the same while shortening: the back end that differs, or the error."""
    return text.split(":")[0] if text.startswith(tuple(run.archs())) else text[:45]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="do not shorten")
    given = parser.parse_args()
    start, failed = time.time(), 0
    for seed in range(given.seed, given.seed + given.count):
        program = from_seed(seed)
        text = failure(program)
        if text:
            failed += 1
            if not given.keep:
                program = shrunk(program, lambda p: kind(failure(p)) == kind(text))
            print(f"=== seed {seed}: {failure(program)}\n{program!r}", flush=True)
    print(f"{given.count} programs, {failed} failed, {time.time() - start:.0f} s")
    run.close()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
