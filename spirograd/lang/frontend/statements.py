"""Tracing statements: the tracer itself."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.base.wording import did_you_mean
from spirograd.lang import forms, ops, scalar
from spirograd.lang.frontend.complaints import no_attribute, operand_hint
from spirograd.lang.frontend.control import FoundReturn, StaticBreak, StaticContinue
from spirograd.lang.frontend.diagnostics import emit_assert
from spirograd.lang.frontend.expressions import BINARY, FormattedText
from spirograd.lang.frontend.loops import Loops
from spirograd.lang.frontend.memory import has_elements
from spirograd.lang.frontend.names import BREAK, CONTINUE, RESULT, RETURNED
from spirograd.lang.frontend.places import Element, Selection, StructElement
from spirograd.lang.frontend.state import is_runtime, pack_tuple, settle
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct

# Augmented assignments that are one atomic operation on memory; the others read, compute and write.
ATOMIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_UNSUPPORTED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Try: ("`try`", "kernels raise nothing that could be caught"),
    ast.Raise: ("`raise`", "use `assert`, which is checked in debug mode"),
    ast.With: ("`with`", "enter the context around the call of the kernel"),
    ast.Global: ("`global`", "a kernel cannot rebind globals; store to a field, or return the value"),
    ast.Nonlocal: ("`nonlocal`", "a kernel cannot rebind variables outside; store to a field, or return the value"),
    ast.Import: ("`import`", "import at the top of the file"),
    ast.ImportFrom: ("`import`", "import at the top of the file"),
    ast.FunctionDef: ("a nested function", "define it outside of the kernel, with `@sg.func`"),
    ast.ClassDef: ("a class", "define it outside of the kernel"),
    ast.Delete: ("`del`", "variables end with their block"),
}
_WORDS = {"AsyncFor": "async for", "AsyncWith": "async with", "AsyncFunctionDef": "async def", "TryStar": "except*", "TypeAlias": "type"}


class Tracer(Loops):
    """Walks the statements of a kernel and of the functions it calls, and emits kernel IR."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loop_options = {}
        self._statements: dict[type[ast.stmt], Callable[[Any], None]] = {
            ast.Assign: self.assign_statement,
            ast.AugAssign: self.augmented,
            ast.AnnAssign: self.annotated,
            ast.Expr: self.expression_statement,
            ast.For: self.for_statement,
            ast.While: self.while_statement,
            ast.Return: self.return_statement,
            ast.Break: lambda node: self.jump(node, BREAK, StaticBreak),
            ast.Continue: lambda node: self.jump(node, CONTINUE, StaticContinue),
            ast.Assert: self.assert_statement,
            ast.Pass: lambda node: None,
        }

    def statement(self, node: ast.stmt) -> None:
        handler = self._statements.get(type(node))
        if handler is None:
            word = _WORDS.get(type(node).__name__, type(node).__name__.lower())
            what, hint = _UNSUPPORTED.get(type(node), (f"`{word}`", ""))
            raise self.syntax_error(f"{what} is not supported in kernels", node, hint)
        self.traced(handler, node)

    # --- assignment ------------------------------------------------------------------------------------------------------

    def assign_statement(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        self.at(node)
        for target in node.targets:
            self.assign_to(target, value)

    def assign_to(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._assign_name(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._assign_part(target, value)
        else:
            raise self.syntax_error("this cannot be assigned to in a kernel", target)

    def _assign_name(self, target: ast.Name, value: Any) -> None:
        name = target.id
        if isinstance(value, FormattedText):
            raise self.syntax_error("an f-string with run-time values can only be printed", target, "put it into the `print`")
        if value is None:
            raise type_error(f"`{name}` would be None", "a function whose value is used must return one on every path")
        self.assign(name, Matrix(value) if isinstance(value, list) and value and _numeric(value) else value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, Matrix):
            value = [value[i] for i in range(value.n)]
        starred = next((e for e in target.elts if isinstance(e, ast.Starred)), None)
        if starred is not None:
            raise self.syntax_error("a starred target is not supported in kernels", starred, "name every entry")
        if not isinstance(value, (tuple, list)):
            raise type_error(f"cannot unpack {describe(value)}")
        if len(value) != len(target.elts):
            raise type_error(f"cannot unpack {len(value)} values into {len(target.elts)} names")
        for element, item in zip(target.elts, [settle(v) for v in value]):
            self.assign_to(element, item)

    def _assign_part(self, target: ast.Subscript | ast.Attribute, value: Any) -> None:
        place = self.place(target)
        self.at(target)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            name = target.value.id
            if isinstance(self.frame.vars.get(name), Value) and has_elements(self.frame.names.get(name)):
                raise type_error(f"`{name}` is a local variable here, which hides the field or array of that name", "rename one of them")
        if place is not None:
            place.store(value)
            return
        self._refuse_part(target)

    def _refuse_part(self, target: ast.Subscript | ast.Attribute) -> None:
        """What is assigned to is no place: say why."""
        base = self.eval(target.value)
        if isinstance(target, ast.Attribute) and target.attr not in dir(base):
            raise no_attribute(base, target.attr)
        self.at(target)
        text = ast.unparse(target)
        if is_runtime(base):
            raise type_error(f"`{text}` cannot be assigned to: `{ast.unparse(target.value)}` is {describe(base)}, computed here")
        raise type_error(
            f"`{text}` cannot be assigned to: `{ast.unparse(target.value)}` is {describe(base)}, a constant of the kernel",
            "kernels store to elements of fields and arrays, and to local variables and their parts",
        )

    def augmented(self, node: ast.AugAssign) -> None:
        place = self.place(node.target)
        if place is None:
            if isinstance(node.target, ast.Name):
                self._augmented_static(node, node.target)
                return
            self._refuse_part(node.target)
            return
        value = self.eval(node.value)
        self.at(node)
        op = type(node.op)
        if isinstance(place, (Element, Selection, StructElement)) and op in ATOMIC and not isinstance(value, Struct):
            place.update(ATOMIC[op], value)
        else:
            place.store(self.apply_binary(op, place.load(), value))

    def _augmented_static(self, node: ast.AugAssign, target: ast.Name) -> None:
        held = self.lookup(target.id, target)
        if target.id not in self.frame.vars:
            if has_elements(held):
                element = f"{target.id}[{', '.join('ijkl'[: len(held.shape)]) or None}]"
                raise type_error(f"`{target.id}` is a field or an array, which a kernel changes element by element", f"write `{element}`")
            raise type_error(
                f"`{target.id}` is a global, which a kernel cannot change", "store to a field or an array, or assign a local variable first"
            )
        self.assign(target.id, BINARY[type(node.op)](held, self.eval(node.value)))

    def annotated(self, node: ast.AnnAssign) -> None:
        if node.value is None or not isinstance(node.target, ast.Name):
            raise self.syntax_error("a declaration needs a name and a value", node, "write `x: sg.f32 = 0`")
        annotation = self.eval(node.annotation)
        value = self.eval(node.value)
        self.at(node)
        if isinstance(annotation, DType) or annotation in (int, float, bool):
            if not scalar.is_scalar(value):
                raise type_error(f"`{node.target.id}` is a scalar of type {ops.as_dtype(annotation)}, and cannot be {describe(value)}")
            value = scalar.cast(value, ops.as_dtype(annotation))
        elif isinstance(annotation, AggregateType):
            value = annotation.build(annotation.leaves_of(value))
        else:
            self.at(node.annotation)
            raise type_error(f"{describe(annotation)} is no type of the kernel language", "types are sg.i32, sg.f32, sg.math.vec3 ...")
        self.assign(node.target.id, value)

    # --- the rest --------------------------------------------------------------------------------------------------------

    def expression_statement(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and self._static_callee(node.value.func) is forms.loop_config:
            self.loop_options = self.traced(self.loop_config, node.value)
            return
        self.eval(node.value)

    def loop_config(self, node: ast.Call) -> dict[str, Any]:
        """The options for the next loop; misspelt ones are errors, others of the family are ignored."""
        positional, options = self.arguments(node)
        self.at(node)
        if positional:
            raise type_error("`loop_config` takes keyword arguments only", "as in `loop_config(serialize=True)`")
        for name, value in options.items():
            hint = did_you_mean(name, forms.LOOP_OPTIONS) if name not in forms.LOOP_OPTIONS else ""
            if hint:
                raise type_error(f"`loop_config` has no option `{name}`", hint)
            if is_runtime(value):
                raise type_error(f"option `{name}` of `loop_config` must be known while compiling")
        return options

    def return_statement(self, node: ast.Return) -> None:
        if any(loop.kind == "parallel" for loop in self.frame.loops) and self.frame.is_kernel:
            raise self.syntax_error("a parallel loop cannot return from the kernel", node, "store the result, and return it after the loop")
        value = None if node.value is None else self.eval(node.value)
        self.at(node)
        value = self.returned(value, node)
        if self.probing is self.frame:
            raise FoundReturn(value)
        if value is not None:
            self.frame.vars[RESULT] = value
        if RETURNED in self.frame.vars:
            self.frame.vars[RETURNED] = scalar.constant(True)

    def returned(self, value: Any, node: ast.Return) -> Any:
        """The value of a `return`, as the annotation of the function wants it."""
        annotation = self.frame.returns
        if annotation in (None, type(None)) and self.frame.is_kernel and value is not None:
            raise self.syntax_error("a kernel that returns a value must say of what type", node, "annotate it: `def f(...) -> sg.f32:`")
        if isinstance(annotation, DType) or annotation in (int, float, bool):
            if not scalar.is_scalar(value):
                hint = operand_hint(value) if value is not None else ""
                raise type_error(f"cannot return {describe(value)} as {ops.as_dtype(annotation)}", hint)
            return scalar.cast(value, ops.as_dtype(annotation))
        if isinstance(annotation, AggregateType):
            return settle(annotation.build(annotation.leaves_of(value)))
        if isinstance(value, tuple) and not self.frame.is_kernel and self.b.depth > self.frame.depth:
            return pack_tuple(value)
        return settle(value)

    def jump(self, node: ast.stmt, flag: str, static_exception: type[Exception]) -> None:
        word = "break" if flag == BREAK else "continue"
        if not self.frame.loops:
            raise self.syntax_error(f"`{word}` outside of a loop", node)
        loop = self.frame.loops[-1]
        if loop.kind == "static":
            if self.b.depth != loop.depth:
                raise self.syntax_error(
                    f"`{word}` of an unrolled loop cannot depend on a run-time condition",
                    node,
                    "leave `sg.static` away to loop at run time",
                )
            raise static_exception
        self.frame.vars[flag] = scalar.constant(True)

    def assert_statement(self, node: ast.Assert) -> None:
        if not self.trace.options.debug:
            return
        condition = self.condition(node.test)
        message: Any = f"assertion failed: {ast.unparse(node.test)}" if node.msg is None else self.eval(node.msg)
        self.at(node)
        parts = message.parts if isinstance(message, FormattedText) else [str(message)] if not is_runtime(message) else [(message, "")]
        if not isinstance(condition, Value):
            if condition:
                return
            condition = scalar.constant(False)
        emit_assert(condition, parts)


def _numeric(items: list[Any]) -> bool:
    return all(scalar.is_scalar(x) or isinstance(x, Matrix) or (isinstance(x, list) and x and _numeric(x)) for x in items)
