"""Several processes on the CPU, which communicate through torch's gloo and through MPI. A start takes seconds, so each checks a lot."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed.processes import PROGRAMS, ROOT, environment, finish, run, run_mpi, start, start_alone

pytestmark = pytest.mark.needs("torch")


@pytest.mark.parametrize(("count", "cases"), [(2, "6"), (4, "3")])
def test_processes_of_torch(count, cases):
    """Random partitions, gradients, mistakes, states: see programs/checks.py."""
    printed = run(count, "checks.py", cases)
    assert [f"all is right on process {rank} of {count}" in text for rank, text in enumerate(printed)] == [True] * count


@pytest.mark.needs("torch", "mpirun", "mpi4py")
def test_processes_of_mpi():
    status, printed = run_mpi(2, "checks.py", "3")
    assert status == 0 and all(f"all is right on process {rank} of 2" in printed for rank in range(2)), printed


@pytest.mark.parametrize("launcher", ["torch", pytest.param("mpi", marks=pytest.mark.needs("torch", "mpirun", "mpi4py"))])
def test_one_process_loses_an_exchange(launcher):
    printed = "".join(run(2, "lost.py")) if launcher == "torch" else run_mpi(2, "lost.py")[1]
    assert all(f"no wrong halos on process {rank}" in printed for rank in range(2)), printed


@pytest.mark.parametrize("launcher", ["torch", pytest.param("mpi", marks=pytest.mark.needs("torch", "mpirun", "mpi4py"))])
def test_one_process_leaves_out_a_call(launcher):
    printed = "".join(run(2, "skipped.py")) if launcher == "torch" else run_mpi(2, "skipped.py")[1]
    assert all(f"no number of another call on process {rank}" in printed for rank in range(2)), printed


EXAMPLES = {
    "wave_inversion.py": ["--cells", "20", "--steps", "40", "--iterations", "1", "--checkpoints", "6"],
    "mpm_slabs.py": ["--cells", "32", "--steps", "20", "--iterations", "1", "--particles", "300"],
}
LARGER = {"mpm_slabs.py": ["--cells", "64"]}  # for 8 processes: slabs are not narrower than halos


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_messages_in_memory_that_kernels_use(count):
    """Messages are written to memory of kernels, as on GPUs, before a tape knows. Gradients were wrong on three and four H200."""
    printed = run(count, "early_messages.py")
    assert all("are right" in text for text in printed), printed


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_have_the_gradient_of_one_process(tmp_path, example, count):
    check_example(tmp_path, example, count, "cpu")


def check_example(folder, example, count, arch):
    program = ROOT / "examples" / "distributed" / example
    more = LARGER.get(example, []) if count > 2 else []
    found = []
    for number in (1, count):
        path = folder / f"{number}.npz"
        arguments = ["--precision", "f64", *EXAMPLES[example], *more, "--save", str(path)]
        ended = finish(start(number, program, *arguments, arch=arch) if number > 1 else [start_alone(program, *arguments, arch=arch)])
        assert all(status == 0 for status, _ in ended), ended
        found.append(dict(np.load(path)))
    for name, alone in found[0].items():
        assert np.abs(alone).max() > 0 and np.allclose(found[1][name], alone, rtol=1e-10, atol=1e-12 * np.abs(alone).max()), name


def test_one_process_is_killed(tmp_path):
    """The others end with an error, long before the timeout; the last state loads on another number of processes, under torchrun."""
    folder = str(tmp_path / "state")
    (*others, killed) = finish(start(3, PROGRAMS / "survivors.py", folder, "12", "kill"))
    assert killed[0] == -9
    for rank, (status, text) in enumerate(others):
        assert status == 1 and f"process {rank} of 3 failed in a halo exchange: another process ended, or did not" in text, text
        assert "Timed out" not in text
    assert json.loads((tmp_path / "state" / "state.json").read_text())["values"] == {"step": 4}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "survivors.py")]
    done = subprocess.run([*command, folder, "9"], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"steps 4 to 9 on process {rank} of 2" in done.stdout for rank in range(2))


def test_processes_join_again_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "sessions.py")]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and all(f"joined again as process {rank} of 2" in done.stdout for rank in range(2)), done.stderr


def test_one_process_hangs(tmp_path):
    found = finish(start(2, PROGRAMS / "survivors.py", str(tmp_path), "12", "hang"), 60)
    assert [status for status, _ in found] == [1, 1]
    assert "process 0 of 2 failed in a halo exchange: another process ended, or did not take part within 6 s" in found[0][1]


@pytest.mark.needs("torch", "mpirun", "mpi4py")
@pytest.mark.parametrize("mode", ["kill", "hang"])
def test_failures_under_mpi(tmp_path, mode):
    """mpirun ends the others of a process that was killed; one that hangs is found by the timeout, and all end."""
    status, printed = run_mpi(2, "survivors.py", str(tmp_path), "12", mode)
    wanted = "exited on signal 9" if mode == "kill" else "process 0 of 2 failed in a halo exchange: another process ended, or did not take"
    assert status != 0 and wanted in printed, printed
    assert json.loads((tmp_path / "state.json").read_text())["values"] == {"step": 4}


@pytest.mark.long
def test_the_measurement_of_scaling():
    command = [sys.executable, "-m", "benchmarks.many_processes", "--arch", "cpu", "--processes", "1", "2", "--cells", "64"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| weak", "| strong"))]
    assert done.returncode == 0 and len(rows) == 8 and all("| 2 |" in row for row in rows[1::2]), done.stdout + done.stderr
