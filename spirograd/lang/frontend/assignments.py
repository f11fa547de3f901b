"""Assignments: to variables, to memory, and to parts of either."""

from __future__ import annotations

import ast

from spirograd.lang import arithmetic, scalar, tiles
from spirograd.lang.frontend.access import lvalue_of
from spirograd.lang.frontend.array_proxy import TripletsProxy
from spirograd.lang.frontend.formatted_text import FormattedText
from spirograd.lang.frontend.func import is_scalar_type
from spirograd.lang.frontend.lvalues import Chosen, Element, Selection, StructElement, has_elements
from spirograd.lang.frontend.operators import BINARY, apply_binary
from spirograd.lang.frontend.runtime_values import is_runtime, leaves, settle
from spirograd.lang.frontend.syntax_facts import ATOMIC_UPDATES, fixed_names, is_static
from spirograd.lang.frontend.tile_slices import load_tile, store_tile, update_tile
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.triplet_elements import TripletElement
from spirograd.lang.frontend.type_errors import no_attribute
from spirograd.lang.frontend.variables import assign, bind_known, lookup
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct


def _assign(t: Tracer, node: ast.Assign) -> None:
    value = t.expression(node.value)
    t.at(node)
    if scalar.is_number(value) and is_static(node.value):
        for name in fixed_names(t.frame.source.tree).intersection(target.id for target in node.targets if isinstance(target, ast.Name)):
            bind_known(t, name, value)
            return
    for target in node.targets:
        _assign_to(t, target, value)


def _assign_to(t: Tracer, target: ast.expr, value: object) -> None:
    if isinstance(target, ast.Name):
        _assign_name(t, target, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpack(t, target, value)
    elif isinstance(target, (ast.Subscript, ast.Attribute)):
        _assign_part(t, target, value)
    else:
        raise t.syntax_error("this cannot be assigned to in a kernel", target)


def _assign_name(t: Tracer, target: ast.Name, value: object) -> None:
    name = target.id
    if isinstance(value, FormattedText):
        raise t.syntax_error("an f-string with run-time values can only be printed", target, "put it into the `print`")
    if value is None:
        raise type_error(f"`{name}` would be None", "a function whose value is used must return one on every path")
    _refuse_copy(t, name, value)
    assign(t, name, Matrix(value) if isinstance(value, list) and value and _is_numeric(value) else value)


def _refuse_copy(t: Tracer, name: str, value: object) -> None:
    """Raise SpirogradTypeError for ``u = v`` of two fields or arrays that the program gave these names: it would copy nothing."""
    if not has_elements(value):
        return
    frame = t.frame
    is_parameter = any(parameter.arg == name for parameter in frame.source.tree.args.args)
    held = frame.variables.get(name) if is_parameter else frame.names.get(name) if name not in frame.variables else None
    if has_elements(held):
        copy = f"write a loop, as in `for I in sg.grouped({name}): {name}[I] = ...`, or call `{name}.copy_from(...)` outside of the kernel"
        hint = f"{copy}; for a second name of {describe(value)}, choose another one"
        raise type_error(f"`{name}` is a field or an array, into which an assignment copies no elements", hint)


def _is_numeric(items: list[object]) -> bool:
    """Return whether lists are made of what vectors and matrices are made of."""
    return all(scalar.is_scalar(x) or isinstance(x, Matrix) or (isinstance(x, list) and x and _is_numeric(x)) for x in items)


def _unpack(t: Tracer, target: ast.Tuple | ast.List, value: object) -> None:
    if isinstance(value, Matrix):
        value = [value[i] for i in range(value.n)]
    starred = next((e for e in target.elts if isinstance(e, ast.Starred)), None)
    if starred is not None:
        raise t.syntax_error("a starred target is not supported in kernels", starred, "name every entry")
    if not isinstance(value, (tuple, list)):
        raise type_error(f"cannot unpack {describe(value)}")
    if len(value) != len(target.elts):
        raise type_error(f"cannot unpack {len(value)} values into {len(target.elts)} names")
    for element, item in zip(target.elts, [settle(v) for v in value]):
        _assign_to(t, element, item)


def _assign_part(t: Tracer, target: ast.Subscript | ast.Attribute, value: object) -> None:
    lvalue = lvalue_of(t, target)
    t.at(target)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        name = target.value.id
        if isinstance(t.frame.variables.get(name), Value) and has_elements(t.frame.names.get(name)):
            raise type_error(f"`{name}` is a local variable here, which hides the field or array of that name", "rename one of them")
    if lvalue is None and tiles.is_tile(value):
        store_tile(t, t.expression(target), value)
    elif lvalue is None:
        _refuse_part(t, target)
    elif not load_tile(t, lvalue, value):
        lvalue.store(value)


def _refuse_part(t: Tracer, target: ast.Subscript | ast.Attribute) -> None:
    """Raise the error for an assignment to something that is not an lvalue."""
    base = t.expression(target.value)
    if isinstance(target, ast.Attribute) and target.attr not in dir(base):
        raise no_attribute(base, target.attr)
    t.at(target)
    text = ast.unparse(target)
    if has_elements(base):
        raise type_error(f"`{text}` is a view, whose elements are assigned one by one", f"write a loop, or `{text}.fill(value)`")
    if is_runtime(base):
        raise type_error(f"`{text}` cannot be assigned to: `{ast.unparse(target.value)}` is {describe(base)}, computed here")
    raise type_error(
        f"`{text}` cannot be assigned to: `{ast.unparse(target.value)}` is {describe(base)}, a constant of the kernel",
        "kernels store to elements of fields and arrays, and to local variables and their parts",
    )


_UPDATED = (Chosen, Element, Selection, StructElement, TripletElement)  # what is in memory, which others may update at the same time


def _augmented(t: Tracer, node: ast.AugAssign) -> None:
    lvalue = lvalue_of(t, node.target)
    if lvalue is None:
        if isinstance(node.target, ast.Name):
            _augmented_object(t, node, node.target)
            return
        _refuse_part(t, node.target)
        return
    value = t.expression(node.value)
    t.at(node)
    op = type(node.op)
    if isinstance(value, tiles.Outer):
        update_tile(t, lvalue, op, value)
    elif isinstance(lvalue, _UPDATED) and op in ATOMIC_UPDATES and not isinstance(value, Struct):
        lvalue.update(ATOMIC_UPDATES[op], value)
    else:
        lvalue.store(apply_binary(op, lvalue.load(), value))


def _augmented_object(t: Tracer, node: ast.AugAssign, target: ast.Name) -> None:
    """Trace an augmented assignment to a variable that holds an object known while compiling."""
    held = lookup(t, target)
    if target.id not in t.frame.variables:
        if has_elements(held) and not isinstance(held, TripletsProxy):
            element = f"{target.id}[{', '.join('ijkl'[: len(held.shape)]) or None}]"
            raise type_error(f"`{target.id}` is a field or an array, which a kernel changes element by element", f"write `{element}`")
        raise type_error(
            f"`{target.id}` is a global, which a kernel cannot change", "store to a field or an array, or assign a local variable first"
        )
    _, function = BINARY[type(node.op)]
    value = t.expression(node.value)
    if t.captures.reads is not None and isinstance(held, str):
        t.captures.reads.shown(value)
    assign(t, target.id, function(held, value))


def _annotated(t: Tracer, node: ast.AnnAssign) -> None:
    if node.value is None:
        raise t.syntax_error("a declaration needs a value", node, "write `x: sg.f32 = 0`")
    annotation = t.expression(node.annotation)
    value = t.expression(node.value)
    t.at(node)
    target = ast.unparse(node.target)
    if is_scalar_type(annotation):
        if isinstance(value, Matrix):  # the type of its entries, as in the Taichi family
            value = arithmetic.cast(value, annotation)
        elif scalar.is_scalar(value):
            value = scalar.cast(value, arithmetic.as_dtype(annotation))
        else:
            raise type_error(f"`{target}` is a scalar of type {arithmetic.as_dtype(annotation)}, and cannot be {describe(value)}")
    elif isinstance(annotation, AggregateType):
        value = annotation.converted(value)
    else:
        t.at(node.annotation)
        raise type_error(f"{describe(annotation)} is not a type of the kernel language", "types are sg.i32, sg.f32, sg.math.vec3 ...")
    held = t.frame.variables.get(node.target.id) if isinstance(node.target, ast.Name) else None
    if is_runtime(held) and [v.dtype for v in leaves(held)] != [v.dtype for v in leaves(value)]:
        message = f"`{target}` is {describe(held)} already, and keeps its type"
        raise t.syntax_error(message, node, "use another name for a value of another type")
    _assign_to(t, node.target, value)


HANDLERS: dict[type[ast.AST], Handler] = {ast.Assign: _assign, ast.AugAssign: _augmented, ast.AnnAssign: _annotated}
