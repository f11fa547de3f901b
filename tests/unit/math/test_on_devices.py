"""The expansions through each code generator on this machine's devices: what the optimisers and drivers do must not cost accuracy."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import needs
import numpy as np
import pytest
from unit.llvm.llvm_programs import planned
from unit.math.test_expansions import BOUND_F32, BOUND_F64, LONG, REFERENCE, UNARY, needs_long_double, operands, same_bits, ulps

from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, f16, f32, f64, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, TaskAttr
from spirograd.ir.ops import OpCode
from spirograd.ir.spec import verify
from spirograd.llvmgen.emit import emit_kernel, entry_names
from spirograd.llvmgen.toolchain import compile_module
from spirograd.runtime.loader import open_device
from spirograd.spirvgen.emit import emit_task
from spirograd.spirvgen.validate import validate
from spirograd.transforms.lowering.legalize import legalize
from spirograd.transforms.lowering.lower_tasks import lower_tasks
from spirograd.transforms.math.expand_math import expand_math
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

pytestmark = pytest.mark.optimized

COUNT = 20_000
OPTIONS = CompileOptions()


def elementwise(code: OpCode, t: DType) -> tuple[Kernel, ArgBlock]:
    """out[i] = code(in0[i] ...) for i in range(COUNT), as device IR."""
    arity = code.arity or 0
    slots = tuple(Slot("array", k, offset=8 * k) for k in range(arity + 1))
    b = Builder()
    b.begin()
    bounds = b.end([b.const(0, i32), b.const(COUNT, i32)])
    (i,) = b.begin(i32)
    args = [b.load(BufferRef(f"in{k}", slots[k], t), i) for k in range(arity)]
    b.store(BufferRef("out", slots[arity], t), i, b.emit(code, *args))
    body = b.end()
    b.begin()
    task = Op(ops.task, (), (), TaskAttr("range_for", "loop"), (bounds, body, b.end()))
    return Kernel(code.name, (), Region((), (task, Op(ops.yield_, VOID)))), ArgBlock(slots, "<" + "Q" * (arity + 1), 8 * (arity + 1))


class Runner:
    """One device; ``run(code, t, *operands)`` gives the results."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.device: Any = open_device(arch)

    def build(self, code: OpCode, t: DType) -> CompiledKernel:
        kernel, block = elementwise(code, t)
        caps = self.device.caps
        context = PassContext(caps, OPTIONS)
        kernel = simplify(legalize(lower_tasks(expand_math(kernel, context), context), context), context)
        if self.arch == "cpu":
            kernel = planned(kernel, caps, OPTIONS)
            entry, group = entry_names(kernel)[0], 1
            binary = compile_module(emit_kernel(kernel, block, caps, OPTIONS), caps, OPTIONS).binary
        else:
            entry, group = "main", kernel.body.ops[0].attr.group_size
            binary = emit_task(kernel.body.ops[0], kernel, block, caps, OPTIONS).binary
            validate(binary, caps.target_name)
        task = TaskInfo("loop", "range_for", entry, 0, 0, COUNT, group)
        return CompiledKernel(code.name, caps.target_name, "", block, (task,), (binary,))

    def run(self, code: OpCode, t: DType, *inputs: Any) -> Any:
        executable = self.device.load(self.build(code, t))
        buffers = [self.device.allocate(COUNT * t.size) for _ in range(len(inputs) + 1)]
        for buffer, data in zip(buffers, inputs):
            self.device.upload(buffer, 0, memoryview(np.resize(data, COUNT)).cast("B"))
        block = (ctypes.c_uint64 * len(buffers))(*[b.address for b in buffers])
        self.device.launch(executable, bytes(block), [COUNT])
        out = np.empty(COUNT, t.np)
        self.device.download(buffers[-1], 0, memoryview(out).cast("B"))
        for buffer in buffers:
            self.device.free(buffer)
        return out[: len(inputs[0])]

    def flushes(self, t: DType, *values: Any) -> Any:
        """Return where the device may take one of ``values`` for 0: for subnormals, if it adds two to 0, as lavapipe of Mesa 26.2 does."""
        tiny = np.finfo(t.np).tiny
        if self.run(ops.add, t, np.array([tiny / 8], t.np), np.array([tiny / 8], t.np))[0]:
            return np.zeros(values[0].shape, bool)
        return np.logical_or.reduce([(v != 0) & (np.abs(v) < tiny) for v in values])


@pytest.fixture(scope="module", params=["cpu", "vulkan"])
def runner(request: pytest.FixtureRequest) -> Any:
    needs.need(request.param)
    made = Runner(request.param)
    if request.param == "vulkan" and not (made.device.caps.float64 and made.device.caps.int64):
        pytest.skip("this Vulkan device has no f64")
    yield made
    made.device.close()


def expanded_type(runner: Runner) -> DType:
    return f32 if runner.arch == "cpu" else f64


@pytest.mark.parametrize(("target", "t"), [("cpu", f16), ("cpu", f32), ("vulkan", f64)])
def test_expansions_are_legal_device_ir(target: str, t: DType) -> None:
    for code in ops.ELEMENTARY:
        kernel, _ = elementwise(code, t)
        verify(expand_math(kernel, PassContext(Capabilities(target_name=target), OPTIONS)), "device")


@needs_long_double
@pytest.mark.parametrize("code", ops.ELEMENTARY, ids=lambda c: c.name)
def test_error_bound_on_device(runner: Runner, code: OpCode) -> None:
    t = expanded_type(runner)
    bound = (BOUND_F32 if t is f32 else BOUND_F64)[code.name]
    for group in operands(t, code.name):
        with np.errstate(all="ignore"):
            reference = REFERENCE[code.name](*[v.astype(LONG) for v in group])
        errors = np.where(runner.flushes(t, *group, reference), 0.0, ulps(runner.run(code, t, *group), reference, t))
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound, (errors[worst], [v[worst] for v in group])


@pytest.mark.parametrize("name", list(UNARY))
def test_special_values_on_device(runner: Runner, name: str) -> None:
    t = expanded_type(runner)
    x = np.array([a for a, _ in UNARY[name]], t.np)
    expected = np.array([b for _, b in UNARY[name]], t.np)
    value = runner.run(ops.BY_NAME[name], t, x)
    assert same_bits(value, expected).all(), list(zip(x, value, expected))


def test_special_powers_on_device(runner: Runner) -> None:
    t = expanded_type(runner)
    inf, nan = math.inf, math.nan
    table = [
        (0.0, 0.0, 1.0), (nan, 0.0, 1.0), (1.0, nan, 1.0), (-1.0, inf, 1.0), (-2.0, 3.0, -8.0), (-2.0, 0.5, nan), (0.0, -1.0, inf),
        (-0.0, -1.0, -inf), (-0.0, 3.0, -0.0), (-inf, 3.0, -inf), (2.0, inf, inf), (2.0, -inf, 0.0), (0.5, inf, 0.0),
    ]  # fmt: skip
    x, y, expected = (np.ascontiguousarray(column) for column in np.array(table, t.np).T)
    value = runner.run(ops.pow_, t, x, y)
    assert same_bits(value, expected).all(), list(zip(table, value))
