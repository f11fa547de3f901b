"""Measure what a GPU reaches of its limits, beside torch, JAX and quadrants, and print a Markdown table.

    python -m benchmarks.gpu --arch cuda vulkan --peers torch jax quadrants
    python -m benchmarks.gpu --arch cuda --rows sum maximum
    python -m benchmarks.gpu --arch cpu --peers torch --peer-device cpu --size small

Each back end and each peer runs in a process of its own. For each row, all of them make its program at the same time and run it once; the
results are compared with NumPy. Then they are timed one after the other, in rounds: a time is the best of all rounds, waits included.
Bytes and operations are those that a program must move or do at least. A row that fails, in time or in its result, says so below the table.
Needs 8 GiB of device memory, and the package of each peer: one that is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu import reference
from benchmarks.gpu.columns import PEERS, Column, columns
from benchmarks.gpu.rows import BY_NAME, ROWS, Row, program_name
from benchmarks.gpu.table import Table
from benchmarks.processes import Failed
from benchmarks.report import Bar


def about_the_run() -> dict[str, str]:
    gpus = machine.output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    return {
        "device": gpus[0] if gpus else "no NVIDIA GPU",
        "system": machine.system(),
        "date": machine.date(),
        "commit": machine.commit(),
    }


def begin(all_columns: list[Column]) -> list[Column]:
    """Start all processes at the same time; those that cannot start are said and left out."""
    for column in all_columns:
        column.begin()
        column.ask_version()
    able = []
    for column in all_columns:
        try:
            column.receive_version()
            able.append(column)
        except Failed as error:
            print(f"left out: {error}", flush=True)
            column.end()
    return able


def measure(row: Row, size: Any, chosen: list[Column], rounds: int, limit: float) -> None:
    """All columns of a row. The results of NumPy are computed while the programs are made."""
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(getattr(reference, program_name(row)), tuple(size) if isinstance(size, tuple) else size)
        for column in chosen:
            column.load(row, size)
        for column in chosen:
            column.receive_results(row, expected.result(), limit)
    start = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() - start > limit / 2:
            break
        for column in chosen:
            for k, way in enumerate(column.ways or ()):
                if not way.error:
                    column.measure(k, limit)


def _pythons(given: list[str]) -> dict[str, str]:
    found = dict(text.split("=", 1) for text in given)
    unknown = set(found) - set(PEERS)
    if unknown:
        sys.exit(f"--peer-python: no peer is called {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", nargs="+", default=["gpu"], metavar="ARCH", help="back ends; ratios are of the first (default: gpu)")
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), metavar="PEER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--peer-device", default="cuda", choices=["cuda", "cpu"], help="where the peers run (default: cuda)")
    parser.add_argument("--peer-python", nargs="*", default=[], metavar="PEER=PATH", help="a peer's interpreter (default: this one)")
    parser.add_argument("--torch-compile", action="store_true", help="try torch.compile, too; ten seconds more for each row")
    parser.add_argument("--rows", nargs="*", choices=list(BY_NAME), metavar="ROW", help=f"only these, of {', '.join(BY_NAME)}")
    parser.add_argument("--all", action="store_true", help="all rows, also those that only the language of the family has")
    parser.add_argument("--size", default="full", choices=["full", "small"], help="small: to try the programs, not to measure")
    parser.add_argument("--rounds", type=int, default=5, help="how many times each is measured (default: 5)")
    parser.add_argument("--row-limit", type=float, default=40, metavar="SECONDS", help="for making, and for measuring, a row (default: 40)")
    parser.add_argument("--limit", type=float, default=230, metavar="SECONDS", help="after which no other row begins (default: 230)")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks-gpu"), help="folder for results.json, table.md and logs")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for old in chosen.out.glob("*.log"):
        old.unlink()
    start = time.monotonic()
    about = about_the_run()
    print(", ".join(about.values()), flush=True)
    able = begin(columns(chosen.arch, chosen.peers, chosen.peer_device, _pythons(chosen.peer_python), chosen.torch_compile, chosen.out))
    if not able:
        return 1
    table = Table(able, chosen.size == "full")
    print("; ".join(f"{column.name}: {'spirograd' if column.ours else column.name} {column.version}" for column in able))
    print(*table.head(), sep="\n", flush=True)
    rows = [row for row in ROWS if (row.name in chosen.rows if chosen.rows else chosen.all or not row.more)]
    bar = Bar(len(rows))
    for number, row in enumerate(rows):
        if time.monotonic() - start > chosen.limit:
            table.notes.append(f"{row.title}: not run, since {chosen.limit:.0f} s were over")
            continue
        bar.show(number, row.title)
        measure(row, getattr(row, chosen.size), able, chosen.rounds, chosen.row_limit)
        bar.clear()
        print(table.add(row), flush=True)
    for column in able:
        column.end()
    notes = [f"- {note}" for note in table.notes]
    print("", *notes, "", f"{time.monotonic() - start:.0f} s", sep="\n")
    lines = [", ".join(about.values()), "", *table.head(), *table.lines, "", *notes]
    (chosen.out / "table.md").write_text("\n".join(lines) + "\n")
    (chosen.out / "results.json").write_text(json.dumps({**about, **table.as_json()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
