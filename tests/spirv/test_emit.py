"""Emission: every construct is valid SPIR-V, says what it should, and is refused by name where the device lacks something."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from spirograd.base.dtypes import DType, Vec, f16, f32, f64, i32, i64, u1, u8, u16, u32, u64
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Reduction
from spirograd.spirvgen.disasm import disassemble, opcode_names
from spirograd.spirvgen.emit import emit_task

from . import kit


def text(k: kit.Kernel, args: kit.Args, **kw: object) -> str:
    return disassemble(kit.compile_task(k, args, **kw))  # type: ignore[arg-type]


def everything(args: kit.Args) -> kit.Kernel:
    """Nested constructs, loop-carried values of several types, a vector indexed at run time, in one task."""
    source, target = args.refs[:2]

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        b.loc = Loc(__file__, 12, 4)
        x = b.load(source, i)
        positive = b.emit(ops.gt, x, b.const(0.0, f32))
        b.begin()
        (then, orelse) = b.end([x, i]), None
        b.begin()
        orelse = b.end([b.emit(ops.neg, x), b.const(7)])
        a, k = b.if_(positive, then, orelse)
        vector = b.emit(ops.vec, *[b.cast(b.const(n), f32) for n in range(6)])
        j, v, total = b.begin(i32, Vec(6, f32), f32)
        b.loc = Loc(__file__, 13, 8)
        element = b.emit(ops.extract, v, j)
        v2 = b.emit(ops.insert, v, j, b.emit(ops.add, element, a))
        loop = b.end([v2, b.emit(ops.add, total, element)])
        v, total = b.for_(b.const(0), k, [vector, a], loop)
        n, flag = b.begin(i32, u1)
        condition = b.end([b.emit(ops.and_, flag, b.emit(ops.lt, n, b.const(5)))])
        n, flag = b.begin(i32, u1)
        while_body = b.end([b.emit(ops.add, n, b.const(1)), b.emit(ops.not_, flag)])
        n, flag = b.while_([b.const(0), positive], condition, while_body)
        b.store(target, i, b.emit(ops.add, total, b.cast(n, f32)))
        return ()

    return kit.range_for(lambda b: (b.const(0), b.const(64)), body)


def test_everything_is_valid_and_structured() -> None:
    args = kit.Args([f32, f32])
    out = text(everything(args), args, group_size=64)
    assert "OpPhi" not in out and "OpSwitch" not in out and "OpUndef" not in out
    assert out.count("OpLoopMerge") == 3 and out.count("OpSelectionMerge") == 1
    assert "OpExecutionMode %k_t0 LocalSize 64 1 1" in out


def test_lines_and_names() -> None:
    args = kit.Args([f32, f32])
    out = text(everything(args), args)
    assert re.search(r"; \S*test_emit.py:12", out) and re.search(r"; \S*test_emit.py:13", out)
    assert "%buffer0 = OpConvertUToPtr" in out


def test_buffers_are_converted_once() -> None:
    args = kit.Args([f32, u32])

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        for _ in range(4):
            b.store(args.refs[0], i, b.load(args.refs[0], i))
        b.store(args.refs[1], i, b.const(1, u32))
        return ()

    out = text(kit.range_for(lambda b: (b.const(0), b.const(9)), body), args)
    assert out.count("OpConvertUToPtr") == 2
    assert out.index("OpConvertUToPtr") < out.index("OpLoopMerge")
    assert "Aligned 4" in out


@pytest.mark.needs("spirv-dis")
def test_disassembly_matches_spirv_dis() -> None:
    args = kit.Args([f32, f32])
    module = kit.compile_task(everything(args), args)
    reference = subprocess.run(["spirv-dis", "--no-color", "-"], input=module, capture_output=True, check=True).stdout.decode()
    body = [line.split(";")[0] for line in reference.splitlines()]
    assert re.findall(r"(?:^|= )\s*(Op\w+)", "\n".join(body), re.M) == opcode_names(module)
    # Beside the lines, which become comments, the operands are spelled alike.
    ours = [re.sub(r"\s+; .*", "", line).split() for line in disassemble(module).splitlines() if not line.startswith(";")]
    theirs = [line.split() for line in body if line.strip() and "OpLine" not in line]
    assert ours == theirs


@pytest.mark.needs("spirv-as")
def test_disassembly_assembles_again() -> None:
    args = kit.Args([f32, f32])
    module = kit.compile_task(everything(args), args)
    command = ["spirv-as", "--target-env", "spv1.5", "-o", "-", "-"]
    again = subprocess.run(command, input=disassemble(module).encode(), capture_output=True, check=True).stdout
    assert [n for n in opcode_names(module) if n != "OpLine"] == opcode_names(again)


def test_no_contraction() -> None:
    args = kit.Args([f32])

    def build(attr: str | None) -> kit.Kernel:
        def body(b: Builder) -> None:
            x = b.load(args.refs[0], b.const(0))
            b.store(args.refs[0], b.const(0), b.emit(ops.add, b.emit(ops.mul, x, x, attr=attr), x))

        return kit.serial(body)

    for options in (CompileOptions(), CompileOptions(fast_math=False)):  # the compiler says by `fma` what is contracted
        for attr in (None, "exact"):
            assert text(build(attr), args, options=options).count("NoContraction") == 2


def test_arguments_beyond_push_constants_are_indirect() -> None:
    args = kit.Args([f32], [f64, f32, i32, u1, u8, f16, u16, i64], padding=100)

    def build(b: Builder) -> None:
        total = b.const(0.0, f32)
        for k in range(len(args.scalars)):
            total = b.emit(ops.add, total, b.cast(args.scalar(b, k), f32))
        b.store(args.refs[0], b.const(0), total)

    direct = text(kit.serial(build), kit.Args([f32], args.scalars))
    assert "%Arguments = OpTypeStruct" in direct and "indirect" not in direct
    assert "%indirect = OpVariable" in text(kit.serial(build), args)


def test_only_used_arguments_are_declared() -> None:
    """An unused f64 argument does not make a kernel need f64."""
    args = kit.Args([f32], [f64, f32])
    k = kit.serial(lambda b: b.store(args.refs[0], b.const(0), args.scalar(b, 1)) and None)
    out = text(k, args, caps=replace(kit.FULL, float64=False))
    assert "Float64" not in out


@pytest.mark.parametrize(
    "missing, t",
    [("int8", u8), ("int16", u16), ("float16", f16), ("float64", f64), ("storage8", u8), ("storage16", u16), ("storage16", f16)],
)
def test_missing_types_are_refused_by_name(missing: str, t: DType) -> None:
    args = kit.Args([t])

    def build(b: Builder) -> None:
        b.loc = Loc("program.py", 5)
        b.store(args.refs[0], b.const(0), b.load(args.refs[0], b.const(1)))

    with pytest.raises(SpirogradUnsupportedError, match=f"{t.name}.*{missing}") as error:
        kit.compile_task(kit.serial(build), args, caps=replace(kit.FULL, **{missing: False}))
    assert error.value.loc is not None and error.value.loc.line == 5


@pytest.mark.parametrize(
    "kind, t, missing",
    [
        ("add", f32, "atomic_f32_add"),
        ("min", f32, "atomic_f32_minmax"),
        ("add", u64, "atomic_int64"),
        ("exchange", f64, "atomic_int64"),
        ("add", f64, "atomic_f64_add"),
        ("mul", i32, "no instruction"),
        ("add", u8, "32 and 64 bits"),
    ],
)
def test_missing_atomics_are_refused_by_name(kind: str, t: DType, missing: str) -> None:
    args = kit.Args([t])
    caps = replace(kit.FULL, atomic_int64=False, atomic_f32_add=False, atomic_f32_minmax=False)

    def build(b: Builder) -> None:
        b.loc = Loc("program.py", 9)
        b.atomic(kind, args.refs[0], b.const(0), b.const(1, t))

    with pytest.raises(SpirogradUnsupportedError, match=missing) as error:
        kit.compile_task(kit.serial(build), args, caps=caps)
    assert error.value.loc is not None and error.value.loc.line == 9


def test_other_refusals() -> None:
    args = kit.Args([f64, u64])
    task = kit.serial(lambda b: b.store(args.refs[0], b.const(0), b.emit(ops.sin, b.const(1.0, f64))) and None)
    with pytest.raises(SpirogradUnsupportedError, match="sin of f64"):
        kit.compile_task(task, args)
    task = kit.serial(lambda b: b.store(args.refs[1], b.const(0), b.emit(ops.clz, b.const(1, u64))) and None)
    with pytest.raises(SpirogradUnsupportedError, match="clz of u64"):
        kit.compile_task(task, args)
    empty = kit.range_for(lambda b: (b.const(0), b.const(9)), lambda b, i: ())
    with pytest.raises(SpirogradUnsupportedError, match="workgroup of 4096"):
        kit.compile_task(empty, args, group_size=4096)
    with pytest.raises(SpirogradUnsupportedError, match="target cpu"):
        emit_task(kit.lowered(empty, kit.FULL), empty, args.block, replace(kit.FULL, target_name="cpu"), CompileOptions())


def sum_of(t: DType, kind: str, args: kit.Args) -> kit.Kernel:
    combine = ops.COMBINE[kind]

    def body(b: Builder, i: Op, acc: Op) -> tuple[Op, ...]:
        return (b.emit(combine, acc, b.load(args.refs[0], i)),)

    def finish(b: Builder, acc: Op) -> None:
        b.atomic(kind, args.refs[1], b.const(0), acc)

    return kit.range_for(lambda b: (b.const(0), b.const(1000)), body, [Reduction(kind, t)], finish)


def test_reduction_forms() -> None:
    args = kit.Args([f32, f32])
    by_subgroup = text(sum_of(f32, "add", args), args, group_size=128)
    assert "OpGroupNonUniformFAdd" in by_subgroup and by_subgroup.count("OpControlBarrier") == 1
    by_tree = text(sum_of(f32, "add", args), args, group_size=128, caps=replace(kit.FULL, subgroup_arithmetic=False))
    assert "GroupNonUniform" not in by_tree and by_tree.count("OpControlBarrier") == 7
    # NaN rule: not by subgroup instructions.
    assert "GroupNonUniform" not in text(sum_of(f32, "max", args), args, group_size=64)
    alone = text(sum_of(f32, "add", args), args, group_size=1)
    assert "Workgroup" not in alone.replace("NumWorkgroups", "").replace("WorkgroupId", "")
    little = text(sum_of(f32, "add", args), args, group_size=128, caps=replace(kit.FULL, shared_memory=256))
    assert "OpControlBarrier" not in little


def test_small_vectors_are_vectors() -> None:
    args = kit.Args([f32])

    def build(b: Builder) -> None:
        x = b.load(args.refs[0], b.const(0))
        j = b.cast(x, i32)
        for n in (1, 2, 4):
            v = b.emit(ops.vec, *[x] * n)
            v = b.emit(ops.insert, v, b.const(0), b.const(2.0, f32))
            v = b.emit(ops.insert, v, j, b.emit(ops.extract, v, j))
            v = b.emit(ops.select, b.emit(ops.lt, x, x), v, b.emit(ops.vec, *[x] * n))
            b.store(args.refs[0], j, b.emit(ops.extract, v, b.const(n - 1)))

    out = text(kit.serial(build), args)
    assert "OpVectorExtractDynamic" in out and "OpVectorInsertDynamic" in out and "OpTypeArray" not in out


def test_carried_arrays_are_updated_in_place() -> None:
    args = kit.Args([f32])

    def build(b: Builder) -> None:
        x = b.load(args.refs[0], b.const(0))
        start = b.emit(ops.vec, *[x] * 16)
        j, v = b.begin(i32, Vec(16, f32))
        v = b.emit(ops.insert, v, j, b.emit(ops.add, b.emit(ops.extract, v, j), x))
        body = b.end([v])
        (v,) = b.for_(b.const(0), b.const(16), [start], body)
        b.store(args.refs[0], b.const(1), b.emit(ops.extract, v, b.cast(x, i32)))

    out = text(kit.serial(build), args)
    assert len(re.findall(r"OpVariable %_ptr_Function__arr", out)) == 1
    assert len(re.findall(r"OpLoad %_arr", out)) == 0


def test_arrays_changed_under_a_condition_stay_in_place() -> None:
    """for j: if c: v[j] = x; else: w = v's element ... No copy of the array is made."""
    args = kit.Args([f32])

    def build(b: Builder) -> None:
        x = b.load(args.refs[0], b.const(0))
        start = b.emit(ops.vec, *[x] * 16)
        j, v = b.begin(i32, Vec(16, f32))
        condition = b.emit(ops.lt, b.emit(ops.extract, v, j), x)
        b.begin()
        inner = b.emit(ops.eq, j, b.const(3))
        changed = b.emit(ops.insert, v, j, x)
        b.begin()
        deep = b.end([b.emit(ops.insert, changed, b.const(1), x)])
        b.begin()
        (changed,) = b.if_(inner, deep, b.end([changed]))
        then = b.end([changed])
        b.begin()
        (v,) = b.if_(condition, then, b.end([v]))
        body = b.end([v])
        (v,) = b.for_(b.const(0), b.const(16), [start], body)
        b.store(args.refs[0], b.const(1), b.emit(ops.extract, v, b.cast(x, i32)))

    out = text(kit.serial(build), args)
    assert len(re.findall(r"OpVariable %_ptr_Function__arr", out)) == 1
    assert len(re.findall(r"OpLoad %_arr", out)) == 0
