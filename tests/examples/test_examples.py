"""Every example runs on every back end and writes its picture, which is not blank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "common.py"]

# The interpreter is left out: it runs a small picture operation by operation for minutes.
pytestmark = [pytest.mark.archs("cpu", "vulkan"), pytest.mark.needs("matplotlib")]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, arch, tmp_path):
    from matplotlib import image

    command = [sys.executable, str(path), "--arch", arch, "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    picture = tmp_path / f"{path.stem}.png"
    assert f"wrote {picture}" in done.stdout
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape[0] >= 64 and pixels.shape[1] >= 64
    assert pixels.std() > 0.01, "the picture is blank"


def test_readme_lists_every_example():
    text = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"`{path.name}`" not in text] == []
