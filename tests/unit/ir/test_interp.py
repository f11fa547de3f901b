"""The interpreter: control, memory, faults, prints, stepping, tasks, device IR, the device."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from spirograd.analysis import trial
from spirograd.base import artifact
from spirograd.base import dtypes as dt
from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot
from spirograd.base.errors import OutOfDeviceMemory, SpirogradAssertionError, SpirogradRuntimeError
from spirograd.ir import ops
from spirograd.ir.interp import compile_for_run
from spirograd.ir.interp_state import Values
from spirograd.ir.nodes import FieldRef, Kernel, Layout, Op, TempRef, Term
from spirograd.ir.spec import verify
from spirograd.ir.text import parse
from spirograd.runtime.devices import interpreter


def kernel_of(text: str, level: str = "kernel") -> Kernel:
    kernel = parse('kernel "k"\n' + text)
    verify(kernel, level)
    return kernel


COLLATZ = """arg ScalarArg("n", i64)
ref steps = TempRef("steps", i32)
ref most = TempRef("most", i64)
return steps
return most
{
  %n = arg[0]() : i64
  %zero = const[0]() : i32
  %one = const[1]() : i32
  %one8 = const[1]() : i64
  %two = const[2]() : i64
  %three = const[3]() : i64
  %while = while(%n, %zero, %n) : (i64, i32, i64) { (%a: i64, %s: i32, %m: i64)
    %go = ne(%a, %one8) : u1
    yield(%go)
  } { (%a: i64, %s: i32, %m: i64)
    %odd = irem(%a, %two) : i64
    %is = eq(%odd, %one8) : u1
    %if = if(%is) : (i64) {
      %t = mul(%a, %three) : i64
      %u = add(%t, %one8) : i64
      yield(%u)
    } {
      %h = idiv(%a, %two) : i64
      yield(%h)
    }
    %b = result[0](%if) : i64
    %s2 = add(%s, %one) : i32
    %m2 = max(%m, %b) : i64
    yield(%b, %s2, %m2)
  }
  %s = result[1](%while) : i32
  %m = result[2](%while) : i64
  store[steps](%s)
  store[most](%m)
  yield()
}
"""


def test_while_if_and_returns() -> None:
    def collatz(n: int) -> tuple[int, int]:
        steps, most = 0, n
        while n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            steps, most = steps + 1, max(most, n)
        return steps, most

    kernel = kernel_of(COLLATZ)
    for n in (1, 6, 27, 97):
        assert trial.run(kernel, [n]).returns == collatz(n)


def test_carried_values_change_together() -> None:
    """Fibonacci swaps two carried values: the new ones come from the old ones."""
    kernel = kernel_of("""arg ScalarArg("n", i32)
ref r = TempRef("r", u64)
return r
{
  %n = arg[0]() : i32
  %zero = const[0]() : i32
  %a0 = const[0]() : u64
  %b0 = const[1]() : u64
  %for = for[LoopAttr()](%zero, %n, %a0, %b0) : (u64, u64) { (%i: i32, %a: u64, %b: u64)
    %c = add(%a, %b) : u64
    yield(%b, %c)
  }
  %r = result[0](%for) : u64
  store[r](%r)
  yield()
}
""")
    assert trial.run(kernel, [90]).returns == (2880067194370816120,)
    assert trial.run(kernel, [0]).returns == trial.run(kernel, [-3]).returns == (0,)


BLUR = """arg ArrayArg("x", f64, 2)
arg ArrayArg("y", f64, 2)
arg ScalarArg("shift", i32)
ref x = ArrayRef("x", 0, f64, 2)
ref y = ArrayRef("y", 1, f64, 2)
{
  %zero = const[0]() : i32
  %shift = arg[2]() : i32
  %n = shape[(0, 0)]() : i32
  %m = shape[(0, 1)]() : i32
  for[LoopAttr(parallel=True)](%zero, %n) : () { (%i: i32)
    for[LoopAttr()](%zero, %m) : () { (%j: i32)
      %k = add(%j, %shift) : i32
      %a = load[x](%i, %j) : f64
      %b = load[x](%i, %k) : f64
      %s = add(%a, %b) : f64
      store[y](%i, %j, %s)
      yield()
    }
    yield()
  }
  yield()
}
"""


def test_arrays_and_bounds() -> None:
    kernel = kernel_of(BLUR)
    x = np.random.default_rng(1).normal(size=(3, 5))
    y = np.zeros_like(x)
    assert trial.run(kernel, [x, y, 0]).fault is None
    np.testing.assert_array_equal(y, x + x)
    fault = trial.run(kernel, [x, y, 1]).fault
    assert fault is not None
    site, operands = fault
    assert site.code == "bounds" and operands == (0, 5, 3, 5)
    assert site.message.format(*operands) == "index (0, 5) is out of range of x of shape (3, 5)"
    np.testing.assert_array_equal(y[:, :4], x[:, :4] + x[:, 1:])
    np.testing.assert_array_equal(y[:, 4], x[:, 4])
    small = np.zeros((2, 5))
    fault = trial.run(kernel, [x, small, 0]).fault
    assert fault is not None and fault[1] == (2, 0, 2, 5)


def test_bounds_without_a_fault_record() -> None:
    kernel = kernel_of(BLUR)
    block = trial.plain_block(kernel)
    less = ArgBlock(tuple([s for s in block.slots if s.kind != "fault"]), block.format, block.size)
    x = np.zeros((3, 5))
    with pytest.raises(SpirogradAssertionError, match=r"index \(0, 5\) is out of range of x"):
        trial.run(kernel, [x, x.copy(), 1], block=less)


def field_kernel(ref: FieldRef, indices: tuple[int, ...]) -> Kernel:
    constants = "".join([f"  %i{k} = const[{i}]() : i32\n" for k, i in enumerate(indices)])
    names = ", ".join([f"%i{k}" for k in range(len(indices))])
    body = f"{constants}  %v = const[7]() : i32\n  store[f]({names}, %v)\n  yield()\n"
    kernel = parse(f'kernel "k"\nref f = {TEXT_OF_FIELD[ref]}\n{{\n{body}}}\n')
    verify(kernel, "kernel")
    return kernel


BLOCKED = FieldRef("f", 2, 0, dt.i32, (4, 8), (), Layout((Term(0, 1, 0, 64), Term(1, 4, 0, 32), Term(1, 1, 4, 8)), (4,)))
MATRIX = FieldRef("f", 2, 0, dt.i32, (3,), (2, 2), Layout((Term(0, 1, 0, 16),), (0, 4, 8, 12), (-1,)))
TEXT_OF_FIELD = {
    BLOCKED: 'FieldRef("f", 2, 0, i32, (4, 8), (), Layout((Term(0, 1, 0, 64), Term(1, 4, 0, 32), Term(1, 1, 4, 8)), components=(4,)))',
    MATRIX: 'FieldRef("f", 2, 0, i32, (3,), (2, 2), Layout((Term(0, 1, 0, 16),), components=(0, 4, 8, 12), origin=(-1,)))',
}


@pytest.mark.parametrize(
    ("ref", "indices", "element"),
    [
        (BLOCKED, (0, 0), 1),
        (BLOCKED, (3, 6), (3 * 64 + 32 + 2 * 8 + 4) // 4),
        (BLOCKED, (4, 0), None),
        (BLOCKED, (0, 8), None),
        (BLOCKED, (-1, 0), None),
        (MATRIX, (-1, 0, 0), 0),
        (MATRIX, (1, 1, 0), 10),
        (MATRIX, (2, 0, 0), None),
        (MATRIX, (0, 2, 0), None),
    ],
)
def test_field_layouts(ref: FieldRef, indices: tuple[int, ...], element: int | None) -> None:
    memory = np.zeros(64, np.int32)
    outcome = trial.run(field_kernel(ref, indices), trees={2: memory})
    if element is None:
        assert outcome.fault is not None and not memory.any()
    else:
        assert outcome.fault is None and list(np.flatnonzero(memory)) == [element]


@pytest.mark.parametrize("t", [t for t in dt.ALL if t is not dt.u1], ids=str)
@pytest.mark.parametrize("kind", ops.ATOMIC_KINDS)
def test_atomics(kind: str, t: dt.DType) -> None:
    if kind in ("and", "or", "xor") and t.is_float:
        pytest.skip("bits of integers only")
    literal = "3.0" if t.is_float else "3"
    kernel = kernel_of(f"""arg ArrayArg("x", {t.name}, 1)
arg ArrayArg("old", {t.name}, 1)
ref x = ArrayRef("x", 0, {t.name}, 1)
ref old = ArrayRef("old", 1, {t.name}, 1)
{{
  %i = const[1]() : i32
  %v = const[{literal}]() : {t.name}
  %old = atomic[("{kind}", x)](%i, %v) : {t.name}
  store[old](%i, %old)
  yield()
}}
""")
    table: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
                             "or": np.bitwise_or, "xor": np.bitwise_xor, "exchange": lambda a, b: b}
    for start in (0, 5, t.max):
        x, old = np.array([1, start, 1], t.np), np.zeros(2, t.np)
        before = x.copy()
        with np.errstate(all="ignore"):
            want = table[kind](before[1:2], np.array([3], t.np))[0]
        trial.run(kernel, [x, old])
        assert old[1] == before[1] and x[1] == want and x[0] == x[2] == 1


def test_compare_and_swap_is_by_bits() -> None:
    kernel = kernel_of("""arg ArrayArg("x", f32, 1)
ref x = ArrayRef("x", 0, f32, 1)
ref old = TempRef("old", f32)
return old
{
  %i = const[0]() : i32
  %zero = const[0.0]() : f32
  %one = const[1.0]() : f32
  %old = cas[x](%i, %zero, %one) : f32
  store[old](%old)
  yield()
}
""")
    for start, end in ((0.0, 1.0), (-0.0, -0.0), (2.0, 2.0)):
        x = np.array([start], np.float32)
        assert math.copysign(1, trial.run(kernel, [x]).returns[0]) == math.copysign(1, start)
        assert x[0] == end and np.signbit(x[0]) == np.signbit(np.float32(end))


FLAGS = """arg ArrayArg("x", u1, 1)
arg ScalarArg("v", u1)
arg ScalarArg("h", f16)
arg ScalarArg("b", i8)
ref x = ArrayRef("x", 0, u1, 1)
ref h = TempRef("h", f16)
ref b = TempRef("b", i8)
return h
return b
{
  %i = const[0]() : i32
  %j = const[1]() : i32
  %v = arg[1]() : u1
  %h = arg[2]() : f16
  %b = arg[3]() : i8
  %x = load[x](%i) : u1
  %y = not(%x) : u1
  %z = and(%y, %v) : u1
  store[x](%j, %z)
  %o = atomic[("or", x)](%i, %v) : u1
  store[h](%h)
  store[b](%b)
  yield()
}
"""


@pytest.mark.parametrize("wide", [False, True])
def test_small_types(wide: bool) -> None:
    """u1 lives in bytes; the block may hold small scalars as themselves or widened."""
    kernel = kernel_of(FLAGS)
    block = trial.plain_block(kernel)
    if wide:
        entry = {dt.u1: dt.u32, dt.f16: dt.f32, dt.i8: dt.i32}
        slots = [Slot(s.kind, s.index, s.axis, s.role, entry[s.dtype] if s.dtype else None, s.offset) for s in block.slots]
        block = ArgBlock(tuple(slots), block.format, block.size)
    for start in (0, 1, 2):
        x = np.array([start, 5], np.uint8)
        assert trial.run(kernel, [x, True, 1.5, -3], block=block).returns == (1.5, -3)
        assert list(x) == [1, not start]


DIAGNOSTICS = """arg ScalarArg("n", i32)
{
  %n = arg[0]() : i32
  %zero = const[0]() : i32
  %two = const[2]() : i32
  %half = const[-0.5]() : f64
  %big = const[18446744073709551615]() : u64
  for[LoopAttr(parallel=True)](%zero, %n) : () { (%i: i32)
    print[PrintSite(("i ", (0, "")), (i32, f64, u64))](%i, %half, %big)
    %ok = lt(%i, %two) : u1
    check[FaultSite("assert", "{0} {1}", (i32, f64))](%ok, %i, %half)
    yield()
  }
  yield()
}
"""


def test_checks_and_prints() -> None:
    kernel = kernel_of(DIAGNOSTICS)
    outcome = trial.run(kernel, [4])
    assert [values for _, values in outcome.prints] == [(i, -0.5, 2**64 - 1) for i in range(4)]
    assert outcome.fault is not None and outcome.fault[0].code == "assert" and outcome.fault[1] == (2, -0.5)
    assert trial.run(kernel, [2]).fault is None


def test_the_print_ring_overflows_without_harm() -> None:
    kernel = kernel_of(DIAGNOSTICS)
    outcome = trial.run(kernel, [artifact.PRINT_WORDS // 8 + 10])
    assert len(outcome.prints) == (artifact.PRINT_WORDS - artifact.PRINT_DATA) // 8


REDUCTION = """arg ArrayArg("x", f32, 1)
ref total = TempRef("total", f32)
ref x = ArrayRef("x", 0, f32, 1)
return total
{
  task[TaskAttr("serial", "clear")]() {
    %z = const[0.0]() : f32
    store[total](%z)
    yield()
  }
  task[TaskAttr("range_for", "sum", reductions=(Reduction("add", f32),))]() {
    %b = const[0]() : i32
    %e = shape[(0, 0)]() : i32
    yield(%b, %e)
  } { (%i: i32, %s: f32)
    %v = load[x](%i) : f32
    %n = add["reassoc"](%s, %v) : f32
    yield(%n)
  } { (%s: f32)
    %o = atomic[("add", total)](%s) : f32
    yield()
  }
  yield()
}
"""


def test_tasks_and_reductions() -> None:
    kernel = kernel_of(REDUCTION)
    for n in (0, 1, 100):
        assert trial.run(kernel, [np.arange(n, dtype=np.float32)]).returns == (n * (n - 1) / 2,)


def test_device_ir() -> None:
    """The same reduction after layout, written out by hand, on the block of its layout."""
    source = kernel_of(REDUCTION)
    total, x = Slot("temps"), Slot("array", offset=8)
    n = Slot("shape", dtype=dt.i32, offset=16)
    text = REDUCTION.replace("return total\n", "").replace("store[total](%z)", "%at = const[0]() : i32\n    store[total](%at, %z)")
    text = text.replace('atomic[("add", total)](%s)', 'atomic[("add", total)](%at, %s)')
    text = text.replace("{ (%s: f32)", "{ (%s: f32)\n %at = const[0]() : i32")
    text = text.replace("shape[(0, 0)]", 'slot[Slot("shape", dtype=i32, offset=16)]')
    text = text.replace('TempRef("total", f32)', 'BufferRef("total", Slot("temps"), f32)')
    text = text.replace('ArrayRef("x", 0, f32, 1)', 'BufferRef("x", Slot("array", offset=8), f32)')
    kernel = kernel_of(text, "device")
    block = ArgBlock((total, x, n), "<QQi4x", 24)
    outcome = trial.run(kernel, [np.arange(10, dtype=np.float32)], source=source, block=block)
    assert outcome.returns == (45.0,)


def test_iterations_run_one_after_the_other() -> None:
    """All in thread slot 0, so that memory for one is enough."""
    task = 'task[TaskAttr("range_for", "a")]() {\n %b = const[0]() : i32\n %e = const[5]() : i32\n yield(%b, %e)\n} { (%i: i32)\n'
    task += " %slot = thread_slot() : i32\n store[x](%i, %slot)\n yield()\n} {\n yield()\n}\n"
    argument = 'arg ArrayArg("x", i32, 1)\n'
    source = kernel_of(argument + 'ref x = ArrayRef("x", 0, i32, 1)\n{\n  yield()\n}\n')
    kernel = kernel_of(argument + f'ref x = BufferRef("x", Slot("array"), i32)\n{{\n{task} yield()\n}}\n', "device")
    x = np.full(5, 9, np.int32)
    trial.run(kernel, [x], source=source, block=ArgBlock((Slot("array"),), "<Q", 8))
    assert x.tolist() == [0] * 5


def test_stepping() -> None:
    kernel = kernel_of(COLLATZ)
    seen: list[tuple[str, Any]] = []

    def on_op(op: Op, values: Values) -> None:
        if op.code is not ops.store:
            seen.append((op.code.name, values[op]))

    trial.run(kernel, [2], on_op=on_op)
    assert [name for name, _ in seen] == ["ne", "irem", "eq", "idiv", "if", "result", "add", "max", "ne", "while", "result", "result"]
    assert seen[9][1] == (1, 1, 2)


def test_seed_and_missing_entries() -> None:
    kernel = kernel_of('ref r = TempRef("r", u32)\nreturn r\n{\n  %s = seed() : u32\n  store[r](%s)\n  yield()\n}\n')
    assert trial.run(kernel, seed=0xFFFFFFFF).returns == (0xFFFFFFFF,)
    with pytest.raises(ValueError, match="no entry for"):
        compile_for_run(kernel, ArgBlock((), "<", 0), {TempRef("r", dt.u32): 0})
    with pytest.raises(ValueError, match="does not fit"):
        trial.run(kernel_of(BLUR), [np.zeros(3), np.zeros(3), 0])


# --- the device ----------------------------------------------------------------------------------------------------------


def test_device_memory() -> None:
    device = interpreter.open()
    a, b = device.allocate(100), device.allocate(0)
    assert a.address % 256 == 0 and b.nbytes >= 16 and device.caps.target_name == "interpreter"
    data = bytes(range(100))
    device.upload(a, 4, memoryview(data)[:50])
    out = bytearray(54)
    device.download(a, 0, memoryview(out))
    assert bytes(out) == bytes(4) + data[:50]
    device.fill(a, 8, 8, 0x01020304)
    device.copy(b, 0, a, 8, 8)
    view = device.host_view(b)
    assert view is not None and bytes(view[:8]) == struct.pack("<II", 0x01020304, 0x01020304)
    assert device.wrap(1234, 16) is None
    with pytest.raises(SpirogradRuntimeError, match="outside of a buffer"):
        device.upload(b, 8, memoryview(data))
    device.free(a)
    with pytest.raises(SpirogradRuntimeError, match="was freed"):
        device.fill(a, 0, 4, 0)
    device.synchronize()
    device.close()


def test_device_memory_limit() -> None:
    device = interpreter.open(device_memory_bytes=64)
    a = device.allocate(64)
    with pytest.raises(OutOfDeviceMemory):
        device.allocate(16)
    device.free(a)
    device.allocate(48)


def test_device_launch() -> None:
    kernel = kernel_of(REDUCTION)
    slots = (Slot("array"), Slot("temps", offset=8), Slot("fault", offset=16), Slot("shape", offset=24, dtype=dt.i32))
    block = ArgBlock(slots, "<QQQi4x", 32)
    program = compile_for_run(kernel, block, {TempRef("total", dt.f32): 4})
    compiled = CompiledKernel("k", "interpreter", "", block, (), run=program.run, faults=program.faults)
    device = interpreter.open()
    x, temps, fault = device.allocate(40), device.allocate(8), device.allocate(128)
    device.upload(x, 0, memoryview(np.arange(10, dtype=np.float32)))
    executable = device.load(compiled)
    device.launch(executable, struct.pack(block.format, x.address, temps.address, fault.address, 10), [None])
    out = bytearray(8)
    device.download(temps, 0, memoryview(out))
    assert struct.unpack("<ff", out) == (0.0, 45.0)
    # An extent that lies does not crash; a null array neither.
    for address, n in ((x.address, 1000), (0, 10)):
        device.fill(fault, 0, 128, 0)
        device.launch(executable, struct.pack(block.format, address, temps.address, fault.address, n), [None])
        record = np.zeros(32, np.uint32)
        device.download(fault, 0, memoryview(record).cast("B"))
        assert record[artifact.FAULT_FLAG] == 1 and program.faults[record[artifact.FAULT_SITE]].code == "bounds"
    with pytest.raises(SpirogradRuntimeError, match="not for the interpreter"):
        device.load(CompiledKernel("k", "cpu", "", block, ()))
