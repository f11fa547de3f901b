"""The builder of IR: a cursor that appends operations and applies the type rule of each."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import VOID, DType, Lanes, Type, Vec, i32, like, u1
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.nodes import LoopAttr, Op, Ref, Region
from spirograd.ir.ops import OpCode


def result_type(code: OpCode, args: Sequence[Op]) -> Type:
    """Return the type that follows from the operands. Raise TypeError for codes where it does not."""
    if code.rule == "same":
        return args[0].type
    if code.rule == "compare":
        return like(args[0].type, u1)
    if code is ops.select:
        return args[1].type
    if code is ops.extract:
        assert isinstance(args[0].type, (Vec, Lanes))
        return args[0].type.elem
    if code is ops.insert:
        return args[0].type
    if code is ops.vec:
        assert isinstance(args[0].type, DType)
        return Vec(len(args), args[0].type)
    raise TypeError(f"the type of {code.name} does not follow from its operands")


class Builder:
    """A cursor that appends operations to the innermost open region.

    Open a region with `begin`, close it with `end(results)`, which gives the Region to hand to `if_`, `for_`, `while_` or `emit`.
    ``loc`` and ``primal`` are given to everything that is emitted; see `Op`.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[tuple[Op, ...], list[Op]]] = []
        self.ops: list[Op] = []  # the operations of the region being built
        self.loc: Loc | None = None
        self.primal: Op | None = None

    def at(self, op: Op) -> None:
        """Attribute the operations that follow to ``op``: its location and its primal."""
        self.loc, self.primal = op.loc, op.primal

    @property
    def depth(self) -> int:
        return len(self._stack)

    def begin(self, *types: Type, names: Sequence[str | None] = ()) -> tuple[Op, ...]:
        """Open a region and return its parameters. ``names``: the names of the last parameters in the source, for messages."""
        params: tuple[Op, ...] = ()
        if types:
            named = (*[None] * (len(types) - len(names)), *names)
            params = tuple([Op(ops.param, t, attr=name, loc=self.loc) for t, name in zip(types, named)])
        self.ops = []
        self._stack.append((params, self.ops))
        return params

    def add_param(self, param: Op) -> None:
        """Add a parameter to the innermost region."""
        params, body = self._stack[-1]
        self._stack[-1] = (*params, param), body

    def end(self, results: Sequence[Op] = ()) -> Region:
        """Close the innermost region with its results."""
        params, body = self.suspend()
        body.append(Op(ops.yield_, VOID, tuple(results), loc=self.loc))
        return Region(params, tuple(body))

    def block(self) -> list[Op]:
        """Return the operations of the innermost region so far. The list identifies an open region."""
        return self.ops

    def is_open(self, block: list[Op]) -> bool:
        """Return whether ``block`` is the innermost region or encloses it, so that its values are visible."""
        return any(body is block for _, body in self._stack)

    def suspend(self) -> tuple[tuple[Op, ...], list[Op]]:
        """Take the innermost region off the stack unfinished; `resume` puts it back."""
        region = self._stack.pop()
        self.ops = self._stack[-1][1] if self._stack else []
        return region

    def resume(self, region: tuple[tuple[Op, ...], list[Op]]) -> None:
        """Continue a region that was suspended."""
        self._stack.append(region)
        self.ops = region[1]

    def append(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def emit(self, code: OpCode, *args: Op, attr: object = None, type: Type | None = None, regions: tuple[Region, ...] = ()) -> Op:
        """Append ``code``; ``type`` only where it does not follow from the operands."""
        t = result_type(code, args) if type is None else type
        return self.append(Op(code, t, args, attr, regions, self.loc, self.primal))

    def const(self, value: bool | int | float, t: DType = i32) -> Op:
        if t is u1:
            value = bool(value)
        elif t.is_float:
            value = float(t.np.type(value)) if abs(value) <= t.max else float(t.array(value))
        else:
            value = int(value)
        return self.append(Op(ops.const, t, (), value, (), self.loc))

    def cast(self, value: Op, t: DType) -> Op:
        """Return ``value`` converted to ``t``, or ``value`` itself if it has that type."""
        return value if value.type is t else self.emit(ops.cast, value, type=t)

    def load(self, ref: Ref, *indices: Op) -> Op:
        return self.emit(ops.load, *indices, attr=ref, type=ref.dtype)

    def store(self, ref: Ref, *indices_and_value: Op) -> Op:
        return self.emit(ops.store, *indices_and_value, attr=ref, type=VOID)

    def atomic(self, kind: str, ref: Ref, *indices_and_value: Op) -> Op:
        return self.emit(ops.atomic, *indices_and_value, attr=(kind, ref), type=ref.dtype)

    def combined(self, kind: str, old: Op, value: Op) -> Op:
        """Return the element that an atomic of ``kind`` stores in place of ``old``."""
        return value if kind == "exchange" else self.emit(ops.COMBINE[kind], old, value)

    def update(self, kind: str, ref: Ref, *indices_and_value: Op) -> Op:
        """Emit a load and a store in place of an atomic. Return the old element."""
        *indices, value = indices_and_value
        old = self.load(ref, *indices)
        self.store(ref, *indices, self.combined(kind, old, value))
        return old

    def results(self, op: Op) -> tuple[Op, ...]:
        """Return the results of a control operation as values."""
        assert isinstance(op.type, tuple)
        return tuple(self.emit(ops.result, op, attr=k, type=t) for k, t in enumerate(op.type))

    def if_(self, condition: Op, then: Region, orelse: Region, *, attr: str | None = None) -> tuple[Op, ...]:
        types = tuple(v.type for v in then.results)
        return self.results(self.emit(ops.if_, condition, attr=attr, type=types, regions=(then, orelse)))

    def for_(self, begin: Op, end: Op, initial: Sequence[Op], body: Region, attr: LoopAttr | None = None) -> tuple[Op, ...]:
        types = tuple(v.type for v in initial)
        return self.results(self.emit(ops.for_, begin, end, *initial, attr=attr or LoopAttr(), type=types, regions=(body,)))

    def while_(self, initial: Sequence[Op], condition: Region, body: Region, *, attr: str | None = None) -> tuple[Op, ...]:
        types = tuple(v.type for v in initial)
        return self.results(self.emit(ops.while_, *initial, attr=attr, type=types, regions=(condition, body)))
