"""What modules say that drivers may do with floats: by float controls 2 (SPV_KHR_float_controls2), and on devices without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.spirvgen.disasm import disassemble

from . import kit

OFFERED = replace(kit.FULL, float_controls2=True, exact_specials=(16, 32, 64))
EXTENSION = 'OpExtension "SPV_KHR_float_controls2"'


def quotient_and_square_root(types: tuple[DType, ...], **caps: object) -> str:
    """The text of a module with operations of each type."""
    args = kit.Args(list(types))

    def build(b: Builder) -> None:
        for ref in args.refs:
            x = b.load(ref, b.const(0))
            b.store(ref, b.const(0), b.emit(ops.div, b.emit(ops.sqrt, x), b.emit(ops.mul, x, x)))

    return disassemble(kit.compile_task(kit.serial(build), args, caps=replace(OFFERED, **caps)))  # type: ignore[arg-type]


def defaults(text: str) -> Iterator[tuple[int, int]]:
    """The widths of floats, and the masks of what is permitted."""
    words = {line.split(" = ")[0].strip(): line.split() for line in text.splitlines() if " = Op" in line}
    for line in text.splitlines():
        if "FPFastMathDefault" in line:
            *_, t, mask = line.split(";")[0].split()
            yield int(words[t][3]), int(words[mask][-1])


def test_everything_is_computed_as_written() -> None:
    text = quotient_and_square_root((f16, f32, f64))
    assert EXTENSION in text and "OpCapability FloatControls2" in text
    assert sorted(defaults(text)) == [(16, 0), (32, 0), (64, 0)]
    assert "NoContraction" not in text and "SignedZeroInfNanPreserve" not in text


def test_only_types_of_the_module_are_named() -> None:
    assert list(defaults(quotient_and_square_root((f32,)))) == [(32, 0)]


def test_widths_that_cannot_keep_special_floats_need_not() -> None:
    """Such a device requires modules to permit all three: NotNaN, NotInf, NSZ."""
    assert sorted(defaults(quotient_and_square_root((f32, f64), exact_specials=(32,)))) == [(32, 0), (64, 1 | 2 | 4)]


@pytest.mark.parametrize("offered", [True, False])
def test_divisors_are_opaque_without(offered: bool) -> None:
    text = quotient_and_square_root((f32,), float_controls2=offered)
    assert ("OpBitwiseOr" in text) is not offered
    assert ("NoContraction" in text) is ("SignedZeroInfNanPreserve" in text) is not offered
    assert (EXTENSION in text) is offered
