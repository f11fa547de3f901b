"""PTX: what it says about accesses, arguments and names. What it computes is tested where there is a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from unit.llvm.gpu_programs import ARRAYS, TREES, doubled, kernel_of, loop, translated

from spirograd.base.dtypes import VOID, DType, f16, f32, f64, i32, i64, u8, u32, u64
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op, PrivateCopy, SharedRef
from spirograd.ir.text import parse
from spirograd.llvmgen import gpu
from spirograd.llvmgen.gpu import entry_names
from spirograd.llvmgen.ptx import capabilities
from validation.profiles import PTX

CAPS = PTX["cuda-sm_90"]


def ptx(*tasks: Op, slots=TREES, caps=CAPS, block_size: int = 16) -> str:
    return translated(*tasks, caps=caps, slots=slots, block_size=block_size).assembly


@pytest.mark.parametrize(("t", "wide"), [(f32, "v4"), (i32, "v4"), (f64, "v2"), (u64, "v2")], ids=str)
def test_neighbours_are_accessed_together(t: DType, wide: str) -> None:
    text = ptx(loop(doubled(TREES, t)))
    assert re.search(rf"ld\.global\.(nc\.)?{wide}\.", text) and f"st.global.{wide}." in text


def test_rows_of_a_stencil() -> None:
    """Four outputs take three wide loads and those of both ends."""
    x, y = (BufferRef(name, slot, f32) for name, slot in zip("xy", TREES))

    def body(b: Builder, k: Op) -> None:
        column, row = (b.emit(code, k, b.const(998)) for code in (ops.irem, ops.idiv))
        start = b.emit(ops.mul, row, b.const(1000), attr="nsw")
        at = b.emit(ops.add, start, column, attr="nsw")
        total = b.load(x, b.emit(ops.add, at, b.const(1001), attr="nsw"))
        for distance in (1, 1000, 1002, 2001):
            total = b.emit(ops.add, total, b.load(x, b.emit(ops.add, at, b.const(distance), attr="nsw")))
        b.store(y, b.emit(ops.add, at, b.const(1001), attr="nsw"), total)

    (block,) = [block for block in ptx(loop(body, n=998 * 998)).split("\n$") if "st.global.v4." in block]
    assert block.count("ld.global.nc.v4.") == 3 and block.count("ld.global.nc.b32") == 2 and block.count("st.") == 1


def test_arrays_may_lie_in_the_memory_of_others() -> None:
    """What a task writes through one array it may read through another."""
    assert "ld.global.nc" in ptx(loop(doubled(TREES, f32)))
    assert "ld.global.nc" not in ptx(loop(doubled(ARRAYS, f32)), slots=ARRAYS)
    assert "ld.global.nc" not in ptx(loop(doubled((TREES[0], TREES[0]), f32)))


def test_small_workgroups_and_loops_take_one_iteration_at_a_time() -> None:
    assert ".v4." not in ptx(loop(doubled(TREES, f32), size=4))

    def body(b: Builder, i: Op) -> None:
        x = BufferRef("x", TREES[0], f32)
        j, total = b.begin(i32, f32)
        region = b.end([b.emit(ops.add, total, b.load(x, j))])
        (total,) = b.for_(b.const(0), i, [b.const(0.0, f32)], region)
        b.store(BufferRef("y", TREES[1], f32), i, total)

    assert "st.global.v4" not in ptx(loop(body))


def test_registers_for_loads_of_a_loop_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that only reads is given registers; one that stores what it read, that is the task's own, or that is in a long task, is
    not."""

    def body(b: Builder, i: Op, store: bool = False, before: int = 0) -> None:
        for _ in range(before):
            i = b.emit(ops.mul, i, i)
        j, total = b.begin(i32, f32)
        value = b.load(BufferRef("x", TREES[0], f32), j)
        if store:
            b.store(BufferRef("y", TREES[1], f32), j, value)
        region = b.end([b.emit(ops.add, total, value)])
        (total,) = b.for_(b.const(0), i, [b.const(0.0, f32)], region)
        b.store(BufferRef("y", TREES[1], f32), i, total)

    assert re.findall(r"\.minnctapersm (\d+)", ptx(loop(body), loop(body, size=1024))) == ["8", "1"]
    assert re.findall(r"\.minnctapersm (\d+)", ptx(loop(body, size=32), caps=capabilities("sm_90"))) == ["32"]
    assert ".minnctapersm" not in ptx(loop(lambda b, i: body(b, i, store=True)))
    monkeypatch.setattr(gpu, "_FEW_REGISTERS", 50)
    assert ".minnctapersm" not in ptx(loop(lambda b, i: body(b, i, before=60)))
    assert ".minnctapersm" not in ptx(loop(doubled(TREES, f32)))


def test_large_blocks_are_reached_by_their_address() -> None:
    assert ".param .align 8 .b8" in ptx(loop(doubled(TREES, f32)), block_size=4032)
    text = ptx(loop(doubled(TREES, f32)), block_size=4040)
    assert ".b8" not in text and re.search(r"\.param \.u64", text)


def test_launch_bounds_and_names() -> None:
    tasks = (loop(doubled(TREES, f32), size=96, name="a b"), loop(doubled(TREES, f32), name="a-b"), loop(doubled(TREES, i64), name="c"))
    text = ptx(*tasks)
    assert re.findall(r"\.maxntid (\d+)", text) == ["96", "64", "64"]
    assert ".minnctapersm" not in text
    names = entry_names(kernel_of(*tasks))
    assert len(set(names)) == 3 and re.findall(r"\.entry (\w+)\(", text) == list(names)


@pytest.mark.parametrize(("architecture", "groups"), [("sm_75", 16), ("sm_80", 32), ("sm_90", 32)])
def test_workgroups_of_a_warp_leave_room_for_others(architecture: str, groups: int) -> None:
    """As many as fit with 64 registers, or with 128 if lanes hold values for each other; not where numbers are wide."""

    def exchanged(b: Builder, i: Op) -> None:
        value = b.emit(ops.subgroup_shuffle, b.load(BufferRef("x", TREES[0], f32), i), attr=1, type=f32)
        b.store(BufferRef("y", TREES[1], f32), i, value)

    bodies = [(doubled(TREES, f32), 32), (doubled(TREES, f32), 64), (doubled(TREES, f64), 32), (exchanged, 32)]
    text = ptx(*[loop(body, size=size) for body, size in bodies], caps=capabilities(architecture))
    assert re.findall(r"\.minnctapersm (\d+)", text) == [str(groups), "16"]


@pytest.mark.parametrize("t", [f16, f32, f64, u8, i32, u64], ids=str)
@pytest.mark.parametrize("profile", list(PTX))
def test_values_of_every_width_are_shuffled(t: DType, profile: str) -> None:
    x, y = BufferRef("x", TREES[0], t), BufferRef("y", TREES[1], t)

    def body(b: Builder, i: Op) -> None:
        b.store(y, i, b.emit(ops.subgroup_shuffle, b.load(x, i), attr=4, type=t))

    # An invocation takes one iteration, for all of a warp must meet here.
    assert ptx(loop(body), caps=PTX[profile]).count("shfl.sync.bfly.b32") >= (2 if t.bits == 64 else 1)


@pytest.mark.parametrize("profile", list(PTX))
def test_ballots(profile: str) -> None:
    """Where the workgroup is no multiple of a warp, of those lanes that there are."""
    x, y = BufferRef("x", TREES[0], i32), BufferRef("y", TREES[1], u32)

    def body(b: Builder, i: Op) -> None:
        b.store(y, i, b.emit(ops.subgroup_ballot, b.emit(ops.gt, b.load(x, i), b.const(3)), type=u32))

    for size in (64, 16):
        text = ptx(loop(body, n=size, size=size), caps=PTX[profile], block_size=size)
        assert re.search(rf"vote\.sync\.ballot\.b32\s+%r\d+, %p\d+, {65535 if size == 16 else -1};", text)


@pytest.mark.parametrize(("trips", "least", "most"), [(None, 1, 7), (20, 20, 50), (801, 1, 20), (800, 8, 20)])
def test_loops_in_which_threads_meet_are_unrolled_where_no_iterations_remain(trips: int | None, least: int, most: int, capfd) -> None:
    """LLVM prints a warning if it is told to unroll others."""

    def body(b: Builder, i: Op) -> None:
        j, total = b.begin(i32, u32)
        holds = b.emit(ops.gt, b.load(BufferRef("x", TREES[0], i32), j), i)
        region = b.end([b.emit(ops.add, total, b.emit(ops.subgroup_ballot, holds, type=u32))])
        end = b.load(BufferRef("x", TREES[0], i32), b.const(0)) if trips is None else b.const(trips)
        (total,) = b.for_(b.const(0), end, [b.const(0, u32)], region)
        b.store(BufferRef("y", TREES[1], u32), i, total)

    text = ptx(loop(body, n=64, size=64), block_size=64)
    assert least <= text.count("vote.sync.ballot") <= most
    assert "warning" not in capfd.readouterr().err


@pytest.mark.parametrize("t", [i32, u32], ids=str)
def test_reductions_over_warps(t: DType) -> None:
    """From Ampere on by one instruction; capabilities of older ones name none."""
    x, y = (BufferRef(name, slot, t) for name, slot in zip("xy", TREES))

    def body(b: Builder, i: Op) -> None:
        value = b.load(x, i)
        for kind in CAPS.subgroup_reductions:
            value = b.emit(ops.subgroup_reduce, value, attr=kind, type=t)
        b.store(y, i, value)

    text, sign = ptx(loop(body, size=64), block_size=64), "s32" if t is i32 else "u32"
    found = re.findall(r"redux\.sync\.(\w+\.\w+)", text)
    assert found == ["add.s32", f"min.{sign}", f"max.{sign}", "and.b32", "or.b32", "xor.b32"] and "activemask" not in text
    assert not PTX["cuda-sm_70"].subgroup_reductions


def test_the_clock_is_read_where_it_stands() -> None:
    x = BufferRef("x", TREES[0], i64)

    def body(b: Builder, i: Op) -> None:
        for _ in range(2):
            b.store(x, i, b.emit(ops.clock, type=i64))

    assert ptx(loop(body)).count("%clock64") >= 2


def test_what_would_end_the_process_is_refused() -> None:
    """LLVM has no instruction for it, and says so by ending the process."""
    x = BufferRef("x", TREES[0], f32)
    with pytest.raises(TypeError, match="sin cannot be emitted"):
        ptx(loop(lambda b, i: b.store(x, i, b.emit(ops.sin, b.load(x, i)))))


def test_barriers_of_workgroups() -> None:
    """In workgroups of one warp, they are barriers of the lanes that there are."""
    x, y, shared = BufferRef("x", TREES[0], i32), BufferRef("y", TREES[1], i32), SharedRef("s", i32, 64)

    def body(b: Builder, i: Op) -> None:
        b.store(shared, i, b.load(x, i))
        b.emit(ops.workgroup_barrier, type=VOID)
        b.store(y, i, b.load(shared, b.emit(ops.sub, b.const(15), i)))

    for size, barrier in ((64, "bar.sync 0"), (33, "bar.sync 0"), (32, "bar.warp.sync -1"), (16, "bar.warp.sync 65535")):
        text = ptx(loop(body, size=size))
        assert [" ".join(found.split()) for found in re.findall(r"bar\.[^;]*", text)] == [barrier]
        assert text.index("st.shared") < text.index("bar.") < text.index("ld.shared")


@pytest.mark.parametrize("profile", list(PTX))
@pytest.mark.parametrize("t", [i32, u32, f32], ids=str)
def test_copies_in_shared_memory(t: DType, profile: str) -> None:
    """Two tasks with copies of one name, and of different lengths: four values are read at once, each is added in shared memory."""
    x, y = BufferRef("x", TREES[0], i32), BufferRef("y", TREES[1], t)
    tasks = []
    for length in (17, 33):
        copy = SharedRef("copy", t, length)
        task = loop(lambda b, i, copy=copy: b.atomic("add", copy, b.load(x, i), b.const(1, t)), name=f"t{length}")
        b = Builder()
        number, value = b.begin(i32, t)
        b.atomic("add", y, number, value)
        attr = replace(task.attr, copies=(PrivateCopy("add", copy),))
        tasks.append(Op(ops.task, VOID, (), attr, (*task.regions, b.end())))
    text = ptx(*tasks, caps=PTX[profile])
    assert {int(n) for n in re.findall(r"\.shared .align \d+ \.b8 \S+\[(\d+)\]", text)} == {4 * 17, 4 * 33}
    for entry in text.split(".entry")[1:]:
        assert "ld.global.nc.v4" in entry and entry.count("bar.sync") == 2
        assert len(re.findall(r"(atom|red)\.shared\.add", entry)) >= 4 and re.search(r"(atom|red)\.global\.add", entry)


@pytest.mark.parametrize("profile", list(PTX))
@pytest.mark.parametrize(("kind", "t", "instructions"), [
    ("max", f32, ("atom.global.max.s32", "atom.global.min.u32")),
    ("min", f32, ("atom.global.min.s32", "atom.global.max.u32")),
    ("max", f64, ("atom.global.max.s64", "atom.global.min.u64")),
    ("add", f16, ("atom.global.add.noftz.f16",)),
    ("add", f32, (".global.add.f32",)),
    ("add", f64, (".global.add.f64",)),
])  # fmt: skip
def test_atomics_of_floats(kind: str, t: DType, instructions: tuple[str, ...], profile: str) -> None:
    """Extrema are those of integers; a loop over compare-and-swap is for NaN only."""
    x, y = BufferRef("x", TREES[0], t), BufferRef("y", TREES[1], t)
    task = loop(lambda b, i: b.atomic(kind, y, b.emit(ops.and_, i, b.const(3)), b.load(x, i)))
    text = ptx(task, caps=PTX[profile])
    for instruction in instructions:
        assert instruction in text, instruction
    assert text.count("cas") <= (kind != "add")


def test_a_claim_is_one_atomic_for_a_warp() -> None:
    counter, y = BufferRef("counter", TREES[0], i32), BufferRef("y", TREES[1], i32)
    task = loop(lambda b, i: b.store(y, i, b.emit(ops.claim, b.const(0), attr=counter, type=i32)))
    for profile in ("cuda-sm_70", "cuda-sm_120"):
        text = ptx(task, caps=replace(PTX[profile], toolchain=""))
        assert "activemask" in text and text.count("atom") + text.count("red.") == 1


FUNCTION = """kernel "k"
arg ArrayArg("x", f32, 1)
ref x = ArrayRef("x", 0, f32, 1)
function "f" { (%p: f32)
  %m = rsqrt(%p) : f32
  yield(%m)
}
{
  %z = const[0]() : i32
  %n = shape[(0, 0)]() : i32
  for[LoopAttr(parallel=True)](%z, %n) : () { (%i: i32)
    %v = load[x](%i) : f32
    %w = call["f"](%v) : f32
    store[x](%i, %w)
    yield()
  }
  yield()
}
"""


def test_functions_have_the_instructions_of_the_device() -> None:
    (binary,) = compile_kernel(parse(FUNCTION), CAPS, CompileOptions()).binaries
    assert b"rsqrt.approx" in binary


RECURSIVE = """  %one = const[1.0]() : f32
  %more = lt(%one, %p) : u1
  %m = if(%more) : (f32) {
    %less = sub(%p, %one) : f32
    %inner = call["f"](%less) : f32
    %sum = sub(%p, %inner) : f32
    yield(%sum)
  } {
    yield(%p)
  }
  %r = result[0](%m) : f32
  yield(%r)
"""


def test_functions_that_call_themselves() -> None:
    text = FUNCTION.replace("  %m = rsqrt(%p) : f32\n  yield(%m)\n", RECURSIVE)
    for architecture in ("sm_70", "sm_80", "sm_90", "sm_100"):
        caps = replace(CAPS, cpu_name=architecture)
        (binary,) = compile_kernel(parse(text), caps, CompileOptions(verify=True)).binaries
        assert re.search(rb"call(.uni)? *\(retval", binary)
        assert binary.count(b"stacksave.u64") == 2  # where the task begins, and the function
