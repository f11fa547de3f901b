"""Microsoft's compiler for DirectX 12."""

from __future__ import annotations

import subprocess
import sys

import needs
import pytest

from validation import dxc
from validation.case import load
from validation.drivers.compiling import COMPILE, compile_all, corpus_sources
from validation.drivers.records import Record
from validation.drivers.setups import SETUPS


@pytest.mark.parametrize(("body", "status", "message"), [("a.Store(t.x * 4, t.x)", 0, ""), ("a.Store(undeclared)", 1, "undeclared")])
def test_compiles_hlsl(body: str, status: int, message: str) -> None:
    needs.need("compushady")
    path = dxc.library()
    assert path is not None
    text = f"RWByteAddressBuffer a : register(u0);\n[numthreads(64, 1, 1)] void main(uint3 t : SV_DispatchThreadID) {{ {body}; }}"
    done = subprocess.run([sys.executable, "-m", "validation.dxc"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert message in done.stderr
    if not status:
        code, _ = dxc.compiled(text.encode(), path)
        assert code.startswith(b"DXBC")  # the container of DXIL


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("dxc@host", {"steps": "ok", "add_sub_mul_i64": "refused", "add_sub_mul_f64": "refused"}),
        ("dxc-words@host", {"steps": "ok", "add_sub_mul_i64": "ok", "add_sub_mul_f64": "refused"}),
    ],
)
def test_cases_compile_or_are_refused(setup: str, expected: dict[str, str]) -> None:
    """A device with words only has 64-bit integers as pairs of words, which SPIRV-Cross translates."""
    needs.need("compushady")
    needs.need("spirv-cross")
    record = Record(setup, "", "", "")
    compile_all(SETUPS[setup], record, corpus_sources([case for case in load() if case.name in expected]), [])
    assert record.driver.startswith("DXC")
    assert {name: status for name, (status, _) in record.outcomes[COMPILE].items()} == expected
