"""What the tracer knows while it walks: frames with their variables, and how variables become carried IR values."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spirograd.base.dtypes import DType, promote
from spirograd.base.errors import SpirogradCompilationError, SpirogradNameError, SpirogradRuntimeError, SpirogradSyntaxError, render
from spirograd.base.loc import Loc
from spirograd.base.wording import did_you_mean
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import FieldRef, Op, Region, TempRef
from spirograd.lang import scalar
from spirograd.lang.context import Trace
from spirograd.lang.frontend import precision
from spirograd.lang.frontend.places import Element, Place, StructElement
from spirograd.lang.frontend.source import Source
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct, make_struct

# Builtins that kernels can use; the others are no suggestion for a misspelt name.
_USEFUL = {
    "range", "abs", "min", "max", "pow", "round", "int", "float", "bool", "len", "sum", "any", "all", "enumerate", "zip", "reversed",
    "print",
}  # fmt: skip
_USELESS = set(vars(builtins)) - _USEFUL
# What Python raises where our own checks have missed something.
_RAW = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

# A branch that was traced: its region, suspended, and the variables at its end.
Side = tuple[Any, dict[str, Any]]
ONE_BRANCH = "it is assigned in only one branch of an `if`; assign it before the `if`"
ONE_KIND = "the branches of an `if` assign different kinds of things to it"


@dataclass(slots=True)
class LoopScope:
    """A loop around the statement being traced. ``kind``: "parallel", "serial" or "static"; ``depth``: of the builder inside."""

    kind: str
    depth: int


@dataclass(slots=True, eq=False)
class Frame:
    """One function being traced: its source, its variables, and what became of names that are gone."""

    source: Source
    names: dict[str, Any]
    is_kernel: bool
    returns: Any = None
    caller: Loc | None = None
    vars: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    loops: list[LoopScope] = field(default_factory=list)
    by_reference: frozenset[str] = frozenset()
    depth: int = 0  # of the builder at the beginning of a function
    constants: frozenset[str] = frozenset()  # arguments of the kernel, which cannot change
    answers: dict[ast.Call, frozenset[ast.expr]] = field(default_factory=dict)  # what loops were told that calls change


class MemoryVariable:
    """A variable of the kernel that parallel loops update: it lives in memory, and updates of it are atomic."""

    def __init__(self, place: Place) -> None:
        self.place = place


def is_runtime(x: Any) -> bool:
    """Whether ``x`` is a value that the kernel computes (rather than an object known while compiling)."""
    return isinstance(x, (Value, Matrix, Struct))


def leaves(x: Any) -> list[Value]:
    """The scalars of a run-time value, in order."""
    if isinstance(x, Matrix):
        return [scalar.as_value(e) for e in x.entries]
    if isinstance(x, Struct):
        return [leaf for member in x.entries.values() for leaf in leaves(member)]
    return [scalar.as_value(x)]


def rebuild(model: Any, values: Sequence[Value]) -> Any:
    """A value of the shape of ``model`` from its scalars."""
    return _rebuild(model, list(reversed(values)))


def _rebuild(model: Any, stack: list[Value]) -> Any:
    if isinstance(model, Matrix):
        return make([stack.pop() for _ in model.entries], model.shape)
    if isinstance(model, Struct):
        return model.with_entries({name: _rebuild(member, stack) for name, member in model.entries.items()})
    return stack.pop()


def settle(x: Any) -> Any:
    """``x`` as something a variable can hold: numbers become typed constants, in vectors and structs too."""
    if scalar.is_scalar(x):
        return scalar.as_value(x)
    if isinstance(x, (Matrix, Struct)):
        return rebuild(x, leaves(x))
    return x


def pack_tuple(value: tuple[Any, ...]) -> Any:
    """A tuple of run-time values as a struct, so that the tuples of several `return` statements can be merged; others as they are."""
    members = [pack_tuple(v) if isinstance(v, tuple) else settle(v) for v in value]
    if not members or not all(is_runtime(m) for m in members):
        return value
    return make_struct({f"{k}": m for k, m in enumerate(members)}, _TUPLE)


def unpack_tuple(value: Any) -> Any:
    """What `pack_tuple` was given."""
    if isinstance(value, Struct) and value._methods is _TUPLE:
        return tuple(unpack_tuple(v) for v in value.entries.values())
    return value


_TUPLE: dict[str, Any] = {}  # marks such structs


def same_shape(a: Any, b: Any) -> bool:
    """Whether two run-time values have the same structure (types of scalars apart)."""
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        return bool(a.shape == b.shape)
    if isinstance(a, Struct) and isinstance(b, Struct):
        return list(a.entries) == list(b.entries) and all(same_shape(a.entries[k], b.entries[k]) for k in a.entries)
    return isinstance(a, Value) and isinstance(b, Value)


def convert(value: Any, model: Any, what: str) -> Any:
    """``value`` with the structure and the types of ``model``, as assignment to an existing variable has it."""
    if isinstance(model, Matrix) and scalar.is_scalar(value):
        value = make([value] * len(model.entries), model.shape)
    if isinstance(model, Matrix) and isinstance(value, (list, tuple)):
        value = Matrix(value)
    if isinstance(model, Value) and isinstance(value, float):  # a literal, which adapts: 0.1 for an f64 is not rounded to f32 first
        precision.check([value], [model.dtype], what, precision.VARIABLE)
        return scalar.cast(value, model.dtype)
    value = settle(value)
    if not is_runtime(value) or not same_shape(value, model):
        raise type_error(
            f"cannot assign {describe(value)} to {what}, which is {describe(model)}", "use another name for a value of another kind"
        )
    values, types = leaves(value), [m.dtype for m in leaves(model)]
    precision.check(values, types, what, precision.VARIABLE)
    return rebuild(model, [scalar.cast(v, t) for v, t in zip(values, types)])


class State:
    """The part of the tracer that everything else builds on."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.b: Builder = trace.b
        self.frame: Frame = None  # type: ignore[assignment]
        self.temps = 0
        self.depth = 0
        self.fields: dict[FieldRef, Any] = {}  # which field each reference stands for

    def captured(self, obj: Any, owner: tuple[Any, str] | None) -> Any:
        """What an object found by name or attribute is in the kernel: an ndarray becomes an argument that the user does not see."""
        raise NotImplementedError

    def at(self, node: ast.AST) -> None:
        """Remember where in the source we are."""
        self.b.loc = self.frame.source.loc(node, self.frame.caller)

    def syntax_error(self, message: str, node: ast.AST, hint: str = "") -> SpirogradSyntaxError:
        return SpirogradSyntaxError(message, self.frame.source.loc(node, self.frame.caller), hint)

    def traced(self, handler: Callable[[Any], Any], node: ast.AST) -> Any:
        """``handler(node)``, where every error gets the place being traced if it has none."""
        self.at(node)
        try:
            return handler(node)
        except SpirogradCompilationError as error:
            raise self.located(error) from error.__cause__
        except SpirogradRuntimeError as error:
            if hasattr(error, "located"):
                raise
            new = type(error)(render(str(error), self.b.loc))
            new.located = True  # type: ignore[attr-defined]
            raise new from None
        except _RAW as error:
            message = f"the compiler failed here, which is a bug of spirograd: {type(error).__name__}: {error}"
            raise SpirogradCompilationError(message, self.b.loc, "please report it; SG_TRACEBACK=1 shows more") from error

    def located(self, error: SpirogradCompilationError) -> SpirogradCompilationError:
        """The error, with the place being traced if it has none."""
        return error if error.loc is not None else type(error)(error.message, self.b.loc, error.hint)

    # --- variables -------------------------------------------------------------------------------------------------------

    def lookup(self, name: str, node: ast.AST) -> Any:
        """What a name means here."""
        frame = self.frame
        if name in frame.vars:
            held = frame.vars[name]
            return held.place.load() if isinstance(held, MemoryVariable) else held
        if name in frame.lost:
            raise SpirogradNameError(f"`{name}` is not defined here", frame.source.loc(node, frame.caller), frame.lost[name])
        if name in frame.names:
            return frame.names[name]
        if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(frame.source.tree)):
            hint = "it is assigned only later, or only in terms of itself; assign it before its first use"
        else:
            hint = did_you_mean(name, [*frame.vars, *(n for n in frame.names if not n.startswith("_") and n not in _USELESS)])
        raise SpirogradNameError(f"`{name}` is not defined", frame.source.loc(node, frame.caller), hint)

    def assign(self, name: str, value: Any) -> None:
        """Bind ``name``. The type of a run-time variable is that of its first value; later ones are converted."""
        held = self.frame.vars.get(name)
        if isinstance(held, MemoryVariable):
            held.place.store(convert(value, held.place.load(), f"`{name}`"))
            return
        if is_runtime(held) and not name.startswith("%"):
            value = convert(value, held, f"`{name}`")
        self.frame.vars[name] = settle(value)
        self.frame.lost.pop(name, None)

    def temp(self, name: str, t: DType, shape: tuple[int, ...] = ()) -> TempRef:
        self.temps += 1
        return TempRef(f"{name}.{self.temps}", t, shape)

    def to_memory(self, name: str) -> None:
        """Move a variable to memory, so that the iterations of a parallel loop can update it."""
        value = self.frame.vars[name]
        place = self._memory_for(name, value)
        place.store(value)
        self.frame.vars[name] = MemoryVariable(place)

    def _memory_for(self, name: str, value: Any) -> Place:
        if isinstance(value, Struct):
            members = {key: self._memory_for(f"{name}.{key}", member) for key, member in value.entries.items()}
            return StructElement(members, value.with_entries)
        types = {v.dtype for v in leaves(value)}
        if len(types) != 1:
            raise type_error(
                f"`{name}` mixes types {', '.join(map(str, types))}, and is updated by a parallel loop", "give its entries one type"
            )
        shape = value.shape if isinstance(value, Matrix) else ()
        return Element(self.temp(name, types.pop(), tuple(shape)), ())

    # --- regions ---------------------------------------------------------------------------------------------------------

    def carried(self, names: set[str]) -> list[str]:
        """Those of ``names`` that hold run-time values now, in a fixed order."""
        return sorted(name for name in names if is_runtime(self.frame.vars.get(name)))

    def values_of(self, names: Sequence[str]) -> list[Op]:
        return [leaf.op for name in names for leaf in leaves(self.frame.vars[name])]

    def bind(self, names: Sequence[str], models: dict[str, Any], values: Sequence[Op]) -> None:
        """Give variables new scalars, with the structure that ``models`` has."""
        at = 0
        for name in names:
            count = len(leaves(models[name]))
            self.frame.vars[name] = rebuild(models[name], [Value(op) for op in values[at : at + count]])
            at += count

    def join(self, condition: Value, sides: Sequence[Side], candidates: Sequence[str]) -> None:
        """An `if` operation of two suspended regions; names of ``candidates`` that they leave with different values become its results."""
        (_, then_vars), (_, else_vars) = sides
        merged = self._merge(candidates, then_vars, else_vars)
        regions: list[Region] = []
        for region, variables in sides:
            self.b.resume(region)
            results: list[Op] = []
            for name, types in merged.items():
                results += [scalar.cast(v, t).op for v, t in zip(leaves(variables[name]), types)]
            regions.append(self.b.end(results))
        self.bind(list(merged), then_vars, self.b.if_(condition.op, *regions))

    def _merge(self, candidates: Sequence[str], a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[DType]]:
        """Names that become results, with the types of their scalars; the others keep their meaning or are lost."""
        merged: dict[str, list[DType]] = {}
        for name in candidates:
            x, y = a.get(name), b.get(name)
            if x is y or isinstance(x, MemoryVariable):
                if x is not None:
                    self.frame.vars[name] = x
                continue
            if is_runtime(x) and is_runtime(y) and same_shape(x, y):
                pairs = zip(leaves(x), leaves(y))
                merged[name] = [p.dtype if p.dtype is q.dtype else promote(p.dtype, q.dtype) for p, q in pairs]
                continue
            self.frame.vars.pop(name, None)
            self.frame.lost[name] = ONE_BRANCH if x is None or y is None else ONE_KIND
        return merged

    def forget(self, before: dict[str, Any], why: str) -> None:
        """End of a block: names that it introduced are gone, with a reason for the error message."""
        for name in self.frame.vars:
            if name not in before and not name.startswith("%"):
                self.frame.lost[name] = why
