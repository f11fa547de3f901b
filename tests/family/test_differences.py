"""The table of differences: its programs do on spirograd what it says, on quadrants too where there is one, and the page has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from family.difference import Difference
from family.differences import DIFFERENCES
from family.outcomes import outcome

import spirograd.compat.quadrants as qd

ROOT = Path(__file__).resolve().parents[2]
SHOWN = [d for d in DIFFERENCES if d.outcomes is not None]


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("difference", SHOWN, ids=lambda d: d.situation[:40])
def test_ours(difference: Difference, arch: str, tmp_path: Path) -> None:
    assert difference.outcomes is not None
    qd.init(arch=arch, **difference.options)
    assert outcome(qd, difference.program, tmp_path / "program.py") == difference.outcomes[1]


@pytest.mark.needs("quadrants")
def test_theirs() -> None:
    python = needs.python_of_quadrants()
    assert python is not None
    programs = json.dumps([(d.program, d.options) for d in SHOWN])
    command = [python, str(Path(__file__).with_name("outcomes.py")), "quadrants"]
    done = subprocess.run(command, input=programs, capture_output=True, text=True, check=True, cwd="/")
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {d.situation: got for d, got in zip(SHOWN, found) if d.outcomes is not None and got != d.outcomes[0]}
    assert wrong == {}


def test_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "differences.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_show_differences() -> None:
    for d in SHOWN:
        assert d.outcomes is not None and d.outcomes[0] != d.outcomes[1] and d.program
    assert len({d.situation for d in DIFFERENCES}) == len(DIFFERENCES)
