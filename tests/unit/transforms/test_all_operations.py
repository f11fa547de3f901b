"""Every pure operation on every type that it takes compiles for every target, or raises SpirogradUnsupportedError, which names it."""

from __future__ import annotations

import pytest

from spirograd.base import dtypes as dt
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, u1
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel
from spirograd.llvmgen.toolchain import host_caps
from spirograd.transforms.math import expand_math
from validation.profiles import AMDGPU, PTX, SPIRV

DEVICES = {"cpu": host_caps(), **SPIRV, "cuda": PTX["cuda-sm_90"], "amdgpu": AMDGPU["amdgpu-gfx1100"]}
_KINDS = {"b": (u1,), "i": dt.INTEGERS, "f": dt.FLOATS}
# Programs cannot have `opaque`: passes emit it for targets whose drivers simplify floats.
CODES = [code for code in ops.ALL if code.effect == "pure" and code.domain and code.rule != "special" and code is not ops.opaque]


def kernel_of(codes: list[ops.OpCode], t: DType) -> Kernel:
    """Each of ``codes`` of elements of ``x``, stored to ``y``."""
    b, x, y = Builder(), ArrayRef("x", 0, t, 1), ArrayRef("y", 1, t, 1)
    b.begin()
    zero, one = b.const(0), b.const(1)
    for code in codes:
        value = b.emit(code, *[b.load(x, b.const(k)) for k in range(code.arity or 0)])
        b.store(y, zero if value.type == t else one, b.cast(value, t))
    return Kernel("probe", (ArrayArg("x", t, 1), ArrayArg("y", t, 1)), b.end())


def compiles(codes: list[ops.OpCode], t: DType, caps: Capabilities) -> bool:
    try:
        compile_kernel(kernel_of(codes, t), caps, CompileOptions(opt_level=0, verify=True))
    except SpirogradUnsupportedError:
        return False
    return True


@pytest.mark.parametrize("name", DEVICES)
def test_every_operation_compiles_for_every_target(name: str) -> None:
    """All of a type together, which is quick; if the device lacks some, one by one: the others must compile."""
    caps = DEVICES[name]
    for t in (u1, *dt.INTEGERS, *dt.FLOATS):
        codes = [code for code in CODES if any(t in _KINDS[kind] for kind in code.domain)]
        if not compiles(codes, t, caps):
            for code in codes:
                compiles([code], t, caps)


def test_all_elementary_functions_have_expansions() -> None:
    assert set(expand_math._F32) == set(expand_math._F64) == set(ops.ELEMENTARY)
