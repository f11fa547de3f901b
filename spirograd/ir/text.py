"""The text form of the IR: `to_text` prints a kernel of either level, `parse` reads it back. See docs/ir.md for the syntax."""

from __future__ import annotations

import ast
import functools
import json
import keyword
import math
import re
from dataclasses import MISSING
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from spirograd.base import dtypes
from spirograd.base.artifact import FaultSite, PrintSite, Slot
from spirograd.base.dtypes import VOID, DType, Lanes, Type, Vec
from spirograd.base.loc import Loc
from spirograd.base.records import fields
from spirograd.ir import ops
from spirograd.ir.nodes import (
    REFS,
    AdstackRef,
    ArrayArg,
    ArrayRef,
    BufferRef,
    BuiltIn,
    ChunkAttr,
    FieldRef,
    Function,
    Kernel,
    Label,
    Layout,
    LoopAttr,
    MemoryCall,
    Op,
    PrivateCopy,
    Reduction,
    Ref,
    Region,
    ScalarArg,
    SharedRef,
    TaskAttr,
    TempRef,
    Term,
    accesses_of,
)
from spirograd.ir.temp_kinds import TempKind

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Everything that an attribute may contain, besides numbers, strings, tuples and dtypes.
_CLASSES = (
    ArrayArg, ArrayRef, BufferRef, ChunkAttr, FaultSite, FieldRef, Label, Layout, Loc, LoopAttr, MemoryCall, PrintSite,
    PrivateCopy, Reduction, ScalarArg, SharedRef, Slot, AdstackRef, TaskAttr, TempRef, Term, Vec,
)  # fmt: skip
_ENUMS = (BuiltIn, TempKind)
_CLASS_BY_NAME: dict[str, type] = {cls.__name__: cls for cls in (*_CLASSES, *_ENUMS)}
_ENUM_BY_NAME: dict[str, type[Enum]] = {cls.__name__: cls for cls in _ENUMS}
_NAMES: dict[str, object] = {t.name: t for t in dtypes.ALL} | {"nan": math.nan, "inf": math.inf}
# Fields of dataclasses that the text omits unless locations are requested.
_LOC_FIELDS = frozenset(("loc",))
_Classes = type[object] | tuple[type[object], ...]
_LOCATION = re.compile(r"loc\d+")  # The names of locations.
_UNDEFINED = "%?"  # An operand that is not defined above. That is a defect, but the text shows where.


class IRSyntaxError(ValueError):
    """Text that is not IR. The message begins with the line number."""


def type_text(t: Type) -> str:
    """Return ``i32``, ``vec<4,f32>``, ``lanes<16,f32>``, ``(i32, f32)`` or ``void``."""
    if isinstance(t, DType):
        return t.name
    if isinstance(t, tuple):
        return "(" + ", ".join([type_text(x) for x in t]) + ")"
    return repr(t)


# --- printing ------------------------------------------------------------------------------------------------------------


class _Printer:
    """A printer, which numbers values in order of definition, and names memory after its references. Large kernels have 100,000 operations,
    whose text is a key of caches: so each is printed with few calls.

    ``names``: of values. ``written``: the text of references and locations by identity, for objects that the kernel holds, because hashing
    these is slow. ``locations``: the names of locations, by text.
    """

    def __init__(self, kernel: Kernel, locs: bool) -> None:
        self.kernel = kernel
        self.locs = locs
        self.names: dict[Op, str] = {}
        self.refs: dict[Ref, str] = {}
        self.written: dict[int, str] = {}
        self.locations: dict[str, str] = {}
        self.types: dict[Type, str] = {}
        self.lines: list[str] = []
        self.locs_of_lines: dict[int, Loc | None] = {0: kernel.loc}

    def print(self) -> str:
        kernel = self.kernel
        self.name_refs()
        self.lines.append(f"kernel {_quote(kernel.name)}{self.location(kernel.loc)}")
        self.lines += [f"arg {self.expression(argument)}" for argument in kernel.args]
        for ref, name in self.refs.items():
            self.lines.append(f"ref {name} = {self.construct(ref)}")
        self.lines += [f"return {self.refs[ref]}" for ref in kernel.returns]
        for function in kernel.functions:
            params = ", ".join(map(self.parameter, function.body.params))
            self.lines.append(f"function {_quote(function.name)} {{ ({params})")
            self.region(function.body, 1)
            self.lines.append("}")
        self.lines.append("{")
        self.region(kernel.body, 1)
        self.lines.append("}")
        # Locations are known once everything is printed, and stand before what refers to them.
        return "\n".join([*(f"loc {name} = {text}" for text, name in self.locations.items()), *self.lines]) + "\n"

    def name_refs(self) -> None:
        """Give every reference a unique name that is a Python identifier."""
        taken = {*_CLASS_BY_NAME, *_NAMES}
        refs: dict[Ref, None] = dict.fromkeys(self.kernel.returns)
        seen: dict[int, Ref] = {}
        calls = ops.call_memory in self.kernel.codes
        stated = [access for op in self.kernel.walk() for access in accesses_of(op)] if calls else self.kernel.accesses
        for _, ref in stated:
            if id(ref) not in seen:
                seen[id(ref)] = ref
                refs.setdefault(ref)
        for ref in refs:
            stem = re.sub(r"\W", "_", ref.name, flags=re.ASCII) or "_"
            if stem[0].isdigit() or keyword.iskeyword(stem):
                stem = "_" + stem
            role = getattr(ref, "role", "primal")
            stem += "" if role == "primal" else f"_{role}"
            stem += "_" if self.locs and _LOCATION.fullmatch(stem) else ""
            name, count = stem, 1
            while name in taken:
                count += 1
                name = f"{stem}_{count}"
            taken.add(name)
            self.refs[ref] = name
        self.written = {number: self.refs[ref] for number, ref in seen.items()}

    def region(self, region: Region, depth: int) -> None:
        pad, names, lines, locs_of_lines = "  " * depth, self.names, self.lines, self.locs_of_lines
        name_of, text_of, type_text, locs = names.get, self.written.get, self.types.get, self.locs
        for op in region.ops:
            attr, args, kind = op.attr, op.args, op.type
            head = op.code.name
            if attr is not None:
                head = f"{head}[{text_of(id(attr)) or self.expression(attr)}]"
            head = f"{head}({', '.join([name_of(a) or _UNDEFINED for a in args])})"
            if kind is not VOID:
                head = f"{head} : {type_text(kind) or self.type(kind)}"
            if locs and op.loc is not None:
                head = f"{head} @ {text_of(id(op.loc)) or self.expression(op.loc)}"
            locs_of_lines[len(lines)] = op.loc
            if op.regions:
                self.regions(op, head, depth)
            elif kind is VOID or kind == ():
                lines.append(pad + head)
            else:
                name = name_of(op) or self.define(op)
                lines.append(f"{pad}{name} = {head}")

    def type(self, kind: Type) -> str:
        text = self.types[kind] = type_text(kind)
        return text

    def regions(self, op: Op, head: str, depth: int) -> None:
        """Print an operation with regions. These come before the number of the result, which is defined only after them."""
        pad = "  " * depth
        start = len(self.lines)
        self.lines.append("")
        for k, region in enumerate(op.regions):
            params = ", ".join(map(self.parameter, region.params))
            opening = " {" + (f" ({params})" if params else "")
            if k == 0:
                head += opening
            else:
                self.lines.append(pad + "}" + opening)
            self.region(region, depth + 1)
        self.lines.append(pad + "}")
        named = op.type is not VOID and op.type != ()
        self.lines[start] = pad + (f"{self.define(op)} = " if named else "") + head

    def parameter(self, param: Op) -> str:
        """Return the definition of a parameter; with locations also the variable of the program that it stands for."""
        name = f" {_quote(param.attr)}" if self.locs and isinstance(param.attr, str) else ""
        return f"{self.define(param)}: {type_text(param.type)}{name}"

    def define(self, op: Op) -> str:
        return self.names.setdefault(op, f"%{len(self.names)}")

    def location(self, loc: Loc | None) -> str:
        return f" @ {self.expression(loc)}" if self.locs and loc is not None else ""

    def expression(self, value: object) -> str:
        """Return ``value`` as an expression of Python."""
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        if isinstance(value, str):
            return _quote(value)
        if isinstance(value, REFS):
            return self.written.get(id(value)) or self.refs.get(value) or self.construct(value)
        if isinstance(value, DType):
            return value.name
        if isinstance(value, _ENUMS):
            return str(value)
        if isinstance(value, tuple):
            return "(" + ", ".join([self.expression(x) for x in value]) + ("," if len(value) == 1 else "") + ")"
        if isinstance(value, Loc):  # Many operations share a location, and many locations the calls that they were inlined in.
            written = self.written.get(id(value))
            if written is None:
                text = self.construct(value)
                written = self.written[id(value)] = self.locations.setdefault(text, f"loc{len(self.locations)}")
            return written
        if isinstance(value, _CLASSES):
            return self.construct(value)
        raise TypeError(f"an attribute cannot hold {value!r}")

    def construct(self, value: DataclassInstance) -> str:
        """Return a dataclass as a call: positional where there is no default, keywords for fields that differ from the default."""
        parts: list[str] = []
        for name, default in _fields(value.__class__):
            if name in _LOC_FIELDS and not self.locs:
                continue
            content = getattr(value, name)
            if default is MISSING:
                prefix = f"{name}=" if name in _LOC_FIELDS else ""
                parts.append(prefix + self.expression(content))
            elif content != default:
                parts.append(f"{name}={self.expression(content)}")
        return f"{type(value).__name__}({', '.join(parts)})"


@functools.cache
def _fields(cls: type[DataclassInstance]) -> tuple[tuple[str, object], ...]:
    """Return the names and defaults of the fields of a dataclass."""
    return tuple([(field.name, field.default) for field in fields(cls)])


@functools.lru_cache(1 << 12)
def _quote(text: str) -> str:
    return json.dumps(text)


def to_text(kernel: Kernel, *, locs: bool = False) -> str:
    """Return ``kernel`` as text that `parse` reads. Values and memory are named in order of appearance, so equal kernels give equal text.

    Source locations (and those of fault and print sites) are printed only with ``locs``.
    """
    return _Printer(kernel, locs).print()


def to_text_with_locs(kernel: Kernel) -> tuple[str, tuple[Loc | None, ...]]:
    """Return `to_text` without locations, and the location of each line (None for braces and declarations)."""
    printer = _Printer(kernel, False)
    text = printer.print()
    return text, tuple(printer.locs_of_lines.get(k) for k in range(len(printer.lines)))


# --- parsing -------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_]\w*")
_VALUE = re.compile(r"%(\w+)")
_SPACE = re.compile(r"[ \t]*")
_OPEN, _CLOSE = "([{", ")]}"


class _Line:
    """A cursor over one line."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.at = 0
        self.skip()

    def fail(self, message: str) -> NoReturn:
        raise IRSyntaxError(f"line {self.number}: {message}: {self.text.strip()}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    @property
    def done(self) -> bool:
        return self.at >= len(self.text) or self.text[self.at] == "#"

    def take(self, token: str) -> bool:
        """Consume ``token`` if it comes next."""
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        self.skip()
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"expected {token!r} at column {self.at}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            self.fail(f"expected {what} at column {self.at}")
        self.at = match.end()
        self.skip()
        return match.group(match.re.groups)

    def balanced(self) -> str:
        """Return the text from here, an opening bracket, to the closing one. Strings are skipped."""
        start, depth, k = self.at, 0, self.at
        while k < len(self.text):
            c = self.text[k]
            if c == '"':
                k += 1
                while k < len(self.text) and self.text[k] != '"':
                    k += 2 if self.text[k] == "\\" else 1
            elif c in _OPEN:
                depth += 1
            elif c in _CLOSE:
                depth -= 1
                if depth == 0:
                    self.at = k + 1
                    self.skip()
                    return self.text[start : self.at].rstrip()
            k += 1
        self.fail(f"nothing closes the bracket at column {start}")

    def string(self) -> str:
        match = re.compile(r'"(?:[^"\\]|\\.)*"').match(self.text, self.at)
        if match is None:
            self.fail(f"expected a string at column {self.at}")
        self.at = match.end()
        self.skip()
        return str(json.loads(match.group()))


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines: list[_Line] = []
        for number, content in enumerate(text.splitlines(), 1):
            line = _Line(number, content)
            if not line.done:
                self.lines.append(line)
        self.lines.append(_Line(len(text.splitlines()) + 1, ""))
        self.next = 0
        self.names: dict[str, object] = dict(_NAMES)
        self.values: dict[str, Op] = {}

    def line(self) -> _Line:
        line = self.lines[self.next]
        if line.done:
            line.fail("the text ends too early")
        self.next += 1
        return line

    def finish(self, line: _Line) -> None:
        if not line.done:
            line.fail(f"unexpected text at column {line.at}")

    # Expressions

    def expression(self, line: _Line, text: str) -> object:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            return self.evaluate(tree)
        except (SyntaxError, TypeError, ValueError, KeyError) as error:
            line.fail(f"bad expression {text.strip()!r} ({error})")

    def evaluate(self, node: ast.expr) -> object:
        """Evaluate an expression of constants, names, tuples and calls of the attribute classes."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.evaluate(node.operand)
            if not isinstance(operand, (int, float)):
                raise ValueError(f"{ast.unparse(node)} is not allowed")
            return -operand
        if isinstance(node, ast.Tuple):
            return tuple([self.evaluate(x) for x in node.elts])
        if isinstance(node, ast.Name):
            if node.id not in self.names:
                raise ValueError(f"{node.id} is not declared")
            return self.names[node.id]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _ENUM_BY_NAME:
            return _ENUM_BY_NAME[node.value.id][node.attr]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CLASS_BY_NAME:
            cls = _CLASS_BY_NAME[node.func.id]
            keywords = {k.arg: self.evaluate(k.value) for k in node.keywords if k.arg is not None}
            if cls in (FaultSite, PrintSite):
                keywords.setdefault("loc", None)
            return cls(*[self.evaluate(x) for x in node.args], **keywords)
        raise ValueError(f"{ast.unparse(node)} is not allowed")

    def construct(self, line: _Line) -> object:
        """Evaluate a call of an attribute class at the cursor."""
        name = line.match(_NAME, "a class")
        if not line.text.startswith("(", line.at):
            line.fail("expected arguments")
        return self.expression(line, name + line.balanced())

    def location(self, line: _Line) -> Loc | None:
        if not line.take("@"):
            return None
        loc = self.names.get(line.match(_NAME, "a location")) if _LOCATION.match(line.text, line.at) else self.construct(line)
        if not isinstance(loc, Loc):
            line.fail("expected a Loc")
        return loc

    def type(self, line: _Line) -> Type:
        if line.take("("):
            types: list[Type] = []
            while not line.take(")"):
                if types:
                    line.expect(",")
                types.append(self.type(line))
            return tuple(types)
        name = line.match(_NAME, "a type")
        if name == "void":
            return VOID
        if name in ("vec", "lanes"):
            line.expect("<")
            n = int(line.match(re.compile(r"\d+"), "a number"))
            line.expect(",")
            elem = self.type(line)
            line.expect(">")
            if not isinstance(elem, DType):
                line.fail("its elements are scalars")
            return Vec(n, elem) if name == "vec" else Lanes(n, elem)
        if not isinstance(_NAMES.get(name), DType):
            line.fail(f"{name} is no type")
        return dtypes.by_name(name)

    # Kernels

    def kernel(self) -> Kernel:
        line = self.line()
        while line.take("loc "):
            self.declared(line, Loc, "Loc")
            self.finish(line)
            line = self.line()
        line.expect("kernel")
        name = line.string()
        loc = self.location(line)
        self.finish(line)
        arguments: list[ScalarArg | ArrayArg] = []
        returns: list[TempRef] = []
        functions: list[Function] = []
        while True:
            line = self.line()
            if line.take("{"):
                self.finish(line)
                break
            if line.take("function"):
                functions.append(self.function(line))
                continue
            self.header(line, arguments, returns)
            self.finish(line)
        body, closing = self.region(())
        self.finish(closing)
        if not self.lines[self.next].done:
            self.lines[self.next].fail("text after the kernel")
        return Kernel(name, tuple(arguments), body, tuple(returns), loc, tuple(functions))

    def function(self, line: _Line) -> Function:
        """Parse a function after the word `function`."""
        name = line.string()
        line.expect("{")
        body, closing = self.region(self.params(line))
        self.finish(closing)
        self.values.clear()
        return Function(name, body)

    def header(self, line: _Line, arguments: list[ScalarArg | ArrayArg], returns: list[TempRef]) -> None:
        word = line.match(_NAME, "arg, ref, return, function or {")
        if word == "arg":
            argument = self.construct(line)
            if not isinstance(argument, (ScalarArg, ArrayArg)):
                line.fail("expected a ScalarArg or an ArrayArg")
            arguments.append(argument)
        elif word == "ref":
            self.declared(line, REFS, "memory reference")
        elif word == "return":
            ref = self.names.get(line.match(_NAME, "a name"))
            if not isinstance(ref, TempRef):
                line.fail("expected the name of a TempRef")
            returns.append(ref)
        else:
            line.fail(f"{word} is not arg, ref or return")

    def declared(self, line: _Line, cls: _Classes, what: str) -> None:
        """Declare a name for what stands after it, an instance of ``cls``."""
        name = line.match(_NAME, "a name")
        line.expect("=")
        value = self.construct(line)
        if not isinstance(value, cls):
            line.fail(f"expected a {what}")
        if name in self.names or name in _CLASS_BY_NAME:
            line.fail(f"{name} is already declared")
        self.names[name] = value

    def region(self, params: tuple[Op, ...]) -> tuple[Region, _Line]:
        """Parse operations up to the closing brace. Return the region, and the line of that brace with the cursor after it."""
        body: list[Op] = []
        while True:
            line = self.line()
            if line.take("}"):
                if not body or body[-1].code is not ops.yield_:
                    line.fail("a region ends with a yield")
                return Region(params, tuple(body)), line
            body.append(self.operation(line))

    def params(self, line: _Line) -> tuple[Op, ...]:
        """Parse the parameters after an opening brace."""
        params: list[Op] = []
        if line.take("("):
            while not line.take(")"):
                if params:
                    line.expect(",")
                name = line.match(_VALUE, "a value")
                line.expect(":")
                t = self.type(line)
                params.append(Op(ops.param, t, attr=line.string() if line.text.startswith('"', line.at) else None))
                self.define(line, name, params[-1])
        self.finish(line)
        return tuple(params)

    def define(self, line: _Line, name: str, op: Op) -> None:
        if name in self.values:
            line.fail(f"%{name} is already defined")
        self.values[name] = op

    def operation(self, line: _Line) -> Op:
        name = None
        if line.text.startswith("%", line.at):
            name = line.match(_VALUE, "a value")
            line.expect("=")
        mnemonic = line.match(_NAME, "an operation")
        code = ops.BY_NAME.get(mnemonic)
        if code is None or code is ops.param:
            line.fail(f"{mnemonic} is no operation")
        attr = None
        if line.text.startswith("[", line.at):
            attr = self.expression(line, line.balanced()[1:-1])
        args = self.operands(line)
        result = self.type(line) if line.take(":") else VOID
        loc = self.location(line)
        regions: list[Region] = []
        closing = line
        while closing.take("{"):
            outside = len(self.values)
            region, closing = self.region(self.params(closing))
            regions.append(region)
            while len(self.values) > outside:  # Names end with their region.
                self.values.popitem()
        self.finish(closing)
        if code is ops.const and isinstance(result, DType):
            attr = self.constant(line, attr, result)
        op = Op(code, result, args, attr, tuple(regions), loc)
        if name is not None:
            self.define(line, name, op)
        return op

    def operands(self, line: _Line) -> tuple[Op, ...]:
        line.expect("(")
        args: list[Op] = []
        while not line.take(")"):
            if args:
                line.expect(",")
            value = line.match(_VALUE, "a value")
            if value not in self.values:
                line.fail(f"%{value} is not defined")
            args.append(self.values[value])
        return tuple(args)

    def constant(self, line: _Line, value: object, t: DType) -> object:
        """Return a literal, rounded to its type: ``const[0.1] : f32`` is the nearest f32."""
        wanted = (int, float) if t.is_float else bool if t is dtypes.u1 else int
        if not isinstance(value, wanted) or (isinstance(value, bool) and t is not dtypes.u1):
            line.fail(f"{value!r} is no constant of type {t.name}")
        return float(t.np.type(value)) if t.is_float else value


def parse(text: str) -> Kernel:
    """Return the kernel that ``text`` describes. Raise `IRSyntaxError` with the line number. `spec.verify` checks the rules."""
    return _Parser(text).kernel()
