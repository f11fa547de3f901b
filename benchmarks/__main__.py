"""Run the programs of `benchmarks/programs`, on spirograd and, if asked, on another back end or a peer with the same language, in turns.

Both run in processes of their own, and each measurement of one is followed by one of the other, so that whatever else the machine does
meets both. Reported is the best of all rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import print_numbers, print_table, write_chart

_FOLDER = Path(__file__).parent
_IMPORT = "import time, numpy; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"


class Worker:
    """A process that runs programs in one interpreter."""

    def __init__(self, python: str, module: str, arch: str, scratch: str) -> None:
        self.python, self.module = python, module
        command = [python, str(_FOLDER / "worker.py"), module, arch, scratch]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, **request: Any) -> Any:
        """The answer to one request; RuntimeError with what the worker says went wrong."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:  # other lines are what the package itself prints
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise RuntimeError(f"{self.module}: {answer['error']}")
                return answer["result"]
        raise RuntimeError(f"{self.module}: the process has ended")

    def import_time(self) -> float:
        """Seconds of importing the package, NumPy aside."""
        out = subprocess.run([self.python, "-c", _IMPORT.format(module=self.module)], capture_output=True, text=True, check=True).stdout
        return float(out.split()[-1])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _programs(names: list[str]) -> list[Path]:
    found = sorted((_FOLDER / "programs").glob("*.py"))
    unknown = set(names) - {path.stem for path in found}
    if unknown:
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(path.stem for path in found)}")
    return [path for path in found if not names or path.stem in names]


@dataclass
class Measured:
    """One program: for each case the best time of each worker in seconds, infinite where it failed; bytes of tapes; ratios of two cases."""

    times: dict[str, list[float]] = field(default_factory=dict)
    tapes: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)


def _load(workers: list[Worker], path: Path) -> tuple[dict[str, list[Worker]], dict[str, Any]]:
    """Which workers run each case, and what the program says of itself. Failures are printed."""
    able: dict[str, list[Worker]] = {}
    about: dict[str, Any] = {"ratios": {}, "tapes": []}
    for worker in workers:
        try:
            about = worker.ask(load=path.stem, source=path.read_text())
        except RuntimeError as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        for case, error in about["cases"].items():
            able.setdefault(case, [])
            if error is None:
                able[case].append(worker)
            else:
                print(f"{case}: {worker.module}: {error}", file=sys.stderr)
    return able, about


def _tapes(worker: Worker, name: str) -> float:
    try:
        return float(worker.ask(tapes=name))
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return float("inf")


def _time(worker: Worker, case: str) -> float:
    """Seconds per call; infinite if it fails, which some failures do only after the first run."""
    try:
        return float(worker.ask(run=case))
    except RuntimeError as error:
        print(f"{case}: {error}", file=sys.stderr)
        return float("inf")


def _measure(workers: list[Worker], path: Path, rounds: int) -> Measured:
    able, about = _load(workers, path)
    found = Measured({case: [float("inf")] * len(workers) for case in able})
    for case, best in found.times.items():
        for _ in range(rounds):
            for k, worker in enumerate(workers):
                if worker in able[case]:
                    best[k] = min(best[k], _time(worker, case))
    found.tapes = {name: [_tapes(worker, name) for worker in workers] for name in about["tapes"]}
    for name, (upper, lower) in about["ratios"].items():
        pairs = zip(found.times[upper], found.times[lower])
        found.ratios[name] = [u / d if math.isfinite(u) and math.isfinite(d) else float("inf") for u, d in pairs]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs to run; by default all")
    parser.add_argument("--arch", default="cpu", help="back end (cpu, vulkan, wgpu ...)")
    parser.add_argument("--against", metavar="ARCH", help="another back end of spirograd to compare with")
    parser.add_argument("--peer", help="a Python interpreter that has the peer")
    parser.add_argument("--peer-module", default="quadrants")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default="out/benchmarks", help="folder for results.json and results.png")
    options = parser.parse_args()
    results: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        columns = [(sys.executable, "spirograd", options.arch)]
        columns += [(sys.executable, "spirograd", options.against)] if options.against else []
        columns += [(options.peer, options.peer_module, options.arch)] if options.peer else []
        workers = [Worker(*column, scratch) for column in columns]
        names = [f"{module} on {arch}" for _, module, arch in columns]
        heads = [arch if module == "spirograd" else module for _, module, arch in columns]
        print(f"{'':28} {' '.join(f'{head[:12]:>12}' for head in heads)}" + ("    second / first" if len(heads) > 1 else ""))
        for path in _programs(options.names):
            found = _measure(workers, path, options.rounds)
            print_table(found.times)
            print_numbers(found.tapes, "bytes")
            print_numbers(found.ratios, "times")
            results |= found.times
            others |= found.tapes | found.ratios
        if not options.names:
            imports = [min(w.import_time() for _ in range(5)) for w in workers]
            memory = [w.ask(memory=True) for w in workers]
            print_table({"import": imports})
            results["import"] = imports
            print(f"{'peak memory':28} " + " ".join(f"{m / 2**20:9.0f} MiB" for m in memory))
            others["peak memory (bytes)"] = memory
        for worker in workers:
            worker.close()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"columns": names, "seconds": results, "numbers": others}, indent=1) + "\n")
    if len(names) > 1:
        write_chart(results, names, out / "results.png")


main()
