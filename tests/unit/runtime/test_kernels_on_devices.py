"""Compiled kernels through the launcher, on every device present: results, returned values, prints, faults."""

import needs
import numpy as np
import pytest

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.dtypes import VOID, f32, i32, i64
from spirograd.base.errors import SpirogradAssertionError
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, ScalarArg, TempRef
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher
from spirograd.runtime.loader import open_device
from spirograd.runtime.offline_cache import decode, encode


@pytest.fixture(params=["interpreter", "cpu", "vulkan", "wgpu"], scope="module")
def device(request):
    needs.need(request.param)
    device = open_device(request.param, **({"debug": True} if request.param == "vulkan" else {}))
    yield device
    device.close()


def build():
    """def k(x: array f32, n: i32, limit: i32): for i in range(n): print; assert i < limit; x[i] += i * 0.5; return x[0], n + limit"""
    loc = Loc(__file__, 1, 0, 1, 3, "k")
    x = ArrayRef("x", 0, f32, 1)
    first, total = TempRef("first", f32), TempRef("total", i64)
    n_arg, limit_arg = ScalarArg("n", i32), ScalarArg("limit", i32)
    b = Builder()
    b.loc = loc
    b.begin()
    n = b.emit(ops.arg, attr=1, type=i32)
    limit = b.emit(ops.arg, attr=2, type=i32)
    (i,) = b.begin(i32)
    value = b.load(x, i)
    b.emit(ops.print_, i, value, attr=PrintSite(("i=", (0, "03d"), " x=", (1, ""), "\n"), (i32, f32), loc), type=VOID)
    b.emit(ops.check, b.emit(ops.lt, i, limit), i, attr=FaultSite("assert", "{0} is too large", (i32,), loc), type=VOID)
    half = b.emit(ops.mul, b.cast(i, f32), b.const(0.5, f32))
    b.store(x, i, b.emit(ops.add, value, half))
    body = b.end()
    b.for_(b.const(0), n, (), body, LoopAttr(parallel=True, name="loop"))
    b.store(first, b.load(x, b.const(0)))
    b.store(total, b.cast(b.emit(ops.add, n, limit), i64))
    return Kernel("k", (ArrayArg("x", f32, 1), n_arg, limit_arg), b.end(), (first, total), loc)


def test_print_assert_and_return(device):
    out = []
    memory = Memory(device)
    launcher = Launcher(device, memory, on_print=out.append)
    compiled = compile_kernel(build(), device.caps, CompileOptions(verify=True))
    if compiled.run is None:
        compiled = decode(encode(compiled))
    plan = launcher.prepare(compiled)
    data = np.array([1.5, 2, 3, 4, 5], np.float32)
    a = memory.allocate(data.nbytes)
    a.write(0, memoryview(data))
    before = a.generation
    binding = ArrayBinding(a.address, (5,), allocation=a)
    result = plan.launch(Arguments.of([None, 5, 5], [binding, None, None], {}))
    assert result == (1.5, 10) and a.generation > before
    assert sorted(out) == [f"i={i:03d} x={float(data[i])}\n" for i in range(5)]
    back = np.empty_like(data)
    a.read_into(0, memoryview(back).cast("B"))
    assert (back == data + np.arange(5) * 0.5).all()
    out.clear()
    with pytest.raises(SpirogradAssertionError, match="4 is too large"):
        plan.launch(Arguments.of([None, 5, 4], [binding, None, None], {}))
    assert len(out) >= 4
    launcher.synchronize()
    assert plan.launch(Arguments.of([None, 0, 7], [binding, None, None], {})) == (1.5, 7)
