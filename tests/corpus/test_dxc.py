"""Microsoft's compiler for DirectX 12."""

from __future__ import annotations

import subprocess
import sys

import needs
import pytest

from validation import dxc


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
