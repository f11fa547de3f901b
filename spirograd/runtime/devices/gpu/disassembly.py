"""Listings of machine code of NVIDIA's GPUs, by nvdisasm of the CUDA toolkit."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from spirograd.base.artifact import CompiledKernel, Stage
from spirograd.base.targets import Generator

_PROGRAM = "nvdisasm"
_SECONDS = 120
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s")


def stages(kernel: CompiledKernel) -> dict[str, Stage]:
    """Return the stage ``kernel.sass`` of a kernel whose binaries are machine code of CUDA, if it can be listed."""
    text = "".join(map(listing, kernel.binaries)) if kernel.target.generator is Generator.PTX else ""
    return {"kernel.sass": text} if text else {}


def listing(cubin: bytes) -> str:
    """Return the listing of a cubin, with labels; "" if the program is not on the path, or too old for the code."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        try:
            done = subprocess.run(
                [program, "-c", str(path)], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
    return done.stdout if done.returncode == 0 else ""


def of_entry(text: str, entry: str) -> list[str]:
    """Return the lines of the listing ``text`` that belong to an entry."""
    found = re.search(rf"^\.text\.{re.escape(entry)}:\n(.*?)(?=^//-{{5,}}|\Z)", text, re.M | re.S)
    return [] if found is None else found[1].rstrip().splitlines()


def instructions(lines: list[str]) -> int:
    """Return the number of instructions in lines of a listing."""
    return sum(1 for line in lines if _INSTRUCTION.match(line))
