"""Runs the source of a kernel with NumPy scalars: the reference of the fuzzer. Knows the part of the language that `programs` writes."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import typed

_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ATOMIC = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "min": "min", "max": "max"}
_IN_PLACE = ("+", "-", "*", "&", "|", "^")  # atomic on elements: the value takes the type of the element first
MAX_STEPS = 60_000


class TooLong(Exception):
    """The program runs for longer than a test should."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass
class Frame:
    vars: dict[str, Any] = field(default_factory=dict)
    returns: str | None = None
    # Whether a `for` here would be parallel: its iterations do not see what others assign, but for what they update together.
    outermost: bool = False


class Evaluator:
    """``arrays``: by name, of arguments and globals; they are updated in place."""

    def __init__(self, source: str, arrays: dict[str, Any]) -> None:
        self.functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        self.arrays = arrays
        self.steps = 0
        self.frame = Frame()

    def kernel(self, name: str, scalars: dict[str, Any]) -> Any:
        node = self.functions[name]
        self.frame = Frame(dict(scalars), _dtype_name(node.returns), True)
        try:
            self.block(node.body)
        except _Return as returned:
            return returned.value
        return None

    # --- statements ------------------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> None:
        for node in statements:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise TooLong
            handler: Callable[[Any], None] = getattr(self, "do_" + type(node).__name__)
            handler(node)

    def do_Expr(self, node: ast.Expr) -> None:
        self.eval(node.value)

    def do_Pass(self, node: ast.Pass) -> None:
        pass

    def do_Break(self, node: ast.Break) -> None:
        raise _Break

    def do_Continue(self, node: ast.Continue) -> None:
        raise _Continue

    def do_Return(self, node: ast.Return) -> None:
        value = typed.settled(self.eval(node.value)) if node.value is not None else None
        raise _Return(typed.cast(value, self.frame.returns) if self.frame.returns else value)

    def do_Assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        self.store(node.targets[0], list(value) if isinstance(value, list) else value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        assert node.value is not None
        self.store(node.target, typed.cast(self.eval(node.value), _dtype_name(node.annotation) or ""))

    def store(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            values = [typed.settled(v) for v in value]
            for element, v in zip(target.elts, values):
                self.store(element, v)
        elif isinstance(target, ast.Name):
            held = self.frame.vars.get(target.id)
            self.frame.vars[target.id] = _like(held, value)
        else:
            assert isinstance(target, ast.Subscript)
            whole, at = self.element(target)
            whole[at] = typed.cast(value, typed.type_of(whole[at]))

    def element(self, node: ast.Subscript) -> tuple[Any, Any]:
        key = self.eval(node.slice)
        name = node.value.id  # type: ignore[attr-defined]
        at = tuple(int(k) for k in key) if isinstance(key, tuple) else int(key)
        whole = self.frame.vars[name] if name in self.frame.vars else self.arrays[name]
        return whole, at

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        op = _BINARY[type(node.op)]
        if isinstance(node.target, ast.Subscript):
            whole, at = self.element(node.target)
            value = self.eval(node.value)
            t = typed.type_of(whole[at])
            if not isinstance(whole, list) and op in _IN_PLACE:
                value = typed.cast(value, t)
            whole[at] = typed.cast(typed.binary(op, whole[at], value), t)
            return
        old = self.eval(node.target)
        self.store(node.target, _map(lambda a, b: typed.binary(op, a, b), old, self.eval(node.value)))

    def do_If(self, node: ast.If) -> None:
        """New variables of both branches have the type that both promote to, so the other branch is tried for its types."""
        taken, other = (node.body, node.orelse) if typed.truth(self.eval(node.test)) else (node.orelse, node.body)
        before = set(self.frame.vars)
        both = (_assigned(taken) & _assigned(other)) - before
        types = {}
        if both:
            types = self.tried(lambda: self.block(other) or {n: typed.type_of(self.frame.vars[n]) for n in both})  # type: ignore[func-returns-value]
        try:
            self.block(taken)
            for name in both:
                mine = typed.type_of(self.frame.vars[name])
                t = mine if mine == types[name] else typed.promoted(mine, types[name])
                self.frame.vars[name] = typed.cast(self.frame.vars[name], t)
        finally:
            self.frame.vars = {n: v for n, v in self.frame.vars.items() if n in before or n in both}

    def tried(self, run: Callable[[], Any]) -> Any:
        """What ``run`` gives, without its effects."""
        kept = {name: a.copy() for name, a in self.arrays.items()}
        frame = self.frame
        self.frame = Frame(copy.deepcopy(frame.vars), frame.returns)
        try:
            return run()
        finally:
            self.frame = frame
            for name, a in kept.items():
                self.arrays[name][...] = a

    def do_While(self, node: ast.While) -> None:
        while typed.truth(self.eval(node.test)):
            if not self.iteration(node.body):
                return

    def iteration(self, body: list[ast.stmt]) -> bool:
        """One iteration; whether there may be another. Its new variables are gone afterwards."""
        before = set(self.frame.vars)
        outermost, self.frame.outermost = self.frame.outermost, False
        try:
            self.block(body)
        except _Continue:
            pass
        except _Break:
            return False
        finally:
            self.frame.vars = {n: v for n, v in self.frame.vars.items() if n in before}
            self.frame.outermost = outermost
        return True

    def do_For(self, node: ast.For) -> None:
        assert isinstance(node.iter, ast.Call | ast.Name) and isinstance(node.target, ast.Name)
        name = node.target.id
        if isinstance(node.iter, ast.Call) and _called(node.iter) == "static":
            for k in self.eval(node.iter.args[0]):
                self.frame.vars[name] = k
                self.block(node.body)
            del self.frame.vars[name]
            return
        indices = self.eval(node.iter) if isinstance(node.iter, ast.Call) else [np.int32(k) for k in range(len(self.arrays[node.iter.id]))]
        for index in indices:
            if self.steps > MAX_STEPS:
                raise TooLong
            self.frame.vars[name] = index
            if not self.iteration(node.body):
                break
        self.frame.vars.pop(name, None)

    # --- expressions -----------------------------------------------------------------------------------------------------

    def eval(self, node: Any) -> Any:
        self.steps += 1
        return getattr(self, "on_" + type(node).__name__)(node)

    def on_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def on_Name(self, node: ast.Name) -> Any:
        return self.frame.vars[node.id] if node.id in self.frame.vars else self.arrays[node.id]

    def on_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.eval(e) for e in node.elts)

    def on_List(self, node: ast.List) -> Any:
        return [self.eval(e) for e in node.elts]

    def on_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Attribute):  # a.shape[0]
            return np.int32(self.arrays[node.value.value.id].shape[self.eval(node.slice)])  # type: ignore[attr-defined]
        whole, at = self.element(node)
        return whole[at]

    def on_BinOp(self, node: ast.BinOp) -> Any:
        op = _BINARY[type(node.op)]
        return _map(lambda a, b: typed.binary(op, a, b), self.eval(node.left), self.eval(node.right))

    def on_UnaryOp(self, node: ast.UnaryOp) -> Any:
        x = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            return not x if typed.is_literal(x) else np.bool_(not typed.truth(x))
        return {ast.USub: typed.negative, ast.Invert: typed.inverted, ast.UAdd: lambda v: v}[type(node.op)](x)  # type: ignore[index]

    def on_Compare(self, node: ast.Compare) -> Any:
        values = [self.eval(node.left), *[self.eval(n) for n in node.comparators]]
        results = [typed.compare(_COMPARE[type(op)], a, b) for op, a, b in zip(node.ops, values, values[1:])]
        return np.bool_(all(results))

    def on_BoolOp(self, node: ast.BoolOp) -> Any:
        return self.decided(node.values, isinstance(node.op, ast.And))

    def decided(self, nodes: list[ast.expr], is_and: bool) -> Any:
        """The operand that decides, in the type that all promote to (truth values stay what they are)."""
        left = self.eval(nodes[0])
        if len(nodes) == 1:
            return left
        if typed.truth(left) == is_and:
            value, s = self.decided(nodes[1:], is_and), typed.type_of(left)
        else:
            value, s = left, self.tried(lambda: typed.type_of(self.decided(nodes[1:], is_and)))
        t = typed.type_of(value)
        return typed.cast(value, t if s == t else typed.promoted(s, t))

    def on_IfExp(self, node: ast.IfExp) -> Any:
        taken, other = (node.body, node.orelse) if typed.truth(self.eval(node.test)) else (node.orelse, node.body)
        s = self.tried(lambda: typed.type_of(self.eval(other)))
        value = self.eval(taken)
        t = typed.type_of(value)
        return typed.cast(value, t if s == t else typed.promoted(s, t))

    def on_Call(self, node: ast.Call) -> Any:
        name = _called(node)
        if name in self.functions:
            return self.inlined(self.functions[name], [self.eval(a) for a in node.args])
        if name.startswith("atomic_"):
            return self.atomic(name.removeprefix("atomic_"), node)
        if name in ("sum", "min", "max") and isinstance(node.func, ast.Attribute) and node.func.value.id != "sg":  # type: ignore[attr-defined]
            out, *rest = self.frame.vars[node.func.value.id]  # type: ignore[attr-defined]
            for x in rest:
                out = typed.binary({"sum": "+"}.get(name, name), out, x)
            return out
        if name == "loop_config":
            return None
        args = [_dtype_name(a) or self.eval(a) for a in node.args]
        if name in typed.NUMPY:
            return typed.cast(args[0], name)
        return _FUNCTIONS[name](*args)

    def inlined(self, node: ast.FunctionDef, args: list[Any]) -> Any:
        frame = Frame(returns=_dtype_name(node.returns))
        for parameter, value in zip(node.args.args, args):
            t = _dtype_name(parameter.annotation)
            is_array = isinstance(value, np.ndarray)
            frame.vars[parameter.arg] = value if is_array else typed.cast(value, t) if t else typed.settled(value)
        caller, self.frame = self.frame, frame
        try:
            self.block(node.body)
        except _Return as returned:
            return returned.value
        finally:
            self.frame = caller
        raise AssertionError(f"{node.name} returned nothing")

    def atomic(self, kind: str, node: ast.Call) -> Any:
        target, value = node.args[0], self.eval(node.args[1])
        if isinstance(target, ast.Name):
            old = self.frame.vars[target.id]
            self.store(target, value if kind == "exchange" else typed.binary(_ATOMIC[kind], old, value))
            return old
        whole, at = self.element(target)  # type: ignore[arg-type]
        old = whole[at]
        value = typed.cast(value, typed.type_of(old))
        whole[at] = value if kind == "exchange" else typed.binary(_ATOMIC[kind], old, value)
        return old


def _range(*args: Any) -> list[Any]:
    wide = any(typed.type_of(a) in ("u32", "i64", "u64") for a in args)
    t = "i64" if wide else "i32"
    numbers = [int(typed.cast(a, t)) for a in args]
    if len(numbers) == 3 and numbers[2] == 0:
        return []
    return [typed.NUMPY[t](k) for k in range(*numbers)]


def _vector(entries: list[Any]) -> list[Any]:
    t = typed.type_of(entries[0])
    for e in entries[1:]:
        t = t if t == typed.type_of(e) else typed.promoted(t, typed.type_of(e))
    return [typed.cast(e, t) for e in entries]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "range": _range,
    "Vector": _vector,
    "cast": typed.cast,
    "bit_cast": typed.bit_cast,
    "int": lambda x: typed.cast(x, "i32"),
    "float": lambda x: typed.cast(x, "f32"),
    "bool": lambda x: typed.cast(x, "u1"),
    "abs": typed.absolute,
    "min": lambda *a: _folded(typed.minimum, a),
    "max": lambda *a: _folded(typed.maximum, a),
    "select": typed.select,
    "floor": typed.rounding(np.floor),
    "ceil": typed.rounding(np.ceil),
    "round": typed.rounding(lambda x: np.copysign(np.floor(np.abs(x)) + (np.abs(x) - np.floor(np.abs(x)) >= 0.5), x).astype(x.dtype)),
    "trunc": typed.rounding(np.trunc),
    "sqrt": typed.square_root,
    "isnan": lambda x: np.bool_(np.isnan(x)),
    "isinf": lambda x: np.bool_(np.isinf(x)),
    "popcnt": typed.popcnt,
    "clz": typed.clz,
    "bit_shr": typed.bit_shr,
    "raw_div": lambda a, b: typed.binary("raw_div", a, b),
    "raw_mod": lambda a, b: typed.binary("raw_mod", a, b),
}


def _folded(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> Any:
    out = args[0]
    for a in args[1:]:
        out = function(out, a)
    return out


def _map(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Entry by entry if an operand is a vector."""
    if not isinstance(a, list) and not isinstance(b, list):
        return function(a, b)
    size = len(a if isinstance(a, list) else b)
    return _vector([function(x, y) for x, y in zip(a if isinstance(a, list) else [a] * size, b if isinstance(b, list) else [b] * size)])


def _like(held: Any, value: Any) -> Any:
    """``value`` as a variable that holds ``held`` (None: a new one) takes it."""
    if isinstance(value, list):
        return [typed.cast(v, typed.type_of(h)) for v, h in zip(value, held)] if held is not None else [typed.settled(v) for v in value]
    return typed.settled(value) if held is None else typed.cast(value, typed.type_of(held))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id  # type: ignore[attr-defined]


def _dtype_name(node: Any) -> str | None:
    """`"i8"` of ``sg.i8``; None of what is no type."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sg" and node.attr in typed.NUMPY:
        return node.attr
    return None


def _assigned(statements: list[ast.stmt]) -> set[str]:
    """Names assigned by these statements themselves, not by blocks in them."""
    out: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Assign):
            out |= {n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out.add(node.target.id)
    return out
