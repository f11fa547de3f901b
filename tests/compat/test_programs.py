"""Programs as users of the family write them, one import line changed: their results against NumPy, on each back end.

Each file in programs/ leaves RESULT and EXPECTED (name -> array or number), and TOLERANCE (relative; 1e-4) where rounding adds up.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import needs
import numpy as np
import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program: Path, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in program.stem:
        needs.need("torch")
    monkeypatch.setenv("SG_ARCH", arch)
    names = runpy.run_path(str(program))
    assert names["RESULT"].keys() == names["EXPECTED"].keys()
    for name, want in names["EXPECTED"].items():
        got, want = np.asarray(names["RESULT"][name]), np.asarray(want)
        assert got.shape == want.shape, name
        scale = float(np.abs(want).max()) if want.size and want.dtype.kind in "fiu" else 1.0
        np.testing.assert_allclose(got, want, rtol=names.get("TOLERANCE", 1e-4), atol=names.get("TOLERANCE", 1e-4) * scale, err_msg=name)
