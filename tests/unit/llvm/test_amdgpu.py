"""Code objects for AMD's GPUs: what the machine code says about accesses, atomics, arguments and exchange of values. What it computes is
tested by running it in an emulator (validation/rdna3)."""

from __future__ import annotations

import re

import pytest
from unit.llvm.gpu_programs import ARRAYS, TREES, doubled, loop, translated

from spirograd.base.dtypes import VOID, DType, Vec, f16, f32, f64, i32, i64, u8, u32, u64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op, SharedRef
from spirograd.llvmgen.amdgpu import ARCHITECTURES, capabilities
from validation.code_objects import CodeObject
from validation.profiles import AMDGPU

GFX1100 = AMDGPU["amdgpu-gfx1100"]
MI300 = AMDGPU["amdgpu-gfx942"]


def assembly(*tasks: Op, slots=TREES, caps=GFX1100, block_size: int = 16) -> str:
    """The instructions, after a check of what the code object says of itself."""
    code = translated(*tasks, caps=caps, slots=slots, block_size=block_size)
    assert CodeObject(code.binary).problems() == []
    return code.assembly


def kernels(*tasks: Op, caps=GFX1100, block_size: int = 16) -> list[dict]:
    """The metadata of the kernel functions."""
    return CodeObject(translated(*tasks, caps=caps, block_size=block_size).binary).metadata["amdhsa.kernels"]


@pytest.mark.parametrize("profile", list(AMDGPU))
@pytest.mark.parametrize("t", [f32, i32, f64, u64], ids=str)
def test_neighbours_are_accessed_together(profile: str, t: DType) -> None:
    text = assembly(loop(doubled(TREES, t)), caps=AMDGPU[profile])
    assert re.search(r"global_load_(b128|dwordx4)", text) and re.search(r"global_store_(b128|dwordx4)", text)


@pytest.mark.parametrize("architecture", ["gfx900", "gfx90c", "gfx1010", "gfx1036", "gfx1103", "gfx1153", "gfx1200"])
def test_other_architectures(architecture: str) -> None:
    assert architecture in ARCHITECTURES
    assert "global_store" in assembly(loop(doubled(TREES, f16)), caps=capabilities(architecture))


@pytest.mark.parametrize("profile", list(AMDGPU))
def test_arguments_groups_and_waves(profile: str) -> None:
    caps = AMDGPU[profile]
    tasks = (loop(doubled(TREES, f32), size=96, name="a b"), loop(doubled(ARRAYS, i64), size=256, name="a-b"))
    first, second = kernels(*tasks, caps=caps, block_size=24)
    assert (first[".name"], second[".name"]) == ("k0_k_a_b", "k1_k_a_b")
    for kernel, size in ((first, 96), (second, 256)):
        assert kernel[".kernarg_segment_size"] == 24 and kernel[".max_flat_workgroup_size"] == size
        assert [(a[".offset"], a[".size"], a[".value_kind"]) for a in kernel[".args"]] == [(0, 24, "by_value")]
        assert kernel[".wavefront_size"] == caps.subgroup_size == (64 if "gfx9" in profile else 32)


def test_large_blocks_are_reached_by_their_address() -> None:
    (kernel,) = kernels(loop(doubled(TREES, f32)), block_size=4032)
    assert [(a[".size"], a[".value_kind"]) for a in kernel[".args"]] == [(4032, "by_value")]
    (kernel,) = kernels(loop(doubled(TREES, f32)), block_size=4040)
    assert [(a[".size"], a[".value_kind"]) for a in kernel[".args"]] == [(8, "global_buffer")]


WIDTHS = [u8, f16, i32, f32, f64, u64]
# By day a device shuffles a third of the types; those with waves of 64 have all between them, and those with waves of 32 too.
SHUFFLES = [
    pytest.param(profile, t, marks=[pytest.mark.long] if (p + k) % 3 else [], id=f"{profile}-{t}")
    for p, profile in enumerate(AMDGPU)
    for k, t in enumerate(WIDTHS)
]


@pytest.mark.parametrize("profile", list(AMDGPU))
def test_ballots(profile: str) -> None:
    """A comparison of vectors has a mask of lanes as its result."""
    x, caps = BufferRef("x", TREES[0], i32), AMDGPU[profile]
    t = u32 if caps.subgroup_size == 32 else u64
    y = BufferRef("y", TREES[1], t)

    def body(b: Builder, i: Op) -> None:
        b.store(y, i, b.emit(ops.subgroup_ballot, b.emit(ops.gt, b.load(x, i), b.const(3)), type=t))

    text = assembly(loop(body), caps=caps)
    assert "v_cmp_lt_i32" in text and "ds_bpermute" not in text


def test_barriers_of_subgroups() -> None:
    """Lanes run in step: no instruction waits, and the first of two stores to an element is kept."""
    x = BufferRef("x", TREES[0], i32)

    def stores(waits: bool) -> int:
        def body(b: Builder, i: Op) -> None:
            b.store(x, i, b.const(3))
            if waits:
                b.emit(ops.subgroup_barrier, type=VOID)
            b.store(x, i, b.const(4))

        text = assembly(loop(body), caps=next(iter(AMDGPU.values())))
        assert "s_barrier" not in text
        return text.count("global_store")

    assert stores(True) == 2 * stores(False)


@pytest.mark.parametrize("profile,t", SHUFFLES)
def test_values_of_every_width_are_shuffled(profile: str, t: DType) -> None:
    """Across half a wave through shared memory's network, or between rows; between few lanes within instructions."""
    x, y = (BufferRef(name, slot, t) for name, slot in zip("xy", TREES))
    caps = AMDGPU[profile]

    def shuffled(mask: int) -> str:
        def body(b: Builder, i: Op) -> None:
            b.store(y, i, b.emit(ops.subgroup_shuffle, b.load(x, i), attr=mask, type=t))

        return assembly(loop(body), caps=caps)

    times = 2 if t.bits == 64 else 1
    far = "ds_bpermute" if caps.subgroup_size == 64 else "v_permlanex16"
    assert shuffled(caps.subgroup_size // 2).count(far) >= times
    assert shuffled(8).count("ds_swizzle" if caps.subgroup_size == 64 else "row_xmask:8") >= times
    assert shuffled(2).count("quad_perm:[2,3,0,1]") >= times
    assert shuffled(1).count("quad_perm:[1,0,3,2]") >= times


@pytest.mark.parametrize("profile", list(AMDGPU))
def test_the_clock_is_read_where_it_stands(profile: str) -> None:
    x = BufferRef("x", TREES[0], i64)

    def body(b: Builder, i: Op) -> None:
        for _ in range(2):
            b.store(x, i, b.emit(ops.clock, type=i64))

    text = assembly(loop(body), caps=AMDGPU[profile])
    assert text.count("s_memrealtime") + text.count("MSG_RTN_GET_REALTIME") >= 2


def atomically(kind: str, t: DType, profile: str) -> str:
    """The atomics of a task whose iterations update elements that differ."""
    x = BufferRef("x", TREES[0], t)

    def body(b: Builder, i: Op) -> None:
        b.emit(ops.atomic, b.emit(ops.and_, i, b.const(7)), b.cast(i, t), attr=(kind, x), type=t)

    return " ".join(re.findall(r"(?:global|flat)_atomic_\w+", assembly(loop(body), caps=AMDGPU[profile])))


@pytest.mark.parametrize("profile", list(AMDGPU))
def test_integers_are_updated_by_the_hardware(profile: str) -> None:
    for kind, t in (("add", i32), ("add", u64), ("min", i32), ("max", u32), ("and", u32), ("or", i64), ("xor", u32), ("exchange", i32)):
        assert "cmpswap" not in atomically(kind, t, profile), (kind, t)


@pytest.mark.parametrize(
    ("t", "profiles"), [(f32, ("gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201")), (f64, ("gfx90a", "gfx942"))], ids=str
)
def test_floats_are_added_by_the_hardware_where_it_can(t: DType, profiles: tuple[str, ...]) -> None:
    for profile in AMDGPU:
        found = atomically("add", t, profile)
        native = profile.removeprefix("amdgpu-") in profiles
        assert native == ("cmpswap" not in found), (profile, found)
        assert native == bool(re.search(rf"global_atomic_add_f{t.bits}", found)), (profile, found)


@pytest.mark.parametrize("profile", list(AMDGPU))
def test_a_claim_is_one_atomic_for_a_wave(profile: str) -> None:
    counter, y = BufferRef("counter", TREES[0], i32), BufferRef("y", TREES[1], i32)
    task = loop(lambda b, i: b.store(y, i, b.emit(ops.claim, b.const(0), attr=counter, type=i32)))
    text = assembly(task, caps=AMDGPU[profile])
    assert len(re.findall(r"global_atomic_\w+", text)) == 1 and "mbcnt" in text and "readfirstlane" in text
    assert re.search(r"s_bcnt1_i32_b(32|64)", text)


@pytest.mark.parametrize("caps", [GFX1100, MI300], ids=["gfx1100", "gfx942"])
def test_shared_memory_and_barriers(caps) -> None:
    x, shared = BufferRef("x", TREES[0], f32), SharedRef("sums", f32, 256)

    def body(b: Builder, i: Op) -> None:
        local = b.emit(ops.and_, i, b.const(255))
        b.store(shared, local, b.load(x, i))
        b.emit(ops.workgroup_barrier, type=VOID)
        b.store(x, i, b.load(shared, b.emit(ops.sub, b.const(255), local)))

    code = translated(loop(body, size=256), caps=caps)
    assert re.search(r"ds_(store|write)_b32", code.assembly) and "s_barrier" in code.assembly
    (name,) = CodeObject(code.binary).kernels
    assert CodeObject(code.binary).descriptor(name).shared == 256 * 4


def test_stack_memory_is_told() -> None:
    """A vector that is indexed at run time, and too long for registers."""
    x, t = BufferRef("x", TREES[0], f32), Vec(100, f32)

    def body(b: Builder, i: Op) -> None:
        vector = b.emit(ops.vec, *[b.load(x, b.const(k)) for k in range(100)], type=t)
        b.store(x, i, b.emit(ops.extract, vector, b.load(BufferRef("y", TREES[1], i32), i), type=f32))

    code = CodeObject(translated(loop(body), caps=GFX1100).binary)
    (name,) = code.kernels
    assert code.descriptor(name).scratch >= 400 and any("bytes of scratch" in problem for problem in code.problems())


def test_what_would_end_the_process_is_refused() -> None:
    x = BufferRef("x", TREES[0], f64)
    with pytest.raises(TypeError, match="sin cannot be emitted"):
        assembly(loop(lambda b, i: b.store(x, i, b.emit(ops.sin, b.load(x, i)))))
