"""Variables of the function being traced: what names mean, assignment, and variables as loop-carried IR values.

A variable holds an object known while compiling, or a run-time value, whose structure and types are those of its first value. One that
parallel loops update is moved to memory.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence

from spirograd.base.errors import SpirogradNameError
from spirograd.base.wording import did_you_mean
from spirograd.ir.nodes import Op
from spirograd.lang.frontend.live_variables import reads_first
from spirograd.lang.frontend.lvalues import Element, Lvalue, StructElement
from spirograd.lang.frontend.runtime_values import Traced, convert, is_runtime, leaves, rebuild, settle
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct

# Builtins that kernels can use; the others are no suggestion for a misspelt name.
_USEFUL = {
    "range", "abs", "min", "max", "pow", "round", "int", "float", "bool", "len", "sum", "any", "all", "enumerate", "zip", "reversed",
    "print",
}  # fmt: skip
_USELESS = set(vars(builtins)) - _USEFUL


class MemoryVariable:
    """A variable of the kernel that parallel loops update: it lives in memory, and updates of it are atomic."""

    def __init__(self, lvalue: Lvalue) -> None:
        self.lvalue = lvalue


class Variable(Lvalue):
    """A local variable that holds a run-time value."""

    def __init__(self, t: Tracer, name: str) -> None:
        self.t = t
        self.name = name
        self.what = f"`{name}`"

    def load(self) -> Traced:
        value = self.t.frame.variables[self.name]
        assert is_runtime(value)
        return value

    def store(self, value: object) -> None:
        assign(self.t, self.name, value)


def lookup(t: Tracer, node: ast.Name) -> object:
    """Return what a name means here. Raises SpirogradNameError if it means nothing."""
    frame, name = t.frame, node.id
    if name in frame.variables:
        held = frame.variables[name]
        return held.lvalue.load() if isinstance(held, MemoryVariable) else held
    if name in frame.out_of_scope:
        raise SpirogradNameError(f"`{name}` is not defined here", frame.loc(node), frame.out_of_scope[name])
    if name in frame.names:
        t.captures.outside.name(frame.source.function, name, frame.names[name], frame.loc(node))
        return frame.names[name]
    if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(frame.source.tree)):
        hint = "it is assigned only later, or only in terms of itself; assign it before its first use"
    else:
        hint = did_you_mean(name, [*frame.variables, *(n for n in frame.names if not n.startswith("_") and n not in _USELESS)])
    raise SpirogradNameError(f"`{name}` is not defined", frame.loc(node), hint)


def assign(t: Tracer, name: str, value: object) -> None:
    """Bind ``name``. The type of a run-time variable is that of its first value; later ones are converted."""
    held = t.frame.variables.get(name)
    if isinstance(held, MemoryVariable):
        held.lvalue.store(convert(value, held.lvalue.load(), f"`{name}`"))
        return
    if is_runtime(held) and not name.startswith("%"):
        value = convert(value, held, f"`{name}`")
    t.frame.variables[name] = settle(value)
    t.frame.out_of_scope.pop(name, None)


def bind_known(t: Tracer, name: str, value: object) -> None:
    """Bind ``name``, which nothing else changes, to an object known while compiling."""
    t.frame.variables[name] = value
    t.frame.out_of_scope.pop(name, None)


def move_to_memory(t: Tracer, name: str) -> None:
    """Move a variable to memory, so that the iterations of a parallel loop can update it."""
    value = t.frame.variables[name]
    memory = _memory_for(t, name, value)
    memory.store(value)
    t.frame.variables[name] = MemoryVariable(memory)


def _memory_for(t: Tracer, name: str, value: object) -> Lvalue:
    if isinstance(value, Struct):
        members = {key: _memory_for(t, f"{name}.{key}", member) for key, member in value.entries.items()}
        return StructElement(members, value.with_entries)
    types = {v.dtype for v in leaves(value)}
    if len(types) != 1:
        raise type_error(
            f"`{name}` mixes types {', '.join(map(str, types))}, and is updated by a parallel loop", "give its entries one type"
        )
    shape = value.shape if isinstance(value, Matrix) else ()
    return Element(t.new_temp(name, types.pop(), tuple(shape)), ())


# --- variables as values of the IR -------------------------------------------------------------------------------------------


def runtime_variables(t: Tracer, names: set[str]) -> list[str]:
    """Return those of ``names`` that hold run-time values now, in a fixed order."""
    return sorted(name for name in names if is_runtime(t.frame.variables.get(name)))


def scalars_of(t: Tracer, names: Sequence[str]) -> list[Op]:
    """Return the scalars of variables, in order."""
    return [leaf.op for name in names for leaf in leaves(t.frame.variables[name])]


def bind(t: Tracer, names: Sequence[str], models: Mapping[str, object], values: Sequence[Op]) -> None:
    """Give variables new scalars, with the structure that ``models`` has."""
    at = 0
    for name in names:
        model = models[name]
        assert is_runtime(model)
        count = len(leaves(model))
        t.frame.variables[name] = rebuild(model, [Value(op) for op in values[at : at + count]])
        at += count


def end_scope(t: Tracer, before: dict[str, object], why: str, statements: Sequence[ast.stmt]) -> None:
    """Restore the variables that there were before a loop of ``statements``. Those that it introduced are out of scope, for a reason that
    messages give; and so are those that it gave other objects known while compiling, which iterations cannot hand on."""
    after = t.frame.variables
    replaced = [name for name, value in before.items() if not _is_carried(value) and after.get(name) is not value]
    for name in replaced:
        _refuse_carried(name, before[name], statements)
    for name in (*after, *replaced):
        if (name not in before or name in replaced) and not name.startswith("%"):
            t.frame.out_of_scope[name] = why
    t.frame.variables = {name: value for name, value in before.items() if name not in replaced}


def _is_carried(value: object) -> bool:
    """Return whether loops carry a variable that holds ``value``, or memory does."""
    return is_runtime(value) or isinstance(value, MemoryVariable)


def _refuse_carried(name: str, value: object, statements: Sequence[ast.stmt]) -> None:
    """Raise SpirogradTypeError if an iteration of a loop uses an object that is known while compiling, and leaves another one to the
    next."""
    if reads_first(statements, name):
        message = f"this loop gives `{name}`, {describe(value)} before it, to the next iteration as another object"
        raise type_error(message, "a loop hands on numbers, vectors and structs; choose the object by `sg.static`, or copy what it holds")
