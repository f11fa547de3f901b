"""The wgpu target: buffers without addresses, sharing of bindings, rounding; and devices without 64-bit integers."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, f16, f32, f64, i32, i64, u32
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef
from spirograd.spirvgen.disasm import disassemble, opcode_names
from spirograd.spirvgen.emit import TaskModule, emit_task
from spirograd.spirvgen.grammar import ENUMERANTS, OPCODES
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.naga_check import check_for_naga
from validation.mutation_parts import Instruction, Parts

from . import kit


def emit(k: kit.Kernel, args: kit.Args, caps: Capabilities = kit.WGPU, options: CompileOptions | None = None) -> TaskModule:
    kit.compile_task(k, args, caps, options)
    return emit_task(kit.lowered(k, caps), k, args.block, caps, options or CompileOptions())


def copies(args: kit.Args) -> kit.Kernel:
    """Every buffer's first element, plus one, into its second."""

    def build(b: Builder) -> None:
        for ref, t in zip(args.refs, args.buffers):
            b.store(ref, b.const(1), b.emit(ops.add, b.load(ref, b.const(0)), b.const(1, t)))

    return kit.serial(build)


def test_buffers_are_bound_in_order() -> None:
    args = kit.Args([f32, i32, f32])
    module = emit(copies(args), args)
    assert module.bindings == ((0,), (8,), (16,))
    text = disassemble(module.binary)
    assert "PhysicalStorageBuffer" not in text and "Aligned" not in text
    assert all(f"Binding {k}" in text for k in range(3))


def test_one_buffer_seen_as_two_types_is_bound_twice() -> None:
    args = kit.Args([f32])
    bits = BufferRef("bits", args.refs[0].slot, u32)
    k = kit.serial(lambda b: b.store(bits, b.const(1), b.emit(ops.bitcast, b.load(args.refs[0], b.const(0)), type=u32)) and None)
    assert emit(k, args).bindings == ((0,), (0,))


def test_addresses_are_no_members_of_the_block() -> None:
    """Else a kernel would need 64-bit integers."""
    args = kit.Args([f32], [f32])
    k = kit.serial(lambda b: b.store(args.refs[0], b.const(0), args.scalar(b, 0)) and None)
    assert "Int64" not in disassemble(emit(k, args, replace(kit.WGPU, int64=False)).binary)


@pytest.mark.parametrize("count, limit", [(5, 8), (8, 8), (9, 8), (40, 8), (40, 4), (3, 2)])
def test_too_many_buffers_share(count: int, limit: int) -> None:
    types: list[DType] = [(f32, i32)[k % 2] for k in range(count)]
    args = kit.Args(types)
    caps = replace(kit.WGPU, max_buffers=limit, max_push_constants=1024)
    if count > limit == 2:
        args = kit.Args([f32] * count)
    bindings = emit(copies(args), args, caps).bindings
    assert len(bindings) <= limit
    assert {offset for entry in bindings for offset in entry} == {8 * k for k in range(count)}
    shared = {entry for entry in bindings if len(entry) > 1}
    assert len(shared) == (0 if count <= limit else 1)


def test_what_cannot_even_share_is_refused() -> None:
    args = kit.Args([f32, i32, u32, f64])
    with pytest.raises(SpirogradUnsupportedError, match=r"4 storage buffers.*at most 2"):
        emit(copies(args), args, replace(kit.WGPU, max_buffers=2))


def test_a_large_block_is_a_buffer() -> None:
    args = kit.Args([f32], [f32, i64, f16], padding=200)
    k = kit.serial(lambda b: b.store(args.refs[0], b.const(0), b.cast(args.scalar(b, 1), f32)) and None)
    text = disassemble(emit(k, args).binary)
    assert "PushConstant" not in text and "DescriptorSet 1" in text


def test_exact_results_pass_through_their_bits() -> None:
    """naga drops NoContraction."""
    for t in (f32, f64, f16):
        args = kit.Args([t])

        def body(b: Builder, args: kit.Args = args) -> None:
            x = b.load(args.refs[0], b.const(0))
            b.store(args.refs[0], b.const(0), b.emit(ops.add, b.emit(ops.mul, x, x, attr="exact"), x))

        for options in (CompileOptions(), CompileOptions(fast_math=False)):
            binary = emit(kit.serial(body), args, options=options).binary
            assert opcode_names(binary).count("OpBitwiseOr") == 2
            assert "NoContraction" not in disassemble(binary)


# --- the check for naga ----------------------------------------------------------------------------------------------------


def _with(binary: bytes, opcode: str, change: Any) -> bytes:
    """``binary`` with the words of the first ``opcode`` changed."""
    words = list(struct.unpack(f"<{len(binary) // 4}I", binary))
    at = 5
    while words[at] & 0xFFFF != OPCODES[opcode]:
        at += words[at] >> 16
    count = words[at] >> 16
    new = change(words[at : at + count])
    new[0] = len(new) << 16 | new[0] & 0xFFFF
    words[at : at + count] = new
    return struct.pack(f"<{len(words)}I", *words)


def _renamed(opcode: str) -> Any:
    return lambda words: [OPCODES[opcode], *words[1:]]


def _sample() -> bytes:
    """A module with integers of both signs, a float, and an atomic."""
    args = kit.Args([i32, u32, f32])

    def build(b: Builder) -> None:
        x, y, z = (b.load(ref, b.const(0)) for ref in args.refs)
        b.store(args.refs[0], b.const(1), b.emit(ops.idiv, x, b.const(3)))
        b.store(args.refs[1], b.const(1), b.emit(ops.shr, y, b.const(3, u32)))
        b.store(args.refs[2], b.const(1), b.cast(x, f32))
        b.store(args.refs[2], b.const(2), b.emit(ops.select, b.emit(ops.lt, z, b.const(0.5, f32)), z, b.const(2.0, f32)))
        b.atomic("add", args.refs[2], b.const(3), z)
        b.emit(ops.min_, x, b.const(7))

    return emit(kit.serial(build), args).binary


@pytest.mark.parametrize(
    "opcode, change, why",
    [
        ("SDiv", _renamed("UDiv"), "unsigned"),
        ("SDiv", _renamed("SMod"), "not among"),
        ("ShiftRightLogical", _renamed("ShiftRightArithmetic"), "signed"),
        ("ConvertSToF", _renamed("ConvertUToF"), "unsigned"),
        ("FOrdLessThan", _renamed("FUnordLessThan"), "not among"),
        ("Load", lambda words: [*words, 2, 4], "memory operands"),
        ("Store", lambda words: [*words, 2, 4], "memory operands"),
        ("AtomicFAddEXT", _renamed("AtomicFMaxEXT"), "not among"),
        ("AtomicFAddEXT", lambda words: [words[0], 0, *words[2:]], "32-bit floats"),
        ("TypeFloat", lambda words: [*words[:2], 128], "128 bits"),
        ("TypeInt", lambda words: [words[0], words[1], 8, words[3]], "8 bits"),
        ("TypePointer", lambda words: [*words[:2], 5349, words[3]], "storage class"),
        ("Capability", lambda words: [words[0], 5347], "capability"),
        ("SelectionMerge", _renamed("Switch"), "not among"),
        ("Branch", lambda words: [OPCODES["Nop"]], "not among"),
        ("Label", lambda words: [OPCODES["Undef"], 1, words[1]], "not among"),
        ("ExtInst", lambda words: [*words[:4], 52, *words[5:]], "of GLSL.std.450"),
        ("ExtInst", lambda words: [*words[:4], 38, *words[5:]], "unsigned"),
    ],
)  # fmt: skip
def test_what_naga_gets_wrong_is_refused(opcode: str, change: Any, why: str) -> None:
    binary = _sample()
    check_for_naga(binary)
    with pytest.raises(ModuleError, match=why):
        check_for_naga(_with(binary, opcode, change))


def _barriers() -> bytes:
    args = kit.Args([i32])

    def build(b: Builder) -> None:
        b.emit(ops.workgroup_barrier, type=VOID)
        b.emit(ops.barrier, type=VOID)
        b.store(args.refs[0], b.const(0), b.const(1))

    return emit(kit.serial(build), args, caps=replace(kit.WGPU, memory_barriers=True)).binary


@pytest.mark.parametrize(
    "opcode, at, scope",
    [
        ("ControlBarrier", 0, "Subgroup"),
        ("ControlBarrier", 1, "Subgroup"),
        ("ControlBarrier", 1, "Device"),
        ("MemoryBarrier", 0, "Workgroup"),
    ],
)
def test_scopes_of_barriers(opcode: str, at: int, scope: str) -> None:
    """naga drops barriers at which subgroups wait."""
    binary = _barriers()
    check_for_naga(binary)
    parts = Parts.of(binary)
    words, number = parts.code[parts.indices(opcode)[0]].words, parts.new_id()
    before = parts.definitions()[words[at]]
    parts.code.insert(parts.code.index(before), Instruction("Constant", [before.type, number, ENUMERANTS["Scope"][scope]]))
    words[at] = number
    with pytest.raises(ModuleError, match=rf"Op{opcode}: scope .*{scope}"):
        check_for_naga(parts.to_bytes())


def test_pointers_are_no_values() -> None:
    """naga ends the process."""
    binary = _sample()
    words = list(struct.unpack(f"<{len(binary) // 4}I", binary))
    chain = 0
    at = 5
    while at < len(words):
        if words[at] & 0xFFFF == OPCODES["AccessChain"]:
            chain = words[at + 2]
        if words[at] & 0xFFFF == OPCODES["SDiv"]:
            words[at + 3] = chain
        at += words[at] >> 16
    with pytest.raises(ModuleError, match="pointer"):
        check_for_naga(struct.pack(f"<{len(words)}I", *words))


def test_what_is_cut_short_is_refused() -> None:
    with pytest.raises(ModuleError, match="missing"):
        check_for_naga(_with(_sample(), "Constant", lambda words: [words[0], 9999, words[2], 1]))


def test_infinite_constants_are_refused() -> None:
    def infinite(words: list[int]) -> list[int]:
        return [*words[:3], 0x7F800000]

    args = kit.Args([f32])
    binary = emit(kit.serial(lambda b: b.store(args.refs[0], b.const(0), b.const(1.5, f32)) and None), args).binary
    words = list(struct.unpack(f"<{len(binary) // 4}I", binary))
    words[words.index(struct.unpack("<I", struct.pack("<f", 1.5))[0])] = infinite([0, 0, 0])[3]
    with pytest.raises(ModuleError, match="infinity"):
        check_for_naga(struct.pack(f"<{len(words)}I", *words))


def test_two_variables_at_one_binding_are_refused() -> None:
    args = kit.Args([f32, i32])
    binary = emit(copies(args), args).binary
    words = list(struct.unpack(f"<{len(binary) // 4}I", binary))
    at = 5
    while not (words[at] & 0xFFFF == OPCODES["Decorate"] and words[at + 2] == 33 and words[at + 3] == 1):
        at += words[at] >> 16
    words[at + 3] = 0
    with pytest.raises(ModuleError, match="two variables"):
        check_for_naga(struct.pack(f"<{len(words)}I", *words))


# --- Vulkan without 64-bit integers ----------------------------------------------------------------------------------------


@pytest.mark.needs("vulkan")
@pytest.mark.parametrize("padding", [0, 200])
def test_addresses_without_64_bit_integers(device: Any, padding: int) -> None:
    args = kit.Args([f32], [f32], padding=padding)

    def body(b: Builder, i: Any) -> tuple[()]:
        b.store(args.refs[0], i, b.emit(ops.mul, b.load(args.refs[0], i), args.scalar(b, 0)))
        return ()

    caps = replace(device.caps, int64=False, atomic_int64=False)
    k = kit.range_for(lambda b: (b.const(0), b.const(50)), body)
    assert "Int64" not in disassemble(kit.compile_task(k, args, caps))
    x = np.linspace(-2, 3, 50, dtype=np.float32)
    (out,) = kit.run(device, k, args, [x], [2.5], 50, caps)
    np.testing.assert_array_equal(out, x * np.float32(2.5))
