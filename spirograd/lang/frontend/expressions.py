"""Tracing expressions: compile-time objects are computed by Python, run-time values emit IR."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spirograd.base.dtypes import DType, promote, u1
from spirograd.base.errors import SpirogradCompilationError, SpirogradIndexError
from spirograd.base.wording import did_you_mean
from spirograd.ir.nodes import Op
from spirograd.lang import scalar
from spirograd.lang.data.field import Field, ScalarField, StructField
from spirograd.lang.frontend.complaints import contains_runtime, no_attribute, operand_hint, undefined
from spirograd.lang.frontend.memory import has_elements, place_of_element
from spirograd.lang.frontend.names import CHOSEN
from spirograd.lang.frontend.places import Part, Place, StructElement
from spirograd.lang.frontend.state import MemoryVariable, Side, State, is_runtime, leaves, rebuild, same_shape, settle
from spirograd.lang.indexing import swizzle_of
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.MatMult: operator.matmul,
}
COMPARE_SYMBOL: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
SYMBOL = dict(zip(BINARY, ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "@"]))
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
STATIC_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class FormattedText:
    """An f-string: literal strings and (value, format spec) pairs. Only `print` and `assert` can use one with run-time values."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Expressions(State):
    """Evaluates expressions to Python objects, of which `Value`, `Matrix` and `Struct` are computed at run time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.displays: dict[int, tuple[Any, int]] = {}
        self._expressions: dict[type[ast.AST], Callable[[Any], Any]] = {
            ast.Constant: lambda node: node.value,
            ast.Name: self.name,
            ast.Attribute: self.attribute,
            ast.Subscript: self.subscript,
            ast.BinOp: self.binary,
            ast.UnaryOp: self.unary,
            ast.BoolOp: self.boolean,
            ast.Compare: self.compare,
            ast.IfExp: self.conditional,
            ast.Call: self.call,
            ast.Tuple: lambda node: tuple(self.elements(node.elts)),
            ast.List: lambda node: self.made(self.elements(node.elts)),
            ast.Dict: lambda node: self.made(self.dictionary(node)),
            ast.ListComp: lambda node: self.made(list(self.comprehension(node, node.elt))),
            ast.GeneratorExp: lambda node: list(self.comprehension(node, node.elt)),
            ast.SetComp: lambda node: set(self.comprehension(node, node.elt)),
            ast.DictComp: self.dict_comprehension,
            ast.JoinedStr: self.formatted,
            ast.Slice: self.slice,
            ast.NamedExpr: self.walrus,
        }

    def call(self, node: ast.Call) -> Any:
        raise NotImplementedError

    def made(self, x: Any) -> Any:
        """Note the block in which a list or dict was made: only there it can be changed."""
        if isinstance(x, (list, dict, set)):
            self.displays[id(x)] = (x, self.b.depth)
        return x

    def static_iterable(self, node: ast.expr) -> list[Any]:
        raise NotImplementedError

    def eval(self, node: ast.expr) -> Any:
        """The object that an expression stands for."""
        handler = self._expressions.get(type(node))
        if handler is None:
            raise self.syntax_error(f"{_spelled(node)} is not supported in kernels", node, _EXPRESSION_HINTS.get(type(node), ""))
        return self.traced(handler, node)

    def scalar(self, node: ast.expr, what: str) -> Value:
        return scalar.as_value(self.eval(node), what)

    def elements(self, nodes: list[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                out += list(self.eval(node.value))
            else:
                out.append(self.eval(node))
        return out

    # --- names and parts -------------------------------------------------------------------------------------------------

    def name(self, node: ast.Name) -> Any:
        return self.captured(self.lookup(node.id, node), (None, node.id))

    def place(self, node: ast.expr) -> Place | None:
        """The place that an expression names, or None if it is no place (a compile-time object, a result)."""
        if not isinstance(node, (ast.Subscript, ast.Attribute)):
            return self.reach(node)[0]
        whole, base = self.reach(node.value)
        within = whole is not None or (isinstance(node, ast.Subscript) and has_elements(base))
        return self._inside(node, whole, base)[0] if within else None

    def reach(self, node: ast.expr) -> tuple[Place | None, Any]:
        """The place that an expression names; for others None, and the object that it stands for. Each part is evaluated once."""
        if isinstance(node, ast.Name):
            held = self.frame.vars.get(node.id)
            if isinstance(held, MemoryVariable):
                return held.place, None
            return (Variable(self, node.id), None) if is_runtime(held) else (None, self.eval(node))
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            return self._inside(node, *self.reach(node.value))
        return None, self.eval(node)

    def _inside(self, node: ast.Subscript | ast.Attribute, whole: Place | None, base: Any) -> tuple[Place | None, Any]:
        """As `reach`, of a part of a place, or else of an object."""
        if isinstance(node, ast.Subscript):
            key = self.eval(node.slice)
            self.at(node)
            if whole is not None:
                return whole.index(key), None
            return (place_of_element(base, key, self.fields), None) if has_elements(base) else (None, self._item(node, base, key))
        part = None if whole is None else self._member(whole, node.attr)
        self.at(node)
        return (None, self.get_attribute(base if whole is None else whole.load(), node.attr)) if part is None else (part, None)

    def _member(self, whole: Place, name: str) -> Place | None:
        """The part of a place called ``name``: a member of a struct, a swizzle of a vector; None for methods and other attributes."""
        if isinstance(whole, StructElement):
            return whole.members.get(name)
        model = whole.load() if isinstance(whole, (Variable, Part)) else None
        if isinstance(model, Struct):
            return whole.member(name) if name in model.entries else None
        if isinstance(model, Matrix) or model is None:
            return whole.member(name) if swizzle_of(name) is not None else None
        return None

    def attribute(self, node: ast.Attribute) -> Any:
        place, value = self.reach(node)
        if place is None:
            return value
        try:
            return place.load()
        except AttributeError as error:  # a component that the vector does not have
            raise type_error(str(error)) from None

    def get_attribute(self, base: Any, name: str) -> Any:
        partnered = name in ("grad", "dual") and isinstance(base, (ScalarField, StructField))
        if partnered and not (base.has_grad() if name == "grad" else base.has_dual()):
            integers = isinstance(base, ScalarField) and not base.dtype.is_float
            hint = "only floats have gradients" if integers else f"declare it with `needs_{name}=True`"
            raise type_error(f"{describe(base)} has no {'gradient' if name == 'grad' else 'dual'}", hint)
        try:
            return self.captured(getattr(base, name), (base, name))
        except AttributeError:
            raise no_attribute(base, name) from None

    def subscript(self, node: ast.Subscript) -> Any:
        place, value = self.reach(node)
        return value if place is None else place.load()

    def _item(self, node: ast.Subscript, base: Any, key: Any) -> Any:
        """An item of something that is no place."""
        if isinstance(base, (Matrix, Struct)):
            return base[key]
        if any(isinstance(k, Value) for k in (key if isinstance(key, tuple) else (key,))):
            raise type_error(
                f"{describe(base)} cannot be indexed with a run-time value",
                "put the data in a field, an ndarray or an sg.Vector, or loop over it with `sg.static`",
            )
        try:
            return self.captured(self._named(node, key, base[key]), None)
        except SpirogradCompilationError:
            raise
        except IndexError:
            raise SpirogradIndexError(f"index {key} is out of range for {describe(base)}", self.b.loc) from None
        except KeyError:
            raise type_error(f"{describe(base)} has no key {key!r}", did_you_mean(str(key), map(str, base))) from None
        except TypeError as error:
            raise type_error(f"{describe(base)} cannot be indexed with {describe(key)}", str(error)) from None

    def _named(self, node: ast.Subscript, key: Any, item: Any) -> Any:
        """``item``; a field that a list or dict holds goes by that, unless it has a name. Arguments stand for others in other calls."""
        holder = node.value
        name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else None
        if isinstance(item, Field) and name is not None and not (isinstance(holder, ast.Name) and name in self.frame.vars):
            item.suggest_name(f"{name}[{key!r}]")
        return item

    def slice(self, node: ast.Slice) -> slice:
        parts = [None if n is None else self.eval(n) for n in (node.lower, node.upper, node.step)]
        if any(is_runtime(p) for p in parts):
            raise type_error("the bounds of a slice must be known while compiling")
        return slice(*parts)

    # --- operators -------------------------------------------------------------------------------------------------------

    def binary(self, node: ast.BinOp) -> Any:
        left, right = self.eval(node.left), self.eval(node.right)
        self.at(node)
        return self.apply_binary(type(node.op), left, right)

    def apply_binary(self, op: type[ast.operator], left: Any, right: Any) -> Any:
        left, right = _as_matrix(left, right), _as_matrix(right, left)
        try:
            return BINARY[op](left, right)
        except SpirogradCompilationError:
            raise
        except ZeroDivisionError:
            raise type_error("division of a constant by zero") from None
        except (TypeError, ValueError, OverflowError):
            raise undefined(SYMBOL[op], left, right) from None

    def unary(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        self.at(node)
        if isinstance(node.op, ast.Not):
            return _logical_not(value)
        functions: dict[type[ast.unaryop], Any] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
        try:
            return functions[type(node.op)](value)
        except SpirogradCompilationError:
            raise
        except TypeError:
            symbol = {ast.USub: "-", ast.UAdd: "+"}.get(type(node.op), "~")
            raise type_error(f"`{symbol}` is not defined for {describe(value)}", operand_hint(value)) from None

    def compare(self, node: ast.Compare) -> Any:
        left = self.eval(node.left)
        out: Any = True
        for op, right_node in zip(node.ops, node.comparators):
            right = self.eval(right_node)
            self.at(node)
            if type(op) in STATIC_COMPARE:
                result = self._static_compare(type(op), left, right)
            else:
                result = self._compare(type(op), _as_matrix(left, right), _as_matrix(right, left))
            out = result if out is True else scalar.bit_and(scalar.truth(out), scalar.truth(result))
            left = right
        return out

    def _compare(self, op: type[ast.cmpop], left: Any, right: Any) -> Any:
        try:
            result = COMPARE[op](left, right)
        except SpirogradCompilationError:
            raise
        except (TypeError, ValueError):
            raise undefined(COMPARE_SYMBOL[op], left, right) from None
        if isinstance(result, bool) and (is_runtime(left) or is_runtime(right)):  # Python compared identities
            raise undefined(COMPARE_SYMBOL[op], left, right)
        return result

    def _static_compare(self, op: type[ast.cmpop], left: Any, right: Any) -> bool:
        if isinstance(left, Value) or (op in (ast.In, ast.NotIn) and contains_runtime(right)):
            raise type_error("`is` and `in` work on compile-time objects only", "compare run-time values with `==`")
        return bool(STATIC_COMPARE[op](left, right))

    def boolean(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        return self._boolean(node.values, is_and, node)

    def _boolean(self, nodes: list[ast.expr], is_and: bool, at: ast.AST) -> Any:
        """``and``, ``or`` of Python: the operand that decides, not its truth. Without short circuit only truth values are left."""
        left = self.eval(nodes[0])
        if len(nodes) == 1:
            return left
        self.at(at)
        if not is_runtime(left):
            return left if bool(left) != is_and else self._boolean(nodes[1:], is_and, at)
        condition = scalar.truth(left)
        if not self.trace.options.short_circuit:
            combine = scalar.bit_and if is_and else scalar.bit_or
            return combine(condition, scalar.truth(self._boolean(nodes[1:], is_and, at)))

        def otherwise() -> Any:
            right = self._boolean(nodes[1:], is_and, at)
            truth = scalar.cast(scalar.truth(right), u1)
            return truth if scalar.dtype_of(right) is u1 else right

        def known() -> Any:
            return scalar.constant(not is_and) if scalar.dtype_of(left) is u1 else left

        return self.choose(condition, otherwise, known) if is_and else self.choose(condition, known, otherwise)

    def conditional(self, node: ast.IfExp) -> Any:
        condition = self.eval(node.test)
        self.at(node)
        if not is_runtime(condition):
            return self.eval(node.body if condition else node.orelse)
        return self.choose(scalar.truth(condition), lambda: self.eval(node.body), lambda: self.eval(node.orelse))

    def choose(self, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """``then()`` or ``orelse()``; only the one chosen runs, unless running both cannot be told apart."""
        if not isinstance(condition, Value):
            return then() if condition else orelse()
        loc, before = self.b.loc, self.frame.vars
        sides: list[Side] = []
        for trace_side in (then, orelse):
            self.frame.vars = dict(before)
            self.b.begin()
            self.frame.vars[CHOSEN] = settle(trace_side())
            sides.append((self.b.suspend(), self.frame.vars))
        self.b.loc = loc
        (first, then_vars), (second, else_vars) = sides
        a, c = then_vars[CHOSEN], else_vars[CHOSEN]
        a, c = then_vars[CHOSEN], else_vars[CHOSEN] = _broadcast(a, c), _broadcast(c, a)
        if not (is_runtime(a) and is_runtime(c) and same_shape(a, c)):
            raise type_error(f"the two sides of a conditional are {describe(a)} and {describe(c)}")
        self.frame.vars = dict(before)
        changed = [name for name in sorted({*then_vars, *else_vars}) if name == CHOSEN or then_vars.get(name) is not else_vars.get(name)]
        if changed == [CHOSEN] and _is_pure(first[1]) and _is_pure(second[1]):
            for op in (*first[1], *second[1]):
                self.b.append(op)
            pairs = [(x, y, _common(x.dtype, y.dtype)) for x, y in zip(leaves(a), leaves(c))]
            return rebuild(a, [scalar.emit_select(condition, scalar.cast(x, t), scalar.cast(y, t)) for x, y, t in pairs])
        self.join(condition, sides, changed)
        return self.frame.vars.pop(CHOSEN)

    # --- displays --------------------------------------------------------------------------------------------------------

    def dictionary(self, node: ast.Dict) -> dict[Any, Any]:
        if any(k is None for k in node.keys):
            raise self.syntax_error("`**` in a dict is not supported in kernels", node)
        keys = [self.eval(k) for k in node.keys if k is not None]
        if contains_runtime(keys):
            raise self.syntax_error("the keys of a dict must be known while compiling", node)
        return dict(zip(keys, self.elements(node.values)))

    def comprehension(self, node: Any, *elements: ast.expr) -> Iterator[Any]:
        """The items of a comprehension. Its targets are variables of its own; what it does to others stays."""
        targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        hidden = {name: self.frame.vars[name] for name in targets if name in self.frame.vars}
        out = self._comprehension(node.generators, elements)
        for name in targets:
            self.frame.vars.pop(name, None)
        self.frame.vars.update(hidden)
        return iter(out)

    def _comprehension(self, generators: list[ast.comprehension], elements: tuple[ast.expr, ...]) -> list[Any]:
        if not generators:
            values = [self.eval(e) for e in elements]
            return [values[0] if len(values) == 1 else tuple(values)]
        out: list[Any] = []
        first = generators[0]
        for item in self.static_iterable(first.iter):
            self.bind_static(first.target, item)
            conditions = [self.eval(c) for c in first.ifs]
            if any(is_runtime(c) for c in conditions):
                raise self.syntax_error("the condition of a comprehension must be known while compiling", first.ifs[0])
            if all(conditions):
                out += self._comprehension(generators[1:], elements)
        return out

    def dict_comprehension(self, node: ast.DictComp) -> dict[Any, Any]:
        return dict(self.comprehension(node, node.key, node.value))

    def bind_static(self, target: ast.expr, item: Any) -> None:
        """Bind a loop target to a compile-time object, as it is."""
        if isinstance(target, ast.Name):
            self.frame.vars[target.id] = item
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise self.syntax_error("the target of a loop must be a name or a tuple of names", target)
        if not isinstance(item, (Matrix, Iterable)):
            raise self.syntax_error(f"cannot unpack {describe(item)} into {len(target.elts)} names", target)
        items = list(item.entries) if isinstance(item, Matrix) else list(item)
        if len(items) != len(target.elts):
            raise self.syntax_error(f"cannot unpack {len(items)} values into {len(target.elts)} names", target)
        for element, value in zip(target.elts, items):
            self.bind_static(element, value)

    def formatted(self, node: ast.JoinedStr) -> Any:
        parts: list[Any] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            spec = self.eval(part.format_spec) if part.format_spec is not None else ""
            if not isinstance(spec, str):
                raise self.syntax_error("a format specification must be known while compiling", node)
            value = self.eval(part.value)
            self.at(node)  # parts have places of their own from Python 3.12 on only
            if is_runtime(value):
                for sample in {float if v.dtype.is_float else int for v in leaves(value)}:
                    _format(sample(0), spec, describe(value))
                parts.append((value, spec))
            else:
                parts.append(_format(value if part.conversion != 114 else repr(value), spec, describe(value)))
        return "".join(parts) if all(isinstance(p, str) for p in parts) else FormattedText(parts)

    def walrus(self, node: ast.NamedExpr) -> Any:
        self.assign(node.target.id, self.eval(node.value))
        return self.lookup(node.target.id, node)


class Variable(Place):
    """A local variable as a place."""

    def __init__(self, state: State, name: str) -> None:
        self.state = state
        self.name = name
        self.what = f"`{name}`"

    def load(self) -> Any:
        return self.state.frame.vars[self.name]

    def store(self, value: Any) -> None:
        self.state.assign(self.name, value)


def _common(a: DType, b: DType) -> DType:
    return a if a is b else promote(a, b)


def _broadcast(a: Any, b: Any) -> Any:
    return make([a] * len(b.entries), b.shape) if isinstance(a, Value) and isinstance(b, Matrix) else a


def _is_pure(ops: list[Op]) -> bool:
    return len(ops) <= 16 and all(op.code.effect == "pure" for op in ops)


def _format(value: Any, spec: str, what: str) -> str:
    try:
        return format(value, spec)
    except (TypeError, ValueError):
        raise type_error(f"the format {spec!r} does not fit {what}") from None


def _as_matrix(x: Any, other: Any) -> Any:
    """Lists take part in vector arithmetic."""
    return Matrix(x) if isinstance(x, list) and isinstance(other, Matrix) else x


def _logical_not(value: Any) -> Any:
    hook = getattr(value, "__sg_elementwise__", None)
    if hook is not None:
        return hook(scalar.logical_not, (value,))
    return scalar.logical_not(value) if isinstance(value, Value) else not value


def _spelled(node: ast.AST) -> str:
    return _NODE_NAMES.get(type(node), f"the Python construct {type(node).__name__}")


_NODE_NAMES: dict[type[ast.AST], str] = {
    ast.Lambda: "a lambda",
    ast.Await: "`await`",
    ast.Yield: "`yield`",
    ast.YieldFrom: "`yield from`",
    ast.Set: "a set",
    ast.Starred: "a starred expression",
}
_EXPRESSION_HINTS: dict[type[ast.AST], str] = {
    ast.Lambda: "define a function with `@sg.func`",
    ast.Yield: "kernels return values with `return`",
}
