"""Functions on machine words: written as functions of Python, translated to LLVM IR, and never run by Python.

The code between Python's C API, drivers and kernels consists of such functions. A module of them has constants, `Functions` of C,
`Addresses`, and functions with annotated parameters and results: an ``int`` is a 64-bit word, a number or an address; a ``bool`` is a bit.
Statements are assignments to other names than parameters, ``if``, ``while``, ``for`` over a ``range`` with a constant end, ``return`` and
calls. ``and`` and ``or`` use short-circuit evaluation. ``i64[address]`` and similar expressions are memory, at any alignment. Numbers are
signed, except those of ``u16`` and ``u32``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Protocol, TypeVar

N = TypeVar("N", int, float)


class TypedMemory(dict[int, N]):
    """Memory as numbers of an LLVM ``type``, by address. ``extension``: the instruction that converts them to words."""

    def __init__(self, type: str, extension: str = "sext") -> None:
        self.type, self.extension = type, extension


i64: TypedMemory[int] = TypedMemory("i64")
i32: TypedMemory[int] = TypedMemory("i32")
u32: TypedMemory[int] = TypedMemory("i32", "zext")
u16: TypedMemory[int] = TypedMemory("i16", "zext")
f64: TypedMemory[float] = TypedMemory("double")
f32: TypedMemory[float] = TypedMemory("float")


class WordFunction(Protocol):
    """A function on words and numbers."""

    def __call__(self, *args: float) -> int: ...


class Functions:
    """Functions of C by name, with their types as LLVM writes them, as in ``"i64 (ptr, i32)"``."""

    def __init__(self, **types: str) -> None:
        self.types = types

    def __getattr__(self, name: str) -> WordFunction:
        raise AttributeError(name)


class Addresses:
    """Addresses by name, which the linker supplies."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __getattr__(self, name: str) -> int:
        raise AttributeError(name)


def stack(nbytes: int) -> int:
    """Return the address of ``nbytes`` bytes that last until the function returns. Each call returns other bytes."""
    raise NotImplementedError


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes. The two ranges do not overlap."""
    raise NotImplementedError


def call(function: int, *words: int) -> int:
    """Call the function at an address. The result is undefined if the function returns none."""
    raise NotImplementedError


def add_atomically(address: int, value: int) -> int:
    """Add to the word at an address that is a multiple of 8, in one step for all threads. Return its former value."""
    raise NotImplementedError


_MEMCPY = "llvm.memcpy.p0.p0.i64"
_RESULTS = {"int": "i64", "bool": "i1", "None": "void"}
_CASTS = {("i64", "ptr"): "inttoptr", ("ptr", "i64"): "ptrtoint", ("double", "float"): "fptrunc", ("float", "double"): "fpext"}
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.BitAnd: "and", ast.BitOr: "or", ast.LShift: "shl",
    ast.RShift: "lshr", ast.Eq: "icmp eq", ast.NotEq: "icmp ne", ast.Lt: "icmp slt", ast.LtE: "icmp sle", ast.Gt: "icmp sgt",
    ast.GtE: "icmp sge",
}  # fmt: skip
Value = tuple[str, str]  # an LLVM type, and an operand


def functions_of(module: ModuleType) -> list[str]:
    """Return the names of the public functions that ``module`` defines."""
    return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__ and name[0] != "_"]


def source(modules: Iterable[ModuleType]) -> str:
    """Return everything that the translation of ``modules`` depends on, for keys of caches."""
    return "\0".join([inspect.getsource(module) for module in (sys.modules[__name__], *modules)])


def translate(modules: Iterable[ModuleType], exports: Mapping[str, str]) -> str:
    """Translate all functions of ``modules``, and return the text of LLVM IR. ``exports``: the symbols of those that have one, by name."""
    trees = [(module, tree) for module in modules for tree in ast.parse(inspect.getsource(module)).body]
    functions = [(module, tree) for module, tree in trees if isinstance(tree, ast.FunctionDef)]
    symbols = {tree.name: exports.get(tree.name, f"word.{tree.name}") for _, tree in functions}
    declared = {_MEMCPY: f"declare void @{_MEMCPY}(ptr, ptr, i64, i1)"}
    bodies = [_Translator(vars(module), symbols, declared).function(tree, tree.name in exports) for module, tree in functions]
    return "\n".join([*(text for symbol, text in declared.items() if symbol not in symbols.values()), *bodies, ""])


class _Translator:
    """The translator of a function. ``names``: the names of its module; ``symbols``: the symbols of functions, by name; ``declared``:
    declarations by symbol."""

    def __init__(self, names: Mapping[str, object], symbols: Mapping[str, str], declared: dict[str, str]) -> None:
        self._names, self._symbols, self._declared = names, symbols, declared
        self._lines: list[str] = []
        self._values: dict[str, Value] = {}  # names that are assigned once
        self._types: dict[str, str] = {}  # the types of other variables, which lie on the stack
        self._changing: set[str] = set()
        self._count = 0
        self._result = ""

    def function(self, tree: ast.FunctionDef, exported: bool) -> str:
        assert tree.returns is not None, tree.name
        self._result = _RESULTS[_text(tree.returns)]
        self._changing = {name for name, count in Counter(_assigned(tree.body)).items() if count > 1}
        self._values = {argument.arg: ("i64", f"%{argument.arg}") for argument in tree.args.args}
        if not self._block(tree.body):
            self._emit("ret void")
        taken = ", ".join(f"i64 %{argument.arg}" for argument in tree.args.args)
        variables = [f"  %{name}.at = alloca {kind}" for name, kind in self._types.items()]
        head = f"define {'' if exported else 'internal '}{self._result} @{self._symbols[tree.name]}({taken}) nounwind {{"
        return "\n".join([head, *variables, *self._lines, "}"])

    # --- statements --------------------------------------------------------------------------------------------------------

    def _block(self, statements: Iterable[ast.stmt]) -> bool:
        """Translate statements. Return whether the last one leaves the function."""
        left = False
        for statement in statements:
            left = self._statement(statement)
        return left

    def _statement(self, s: ast.stmt) -> bool:
        if isinstance(s, ast.Return):
            self._emit("ret void" if s.value is None else f"ret {self._result} {self._as(self._result, self._value(s.value))}")
        elif isinstance(s, ast.If):
            return self._branch(s)
        elif isinstance(s, ast.While):
            self._loop(s.test, s.body)
        elif isinstance(s, ast.For) and isinstance(s.target, ast.Name) and isinstance(s.iter, ast.Call):
            self._changing.add(s.target.id)
            self._assign(s.target.id, ("i64", "0"))
            step = ast.Assign([s.target], ast.BinOp(s.target, ast.Add(), ast.Constant(1)))
            self._loop(ast.Compare(s.target, [ast.Lt()], [s.iter.args[0]]), [*s.body, step])
        elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
            self._assign(s.targets[0].id, self._value(s.value))
        elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
            memory, at = self._place(s.targets[0])
            self._emit(f"store {memory.type} {self._as(memory.type, self._value(s.value))}, ptr {at}, align 1")
        elif isinstance(s, ast.Expr):
            if not isinstance(s.value, ast.Constant):  # a docstring
                self._value(s.value)
        else:
            raise _refused(s)
        return isinstance(s, ast.Return)

    def _assign(self, name: str, value: Value) -> None:
        if name not in self._changing:
            self._values[name] = value
            return
        kind = self._types.setdefault(name, value[0])
        self._emit(f"store {kind} {self._as(kind, value)}, ptr %{name}.at")

    def _branch(self, s: ast.If) -> bool:
        yes, no, end = self._labels("then", "else", "end")
        self._jump(self._condition(s.test), yes, no)
        left = [self._arm(yes, s.body, end), self._arm(no, s.orelse, end)]
        if not all(left):
            self._emit_label(end)
        return all(left)

    def _arm(self, label: str, body: Iterable[ast.stmt], after: str) -> bool:
        self._emit_label(label)
        left = self._block(body)
        if not left:
            self._emit(f"br label %{after}")
        return left

    def _loop(self, test: ast.expr, body: Iterable[ast.stmt]) -> None:
        top, inside, end = self._labels("loop", "body", "done")
        self._emit(f"br label %{top}")
        self._emit_label(top)
        self._jump(self._condition(test), inside, end)
        self._arm(inside, body, top)
        self._emit_label(end)

    # --- expressions -------------------------------------------------------------------------------------------------------

    def _value(self, e: ast.expr) -> Value:
        if isinstance(e, ast.Name) and e.id in self._values:
            return self._values[e.id]
        if isinstance(e, ast.Name) and e.id in self._types:
            return self._types[e.id], self._named(f"load {self._types[e.id]}, ptr %{e.id}.at")
        if isinstance(e, (ast.Constant, ast.Name)):
            value = e.value if isinstance(e, ast.Constant) else self._names[e.id]
            return "i1" if isinstance(value, bool) else "i64", str(value).lower()
        if isinstance(e, ast.Subscript):
            memory, at = self._place(e)
            return self._widened(memory.type, self._named(f"load {memory.type}, ptr {at}, align 1"), memory.extension)
        if isinstance(e, ast.BinOp):
            return self._operation(e.op, self._value(e.left), self._value(e.right))
        if isinstance(e, ast.Compare):
            return "i1", self._operation(e.ops[0], self._value(e.left), self._value(e.comparators[0]))[1]
        if isinstance(e, ast.UnaryOp):
            if isinstance(e.op, ast.Not):
                return "i1", self._named(f"xor i1 {self._condition(e.operand)}, true")
            return self._operation(ast.Sub(), ("i64", "0"), self._value(e.operand))
        if isinstance(e, ast.BoolOp):
            return self._decided(e)
        if isinstance(e, ast.Attribute):
            self._declared.setdefault(e.attr, f"@{e.attr} = external global i8")
            return "i64", self._named(f"ptrtoint ptr @{e.attr} to i64")
        if isinstance(e, ast.Call):
            return self._extern_call(e) if isinstance(e.func, ast.Attribute) else self._own_call(e)
        raise _refused(e)

    def _extern_call(self, e: ast.Call) -> Value:
        assert isinstance(e.func, ast.Attribute)
        name = e.func.attr
        functions = self._names[_text(e.func.value)]
        assert isinstance(functions, Functions)
        kind = functions.types[name]
        result, taken = kind[:-1].split(" (", 1)
        self._declared.setdefault(name, f"declare {result} @{name}({taken})")
        types = [t for t in taken.split(", ") if t != "..." and t] + ["ptr"] * (len(e.args) if "..." in taken else 0)
        values = [(t, self._as(t, self._value(argument))) for t, argument in zip(types, e.args)]
        return self._called(result, f"{kind if '...' in taken else result} @{name}", values)

    def _own_call(self, e: ast.Call) -> Value:
        function, values = self._names.get(_text(e.func)), [self._value(argument) for argument in e.args]
        if function is stack:
            return self._widened("ptr", self._named(f"alloca i8, i64 {values[0][1]}, align 16"))
        if function is copy:
            addresses = [("ptr", self._as("ptr", value)) for value in values[:2]]
            return self._called("void", f"void @{_MEMCPY}", [*addresses, values[2], ("i1", "false")])
        if function is add_atomically:
            return "i64", self._named(f"atomicrmw add ptr {self._as('ptr', values[0])}, i64 {values[1][1]} monotonic, align 8")
        if function is call:
            return self._called("i64", f"i64 {self._as('ptr', values[0])}", values[1:])
        if not isinstance(function, FunctionType):
            raise _refused(e)
        result = _RESULTS[function.__annotations__["return"]]
        return self._called(result, f"{result} @{self._symbols[function.__name__]}", values)

    def _called(self, result: str, callee: str, values: Iterable[Value]) -> Value:
        text = f"call {callee}({', '.join(f'{kind} {value}' for kind, value in values)})"
        if result == "void":
            self._emit(text)
            return "void", ""
        return self._widened(result, self._named(text))

    def _operation(self, op: ast.AST, a: Value, b: Value) -> Value:
        kind = "i1" if a[0] == b[0] == "i1" else "i64"
        return kind, self._named(f"{_OPERATORS[type(op)]} {kind} {self._as(kind, a)}, {self._as(kind, b)}")

    def _decided(self, e: ast.BoolOp) -> Value:
        """Translate ``and`` or ``or``, whose result a variable of its own holds."""
        first, *others = e.values
        name, more, end = self._labels("decision", "more", "decided")
        self._changing.add(name)
        self._assign(name, ("i1", self._condition(first)))
        self._jump(self._condition(ast.Name(name)), *((more, end) if isinstance(e.op, ast.And) else (end, more)))
        self._emit_label(more)
        self._assign(name, ("i1", self._condition(others[0] if len(others) == 1 else ast.BoolOp(e.op, others))))
        self._emit(f"br label %{end}")
        self._emit_label(end)
        return self._value(ast.Name(name))

    def _condition(self, e: ast.expr) -> str:
        kind, value = self._value(e)
        return value if kind == "i1" else self._named(f"icmp ne {kind} {value}, 0")

    def _place(self, e: ast.Subscript) -> tuple[TypedMemory[int] | TypedMemory[float], str]:
        memory = self._names[_text(e.value)]
        assert isinstance(memory, TypedMemory)
        return memory, self._as("ptr", self._value(e.slice))

    # --- types and text ----------------------------------------------------------------------------------------------------

    def _widened(self, kind: str, value: str, extension: str = "sext") -> Value:
        """Convert a number of C or of memory to a word, a bit or a double."""
        wide = {"float": "double", "double": "double", "i1": "i1"}.get(kind, "i64")
        if wide == kind:
            return kind, value
        return wide, self._named(f"{_CASTS.get((kind, wide), extension)} {kind} {value} to {wide}")

    def _as(self, kind: str, value: Value) -> str:
        own, operand = value
        if own == kind:
            return operand
        return self._named(f"{_CASTS.get((own, kind), 'zext' if own == 'i1' else 'trunc')} {own} {operand} to {kind}")

    def _named(self, instruction: str) -> str:
        self._count += 1
        self._emit(f"%v{self._count} = {instruction}")
        return f"%v{self._count}"

    def _emit(self, instruction: str) -> None:
        self._lines.append(f"  {instruction}")

    def _labels(self, *names: str) -> list[str]:
        self._count += 1
        return [f"{name}.{self._count}" for name in names]

    def _emit_label(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def _jump(self, condition: str, yes: str, no: str) -> None:
        self._emit(f"br i1 {condition}, label %{yes}, label %{no}")


def _assigned(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Return the names that statements assign, as often as they do. Expressions, the larger part of a tree, assign none."""
    for s in statements:
        for target in s.targets if isinstance(s, ast.Assign) else [s.target] if isinstance(s, ast.For) else ():
            if isinstance(target, ast.Name):
                yield target.id
        if isinstance(s, (ast.For, ast.If, ast.While)):
            yield from _assigned(s.body)
            yield from _assigned(s.orelse)


def _text(node: ast.AST) -> str:
    """Return a name, or None, as it is written."""
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _refused(node: ast.AST) -> SyntaxError:
    return SyntaxError(f"line {getattr(node, 'lineno', 0)}: functions on machine words have no `{ast.unparse(node)}`")
