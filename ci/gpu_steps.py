"""The steps of `ci/gpu`: what can run side by side does, each step has a time limit, and the figures are taken when all else is quiet."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_RUN = 77  # the status of a step that this machine cannot run
# Folders of tests that use a device; those of the corpus are the step "validation".
_FOLDERS = ("backend", "grad", "unit", "spirv", "compat", "errors", "family", "fuzz", "examples", "report", "distributed")
TESTS = [f"tests/{name}" for name in _FOLDERS]
LAYERED = ["tests/unit/runtime", "tests/backend/test_types.py"]  # the part that also runs under the validation layer
ARCHS = ("cuda", "amdgpu", "vulkan", "wgpu", "metal")
SHOWN = 40  # lines of the log of a step that failed
_FAILURES = 30  # a step of tests ends after this number
_GIGABYTES = 6  # of the card's memory that a process of tests may use: contexts of its libraries, arrays and tapes
# Benchmarks that the report puts on top.
HEADLINES = ("launch: 2 ndarrays, scalar", "mpm88 step", "chain 1M x 64", "chain 1M x 64, gradient", "mpm88 64 steps, gradient")
# Says which of the libraries that share memory of the GPU are there, and whether they use it: without one, its tests are skipped.
_LIBRARIES = """
import importlib.util
found = {name: importlib.util.find_spec(name) is not None for name in ("torch", "jax", "cupy")}
if found["torch"]:
    import torch
    found["torch"] = f"{torch.__version__}, {'on the GPU' if torch.cuda.is_available() else 'on the CPU only'}"
if found["jax"]:
    import jax
    found["jax"] = f"{jax.__version__}, on {jax.default_backend()}"
print(*[f"{name}: {version or 'missing'}" for name, version in found.items()], sep="; ")
"""
# What many processes beside each other may run out of: threads above all, of which each starts some for each library and each back end.
_LIMITS = """
import os, pathlib, resource, shutil
for name in ("NPROC", "NOFILE", "MEMLOCK"):
    print(f"{name.lower()}: {resource.getrlimit(getattr(resource, 'RLIMIT_' + name))[0]}", end="; ")
for name in ("pids.max", "pids.current", "memory.max", "memory.current"):
    path = pathlib.Path("/sys/fs/cgroup", name)
    print(f"{name}: {path.read_text().strip() if path.exists() else 'not known'}", end="; ")
print(f"/dev/shm: {shutil.disk_usage('/dev/shm').free >> 20} MiB" if os.path.isdir("/dev/shm") else "no /dev/shm")
"""


@dataclass
class Step:
    """A command with a limit in seconds, and how it ended. ``alone``: nothing else may run beside it."""

    name: str
    command: list[str]
    limit: int
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    seconds: float = 0.0
    log: str = ""

    @property
    def verdict(self) -> str:
        if self.status is None:
            return f"**stopped** at the limit of {self.limit} s"
        return {0: "passed", NOT_RUN: "not run"}.get(self.status, f"**failed** ({self.status})")

    @property
    def failed(self) -> bool:
        return self.status not in (0, NOT_RUN)

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        return lines[-1].strip("= ") if lines else ""

    def run(self, out: Path) -> None:
        """Run to the end or the limit; everything said goes to ``out``/name.log."""
        start = time.monotonic()
        path = out / f"{self.name}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self.status = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                _kill(process)
        self.seconds = time.monotonic() - start
        self.log = path.read_text(errors="replace")
        print(f"{self.name}: {self.verdict.replace('*', '')}, {self.seconds:.0f} s", file=sys.stderr, flush=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def steps(archs: list[str], out: Path) -> list[Step]:
    """All steps, in the order of the report."""
    python = sys.executable
    cores = os.cpu_count() or 2
    share = max(1, cores * 3 // (4 * len(archs)))  # of the processors, for the tests of one back end
    # Of the card's memory: beside each other run the tests of each back end, those under the validation layer, and the corpus.
    fitting = max(1, _fitting() // (len(archs) + ("vulkan" in archs) + 1))

    def tests(name: str, arch: str, paths: list[str], workers: int, **environment: str) -> tuple[list[str], dict[str, str]]:
        processes = ["-n", str(min(workers, fitting))]
        told = ["--maxfail", str(_FAILURES), "-rfE", "--tb=short", f"--failures={out / name}.failures", f"--junit-xml={out / name}.xml"]
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *processes, "--on", arch, *told, *paths]
        return command, {"SG_TEST_REQUIRE": arch, **environment}

    made = [Step("doctor", [python, "-m", "spirograd", "doctor"], 60)]
    shares = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else JAX takes most of the memory
    made.append(Step("other-libraries", [python, "-c", _LIBRARIES], 120, environment=shares))
    if sys.platform == "linux":
        made.append(Step("limits", [python, "-c", _LIMITS], 20))
    for arch in archs:
        command, environment = tests(f"tests-{arch}", arch, TESTS, share, SG_VALIDATION="0")
        made.append(Step(f"tests-{arch}", command, 900, environment=environment))
    if "vulkan" in archs:
        command, environment = tests("validation-layer", "vulkan", LAYERED, max(1, cores // 8), SG_VALIDATION="1")
        environment["SG_TEST_REQUIRE"] += ",validation"
        made.append(Step("validation-layer", command, 200, environment=environment))
    # No profiles: the modules are the same on every machine. What counts here is what this driver makes of them.
    corpus = [python, "-m", "validation", "--profiles", "--jobs", str(min(max(2, cores // 4), fitting)), "--out", str(out / "validation")]
    corpus += ["--arch", *archs]
    made.append(Step("validation", corpus, 900))
    made += [Step(f"demo-{a}", [python, "-m", "spirograd", "demo", "--arch", a, "--out", str(out / f"demo-{a}")], 45, True) for a in archs]
    compared = ["--against", archs[1]] if len(archs) > 1 else []
    figures = [python, "-m", "benchmarks", "--arch", archs[0], *compared, "--rounds", "5", "--no-history", "--out", str(out / "benchmarks")]
    made.append(Step("benchmarks", figures, 150, True))
    gpus = [arch for arch in archs if arch != "wgpu"] or archs
    table = [python, "-m", "benchmarks.gpu", "--arch", *gpus, "--peers", "torch", "jax", "quadrants", "--out", str(out / "benchmarks-gpu")]
    made.append(Step("benchmarks-gpu", table, 300, True))
    for arch in gpus:
        made.append(Step(f"benchmarks-graphs-{arch}", [python, "-m", "benchmarks.graphs_and_streams", arch, "--rounds", "10"], 60, True))
    if "cuda" in archs:
        made.append(Step("benchmarks-processes", [python, "-m", "benchmarks.many_processes"], 240, True))
        made.append(Step("tiles", [python, "ci/gpu_tiles.py", "--out", str(out / "tiles.md")], 180, True))
    made.append(Step("choices", [python, "ci/gpu_choices.py", "--archs", *gpus, "--out", str(out / "choices.md")], 300, True))
    # Random whole programs, each back end by itself: those of one process share its compiled kernels.
    for arch in archs:
        fuzz = [python, "-m", "tests.fuzz", "programs", "--on", arch, "--minutes", "3", "--seed", "7", "--out", str(out / f"fuzz-{arch}")]
        made.append(Step(f"fuzz-{arch}", fuzz, 300))
    for arch in archs:
        launches = str(100_000 if arch in ("cuda", "amdgpu") else 10_000)
        made.append(Step(f"stress-{arch}", [python, "ci/gpu_stress.py", "--arch", arch, "--launches", launches], 240, True))
    if "cuda" in archs:
        made.append(Step("sanitizer", [python, "ci/gpu_sanitizer.py", "--out", str(out / "sanitizer")], 900, True))
    return made


@functools.cache
def _fitting() -> int:
    """How many processes of tests the free memory of the card holds; many, where NVIDIA's tool is not there to tell it."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        free = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        return max(1, int(free[0]) // (1024 * _GIGABYTES))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 1 << 10


def run_all(chosen: list[Step], out: Path) -> None:
    """Those that bear company first, side by side; then the others, one at a time."""
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        list(pool.map(lambda step: step.run(out), [step for step in chosen if not step.alone]))
    for step in chosen:
        if step.alone:
            step.run(out)


def _milliseconds(seconds: float) -> str:
    return "failed" if math.isinf(seconds) else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _headlines(out: Path) -> list[str]:
    """The most telling figures, from what the benchmarks left."""
    path = out / "benchmarks" / "results.json"
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    columns = list(results["columns"])
    lines = [f"| | {' | '.join(columns)} | second / first |", f"|---|{'---|' * len(columns)}---|"]
    for case in HEADLINES:
        if case in results["seconds"]:
            times = [results["seconds"][case][column].get("wall_best", math.inf) for column in columns]
            ratio = f"{times[1] / times[0]:.2f}" if len(times) > 1 and not math.isinf(max(times)) else ""
            lines.append(f"| {case} | {' | '.join(_milliseconds(t) for t in times)} | {ratio} |")
    return ["", *lines]


def _block(text: str) -> list[str]:
    return ["", "```text", text.rstrip("\n"), "```"]


def _commit() -> str:
    """The commit that was tried, as far as it is known."""
    try:
        said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "not known"
    return said.strip()


def report(done: list[Step], out: Path, seconds: float) -> str:
    """The whole report as Markdown."""
    by_name = {step.name: step for step in done}
    failed = [step for step in done if step.failed]
    outcome = f"{len(failed)} of {len(done)} steps failed" if failed else "all steps passed"
    now = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    lines = [
        f"# spirograd on {platform.system()} {platform.machine()}: {outcome}",
        "",
        f"{now}; commit {_commit()}; Python {platform.python_version()}; {os.cpu_count()} processors; {seconds:.0f} s.",
    ]
    if "doctor" in by_name:
        lines += ["", "## Machine and drivers", *_block(by_name["doctor"].log)]
    lines += ["", "## What passed", "", "| step | result | seconds | its last line |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.verdict} | {s.seconds:.0f} | {s.last_line.replace('|', '/')[:160]} |" for s in done]
    figures = [step for step in done if step.name.startswith(("benchmarks", "demo"))]
    if figures:
        lines += ["", "## Figures", *(_headlines(out) if "benchmarks" in by_name else [])]
        for step in figures:
            lines += ["", f"### {step.name}", *_block(step.log)]
    for step in failed:
        lines += ["", f"## The end of {step.name}.log", *_block("\n".join(step.log.splitlines()[-SHOWN:]))]
    return "\n".join(lines) + "\n"


def main() -> int:
    names = [step.name for step in steps(["cuda", "vulkan", "wgpu"], Path())]
    parser = argparse.ArgumentParser(prog="ci/gpu", description=__doc__)
    parser.add_argument("--archs", nargs="+", choices=ARCHS, default=["cuda", "vulkan", "wgpu"], help="back ends to use")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help=f"only these; there are {', '.join(names)}")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder of the report and the logs")
    options = parser.parse_args()
    out: Path = (ROOT / options.out).resolve()
    planned = steps(options.archs, out)
    unknown = set(options.steps or ()) - {step.name for step in planned}
    if unknown:
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in planned)}")
    chosen = [step for step in planned if not options.steps or step.name in options.steps]
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks" / "results.json").unlink(missing_ok=True)  # of a run before
    os.environ.setdefault("SG_CACHE_DIR", str(out / "cache"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.monotonic()
    run_all(chosen, out)
    text = report(chosen, out, time.monotonic() - start)
    (out / "report.md").write_text(text)
    print(text)
    return 1 if any(step.failed for step in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
