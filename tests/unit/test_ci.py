"""The workflows call scripts of `ci/` and nothing else, and the scripts can be parsed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
WORKFLOWS = sorted((CI / "workflows").glob("*.yml"))
SCRIPTS = [path for path in (CI.with_name(".ci") / "run", *sorted(CI.iterdir())) if path.is_file() and path.suffix in ("", ".sh")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows(path: Path) -> None:
    text = path.read_text()
    assert len(WORKFLOWS) == 3
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used and all(re.fullmatch(r"actions/(checkout|setup-python)@[0-9a-f]{40}", name) for name, _ in used), used
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", version) for _, version in used), "the version that a commit stands for"
    runs = re.findall(r"run: (.+)", text)
    assert len(runs) == text.count("runs-on:"), "one call in each job"
    for command in runs:
        script = CI.parent / command.split()[0]
        assert script.parent == CI and os.access(script, os.X_OK), command
    listed = (CI / "workflows" / "README.md").read_text()
    jobs = re.findall(r"^  (\w+):\n    runs-on", text, re.MULTILINE)
    assert jobs and all(f"| {path.stem} / {job} |" in listed for job in jobs), "README.md has a row for each job"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts(path: Path) -> None:
    assert {"linux", "macos", "windows", "gpu"} < {script.name for script in SCRIPTS}
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    done = subprocess.run([bash, "-n", path.name], cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\r" not in path.read_bytes()
    if path.suffix == "":
        assert os.access(path, os.X_OK) and path.read_text().startswith("#!/usr/bin/env bash\n# ")
