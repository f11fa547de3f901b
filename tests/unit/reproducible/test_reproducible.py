"""Kernels compile to the same bytes in every process: the offline cache finds them, and two builds of a module are equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs

ROOT = Path(__file__).resolve().parents[3]
# Functions, groups of threads in which values are kept for other threads, branches, tapes, guards, fused loops, prints and checks.
CASES = (
    "functions", "classes_of_arguments", "if_chain", "leaving_two_loops", "functions_that_access_memory_5", "neighbour_lists", "prints",
    "gradient_guard_compound", "gradient_mixed_tapes_f32_i32", "gradient_of_overwritten_memory",
    "scans_and_reductions_f32", "sorts_with_values_i32",
)  # fmt: skip


def test_order_does_not_depend_on_hashes() -> None:
    needs.need("cpu")
    command = [sys.executable, str(Path(__file__).with_name("digests.py")), *CASES]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path})
        for seed in ("1", "2")
    ]
    try:
        first, second = [run.communicate()[0].splitlines() for run in runs]  # pytest has a limit of time
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) > 3 * len(CASES)
    assert first == second
