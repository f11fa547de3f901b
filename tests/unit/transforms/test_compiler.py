"""The pipeline: artifacts, stages, keys, refusals; sums of many numbers."""

from __future__ import annotations

import gc
import itertools
import pickle
import struct

import needs
import numpy as np
import pytest
from unit.transforms.random_kernels import random_kernel

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f16, f32, f64, i8, i32, i64, u1
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.base.sizes.size_nodes import Extent
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, ScalarArg, TempRef
from spirograd.ir.spec import IRError
from spirograd.kernel_key import kernel_key
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher
from spirograd.runtime.loader import open_device

TYPES = dict.fromkeys(("int8", "int16", "int64", "float16", "float64", "storage8", "storage16"), True)
FULL = TYPES | dict.fromkeys(("atomic_int64", "atomic_f32_add", "buffer_address"), True)
VULKAN = Capabilities("vulkan", **FULL)
INTERPRETER = Capabilities("interpreter")


def total(kind: str, t: DType) -> Kernel:
    """The sum (minimum ...) of an array."""
    b = Builder()
    b.begin()
    x, result = ArrayRef("x", 0, t, 1), TempRef("result", t)
    b.store(result, b.const(ops.identity(kind, t), t))
    end, begin = b.emit(ops.shape, attr=(0, 0), type=i32), b.const(0)
    (i,) = b.begin(i32)
    b.atomic(kind, result, b.load(x, i))
    b.for_(begin, end, (), b.end(), LoopAttr(parallel=True, name="loop"))
    return Kernel("total", (ArrayArg("x", t, 1),), b.end(), (result,))


def test_an_artifact() -> None:
    kernel = total("add", f32)
    compiled = compile_kernel(kernel, VULKAN, CompileOptions(keep_stages=True, verify=True))
    first, second = compiled.tasks
    assert (first.kind, first.begin, first.end, first.group_size) == ("serial", 0, 1, 1)
    assert (second.name, second.begin, second.end, second.group_size) == ("loop", 0, Extent(0, 0), 256)  # a reduction
    assert [t.binary for t in compiled.tasks] == [0, 1] and len(compiled.binaries) == 2
    assert list(compiled.stages)[:4] == ["kernel.ir", "offload.ir", "tasks.txt", "device.ir"]
    assert {"loop.spv", "loop.spvasm"} <= set(compiled.stages)
    assert compiled.returns == ((f32, 0),) and compiled.temps_size == 8
    assert compiled.effects.reads == {("array", 0)} and not compiled.effects.writes
    again = pickle.loads(pickle.dumps(compiled))
    assert (again.args, again.tasks, again.key) == (compiled.args, compiled.tasks, compiled.key)
    assert gc.isenabled()


@pytest.mark.parametrize("target", ["cpu", "vulkan"])
def test_a_kernel_is_verified_again_only_after_a_pass_that_changed_it(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Kernel, str]] = []
    monkeypatch.setattr("spirograd.ir.spec.verify", lambda kernel, level: seen.append((kernel, level)))
    compile_kernel(total("add", f32), Capabilities(target, **FULL), CompileOptions(verify=True))
    levels = ("kernel", "lowering", "device", *(["loops"] if target == "cpu" else []))
    assert {level for _, level in seen} == set(levels)
    assert all(one != other for one, other in itertools.pairwise(seen))


def test_the_argument_block() -> None:
    """Addresses, then 64-bit scalars, then the rest; small scalars widened; nothing that is not used."""
    b = Builder()
    b.begin()
    types = (i8, f64, u1, f16, i64, i32)
    results = tuple(TempRef(f"r{k}", t) for k, t in enumerate(types))
    for k, (ref, t) in enumerate(zip(results, types)):
        b.store(ref, b.emit(ops.arg, attr=k, type=t))
    args = tuple(ScalarArg(f"a{k}", t) for k, t in enumerate((*types, i32)))
    compiled = compile_kernel(Kernel("k", args, b.end(), results), VULKAN, CompileOptions(verify=True))
    block = compiled.args
    assert [(s.kind, s.index, str(s.dtype)) for s in block.slots] == [
        ("temps", 0, "None"), ("scalar", 1, "f64"), ("scalar", 4, "i64"), ("scalar", 0, "i32"), ("scalar", 2, "u32"), ("scalar", 3, "f32"),
        ("scalar", 5, "i32"),
    ]  # fmt: skip
    assert block.format == "<QdqiIfi" and block.size == struct.calcsize(block.format) == 40
    assert all(s.offset % (8 if s.dtype is None else s.dtype.size) == 0 for s in block.slots)


def test_keys() -> None:
    options = CompileOptions()
    assert kernel_key(total("add", f32), VULKAN, options) == kernel_key(total("add", f32), VULKAN, options)
    others = [
        kernel_key(total("max", f32), VULKAN, options),
        kernel_key(total("add", f32), INTERPRETER, options),
        kernel_key(total("add", f32), VULKAN, CompileOptions(fast_math=False)),
    ]
    assert len({kernel_key(total("add", f32), VULKAN, options), *others}) == 4


def test_refusals() -> None:
    with pytest.raises(SpirogradUnsupportedError, match="no target 'abacus'"):
        compile_kernel(total("add", f32), Capabilities("abacus"), CompileOptions())
    with pytest.raises(SpirogradUnsupportedError, match="64-bit floats"):
        compile_kernel(total("add", f64), Capabilities("vulkan", int64=True, atomic_int64=True), CompileOptions())
    assert gc.isenabled()


def test_broken_ir_is_found() -> None:
    kernel = total("add", f32)
    kernel = Kernel(kernel.name, (ArrayArg("x", f64, 1),), kernel.body, kernel.returns)
    with pytest.raises(IRError):
        compile_kernel(kernel, VULKAN, CompileOptions(verify=True))


def test_the_interpreter_gets_the_checks() -> None:
    compiled = compile_kernel(random_kernel(3), INTERPRETER, CompileOptions(check_bounds=True, check_overflow=True))
    assert compiled.run is not None and Slot("fault") in {Slot(s.kind) for s in compiled.args.slots}


def test_group_sizes() -> None:
    wide = compile_kernel(total("add", f32), VULKAN, CompileOptions(group_size=1 << 20))
    assert wide.tasks[1].group_size == VULKAN.max_group_size


@pytest.mark.parametrize("optimize", (False, True))
@pytest.mark.parametrize("arch", ("cpu", "vulkan"))
def test_sums_of_many(arch: str, optimize: bool) -> None:
    needs.need(arch)
    device = open_device(arch)
    try:
        memory = Memory(device)
        launcher = Launcher(device, memory)
        rng = np.random.default_rng(5)
        count = (1 << 22 if arch == "cpu" else 1 << 18) + 77
        cases = ((f32, "add", rng.random(count)), (f32, "min", rng.normal(size=count)), (i32, "xor", rng.integers(-9, 9, count)))
        for t, kind, values in cases:
            x = values.astype(t.np)
            home = memory.allocate(x.nbytes)
            home.write(0, memoryview(x.view(np.uint8)))
            plan = launcher.prepare(compile_kernel(total(kind, t), device.caps, CompileOptions(optimize=optimize, verify=True)))
            found = plan.launch(Arguments.of([0], [ArrayBinding(home.address, x.shape, allocation=home)], {}))
            assert found is not None
            if kind == "add":
                assert abs(found[0] - x.sum(dtype=np.float64)) < 1e-6 * found[0]
            else:
                assert found[0] == (x.min() if kind == "min" else np.bitwise_xor.reduce(x))
    finally:
        device.close()
