"""Tracing calls: special forms, Python's builtins, functions that are inlined, functions that run while tracing."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType, u32
from spirograd.base.errors import SpirogradCompilationError, SpirogradError, SpirogradSyntaxError, SpirogradTypeError
from spirograd.lang import forms, ops, randoms, scalar
from spirograd.lang.data.scalar_field import Field
from spirograd.lang.frontend.callees import Argument, Callee, resolved, struct_method
from spirograd.lang.frontend.complaints import contains_runtime, host_only, is_host_only, python_call
from spirograd.lang.frontend.diagnostics import emit_print
from spirograd.lang.frontend.expressions import Expressions, FormattedText
from spirograd.lang.frontend.function import Func, RealFunc, bound_arguments, is_template
from spirograd.lang.frontend.memory import ArrayProxy
from spirograd.lang.frontend.names import RESULT, RNG
from spirograd.lang.frontend.places import Element, Place, StructElement
from spirograd.lang.frontend.real_functions import RealFunctions
from spirograd.lang.frontend.state import Frame, MemoryVariable, is_runtime, settle, unpack_tuple
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, is_scalar, type_error
from spirograd.lang.struct import Struct

MAX_DEPTH = 64
# Methods that change lists, dicts and sets.
_CHANGES = {
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem", "add", "discard",
}  # fmt: skip
_OWN_NAME = re.compile(r"^[\w.]+(\(\))? (?=missing|takes|got)")  # of the function, as Python's messages about arguments begin


class RunTimeRange:
    """``range`` with bounds that the kernel computes."""

    def __sg_describe__(self) -> str:
        return "a range whose bounds are only known at run time"

    def __init__(self, begin: Any, end: Any, step: Any = 1) -> None:
        self.begin, self.end, self.step = begin, end, step


class NeedsRandom(Exception):
    """The kernel draws random numbers: trace it again, with the counter carried through loops."""


# The arguments that calls were found to change while the kernel was traced before; see `Unforeseen`.
Foreseen = dict[ast.Call, list[ast.expr]]


class Unforeseen(Exception):
    """A call changes variables of which the loops around it did not know: trace the kernel again, with ``arguments`` foreseen."""

    def __init__(self, call: ast.Call, arguments: Sequence[ast.expr]) -> None:
        super().__init__()
        self.call = call
        self.arguments = arguments


class Calls(Expressions):
    """Calls, by what is called."""

    uses_random = False
    random_key: tuple[Value, Value]
    foreseen: Foreseen

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.real_functions = RealFunctions()
        self._forms: dict[Any, Callable[[ast.Call], Any]] = {
            forms.static: self.form_static,
            forms.static_assert: self.form_static_assert,
            forms.atomic_sub: self.form_atomic_sub,
            forms.atomic_cas: self.form_atomic_cas,
            forms.random: lambda node: self.form_random(node, randoms.uniform),
            forms.randn: lambda node: self.form_random(node, randoms.normal),
            builtins.print: self.form_print,
            builtins.super: self.form_super,
            **{function: self._atomic(kind) for function, kind in forms.ATOMICS.items()},
        }

    # --- dispatch --------------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Any:
        callee, place = self._callee(node.func)
        self.at(node)
        form = self._forms.get(callee) if _hashable(callee) else None
        if form is not None:
            return form(node)
        function = resolved(callee)
        if function is not None:
            return self.inline(function, node, place)
        if place is not None and getattr(callee, "__func__", None) is Matrix.fill:
            assert isinstance(node.func, ast.Attribute)
            self.changes(node, [node.func.value])
            place.store(callee.__self__.filled(*self.elements(node.args)))
            return None
        args, kwargs = self.arguments(node)
        self.at(node)
        builtin = _BUILTINS.get(callee) if _hashable(callee) else None
        if builtin is not None:
            return self.made(self._run(callee.__name__, builtin, args, kwargs))
        return self.call_python(callee, args, kwargs, node)

    def _callee(self, node: ast.expr) -> tuple[Any, Place | None]:
        """What is called, and the place of the object whose method it is."""
        if not isinstance(node, ast.Attribute):
            return self.eval(node), None
        place, base = self.reach(node.value)
        self.at(node)
        return self.get_attribute(base if place is None else place.load(), node.attr), place

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        args = self.elements(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is None:
                kwargs.update(value)
            else:
                kwargs[keyword.arg] = value
        return args, kwargs

    def call_python(self, callee: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> Any:
        """Call something that runs while tracing: our own dual functions and types, or any function of compile-time values."""
        if getattr(callee, "__sg_is_kernel__", False):
            raise SpirogradSyntaxError("a kernel cannot be called from a kernel", self.b.loc, "make it a function with `@sg.func`")
        if not callable(callee):
            raise SpirogradTypeError(f"{describe(callee)} is not callable", self.b.loc)
        if not _is_ours(callee) and contains_runtime((*args, *kwargs.values())):
            raise python_call(callee)
        if is_host_only(callee):
            raise host_only(callee)
        self._check_change(callee, (*args, *kwargs.values()))
        name = getattr(callee, "__name__", type(callee).__name__)
        if _is_ours(callee):
            return self._run(name, callee, args, kwargs)
        try:
            return self.made(callee(*args, **kwargs))
        except SpirogradError:
            raise
        except Exception as error:
            message = f"`{name}`, which runs while compiling, raised {type(error).__name__}: {error}"
            raise SpirogradCompilationError(message, self.b.loc) from error

    def _run(self, name: str, callee: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function of the language, whose arguments may not fit."""
        try:
            return callee(*args, **kwargs)
        except SpirogradError:
            raise
        except (AssertionError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise SpirogradTypeError(f"`{name}`: {re.sub(_OWN_NAME, '', str(error))}", self.b.loc) from error

    def _check_change(self, callee: Any, values: Sequence[Any]) -> None:
        """Python's lists and dicts change while compiling, once: inside of a loop or branch that is not the list's own that misleads."""
        owner = getattr(callee, "__self__", None)
        if not isinstance(owner, (list, dict, set)) or callee.__name__ not in _CHANGES:
            return
        _, depth = self.displays.get(id(owner), (None, 0))
        if depth != self.b.depth and (depth or contains_runtime(values)):
            raise type_error(
                f"`{callee.__name__}` would change {describe(owner)} once, while compiling, not at run time",
                "store to a field, an ndarray or a local sg.Vector",
            )

    # --- special forms ---------------------------------------------------------------------------------------------------

    def form_static(self, node: ast.Call) -> Any:
        values = self.elements(node.args)
        if not values:
            raise type_error("`static` needs an argument")
        for value, argument in zip(values, node.args):
            if is_runtime(value) and not (isinstance(value, Matrix) and not any(isinstance(e, Value) for e in value.entries)):
                raise SpirogradTypeError(
                    f"`sg.static` needs what is known while compiling, got {describe(value)}",
                    self.frame.source.loc(argument, self.frame.caller),
                    "closures, template arguments, shapes of fields and literals are known; variables of the kernel are not",
                )
        return forms.static(*values)

    def form_static_assert(self, node: ast.Call) -> None:
        values, kwargs = self.arguments(node)
        if not 1 <= len(values) <= 2:
            raise self.syntax_error("`static_assert` takes a condition and a message", node)
        self.at(node.args[0])
        if is_runtime(values[0]):
            raise type_error("`static_assert` needs a condition that is known while compiling", "use `assert`")
        if not values[0]:
            message = values[1] if len(values) > 1 else kwargs.get("message", "")
            raise SpirogradCompilationError(f"static assertion failed{': ' + str(message) if message else ''}", self.b.loc)

    def _memory(self, node: ast.expr, what: str) -> Place:
        place = self.place(node)
        if place is None:
            raise type_error(f"`{what}` needs an element of a field or array, or a variable, as its first argument")
        return place

    def _operands(self, node: ast.Call, what: str, count: int) -> tuple[Place, list[Any]]:
        if len(node.args) != count or node.keywords:
            raise type_error(f"`{what}` takes {count} arguments, got {len(node.args) + len(node.keywords)}")
        place = self._memory(node.args[0], what)
        if isinstance(node.args[0], ast.Name) and node.args[0].id in self.frame.constants:
            hint = "copy it to a variable, or pass an array"
            raise type_error(f"`{what}` cannot change argument `{node.args[0].id}` of the kernel", hint)
        values = self.elements(node.args[1:])
        self.at(node)
        return place, values

    def _atomic(self, kind: str) -> Callable[[ast.Call], Any]:
        def run(node: ast.Call) -> Any:
            place, (value,) = self._operands(node, f"atomic_{kind}", 2)
            self.changes(node, node.args[:1])
            return place.atomic(kind, value)

        return run

    def form_atomic_sub(self, node: ast.Call) -> Any:
        place, (value,) = self._operands(node, "atomic_sub", 2)
        self.changes(node, node.args[:1])
        return place.atomic("sub", value)

    def form_atomic_cas(self, node: ast.Call) -> Any:
        place, (expected, desired) = self._operands(node, "atomic_cas", 3)
        if not isinstance(place, Element) or place.shape:
            raise type_error("`atomic_cas` needs a scalar element of a field or array")
        return place.compare_and_swap(expected, desired)

    def form_random(self, node: ast.Call, draw: Callable[..., Value]) -> Value:
        if not self.uses_random:
            raise NeedsRandom
        args, kwargs = self.arguments(node)
        self.at(node)
        if len(args) + len(kwargs) > 1 or set(kwargs) - {"dtype"}:
            raise type_error("a random number takes nothing but its type", "scale it yourself: `low + (high - low) * sg.random()`")
        t = ops.as_dtype(kwargs.get("dtype", args[0] if args else float))
        if draw is randoms.normal and not t.is_float:
            raise type_error(f"`randn` gives floats, not {t}", "`sg.random(sg.i32)` draws integers")
        counter = self.frame.vars[RNG]
        self.frame.vars[RNG] = scalar.add(counter, scalar.constant(1, u32))
        return draw(t, counter, *self.random_key)

    def form_super(self, node: ast.Call) -> Any:
        """``super()``: Python finds the class and the object by itself, from the method that is running."""
        if node.args or node.keywords:
            args, kwargs = self.arguments(node)
            return super(*args, **kwargs)
        cls, first = self.frame.names.get("__class__"), next(iter(self.frame.vars.values()), None)
        if not isinstance(cls, type) or not isinstance(first, cls):
            raise self.syntax_error("`super()` works in methods of a class", node, "name the class: `Base.method(self, ...)`")
        return super(cls, first)

    def form_print(self, node: ast.Call) -> None:
        args, kwargs = self.arguments(node)
        self.at(node)
        unknown = set(kwargs) - {"sep", "end"}
        if unknown:
            raise type_error(f"`print` in a kernel has no argument `{unknown.pop()}`", "it takes sep and end")
        for name, value in kwargs.items():
            if not isinstance(value, str):
                raise type_error(f"`{name}` of `print` is a string known while compiling, not {describe(value)}")
        parts: list[Any] = []
        for k, value in enumerate(args):
            parts += [kwargs.get("sep", " ")] if k else []
            parts += value.parts if isinstance(value, FormattedText) else [(value, "") if is_runtime(value) else str(value)]
        emit_print([*parts, kwargs.get("end", "\n")])

    # --- inlining --------------------------------------------------------------------------------------------------------

    def references(self, node: ast.Call) -> Sequence[ast.expr]:
        """The arguments that a call may change: those for parameters taken by reference, and the object of a method."""
        found = [*self._changed_by(node), *self.foreseen.get(node, ())]
        self.frame.answers[node] = self.frame.answers.get(node, frozenset(found)).intersection(found)
        return found

    def _changed_by(self, node: ast.Call) -> Sequence[ast.expr]:
        callee = self._static_callee(node.func)
        if _hashable(callee) and (callee in forms.ATOMICS or callee in (forms.atomic_sub, forms.atomic_cas)):
            return node.args[:1]
        if callee is None and isinstance(node.func, ast.Attribute):
            held = self._static_callee(node.func.value, variables=True)
            method = held.methods.get(node.func.attr) if isinstance(held, Struct) else None
            function = None if method is None else Callee(struct_method(method), (held,), has_object=True)
        else:
            function = resolved(callee)
        return () if function is None else function.changed_by(node)

    def changes(self, node: ast.Call, arguments: Sequence[ast.expr]) -> None:
        """A call is about to change what ``arguments`` name: raises `Unforeseen` if a loop around it was told otherwise."""
        answer = self.frame.answers.get(node)
        if answer is not None and not answer.issuperset(arguments):
            raise Unforeseen(node, arguments)

    def _static_callee(self, node: ast.expr, variables: bool = False) -> Any:
        """What a name or dotted name stands for, if that is known without evaluating anything at run time."""
        if isinstance(node, ast.Name):
            held = self.frame.vars.get(node.id)
            found = held if held is not None else self.frame.names.get(node.id)
            return found if variables or not is_runtime(found) else None
        if isinstance(node, ast.Attribute):
            base = self._static_callee(node.value)
            return getattr(base, node.attr, None) if base is not None else None
        return None

    def inline(self, callee: Callee, node: ast.Call, place: Place | None) -> Any:
        """Trace the body of a function here; its value is the value of the call. ``place``: of the object whose method it is."""
        func = callee.func
        if self.depth >= MAX_DEPTH:
            raise SpirogradSyntaxError(
                f"`{func.function.__name__}` calls itself: {MAX_DEPTH} calls deep while inlining",
                self.b.loc,
                "recursion needs an end that is known while compiling",
            )
        args, kwargs = self._given(callee, node, place)
        call_loc = self.frame.source.loc(node, self.frame.caller)
        self.b.loc = call_loc
        try:
            arguments = bound_arguments(func.signature, [a.value for a in args], {name: a.value for name, a in kwargs.items()})
        except TypeError as error:
            raise SpirogradTypeError(f"function `{func.function.__name__}`: {error}", call_loc) from None
        arguments.apply_defaults()
        by_reference = func.references()
        references = {name: a for name, a in [*zip(callee.parameters, args), *kwargs.items()] if name in by_reference}
        bound: dict[str, Any] = {}
        for name, value in arguments.arguments.items():
            in_memory = references[name].place if name in references else None
            if isinstance(in_memory, (Element, StructElement)):  # the parameter is that element, updated atomically
                bound[name] = MemoryVariable(in_memory)
            else:
                bound[name] = self.argument(name, value, func.signature.parameters[name].annotation, func)
        called = self.real_functions.call(self, func, bound, call_loc) if isinstance(func, RealFunc) else None
        if called is not None:
            return called
        caller = self.frame
        frame = Frame(func.source, func.source.names(), False, func.signature.return_annotation, call_loc, vars=bound)
        frame.loops, frame.by_reference, frame.depth = list(caller.loops), frozenset(by_reference), self.b.depth
        if self.uses_random:
            frame.vars[RNG] = caller.vars[RNG]
        self.frame, self.depth = frame, self.depth + 1
        try:
            self.function_body(func.source.tree.body)
        finally:
            self.frame, self.depth = caller, self.depth - 1
        if self.uses_random:
            caller.vars[RNG] = frame.vars[RNG]
        self.at(node)
        self._hand_back(callee, node, frame, arguments.arguments, references)
        return unpack_tuple(frame.vars.get(RESULT))

    def _given(self, callee: Callee, node: ast.Call, place: Place | None) -> tuple[list[Argument], dict[str, Argument]]:
        """The arguments of a call, in the order of the source; what ``callee`` is bound to comes first."""
        names, by_reference = callee.parameters, callee.func.references()

        def of(expression: ast.expr, name: str | None) -> Argument:
            if name not in by_reference:
                return Argument(self.eval(expression))
            found, value = self.reach(expression)
            return Argument(value if found is None else found.load(), expression, found)

        args = [Argument(value) for value in callee.positional]
        if callee.has_object and isinstance(node.func, ast.Attribute):
            args[0] = Argument(args[0].value, node.func.value, place)
        for expression in node.args:
            if isinstance(expression, ast.Starred):
                args += [Argument(value) for value in self.eval(expression.value)]
            else:
                args.append(of(expression, names[len(args)] if len(args) < len(names) else None))
        kwargs = {name: Argument(value) for name, value in callee.keywords.items()}
        for keyword in node.keywords:
            if keyword.arg is None:
                kwargs.update({name: Argument(value) for name, value in self.eval(keyword.value).items()})
            else:
                kwargs[keyword.arg] = of(keyword.value, keyword.arg)
        return args, kwargs

    def _hand_back(
        self, callee: Callee, node: ast.Call, frame: Frame, given: Mapping[str, Any], references: Mapping[str, Argument]
    ) -> None:
        """Store what parameters taken by reference have become to the variables that they stand for."""
        func, changed = callee.func, list[tuple[ast.expr, Place, Any]]()
        for name, argument in references.items():
            held = frame.vars.get(name, given[name])
            if held is given[name] or isinstance(argument.place, (Element, StructElement)):
                continue
            if argument.place is not None and argument.node is not None:
                changed.append((argument.node, argument.place, held.place.load() if isinstance(held, MemoryVariable) else held))
            elif argument.node is None and func.changes_object and name == callee.parameters[0]:
                name = func.function.__name__
                raise type_error(f"`{name}` changes its struct, which the call does not name", f"call it on a variable: `s.{name}(...)`")
        self.changes(node, [argument for argument, _, _ in changed])
        for _, place, value in changed:
            place.store(value)

    def argument(self, name: str, value: Any, annotation: Any, func: Func) -> Any:
        """The value of a parameter: cast to its annotation if it has one."""
        if isinstance(annotation, DType) or annotation in (int, float, bool):
            if not is_scalar(value):
                raise type_error(
                    f"argument `{name}` of `{func.function.__name__}` takes a scalar ({_name_of(annotation)}), got {describe(value)}"
                )
            return scalar.cast(value, ops.as_dtype(annotation))
        if isinstance(annotation, AggregateType):
            try:
                return settle(annotation.build(annotation.leaves_of(value)))
            except SpirogradTypeError as error:
                raise type_error(f"argument `{name}` of `{func.function.__name__}`: {error.message}", error.hint) from None
        return settle(value) if is_scalar(value) and not is_template(annotation) else value

    def function_body(self, statements: list[ast.stmt]) -> None:
        raise NotImplementedError


def _hashable(x: Any) -> bool:
    return type(x).__hash__ is not None


def _name_of(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _is_ours(callee: Any) -> bool:
    """Whether a callable is made to run while tracing."""
    owner = getattr(callee, "__self__", None)
    if getattr(callee, "__sg_traceable__", False) or getattr(type(callee), "__sg_traceable__", False):
        return True
    if isinstance(callee, DType) or isinstance(owner, (Matrix, Struct, Value, list, dict, tuple)):
        return True
    module = getattr(callee, "__module__", None) or getattr(type(callee), "__module__", "")
    return str(module).startswith("spirograd.")


def _range(*args: Any) -> Any:
    if not 1 <= len(args) <= 3:
        raise type_error(f"`range` takes 1 to 3 arguments, got {len(args)}")
    if len(args) == 3 and scalar.is_number(scalar.known(args[2])) and scalar.known(args[2]) == 0:
        raise type_error("the step of a range cannot be 0")
    if any(isinstance(a, Value) for a in args):
        for a in args:
            if scalar.dtype_of(a).is_float:
                raise type_error(f"`range` needs integers, got {scalar.dtype_of(a)}", "cast the bound: `int(x)`")
        return RunTimeRange(0, *args) if len(args) == 1 else RunTimeRange(*args)
    for a in args:
        if not isinstance(a, (int, np.integer)):
            raise type_error(f"`range` needs integers, got {describe(a)}", "`//` divides integers to an integer")
    return range(*map(int, args))


def _convert(t: Any) -> Callable[[Any], Any]:
    def run(x: Any = 0) -> Any:
        return ops.cast(x, t) if not scalar.is_number(x) else t(x)

    return run


def _reduce(python: Callable[[Any], Any], method: str) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        items = x if isinstance(x, Matrix) else Matrix(_items(x, method))
        return getattr(items, method)()

    return run


def _items(x: Any, what: str) -> list[Any]:
    """The items of something whose length is known while compiling."""
    if isinstance(x, (RunTimeRange, Value, Field, ArrayProxy)) or not isinstance(x, (Iterable, Matrix)):
        hint = "" if isinstance(x, Value) else "write a loop"
        raise type_error(f"`{what}` needs a vector, or a list or range that is known while compiling, not {describe(x)}", hint)
    return list(x)


def _extremum(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return function(*(args if len(args) != 1 else _items(args[0], name)))

    return run


def _length(x: Any) -> int:
    try:
        return len(x)
    except TypeError:
        raise type_error(f"{describe(x)} has no length", "the extents of a field or array are in `.shape`") from None


_BUILTINS: dict[Any, Callable[..., Any]] = {
    builtins.range: _range,
    builtins.abs: ops.abs,
    builtins.min: _extremum(ops.min, "min"),
    builtins.max: _extremum(ops.max, "max"),
    builtins.pow: ops.pow,
    builtins.round: ops.round,
    builtins.int: _convert(int),
    builtins.float: _convert(float),
    builtins.bool: _convert(bool),
    builtins.len: _length,
    builtins.sum: _reduce(sum, "sum"),
    builtins.any: _reduce(any, "any"),
    builtins.all: _reduce(all, "all"),
    builtins.enumerate: lambda x, start=0: list(enumerate(_items(x, "enumerate"), start)),
    builtins.zip: lambda *a: list(zip(*[_items(x, "zip") for x in a])),
    builtins.reversed: lambda x: list(reversed(_items(x, "reversed"))),
}
