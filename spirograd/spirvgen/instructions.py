"""Emitters of operations that are one instruction: instances of these classes are rows of the table in `op_map`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir.nodes import Op
from spirograd.spirvgen.emitter import Emitter


@dataclass(frozen=True, slots=True)
class Instr:
    """An instruction for each kind of the first operand; empty if the operation does not take that kind.

    ``contractible``: whether drivers may fuse or reorder the instruction on floats. It is decorated against that, with fast math, too:
    `analysis.fused_products` decides what is fused.
    """

    float: str = ""
    signed: str = ""
    unsigned: str = ""
    truth: str = ""
    contractible: bool = False
    by_kind: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {"float": self.float, "int": self.signed, "uint": self.unsigned, "bool": self.truth}
        object.__setattr__(self, "by_kind", {kind: name for kind, name in names.items() if name})

    def __call__(self, e: Emitter, op: Op) -> None:
        t = op.args[0].type
        assert isinstance(t, DType)
        _emit(e, op, t, e.f.value, self.by_kind[t.kind], self.contractible)


@dataclass(frozen=True, slots=True)
class Glsl:
    """An instruction of GLSL.std.450 on floats. ``f64``: whether it takes f64; otherwise operations on f64 have been expanded before."""

    name: str
    f64: bool = True
    contractible: bool = False
    invertible: bool = False  # whether drivers simplify its square, its inverse or its products

    def __call__(self, e: Emitter, op: Op) -> None:
        t = op.args[0].type
        assert isinstance(t, DType)
        if not self.f64:
            refuse_f64(e, op)
        _emit(e, op, t, e.f.glsl, self.name, self.contractible or (self.invertible and e.caps.target.naga))


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operation that never reaches this back end, with the reason."""

    reason: str

    def __call__(self, e: Emitter, op: Op) -> None:
        raise TypeError(f"{op.code.name} cannot be emitted: {self.reason}")


def refuse_f64(e: Emitter, op: Op) -> None:
    """Raise SpirogradUnsupportedError for an operation on f64."""
    assert isinstance(op.type, DType)
    if op.type.bits == 64:
        e.unsupported(f"{op.code.name} of f64", "SPIR-V has it for f16 and f32 only", op.loc)


def _emit(e: Emitter, op: Op, t: DType, emit: Callable[..., int], name: str, contractible: bool) -> None:
    ids = e.ids
    value = emit(name, e.types.get(op.type) or e.type(op.type), *[ids[a] for a in op.args])
    ids[op] = e.rounded(value, t) if contractible and t.is_float else value
