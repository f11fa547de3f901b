"""Adstacks on every back end, in kernel IR made by hand: each iteration saves a sequence and takes it back in reverse order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import needs
import numpy as np
import pytest

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.device import Device
from spirograd.base.dtypes import DType, f32, f64, i32, i64, u32
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayArg, ArrayRef, Kernel, LoopAttr, Op, ScalarArg, TempRef
from spirograd.ir.spec import verify
from spirograd.runtime import loader
from spirograd.runtime.adstack_heap import AdstackSizes, AdstacksTooLarge
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher, LaunchPlan

COMPILED = ("cpu", "vulkan", "wgpu")
COUNTS = ArrayRef("counts", 0, i32, 1)
OUT = ArrayRef("out", 1, i32, 1)


class Machine:
    """A device, and what launches on it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = Memory(device)
        self.launcher = Launcher(device, self.memory)

    def plan(self, kernel: Kernel) -> LaunchPlan:
        verify(kernel, "kernel")
        return self.launcher.prepare(compile_kernel(kernel, self.device.caps, CompileOptions()))

    def bind(self, array: np.ndarray[Any, Any]) -> ArrayBinding:
        allocation = self.memory.allocate(array.nbytes)
        if array.nbytes:
            allocation.write(0, memoryview(array))
        return ArrayBinding(allocation.address, array.shape, 0, 0, allocation)

    def read(self, binding: ArrayBinding, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.launcher.synchronize()
        assert binding.allocation is not None
        if out.nbytes:
            binding.allocation.read_into(0, memoryview(out))
        return out


@pytest.fixture
def machine(arch: str) -> Iterator[Machine]:
    device = loader.open_device(arch)
    yield Machine(device)
    device.close()


class Code:
    """A builder with loops from 0 on."""

    def __init__(self) -> None:
        self.b = Builder()
        self.b.begin()

    def loop(self, end: Op, body: Callable[..., Sequence[Op]], initial: Sequence[Op] = (), parallel: bool = False) -> tuple[Op, ...]:
        begin = self.b.const(0, end.type)
        params = self.b.begin(end.type, *[v.type for v in initial])
        return self.b.for_(begin, end, initial, self.b.end(body(*params)), LoopAttr(parallel=parallel))

    def number(self, i: Op, j: Op, salt: int, t: DType) -> Op:
        """What iteration i saves in step j: small enough for every type."""
        b = self.b
        mixed = b.emit(
            ops.add, b.emit(ops.mul, i, b.const(7), attr="wrap"), b.emit(ops.mul, j, b.const(13 + salt), attr="wrap"), attr="wrap"
        )
        return b.cast(b.emit(ops.and_, mixed, b.const(1023)), t)

    def save(self, adstacks: Sequence[AdstackRef], i: Op, count: Op) -> None:
        def step(j: Op) -> Sequence[Op]:
            for salt, adstack in enumerate(adstacks):
                for entry in range(adstack.width):
                    self.b.store(adstack, j, self.b.const(entry), self.number(i, j, 10 * salt + entry, adstack.dtype))
            return ()

        self.loop(count, step)

    def recall(self, adstacks: Sequence[AdstackRef], count: Op, total: Op) -> Op:
        """``total * 31 + entry`` over all entries, the last step first, in i32."""
        b = self.b

        def step(j: Op, running: Op) -> Sequence[Op]:
            at = b.emit(ops.sub, b.emit(ops.sub, count, b.const(1), attr="nsw"), j, attr="nsw")
            for adstack in adstacks:
                for entry in range(adstack.width):
                    value = b.cast(b.load(adstack, at, b.const(entry)), i32)
                    running = b.emit(ops.add, b.emit(ops.mul, running, b.const(31), attr="wrap"), value, attr="wrap")
            return (running,)

        return self.loop(count, step, (total,))[0]

    def there_and_back(self, adstacks: Sequence[AdstackRef], n: Op, at: Op | None = None) -> None:
        """A parallel loop: out[i] = the sequence of counts[i] steps in reverse."""
        b = self.b
        zero = b.const(0)

        def body(i: Op) -> Sequence[Op]:
            count = b.load(COUNTS, i)
            self.save(adstacks, i, count)
            before = zero if at is None else b.load(OUT, i)
            b.store(OUT, i, self.recall(adstacks, count, before))
            return ()

        self.loop(n, body, parallel=True)

    def kernel(self, *more: ScalarArg) -> Kernel:
        return Kernel("adstacks", (ArrayArg("counts", i32, 1), ArrayArg("out", i32, 1), *more), self.b.end())


def expected(counts: np.ndarray[Any, Any], widths: Sequence[int], before: np.ndarray[Any, Any] | int = 0) -> np.ndarray[Any, Any]:
    """The same in NumPy, all iterations at once."""
    i = np.arange(len(counts), dtype=np.int64)
    total = np.zeros(len(counts), np.uint32) + np.uint32(0) + np.asarray(before, np.int32).astype(np.uint32)
    for j in reversed(range(max(counts, default=0))):
        for salt, width in enumerate(widths):
            for entry in range(width):
                value = (7 * i + j * (13 + 10 * salt + entry)) & 1023
                total = np.where(j < counts, total * np.uint32(31) + value.astype(np.uint32), total)
    return total.astype(np.uint32).view(np.int32)


def tape_types(device: Device) -> list[DType]:
    interpreted = device.caps.target_name not in ("cpu", "vulkan", "wgpu")
    wide = [t for t, has in ((f64, device.caps.float64), (i64, device.caps.int64)) if has or interpreted]
    return [i32, f32, *wide]


def check(machine: Machine, counts: np.ndarray[Any, Any], adstacks: Sequence[AdstackRef], capacities: Sequence[int]) -> LaunchPlan:
    code = Code()
    code.there_and_back(adstacks, code.b.emit(ops.shape, attr=(0, 0), type=i32))
    plan = machine.plan(code.kernel())
    out = machine.bind(np.full(len(counts), -1, np.int32))
    plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes(tuple(capacities)))
    np.testing.assert_array_equal(machine.read(out, np.empty(len(counts), np.int32)), expected(counts, [t.width for t in adstacks]))
    return plan


def test_types_mixed_and_ragged(machine: Machine) -> None:
    adstacks = [AdstackRef(f"t{k}", t, 1 + k % 3, 0) for k, t in enumerate(tape_types(machine.device))]
    counts = np.random.default_rng(1).integers(0, 12, 200).astype(np.int32)
    check(machine, counts, adstacks, [11])


@pytest.mark.parametrize("n", [0, 1, 63, 65])
def test_few_iterations(machine: Machine, n: int) -> None:
    check(machine, np.full(n, 3, np.int32), [AdstackRef("a", f32, 2, 0), AdstackRef("b", i32, 1, 0)], [3])


def test_zero_steps(machine: Machine) -> None:
    check(machine, np.zeros(100, np.int32), [AdstackRef("a", f32, 1, 0)], [0])


@pytest.mark.archs(*COMPILED)
def test_more_iterations_than_thread_slots(machine: Machine) -> None:
    """Thread slots are used again, so memory does not grow with the loop."""
    caps = machine.device.caps
    most = 70_000 if caps.loop_limit or caps.target.slots_by_thread else 270_000  # cards have up to 1 << 18
    counts = np.random.default_rng(2).integers(0, 6, most * 3 // 2 + 3).astype(np.int32)
    plan = check(machine, counts, [AdstackRef("a", f32, 2, 0), AdstackRef("b", i32, 1, 0)], [5])
    assert 0 < plan.adstack_bytes < 5 * 3 * 4 * most


@pytest.mark.archs(*COMPILED)
@pytest.mark.vulkan_or_wgpu
def test_a_million_iterations_of_many_steps(machine: Machine) -> None:
    """llvmpipe ends the loops of an invocation after 65,535 iterations: thread slots enough must be given."""
    counts = np.full(1_000_000, 64, np.int32)
    plan = check(machine, counts, [AdstackRef("a", i32, 1, 0)], [64])
    assert plan.adstack_bytes < 1 << 27


def test_two_tasks(machine: Machine) -> None:
    """Their adstacks do not meet, and each has its own capacity; the first loop runs over few iterations, the second over more."""
    first = [AdstackRef("a", f32, 1, 0), AdstackRef("b", i32, 2, 1)]
    second = [AdstackRef("c", i32, 3, 2)]
    code = Code()
    size = code.b.emit(ops.shape, attr=(0, 0), type=i32)
    code.there_and_back(first, code.b.emit(ops.idiv, size, code.b.const(3)))
    code.there_and_back(second, size, at=size)
    plan = machine.plan(code.kernel())
    counts = np.random.default_rng(3).integers(0, 8, 500).astype(np.int32)
    out = machine.bind(np.full(500, 5, np.int32))
    plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes((7, 8, 7)))
    before = np.full(500, 5, np.int32)
    before[:166] = expected(counts, [1, 2])[:166]
    np.testing.assert_array_equal(machine.read(out, np.empty(500, np.int32)), expected(counts, [3], before))


def test_serial_tape_lasts_over_tasks(machine: Machine) -> None:
    """Saved in a serial task, taken back in another one, after a parallel loop with tapes of its own."""
    code = Code()
    b = code.b
    serial = [AdstackRef("s", i32, 2, 0)]
    size = b.emit(ops.shape, attr=(0, 0), type=i32)
    code.save(serial, b.const(4), size)
    code.there_and_back([AdstackRef("p", i32, 1, 1)], size)
    b.store(OUT, b.const(0), code.recall(serial, size, b.const(9)))
    plan = machine.plan(code.kernel())
    counts = np.full(300, 5, np.int32)
    out = machine.bind(np.zeros(300, np.int32))
    plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes((300, 5)))
    want = expected(counts, [1])
    want[0] = expected(np.full(5, 300, np.int32), [2], 9)[4]
    np.testing.assert_array_equal(machine.read(out, np.empty(300, np.int32)), want)


def test_bounds_from_memory(machine: Machine) -> None:
    """Only the device knows how many iterations the task has."""
    code = Code()
    size = code.b.load(COUNTS, code.b.const(0))
    code.there_and_back([AdstackRef("a", f32, 1, 0)], size)
    plan = machine.plan(code.kernel())
    counts = np.full(9000, 3, np.int32)
    counts[0] = 5000 if machine.device.caps.target_name in COMPILED else 90
    shown = int(counts[0])
    # Iteration 0 saves as many steps as there are iterations.
    out = machine.bind(np.zeros(9000, np.int32))
    plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes((shown,)))
    want = np.where(np.arange(9000) < shown, expected(np.full(9000, 3, np.int32), [1]), 0)
    want[0] = expected(counts[:1], [1])[0]
    np.testing.assert_array_equal(machine.read(out, np.empty(9000, np.int32)), want)


@pytest.mark.archs(*COMPILED)
def test_launches_share_the_heap(machine: Machine) -> None:
    """A large launch makes it grow while smaller ones before it may still run; it stays for those after."""
    code = Code()
    code.there_and_back([AdstackRef("a", f32, 1, 0)], code.b.emit(ops.shape, attr=(0, 0), type=i32))
    plan = machine.plan(code.kernel())
    runs = []
    for n, steps in ((50, 3), (700, 90), (20, 4), (3000, 200), (60, 8)):
        counts = np.full(n, steps, np.int32)
        out = machine.bind(np.zeros(n, np.int32))
        plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes((steps,)))
        runs.append((counts, out))
    for counts, out in runs:
        np.testing.assert_array_equal(machine.read(out, np.empty(len(counts), np.int32)), expected(counts, [1]))


@pytest.mark.archs(*COMPILED)
def test_threads_that_launch_at_once(machine: Machine) -> None:
    adstack = AdstackRef("a", i32, 1, 0)
    wrong: list[str] = []

    def work(steps: int) -> None:
        code = Code()
        code.there_and_back([adstack], code.b.emit(ops.shape, attr=(0, 0), type=i32))
        plan = machine.plan(code.kernel())
        counts = np.full(2000, steps, np.int32)
        for _ in range(10):
            out = machine.bind(np.zeros(2000, np.int32))
            plan.launch(Arguments.of([0, 0], [machine.bind(counts), out], {}), AdstackSizes((steps,)))
            if not np.array_equal(machine.read(out, np.empty(2000, np.int32)), expected(counts, [1])):
                wrong.append(f"{steps} steps")

    threads = [threading.Thread(target=work, args=(steps,)) for steps in (5, 17, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.archs(*COMPILED)
def test_too_large(machine: Machine) -> None:
    """Refused with kernel, bytes and adstack before anything runs; the device stays usable."""
    code = Code()
    code.there_and_back([AdstackRef("noted", f32, 1, 0)], code.b.emit(ops.shape, attr=(0, 0), type=i32))
    plan = machine.plan(code.kernel())
    counts = np.full(1000, 2, np.int32)
    arrays = [machine.bind(counts), machine.bind(np.zeros(1000, np.int32))]
    with pytest.raises(AdstacksTooLarge, match=r"adstacks.*[\d,]{9,} bytes") as raised:
        plan.launch(Arguments.of([0, 0], arrays, {}), AdstackSizes((2**31 - 1,)))
    assert raised.value.adstack == "noted"
    plan.launch(Arguments.of([0, 0], arrays, {}), AdstackSizes((2,)))
    np.testing.assert_array_equal(machine.read(arrays[1], np.empty(1000, np.int32)), expected(counts, [1]))


def test_random_numbers_again(machine: Machine) -> None:
    """``drawn`` gives a launch the seed of an earlier one; each other launch has its own."""
    b = Builder()
    b.begin()
    b.store(ArrayRef("out", 0, u32, 1), b.const(0), b.emit(ops.seed, type=u32))
    plan = machine.plan(Kernel("draw", (ArrayArg("out", u32, 1),), b.end()))
    out = machine.bind(np.zeros(1, np.uint32))

    def launch(drawn: int | None) -> int:
        plan.launch(Arguments.of([0], [out], {}), drawn=drawn)
        return int(machine.read(out, np.empty(1, np.uint32))[0])

    first = launch(None)
    number = plan.last_number
    second = launch(None)
    assert first != second
    assert launch(number) == first
    assert launch(None) not in (first, second)


def test_tapes_are_in_the_artifact() -> None:
    needs.need("vulkan")
    device = loader.open_device("vulkan")
    try:
        code = Code()
        size = code.b.emit(ops.shape, attr=(0, 0), type=i32)
        code.save([AdstackRef("s", i32, 2, 1)], size, size)
        code.there_and_back([AdstackRef("p", f32, 1, 0)], size)
        code.b.store(OUT, code.b.const(0), code.recall([AdstackRef("s", i32, 2, 1)], size, size))
        compiled = compile_kernel(code.kernel(), device.caps, CompileOptions())
        found = [(t.name, t.dtype, t.width, t.capacity, t.task is None) for t in compiled.adstacks]
        assert found == [("s", i32, 2, 1, True), ("p", f32, 1, 0, False)]
        assert compiled.adstacks[1].task in [task.name for task in compiled.tasks if task.kind == "range_for"]
    finally:
        device.close()


def test_temporaries_too(machine: Machine) -> None:
    """A kernel with tapes that also has memory of its launch, and returns a value."""
    code = Code()
    b = code.b
    total = TempRef("total", i32)
    b.store(total, b.const(0))
    size = b.emit(ops.shape, attr=(0, 0), type=i32)
    adstack = AdstackRef("a", i32, 1, 0)

    def body(i: Op) -> Sequence[Op]:
        count = b.load(COUNTS, i)
        code.save([adstack], i, count)
        b.atomic("add", total, code.recall([adstack], count, b.const(0)))
        return ()

    code.loop(size, body, parallel=True)
    kernel = code.kernel()
    plan = machine.plan(Kernel(kernel.name, kernel.args, kernel.body, (total,)))
    counts = np.random.default_rng(4).integers(0, 5, 300).astype(np.int32)
    returned = plan.launch(Arguments.of([0, 0], [machine.bind(counts), machine.bind(np.zeros(1, np.int32))], {}), AdstackSizes((4,)))
    want = expected(counts, [1]).astype(np.int64).sum()
    assert returned is not None
    assert int(returned[0]) == np.int64(want).astype(np.int32)
