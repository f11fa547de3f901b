"""Run tests on CUDA under NVIDIA's compute-sanitizer, and collect what it finds into one report.

    ci/gpu_sanitizer.py                                  all four tools, at the same time
    ci/gpu_sanitizer.py --tools racecheck --tests tests/backend/test_atomics.py

memcheck looks for accesses outside of memory, racecheck for races in shared memory, initcheck for reads of memory that was never written,
synccheck for wrong barriers. A kernel with a planted bug is tried first: where compute-sanitizer is missing, or does not find the bug, for
instance because it does not support the machine, the exit status is 77: nothing was checked. It is 1 if a tool found something, or a test
failed, or the limit was met before the tests ended.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
NOT_CHECKED = 77
# What kernels do to memory: atomics, shared memory, groups of threads, tapes, sparse claims and fields, narrow integers, fused loops.
_BACKEND = ("atomics", "branches", "coarsening", "data_fields", "fusion", "groups", "histograms", "launches", "loops", "narrow_integers",
            "native_launches", "real_func", "scatter", "sparse", "tapes", "tiles")  # fmt: skip
_GRAD = ("kernel_grad", "overwritten_memory", "shared_arrays", "sparse", "sparse_kinds", "tape", "trip_counts")
TESTS = [*(f"tests/backend/test_{name}.py" for name in _BACKEND), *(f"tests/grad/test_{name}.py" for name in _GRAD)]
_PREFIX = "========= "
# Lines that are no findings: titles, sums, and what the tool says of its own limits.
_NO_FINDING = re.compile(r"COMPUTE-SANITIZER|[A-Z]+ SUMMARY|Target application|No attachable process|Error: process didn't|$")
_PLANTED = """
import spirograd as sg
sg.init(arch=sg.cuda, offline_cache=False)
x = sg.ndarray(sg.f32, 16)
@sg.kernel
def planted(x: sg.types.NDArray[sg.f32, 1], far: sg.i32):
    for i in range(16):
        x[i] = x[i + far]
planted(x, 1 << 30)
sg.sync()
"""


@dataclass
class Finding:
    """A kind of error in a kernel: how often it was found, and the text of the first."""

    title: str
    where: str
    text: str
    count: int = 1


@dataclass
class Run:
    """Tests under one tool."""

    tool: str
    passed: str = ""  # the last line of pytest
    status: int | None = None  # of pytest; None: ended at the limit
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.status == 0 and not self.findings


def blocks(log: str) -> Iterator[list[str]]:
    """The lines of each message: one that is not indented, and those below it that are."""
    found: list[str] = []
    for line in log.splitlines():
        if not line.startswith(_PREFIX.rstrip()):
            continue
        text = line[len(_PREFIX) :]
        if not text.startswith(" ") and found:
            yield found
            found = []
        if text.strip():
            found.append(text)
    if found:
        yield found


def findings(log: str) -> list[Finding]:
    """What a tool found, each kind in each kernel once."""
    kinds: dict[tuple[str, str], Finding] = {}
    for lines in blocks(log):
        title = re.sub(r"0x[0-9a-f]+|\d+", "N", lines[0])
        if _NO_FINDING.match(lines[0]) or lines[0].startswith(" "):
            continue
        kernel = next((m.group(1) for line in lines if (m := re.search(r"\bat ([^\s+(]+)", line))), "")
        known = kinds.setdefault((title, kernel), Finding(lines[0], kernel, "\n".join(lines[:12]), 0))
        known.count += 1
    return list(kinds.values())


def _command(tool: str, log: Path, *command: str) -> list[str]:
    # Calls that a program makes to ask whether something is there fail by design, so errors of the API are not findings.
    options = ["--tool", tool, "--target-processes", "all", "--report-api-errors", "no", "--print-limit", "1000", "--log-file", str(log)]
    return [SANITIZER, *options, *command]


def _logs(folder: Path, tool: str) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob(f"{tool}.*.log")))


def refusal(folder: Path) -> str:
    """Why nothing can be checked here; empty if a planted bug is found."""
    if not shutil.which(SANITIZER):
        return f"there is no program `{SANITIZER}` on the path; it comes with NVIDIA's CUDA toolkit"
    program = folder / "planted.py"
    program.write_text(_PLANTED)
    command = _command("memcheck", folder / "planted.%p.log", sys.executable, str(program))
    try:
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return f"`{SANITIZER}` did not end within 180 s on a program with one small kernel"
    log = _logs(folder, "planted") + done.stdout
    if any("Invalid __global__ read" in found.title for found in findings(log)):
        return ""
    said = " / ".join((log + done.stderr).strip().splitlines()[-6:])
    return f"`{SANITIZER}` does not find a planted read outside of memory on this machine; it says: {said[:600]}"


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SG_TEST_REQUIRE": "cuda", "SG_VALIDATION": "0"}


def check(tool: str, tests: list[str], folder: Path, limit: float, workers: int) -> Run:
    """Run tests under a tool; all that is said goes to files in ``folder``."""
    run, start = Run(tool), time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(workers), "-k", "cuda", "--timeout=600", *tests]
    output = folder / f"{tool}.pytest"
    with output.open("w") as said:
        command = _command(tool, folder / f"{tool}.%p.log", *pytest)
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            run.status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    run.seconds = time.monotonic() - start
    lines = [line.strip("= \n") for line in output.read_text(errors="replace").splitlines() if line.strip("= \n")]
    run.passed = lines[-1][:160] if lines else "pytest said nothing"
    run.findings = findings(_logs(folder, tool))
    return run


def report(runs: list[Run]) -> str:
    """All runs as Markdown."""
    found = sum(len(run.findings) for run in runs)
    unfinished = [run.tool for run in runs if run.status is None]
    outcome = f"findings of {found} kinds" if found else "no finding"
    outcome += f"; ended at the limit: {', '.join(unfinished)}" if unfinished else ""
    lines = [f"# compute-sanitizer: {outcome}", ""]
    lines += ["| tool | findings | status of the tests | seconds | last line of the tests |", "|---|---|---|---|---|"]
    for run in runs:
        status = "ended at the limit" if run.status is None else str(run.status)
        count = sum(finding.count for finding in run.findings)
        lines.append(f"| {run.tool} | {count} | {status} | {run.seconds:.0f} | {run.passed.replace('|', '/')} |")
    for run in runs:
        for finding in run.findings:
            title = f"{finding.title}{f' in {finding.where}' if finding.where else ''}"
            lines += ["", f"## {run.tool}: {title}, {finding.count} times", "", "```text", finding.text, "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/gpu_sanitizer.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL", help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="files of tests (default: a representative part)")
    parser.add_argument("--limit", type=float, default=480, metavar="SECONDS", help="for each tool (default: 480)")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 5), help="processes of tests for each tool")
    parser.add_argument("--out", type=Path, default=Path("out/gpu/sanitizer"), help="folder of report.md and the logs")
    chosen = parser.parse_args()
    folder: Path = (ROOT / chosen.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.log", "*.pytest"):  # of a run before
        for old in folder.glob(pattern):
            old.unlink()
    reason = refusal(folder)
    if reason:
        print(f"ci/gpu_sanitizer.py: not checked: {reason}")
        return NOT_CHECKED
    with ThreadPoolExecutor(len(chosen.tools)) as pool:
        runs = list(pool.map(lambda tool: check(tool, chosen.tests, folder, chosen.limit, chosen.workers), chosen.tools))
    text = report(runs)
    (folder / "report.md").write_text(text)
    print(text)
    return 0 if all(run.clean for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
