"""Every example runs on every back end and writes its picture, which is not blank; those that learn do learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "common.py"]

# The interpreter is left out: it runs a small picture operation by operation for minutes.
pytestmark = [pytest.mark.archs("cpu", "vulkan"), pytest.mark.needs("matplotlib", "rich")]

# By which factor the loss falls at least in so many iterations on a small problem.
LEARN = {"throw": (12, 6.0), "walker": (8, 10.0), "reaction_diffusion": (12, 10.0)}


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, arch, tmp_path):
    from matplotlib import image

    picture, options = tmp_path / f"{path.stem}.png", []
    if path.stem in LEARN:
        picture = tmp_path / "plot.png"
        options = ["--iterations", str(LEARN[path.stem][0]), "--save", str(picture)]
    command = [sys.executable, str(path), "--arch", arch, "--quick", "--out", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"wrote {picture}" in done.stdout
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape[0] >= 64 and pixels.shape[1] >= 64
    assert pixels.std() > 0.01, "the picture is blank"
    if path.stem in LEARN:
        first, last = map(float, re.search(r"^loss (\S+) -> (\S+)$", done.stdout, re.MULTILINE).groups())
        assert last * LEARN[path.stem][1] < first


def test_readme_lists_every_example():
    text = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"`{path.name}`" not in text] == []
