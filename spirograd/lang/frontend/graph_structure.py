"""Splits the body of a kernel where it has the structure of a graph: loops whose condition lies on the device, sections, checkpoints.

What lies between is a part each, which is compiled as a kernel of its own with the arguments of the whole. A variable that another part
assigned is computed again where that is the same: it was assigned once, from constants and arguments.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from typing import Union

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.records import dataclass
from spirograd.lang import forms, graph_statements
from spirograd.lang.frontend.source import Source
from spirograd.lang.frontend.syntax_facts import object_of

_BLOCKS = (graph_statements.parallel_context, graph_statements.parallel, graph_statements.stream_parallel, graph_statements.checkpoint)
_PURE_BUILTINS = tuple(getattr(builtins, name) for name in ("abs", "bool", "float", "int", "len", "max", "min", "round"))
_PURE_MODULES = ("spirograd.lang.arithmetic", "spirograd.lang.math")
_PURE_NODES = (
    ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple, ast.Subscript, ast.Call,
    ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.keyword,
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Part:
    """Statements that are compiled as one kernel, which is ``number`` among the parts; -1 if they do nothing."""

    statements: list[ast.stmt]
    number: int = -1


@dataclass(slots=True, eq=False)
class Loop:
    """``body`` as long as what ``flag`` names is not 0 after it. ``labels``: of the checkpoints in it."""

    flag: ast.expr
    body: list[Node]
    labels: tuple[int, ...] = ()

    def flags(self) -> Iterator[ast.expr]:
        """Iterate over its flag and those of loops in it."""
        yield self.flag
        for node in self.body:
            for inner in chain.from_iterable(node.sections) if isinstance(node, Sections) else [node]:
                if isinstance(inner, Loop):
                    yield from inner.flags()


@dataclass(slots=True, eq=False)
class Sections:
    """Lists of parts that may run at the same time."""

    sections: list[list[Node]]
    joined: bool = False  # by the block around them: another one is another node


@dataclass(slots=True, eq=False)
class Checkpoint:
    """``body``, after which the kernel ends if what ``flag`` names is not 0."""

    label: int
    flag: ast.expr
    body: list[Node]


Node = Union[Part, Loop, Sections, Checkpoint]


@dataclass(slots=True, eq=False)
class Structure:
    """A kernel in pieces. ``parts``: all there are, in the order of the source."""

    nodes: list[Node]
    parts: list[Part] = field(default_factory=list)
    labels: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it is a kernel like others: one part at most."""
        return all(isinstance(node, Part) for node in self.nodes)

    @property
    def only_loop(self) -> Loop | None:
        """The loop that is all it does; None if it does more."""
        nodes = [node for node in self.nodes if not isinstance(node, Part) or node.number >= 0]
        return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], Loop) else None


def structure_of(source: Source, is_graph: bool, checkpoints: bool) -> Structure:
    """Return the structure of a kernel. Raises SpirogradSyntaxError for what has no place in one. ``checkpoints``: whether it may have
    them."""
    return _Splitter(source, is_graph, checkpoints).run()


class _Splitter:
    def __init__(self, source: Source, is_graph: bool, checkpoints: bool) -> None:
        self.source = source
        self.names = source.names()
        self.is_graph, self.checkpoints = is_graph, checkpoints
        self.parts: list[Part] = []
        self.labels: list[int] = []

    def run(self) -> Structure:
        tree = self.source.tree
        nodes = self._nodes(tree.body, ())
        structure = Structure(nodes, self.parts, tuple(self.labels))
        if structure.plain:
            return structure
        for node in ast.walk(tree):
            if isinstance(node, ast.Return):
                problem = "a kernel that is a graph of several launches cannot return a value"
                raise self._error(problem, node, "store the value in a field or an ndarray")
        idle = [part for part in self.parts if not any(map(self._does_something, part.statements))]
        _Locals(self, nodes).resolve()
        structure.parts = [part for part in self.parts if part not in idle]
        for number, part in enumerate(structure.parts):
            part.number = number
        return structure

    def _does_something(self, statement: ast.stmt) -> bool:
        """Return whether a statement does more than document, or compute what other parts compute again."""
        if isinstance(statement, ast.Assign):
            return not (all(isinstance(target, ast.Name) for target in statement.targets) and self.is_pure(statement.value))
        return not (isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)))

    def _error(self, message: str, node: ast.AST, hint: str) -> SpirogradSyntaxError:
        return SpirogradSyntaxError(message, self.source.loc(node, None), hint)

    # --- splitting -------------------------------------------------------------------------------------------------------

    def _nodes(self, statements: Sequence[ast.stmt], around: tuple[str, ...]) -> list[Node]:
        out: list[Node] = []
        for statement in statements:
            new = self._node(statement, around)
            if new is None:
                if not out or not isinstance(out[-1], Part):
                    self.parts.append(Part([]))
                    out.append(self.parts[-1])
                last = out[-1]
                assert isinstance(last, Part)
                last.statements.append(statement)
            elif isinstance(new, Sections) and not new.joined and out and isinstance(out[-1], Sections) and not out[-1].joined:
                out[-1].sections += new.sections
            else:
                out.append(new)
        return out

    def _node(self, statement: ast.stmt, around: tuple[str, ...]) -> Node | None:
        """Return the node that a statement is, None if it belongs to a part."""
        if isinstance(statement, ast.While):
            call = statement.test
            if isinstance(call, ast.Call) and self._value(call.func) is graph_statements.do_while:
                return self._loop(statement, call, around)
        if isinstance(statement, ast.With):
            for item in statement.items:
                callee = self._value(item.context_expr.func) if isinstance(item.context_expr, ast.Call) else None
                for block in [each for each in _BLOCKS if each is callee]:
                    if len(statement.items) > 1 or item.optional_vars is not None:
                        message = f"{_written(block)} must be the only item of its `with`, without `as`"
                        raise self._error(message, statement, "nest two `with` statements")
                    return self._block(block, statement, item.context_expr, around)
        return None

    def _warn_of_old_name(self, call: ast.Call) -> None:
        """Warn of a name from before the namespace `graph`, in the words of Quadrants."""
        old = ast.unparse(call.func)
        before, flat, name = old.rpartition("graph_")
        if flat:
            problem = f"{old}() is deprecated and will be removed in a future release; use {before}graph.{name}() instead."
            at = self.source.loc(call, None)
            warnings.warn_explicit(problem, DeprecationWarning, at.file, at.line)

    def _loop(self, node: ast.While, call: ast.Call, around: tuple[str, ...]) -> Loop:
        what = "`graph.do_while`"
        self._warn_of_old_name(call)
        if not self.is_graph:
            raise self._error(f"{what} needs `@sg.kernel(graph=True)`", node, "add `graph=True` to the decorator")
        if "parallel" in around:
            raise self._error(f"{what} cannot stand in a section that runs in parallel with others", node, "end the section before it")
        if node.orelse:
            raise self._error("`else` of a loop is not supported in kernels", node.orelse[0], "write its statements after the loop")
        before = len(self.labels)
        body = self._nodes(node.body, (*around, "loop"))
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Break, ast.Continue)) and self._leaves(node, inner):
                word = type(inner).__name__.lower()
                raise self._error(f"`{word}` cannot leave a loop of `graph.do_while`", inner, "set the flag of the loop to 0 instead")
        return Loop(self._flag(what, call), body, tuple(self.labels[before:]))

    def _leaves(self, loop: ast.While, jump: ast.stmt) -> bool:
        """Return whether a jump belongs to ``loop``, and to none inside of it."""
        inside = (inner for inner in ast.walk(loop) if inner is not loop and isinstance(inner, (ast.For, ast.While)))
        return not any(jump is below for inner in inside for below in ast.walk(inner))

    def _block(self, block: Callable[..., object], node: ast.With, call: ast.expr, around: tuple[str, ...]) -> Node:
        assert isinstance(call, ast.Call)
        what = _written(block)
        self._warn_of_old_name(call)
        if block is not graph_statements.stream_parallel and not self.is_graph:
            raise self._error(f"{what} needs `@sg.kernel(graph=True)`", node, "add `graph=True` to the decorator")
        if block is graph_statements.checkpoint:
            return self._checkpoint(node, call, around)
        if call.args or call.keywords:
            raise self._error(f"{what} takes no arguments", call, f"write `with sg.{what.strip('`')}():`")
        if "parallel" in around or (block is not graph_statements.parallel and "context" in around):
            raise self._error(f"{what} cannot stand in a section that runs in parallel with others", node, "end the section before it")
        if block is graph_statements.parallel_context:
            return self._context(node, around)
        if block is graph_statements.parallel and "context" not in around:
            hint = "put `with sg.graph.parallel_context():` around it"
            raise self._error("`graph.parallel` stands outside of a `graph.parallel_context`", node, hint)
        return Sections([self._nodes(node.body, (*around, "parallel"))])

    def _context(self, node: ast.With, around: tuple[str, ...]) -> Sections:
        nodes = self._nodes(node.body, (*around, "context"))
        for statement, inner in zip(node.body, nodes):
            if not isinstance(inner, Sections):
                message = "`graph.parallel_context` contains `graph.parallel` blocks only"
                raise self._error(
                    message, statement, "move this statement before or after the block, or into one of its `graph.parallel` blocks"
                )
        return Sections([section for inner in nodes if isinstance(inner, Sections) for section in inner.sections], True)

    def _checkpoint(self, node: ast.With, call: ast.Call, around: tuple[str, ...]) -> Checkpoint:
        if not self.checkpoints:
            hint = "add `checkpoints=True` to the decorator"
            raise self._error("`checkpoint` needs `@sg.kernel(graph=True, checkpoints=True)`", node, hint)
        if {"parallel", "context", "checkpoint"} & set(around):
            raise self._error(
                "`checkpoint` cannot stand in another checkpoint, or in a section that runs in parallel with others",
                node,
                "end that block before it",
            )
        given = dict(zip(("cp_id", "yield_on"), call.args)) | {k.arg or "": k.value for k in call.keywords}
        if set(given) != {"cp_id", "yield_on"} or len(call.args) + len(call.keywords) != 2:
            raise self._error("`checkpoint` takes a number and `yield_on`", call, "as in `sg.checkpoint(1, yield_on=flag)`")
        label = given["cp_id"].value if isinstance(given["cp_id"], ast.Constant) else self._value(given["cp_id"])
        if not isinstance(label, int) or isinstance(label, bool):
            problem = "a checkpoint is named by an integer or a member of an IntEnum"
            raise self._error(problem, given["cp_id"], "as in `sg.checkpoint(1, ...)`")
        if label in self.labels:
            raise self._error(f"two checkpoints have the number {label!r}", given["cp_id"], "give each checkpoint a number of its own")
        self.labels.append(label)
        return Checkpoint(label, self._path("`checkpoint`", given["yield_on"]), self._nodes(node.body, (*around, "checkpoint")))

    # --- names -----------------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> object:
        """Return what a name, or an attribute of one, stands for outside of the kernel; None if it is not known."""
        return object_of(node, self.names.get)

    def _flag(self, what: str, call: ast.Call) -> ast.expr:
        if len(call.args) + len(call.keywords) != 1:
            raise self._error(f"{what} takes one argument, its flag", call, "as in `while sg.graph.do_while(flag):`")
        return self._path(what, call.args[0] if call.args else call.keywords[0].value)

    def _path(self, what: str, node: ast.expr) -> ast.expr:
        base = node
        while isinstance(base, ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name):
            hint = "pass the field or ndarray itself, and compute its value in the kernel"
            raise self._error(f"the flag of {what} is a field or ndarray, not an expression", node, hint)
        return node

    def is_pure(self, node: ast.expr) -> bool:
        """Return whether an expression is the same wherever it stands in the kernel, if its variables are."""
        for inner in ast.walk(node):
            if not isinstance(inner, _PURE_NODES):
                return False
            if isinstance(inner, ast.Subscript) and not (isinstance(inner.value, ast.Attribute) and inner.value.attr == "shape"):
                return False
            if isinstance(inner, ast.Call) and not self._is_pure_function(self._value(inner.func)):
                return False
        return True

    def _is_pure_function(self, function: object) -> bool:
        if isinstance(function, DType) or function is forms.static or any(function is each for each in _PURE_BUILTINS):
            return True
        return getattr(function, "__module__", None) in _PURE_MODULES


def _written(block: Callable[..., object]) -> str:
    """Return how programs write a block."""
    return f"`{'graph.' if block in _BLOCKS[:2] else ''}{block.__name__}`"


class _Locals:
    """Gives parts the assignments of other parts that they depend on."""

    def __init__(self, splitter: _Splitter, nodes: list[Node]) -> None:
        self.splitter = splitter
        self.stored: dict[str, list[tuple[Part, ast.stmt | None]]] = {}
        self.before: dict[Part, list[Part]] = {}
        self.brought: dict[Part, list[ast.stmt]] = {}
        self._visit(nodes, [])

    def _visit(self, nodes: Sequence[Node], before: list[Part]) -> None:
        """Note what parts assign, and which parts come ``before`` each, whenever it runs."""
        before = list(before)
        for node in nodes:
            if isinstance(node, Part):
                self._note(node)
                self.before[node] = list(before)
                before.append(node)
            elif isinstance(node, Sections):
                for section in node.sections:
                    self._visit(section, before)
            else:
                self._visit(node.body, before)
                if isinstance(node, Checkpoint):
                    before += [part for part in node.body if isinstance(part, Part)]

    def _note(self, part: Part) -> None:
        for statement in part.statements:
            for name in {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}:
                self.stored.setdefault(name, []).append((part, statement))

    def resolve(self) -> None:
        for part in self.splitter.parts:
            for name, node in list(_outer_names(part.statements)):
                if any(other is not part for other, _ in self.stored.get(name, ())):
                    self._bring(part, name, node)
        for part, brought in self.brought.items():
            part.statements[:0] = sorted(brought, key=lambda statement: statement.lineno)

    def _bring(self, part: Part, name: str, use: ast.AST) -> None:
        """Compute a variable of another part anew in ``part``."""
        error = self.splitter._error
        stores = self.stored[name]
        hint = "store it in a field or ndarray without axes, or compute it where it is used"
        if len(stores) > 1:
            raise error(f"`{name}` is assigned in several parts of the graph, which share no variables", use, hint)
        origin, statement = stores[0]
        if origin not in self.before[part]:
            raise error(f"`{name}` has no value here: another part of the graph assigns it, which may not have run before", use, hint)
        plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
        if not plain or not isinstance(statement, ast.Assign) or not self.splitter.is_pure(statement.value):
            problem = f"`{name}` is computed in another part of the graph, and not from constants and arguments alone"
            raise error(problem, use, hint)
        brought = self.brought.setdefault(part, [])
        if statement not in brought:
            brought.append(statement)
            for inner, _ in _outer_names([statement]):
                if inner in self.stored:
                    self._bring(part, inner, use)


def _outer_names(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Return the variables that statements read before they assign them, each once, and where."""
    seen: set[str] = set()
    for node in _evaluated(statements):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in seen:
            seen.add(node.target.id)
            yield node.target.id, node
        if isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            if isinstance(node.ctx, ast.Load):
                yield node.id, node


def _evaluated(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Return all nodes, values before what they are assigned to."""
    for node in nodes:
        yield node
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield from _evaluated([node.value])
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from _evaluated([node.iter])
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            yield from _evaluated(node.generators)
        yield from _evaluated(list(ast.iter_child_nodes(node)))
