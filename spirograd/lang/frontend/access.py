"""Names, attributes and subscripts: objects known while compiling, variables, elements of memory, and parts of either."""

from __future__ import annotations

import ast
import functools
import types
from contextlib import nullcontext
from typing import Any

from spirograd.base.errors import SpirogradCompilationError, SpirogradIndexError, SpirogradTypeError
from spirograd.base.wording import did_you_mean
from spirograd.lang.data.field import Field, ScalarField, StructField
from spirograd.lang.data.slices import bounds_of, is_slice, parts_of
from spirograd.lang.frontend.array_proxy import SHADOWS, TripletsProxy
from spirograd.lang.frontend.lists import DynamicList, list_at
from spirograd.lang.frontend.lvalues import Lvalue, Part, StructElement, has_elements
from spirograd.lang.frontend.memory_elements import element_of
from spirograd.lang.frontend.nondeterminism import watched
from spirograd.lang.frontend.runtime_values import contains_runtime, is_runtime
from spirograd.lang.frontend.syntax_facts import written
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.type_errors import no_attribute
from spirograd.lang.frontend.variables import MemoryVariable, Variable, lookup
from spirograd.lang.frontend.view_proxy import sliced
from spirograd.lang.indexing import swizzle_of
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct


def lvalue_of(t: Tracer, node: ast.expr) -> Lvalue | None:
    """Return the lvalue that an expression names, or None if it names none (a compile-time object, a result)."""
    if not isinstance(node, (ast.Subscript, ast.Attribute)):
        return resolve(t, node)[0]
    container, base = resolve(t, node.value)
    within = container is not None or (isinstance(node, ast.Subscript) and has_elements(base))
    if not within:
        return None
    lvalue, entries = _part(t, node, container, base)
    if isinstance(entries, DynamicList):
        raise _no_value(entries)
    return lvalue


def resolve(t: Tracer, node: ast.expr) -> tuple[Lvalue | None, object]:
    """Return the lvalue that an expression names; for others None, and the object that it stands for. Each part is evaluated once."""
    if isinstance(node, ast.Name):
        held = t.frame.variables.get(node.id)
        if isinstance(held, MemoryVariable):
            return held.lvalue, None
        return (Variable(t, node.id), None) if is_runtime(held) else (None, t.expression(node))
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return _part(t, node, *resolve(t, node.value))
    return None, t.expression(node)


def _part(t: Tracer, node: ast.Subscript | ast.Attribute, container: Lvalue | None, base: object) -> tuple[Lvalue | None, object]:
    """Resolve a part of the lvalue ``container``, or else of the object ``base``; see `resolve`."""
    if isinstance(node, ast.Subscript):
        key = t.expression(node.slice)
        t.at(node)
        if container is not None:
            return _item_part(container, key), None
        if has_elements(base):
            if is_slice(key) and not isinstance(base, TripletsProxy):
                return None, sliced(base, key)
            entries = list_at(t, base, key)
            return (element_of(t, base, key), None) if entries is None else (None, entries)
        return None, _item(t, node, base, key)
    part = None if container is None else _member(container, node.attr)
    t.at(node)
    if part is not None:
        return part, None
    return None, get_attribute(t, base if container is None else container.load(), node.attr, written(node))


def _item_part(container: Lvalue, key: object) -> Lvalue:
    """Return the part of an lvalue at ``[key]``: a string names a member of a struct."""
    held = container.load() if isinstance(key, str) else None
    if not isinstance(held, Struct):
        return container.index(key)
    if key not in held.entries:
        raise no_attribute(held, str(key))
    return container.member(str(key))


def _member(container: Lvalue, name: str) -> Lvalue | None:
    """Return the part of an lvalue called ``name``: a member of a struct, a swizzle of a vector; None for methods and other attributes."""
    if isinstance(container, StructElement):
        return container.members.get(name)
    model = container.load() if isinstance(container, (Variable, Part)) else None
    if isinstance(model, Struct):
        return container.member(name) if name in model.entries else None
    if isinstance(model, Matrix) or model is None:
        return container.member(name) if swizzle_of(name) is not None else None
    return None


def get_attribute(t: Tracer, base: object, name: str, text: str = "") -> object:
    """Return ``base.name`` of an object. ``text``: what messages call it."""
    if name in SHADOWS and isinstance(base, (ScalarField, StructField)) and not getattr(base, f"has_{name}")():
        integers = isinstance(base, ScalarField) and not base.dtype.is_float
        hint = "only floats have gradients" if integers else f"declare it with `needs_{name}=True`"
        raise type_error(f"{describe(base)} has no {SHADOWS[name]}", hint)
    if name == "shape" and isinstance(base, Field) and base.batch is not None:
        name = "shape_in_kernels"
    getter = getattr(type(base), name, None)
    try:
        with watched(t, getter) if isinstance(getter, (property, functools.cached_property)) else nullcontext():
            value = getattr(base, name)
        if t.captures.reads is not None:
            t.captures.reads.attribute(base, name, value, text, t.captures.is_reachable(base), t.b.loc)
        return t.captures.attribute(base, name, value, text)
    except AttributeError:
        raise no_attribute(base, name) from None


def _item(t: Tracer, node: ast.Subscript, base: Any, key: Any) -> object:
    """Return ``base[key]`` of an object that is not memory."""
    if isinstance(base, (Matrix, Struct)):
        return base[key]
    if any(isinstance(k, Value) or contains_runtime(bounds_of(k)) for k in parts_of(key)):
        raise type_error(
            f"{describe(base)} cannot be indexed with a run-time value",
            "put the data in a field, an ndarray or an sg.Vector, or loop over it with `sg.static`",
        )
    getter = getattr(type(base), "__getitem__", None)
    try:
        with watched(t, getter) if isinstance(getter, types.FunctionType) else nullcontext():
            item = base[key]
        named = _name_of_item(t, node, key) if isinstance(item, Field) else ""
        if not is_runtime(item):
            text = f"`{written(node)}`"
            t.captures.outside.item(base, key, item, text, t.b.loc)
            if t.captures.reads is not None:
                t.captures.reads.item(base, key, item, text, named, t.b.loc)
        if named and isinstance(item, Field):
            item.suggest_name(named)
        return t.captures.item(item)
    except SpirogradCompilationError:
        raise
    except IndexError:
        raise SpirogradIndexError(f"index {key} is out of range for {describe(base)}", t.b.loc) from None
    except KeyError:
        raise type_error(f"{describe(base)} has no key {key!r}", did_you_mean(str(key), map(str, base))) from None
    except TypeError as error:
        raise type_error(f"{describe(base)} cannot be indexed with {describe(key)}", str(error)) from None


def _name_of_item(t: Tracer, node: ast.Subscript, key: object) -> str:
    """Return the name that a field in a list or dict gets, unless it has one. A field of an argument gets none, because other calls pass
    other fields."""
    holder = node.value
    name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else None
    return "" if name is None or (isinstance(holder, ast.Name) and name in t.frame.variables) else f"{name}[{key!r}]"


# --- expressions -------------------------------------------------------------------------------------------------------------


def _name(t: Tracer, node: ast.Name) -> object:
    value = lookup(t, node)
    return t.captures.item(value, node.id) if node.id in t.frame.variables else t.captures.global_name(node.id, value)


def _attribute(t: Tracer, node: ast.Attribute) -> object:
    lvalue, value = resolve(t, node)
    if lvalue is None:
        return value
    try:
        return lvalue.load()
    except AttributeError as error:  # a component that the vector does not have
        raise type_error(str(error)) from None


def _subscript(t: Tracer, node: ast.Subscript) -> object:
    lvalue, value = resolve(t, node)
    if isinstance(value, DynamicList):
        raise _no_value(value)
    return value if lvalue is None else lvalue.load()


def _no_value(entries: DynamicList) -> SpirogradTypeError:
    return type_error(f"{describe(entries)} is not a value", "name an entry, or call `append`, `length` or `deactivate` on it")


def _slice(t: Tracer, node: ast.Slice) -> slice:
    return slice(*[None if n is None else t.expression(n) for n in (node.lower, node.upper, node.step)])


HANDLERS: dict[type[ast.AST], Handler] = {ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript, ast.Slice: _slice}
