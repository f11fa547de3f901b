"""Kernels that count for the adstacks of a gradient can be looked at like any other: files of `SG_DUMP`, pages of `spirograd dump`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.dumps import Compilation, listeners
from spirograd.report.document import document
from spirograd.transforms.tasks.place_adstacks import PLACING

N = 12
PARTS = {"vulkan": ("spv", "spvasm"), "wgpu": ("spv", "spvasm")}  # of each task
WHOLE = {"cpu": ("vectors.ir", "loops.ir", "kernel.ll", "kernel.opt.ll", "kernel.s")}


def gradient() -> None:
    """A loop in a loop, counted in two rounds: the outer one carries the bound of the inner one."""
    x, y = (sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(2))
    count = sg.field(sg.i32, shape=N)
    count.from_numpy(np.arange(N, dtype=np.int32) % 5)

    @sg.kernel
    def work():
        for i in x:
            v, k = x[i] + 0.5, i
            for _ in range(count[i]):
                k = (k * 7 + 3) % 11
                for _ in range(k % 3):
                    v = v * v
            y[i] = v

    y.grad.fill(1.0)
    work()
    work.grad()
    slopes = np.ones(N)
    for i in range(N):
        v, k = 0.5, i
        for _ in range(i % 5):
            k = (k * 7 + 3) % 11
            for _ in range(k % 3):
                slopes[i], v = slopes[i] * 2 * v, v * v
    np.testing.assert_allclose(x.grad.to_numpy(), slopes, rtol=1e-4)


def stages(folder: Path, kernel: str) -> dict[str, dict[str, Path]]:
    """The files of the kernels of a name: by the key in theirs, then by stage."""
    found: dict[str, dict[str, Path]] = {}
    for path in folder.glob(f"{kernel}-*"):
        key, stage = path.name.removeprefix(f"{kernel}-").split(".", 1)
        found.setdefault(key, {})[stage] = path
    return found


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # adstacks of the interpreter grow as they are written
def test_files(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_DUMP", str(tmp_path))
    sg.init(arch=arch)
    gradient()
    counting, (main,) = stages(tmp_path, "work_grad_sizes"), stages(tmp_path, "work_grad").values()
    assert len(counting) == 2, "two rounds of counting, two keys"
    for files in (*counting.values(), main):
        tasks = {stage.rsplit(".", 1)[0] for stage in files if stage.endswith(".spv")}
        assert bool(tasks) == (arch in PARTS)
        wanted = {"kernel.ir", "offload.ir", "tasks.txt", "device.ir", *WHOLE.get(arch, ())}
        wanted |= {f"{t}.{p}" for t in tasks for p in PARTS[arch]}
        assert set(files) - {"kernel.usage"} == wanted  # which NVIDIA's driver tells, and lavapipe does not
        assert all(path.stat().st_size > 0 for path in files.values())
        assert ("%sizes" in files["kernel.ir"].read_text()) == (arch in PARTS)
    # The kernel that counts what depends on adstacks places these, and so does the gradient.
    placing = [f"{PLACING}.spv" in files for files in (*counting.values(), main)]
    assert sorted(placing[:2]) == [False, arch in PARTS] and placing[2] == (arch in PARTS)
    names = {path.name for path in tmp_path.iterdir()}
    assert all(name.isascii() and not set(name) & set('<>:"/\\|?*% ') for name in names), "files that every system and shell takes"


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_pages(arch: str) -> None:
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch=arch)
        gradient()
    finally:
        listeners.remove(found.append)
    shown: Any = document(found, "script.py")
    assert json.dumps(shown).count('"work_grad_sizes"') >= 2


def in_a_process(arch: str, **knobs: str) -> subprocess.CompletedProcess[str]:
    """Run `gradient` in a process of its own: the keys in the names of files depend on what a process has declared before."""
    program = f"import test_dumped_sizings as t; t.sg.init(arch={arch!r}); t.gradient()"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, **knobs}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_files_can_replace_it(arch: str, tmp_path: Path) -> None:
    """Files of `SG_OVERRIDE` replace kernels that count, too."""
    assert in_a_process(arch, SG_DUMP=str(tmp_path)).returncode == 0
    loaded = [path for path in tmp_path.glob("work_grad_sizes-*") if path.suffix == ".spv" or path.name.endswith(".kernel.ll")]
    assert loaded
    for path in loaded:
        path.write_text("nonsense")
    done = in_a_process(arch, SG_OVERRIDE=str(tmp_path))
    expected = "LLVM rejects" if arch == "cpu" else "no SPIR-V module"
    assert done.returncode == 1 and "SpirogradRuntimeError" in done.stderr and expected in done.stderr
