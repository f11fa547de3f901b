"""Emitters of operations that are one instruction or one call: instances of these classes are rows of the table in `op_map`."""

from __future__ import annotations

from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType, Lanes, Type, scalar_of
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.integer_ranges import range_of
from spirograd.ir.nodes import Op
from spirograd.llvmgen import vector_math
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import type_name

_NO_EFFECT = "nounwind willreturn memory(none)"


@dataclass(frozen=True, slots=True)
class ByKind:
    """A name for each kind of operand (u1 counts as unsigned); empty where the operation does not take that kind."""

    signed: str
    unsigned: str
    float: str

    def pick(self, t: Type) -> str:
        """Return the name for operands of type ``t``."""
        scalar = scalar_of(t)
        name = self.float if scalar.is_float else self.signed if scalar.is_signed else self.unsigned
        assert name, (self, t)
        return name


@dataclass(frozen=True, slots=True)
class Instr(ByKind):
    """An instruction of two operands."""

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        a, b = op.args
        e.set(op, f"{self.pick(op.type)} {e.flags(op)}{e.typed(a)}, {e.operand(b)}")


@dataclass(frozen=True, slots=True)
class Division(Instr):
    """A quotient or remainder of integers. If the operands are surely not negative it is unsigned, which takes fewer instructions for a
    constant divisor. Numbers marked "f64" are divided as such: see `transforms.loops.divide_by_floats`."""

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        if op.attr == "f64":
            self._by_floats(e, op)
            return
        a, b = op.args
        known = isinstance(op.type, DType) and range_of(b, e.ranges).low > 0 and range_of(a, e.ranges).low >= 0
        name = self.unsigned if known else self.pick(op.type)
        e.set(op, f"{name} {e.flags(op)}{e.typed(a)}, {e.operand(b)}")

    def _by_floats(self, e: FunctionEmitter, op: Op) -> None:
        t = op.type
        wide = Lanes(t.n, dt.f64) if isinstance(t, Lanes) else dt.f64
        a, b = [e.operand(x) for x in op.args]
        wide_a, wide_b = [e.convert("sitofp", x, t, wide) for x in (a, b)]
        quotient = e.convert("fptosi", e.value(f"fdiv {type_name(wide)} {wide_a}, {wide_b}"), wide, t)
        if op.code is ops.idiv:
            e.env[op] = quotient
        else:
            multiple = e.value(f"mul {type_name(t)} {quotient}, {b}")
            e.set(op, f"sub {type_name(t)} {a}, {multiple}")
            if isinstance(t, DType) and range_of(op.args[0], e.ranges).low >= 0:  # LLVM knows that of remainders, not of differences
                assume = e.module.declare("llvm.assume", "void", "i1")
                e.lines.append(f"  call void {assume}(i1 {e.value(f'icmp sge {type_name(t)} {e.operand(op)}, 0')})")


@dataclass(frozen=True, slots=True)
class Compare(ByKind):
    """Predicates of icmp and fcmp."""

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        a, b = op.args
        e.set(op, f"{'fcmp' if scalar_of(a.type).is_float else 'icmp'} {self.pick(a.type)} {e.typed(a)}, {e.operand(b)}")


@dataclass(frozen=True, slots=True)
class Intrinsic(ByKind):
    """`llvm.<name>.<type>`; ``flag``: a trailing `i1 false`."""

    flag: bool = False

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        tail = ", i1 false" if self.flag else ""
        e.env[op] = e.call_intrinsic(self.pick(op.type), op.type, [e.operand(a) for a in op.args], e.flags(op), tail)


@dataclass(frozen=True, slots=True)
class Math:
    """A function of libm: an intrinsic, or a call that the vector library knows."""

    name: str

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        assert isinstance(op.type, DType)
        args, module = [e.env[a] for a in op.args], e.module
        vectorised = vector_math.has(self.name) and module.caps.vector_library == vector_math.LIBMVEC and module.options.fast_math
        if op.type is not dt.f64 or not vectorised or op.attr == "exact":
            e.env[op] = e.call_intrinsic(self.name, op.type, args, e.flags(op))
            return
        vector = vector_math.vector_name(self.name)
        lanes = f"<{vector_math.LANES} x double>"
        module.declare(vector, lanes, ", ".join([lanes] * len(args)), " " + module.attribute_group(_NO_EFFECT))
        module.used[vector] = None
        target = module.declare(self.name, "double", ", ".join(["double"] * len(args)))
        variant = f"_ZGV_LLVM_N{vector_math.LANES}{'v' * len(args)}_{self.name}({vector})"
        group = module.attribute_group(f'{_NO_EFFECT} "vector-function-abi-variant"="{variant}"')
        e.set(op, f"call double {target}({', '.join(f'double {a}' for a in args)}) {group}")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operation that never reaches this back end, with the reason."""

    reason: str

    def __call__(self, e: FunctionEmitter, op: Op) -> None:
        raise TypeError(f"{op.code.name} cannot be emitted: {self.reason}")
