"""What WebGPU forbids: a buffer that is bound twice, and constants that are infinite or NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spirograd.base.dtypes import DType, f32, i32, u32
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.base.profiles import PROFILES
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef
from spirograd.spirvgen.disasm import disassemble
from spirograd.spirvgen.emit import emit_task
from spirograd.spirvgen.validate import validate

from . import kit

_BROWSER = PROFILES["browser"].on("wgpu")
assert _BROWSER is not None
TWICE = replace(_BROWSER, aliased_bindings=True)


def _views(args: kit.Args, *types: DType) -> list[BufferRef]:
    """The first buffer as arrays of these types."""
    return [BufferRef(f"as_{t.name}", args.slots[0], t) for t in types]


def _module(k: kit.Kernel, args: kit.Args, caps: object = _BROWSER) -> tuple[str, tuple[tuple[int, ...], ...]]:
    task = emit_task(kit.lowered(k, caps), k, args.block, caps, CompileOptions())  # type: ignore[arg-type]
    validate(task.binary, "wgpu")
    return disassemble(task.binary), task.bindings


def _mixed(args: kit.Args) -> kit.Kernel:
    """A load and a store of f32, an atomic addition of i32, an exchange of f32 and an atomic minimum of i32, all in one buffer."""
    floats, integers = _views(args, f32, i32)

    def build(b: Builder) -> None:
        b.store(floats, b.const(0), b.load(floats, b.const(1)))
        b.atomic("add", integers, b.const(2), b.const(3))
        b.atomic("exchange", floats, b.const(4), b.const(1.0, f32))
        b.atomic("min", integers, b.const(5), b.const(-1))

    return kit.serial(build)


def test_a_buffer_is_bound_once() -> None:
    args = kit.Args([f32])
    text, bindings = _module(_mixed(args), args)
    assert bindings == ((0,),) and "AtomicSMin %int" in text
    assert _module(_mixed(args), args, TWICE)[1] == ((0,), (0,), (0,))


def test_buffers_that_share_a_binding_have_one_type() -> None:
    args = kit.Args([f32, i32] * 5)

    def build(b: Builder) -> None:
        for ref in args.refs:
            b.store(ref, b.const(0), b.load(ref, b.const(1)))

    _, bindings = _module(kit.serial(build), args)
    assert bindings == (*[(8 * k,) for k in range(6)], tuple(8 * k for k in range(6, 10)))


def test_minima_of_both_signs_are_refused() -> None:
    args = kit.Args([i32])
    signed, unsigned = _views(args, i32, u32)

    def build(b: Builder) -> None:
        b.atomic("min", signed, b.const(0), b.const(1))
        b.atomic("max", unsigned, b.const(0), b.const(1, u32))

    with pytest.raises(SpirogradUnsupportedError, match=r"i32 and of u32 in one buffer.*aliased_bindings"):
        _module(kit.serial(build), args)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_special_numbers_come_from_variables(value: float) -> None:
    args = kit.Args([f32])
    k = kit.serial(lambda b: b.store(args.refs[0], b.const(0), b.const(value, f32)) and None)
    assert "%bits = OpVariable" in _module(k, args)[0]
    assert "%bits = OpVariable" not in _module(k, args, replace(_BROWSER, special_constants=True))[0]
