"""Every example runs on every back end and writes its picture, which is not blank; those that learn do learn."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "common.py"]

# The interpreter is left out: it runs a small picture operation by operation for minutes.
pytestmark = [pytest.mark.archs("cpu", "vulkan"), pytest.mark.needs("matplotlib", "rich")]

# By which factor the loss falls at least in so many iterations on a small problem. Fewer where a driver runs on the CPU.
LEARN = {
    "cpu": {"throw": (6, 2.0), "tumble": (6, 2.0), "walker": (4, 4.0), "reaction_diffusion": (12, 10.0), "smoke": (10, 1.5)},
    "vulkan": {"throw": (5, 1.5), "tumble": (6, 2.0), "walker": (4, 3.0), "reaction_diffusion": (5, 1.7), "smoke": (10, 1.5)},
}
# What the others print.
SAID = {
    "beam": r"-> 287\.3290 in 5 steps",  # The same problem with SciPy's direct solver: 287.329043.
    "cloth": r"stiffness .*: found 150\.?\d*, true 150",
    "blobs": r"differ from the true ones by at most \d\.\de-0[3-9]",
    "smoke": r"with checkpoints .* at most: the same gradients",
}


def arguments(path: Path, arch: str, folder: Path) -> tuple[list[str], Path]:
    """Those of a quick run that draws into ``folder``, and the picture."""
    options = [str(path), "--arch", arch, "--quick", "--out", str(folder)]
    if path.stem not in LEARN[arch]:
        return options, folder / f"{path.stem}.png"
    picture = folder / "plot.png"
    return [*options, "--iterations", str(LEARN[arch][path.stem][0]), "--save", str(picture)], picture


def marks(name: str, arch: str) -> list[pytest.MarkDecorator]:
    """Those with gradients run on the CPU by day: a driver that runs on a CPU takes seconds for each. `cloth` runs its 400 steps a hundred
    times, `blobs` and `smoke` are as long; by day, test_physics.py has less of them."""
    return [pytest.mark.long] if name in ("cloth", "blobs", "smoke") or (arch == "vulkan" and name in (*LEARN[arch], *SAID)) else []


RUNS = [pytest.param(path, arch, marks=marks(path.stem, arch), id=f"{path.stem}-{arch}") for path in EXAMPLES for arch in LEARN]


@pytest.mark.parametrize("path,arch", RUNS, indirect=["arch"])
def test_example(path, arch, tmp_path, capfd, monkeypatch):
    """In this process, which has imported what each of them would import anew."""
    from matplotlib import image, pyplot

    argv, picture = arguments(path, arch, tmp_path)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.syspath_prepend(path.parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        pyplot.close("all")
        sys.modules.pop("common", None)
    said = capfd.readouterr().out
    assert f"wrote {picture}" in said
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape[0] >= 64 and pixels.shape[1] >= 64
    assert pixels.std() > 0.01, "the picture is blank"
    if path.stem in LEARN[arch]:
        first, last = map(float, re.search(r"^loss (\S+) -> (\S+)$", said, re.MULTILINE).groups())
        assert last * LEARN[arch][path.stem][1] < first
    assert re.search(SAID.get(path.stem, ""), said)
    checked = re.search(r"^gradients differ from finite differences by (\S+)$", said, re.MULTILINE)
    assert (checked is not None) == (path.stem == "tumble")
    assert checked is None or float(checked[1]) < 1e-5


@pytest.mark.archs("cpu")
def test_as_a_program(arch, tmp_path):
    argv, picture = arguments(ROOT / "examples" / "mandelbrot.py", arch, tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"wrote {picture}" in done.stdout and picture.exists()


def test_readme_lists_every_example():
    text = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"`{path.name}`" not in text] == []
