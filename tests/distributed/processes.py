"""Starts a program on several processes, as launchers do, and gives what each printed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = PROGRAMS.parents[2]
_RESERVED: list[socket.socket] = []
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none"]


def environment(**more: str) -> dict[str, str]:
    """That of a program: one thread a process, and no launcher."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI_", "SG_TEST"))}
    found.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", SG_OFFLINE_CACHE="0", SG_OPT_LEVEL="0", **more)
    return found


def free_port() -> int:
    """A port of this machine that nothing listens on, and that no other process is given while the tests run: a socket stays bound to it,
    which lets a program listen there that names it (SO_REUSEADDR)."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    port: int = reserved.getsockname()[1]
    return port


def start(count: int, program: Path, *arguments: str, arch: str = "cpu") -> list[subprocess.Popen[str]]:
    """Start ``count`` processes that find each other through torch. ``arch``: takes the place of the back end that the program names."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared["SG_ARCH"] = arch
    return [
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        for rank in range(count)
    ]


def start_alone(program: Path, *arguments: str, arch: str = "cpu") -> subprocess.Popen[str]:
    """Start a process without a launcher."""
    command = [sys.executable, str(program), *arguments]
    return subprocess.Popen(command, env=environment(SG_ARCH=arch), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def finish(started: list[subprocess.Popen[str]], seconds: float = 150) -> list[tuple[int, str]]:
    """Status and output of each; those that have not ended by then are ended, which fails the test."""
    found = []
    try:
        for process in started:
            output, _ = process.communicate(timeout=seconds)
            found.append((process.returncode, output))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return found


def run(count: int, program: str, *arguments: str, arch: str = "cpu") -> list[str]:
    """What each of ``count`` processes prints; all must end well."""
    found = finish(start(count, PROGRAMS / program, *arguments, arch=arch))
    assert all(status == 0 for status, _ in found), "\n".join(output for _, output in found)
    return [output for _, output in found]


def run_mpi(count: int, program: str, *arguments: str) -> tuple[int, str]:
    """Status and output of ``count`` processes under mpirun."""
    command = [*MPIRUN, "-n", str(count), sys.executable, str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr
