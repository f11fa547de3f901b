"""Functions of JAX on two devices of the host: `pmap`, `shard_map` with its derivatives, sharded arguments, donated memory."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = Path(__file__).parent / "programs" / "jax_devices.py"


@pytest.mark.needs("jax")
@pytest.mark.archs("cpu", "vulkan")  # on the buffers of JAX, and with copies of them
def test_two_devices(arch):
    # In a process of its own: JAX makes its devices once.
    done = subprocess.run([sys.executable, PROGRAM, arch], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout == "19 cases on 2 devices\n", done.stderr[-3000:]
