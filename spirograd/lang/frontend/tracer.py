"""The state of tracing one kernel: the builder, the function being traced with its variables, what the kernel takes from outside.

A table maps each type of syntax node to the function that traces it. These functions live in one file for each subject, take the state as
their first argument, and reach the functions of nodes inside of theirs by `Tracer.expression` and `Tracer.statement`; `handlers.py` joins
the tables.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from spirograd.base.dtypes import DType, i32
from spirograd.base.errors import SpirogradCompilationError, SpirogradRuntimeError, SpirogradSyntaxError, render
from spirograd.base.records import dataclass
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import FieldRef, Function, Op, Ref, TempRef
from spirograd.lang.context import Trace
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.assumptions import Assumptions
from spirograd.lang.frontend.captures import Captures
from spirograd.lang.frontend.environments import Environments
from spirograd.lang.frontend.frames import Frame
from spirograd.lang.frontend.random_streams import RandomStream
from spirograd.lang.frontend.runtime_values import Traced
from spirograd.lang.frontend.unsupported import unsupported
from spirograd.lang.probes import Probe, Probes
from spirograd.lang.scalar import Value

if TYPE_CHECKING:
    from spirograd.lang.data.batches import Batch

# Traces a syntax node, of the type that the table has it for: gives the object that an expression stands for, None for a statement.
Handler = Callable[["Tracer", Any], object]
# What Python raises where our own checks have missed something.
_INTERNAL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class VisitedCell(NamedTuple):
    """What an iteration of a loop over a sparse field visits: ``indices``, in the index space of fields with these ``axes`` of the tree,
    this ``shape`` and ``origin``; it is in ``cell`` of ``region``, at ``local`` along each axis."""

    region: object
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    origin: tuple[int, ...]
    indices: tuple[Op, ...]
    cell: Value
    local: tuple[Value, ...]


class CalledFunction(NamedTuple):
    """A function that is called. ``model``: a value of the structure that it returns, or None; ``accesses``: what it does to memory;
    ``loops``: whether it, or what it calls, has `for` loops; ``recursive``: whether it may call itself."""

    function: Function
    model: Traced | None
    accesses: tuple[tuple[str, Ref], ...]
    loops: bool
    recursive: bool


class NotCallable(Exception):
    """The function being traced cannot be called, so it is inlined. The text says why."""


class Inlined(NamedTuple):
    """A function that is inlined where it is called, and why."""

    reason: str


@dataclass(slots=True)
class RealFunctions:
    """The functions of one kernel that are called, callees before callers."""

    functions: list[Function] = field(default_factory=list)
    by_signature: dict[Hashable, CalledFunction | Inlined] = field(default_factory=dict)
    being_traced: set[Hashable] = field(default_factory=set)
    recursive: dict[Hashable, str] = field(default_factory=dict)  # those that call themselves, by signature -> name
    recursion: SpirogradCompilationError | None = None  # why one that calls itself cannot be called
    kept: list[object] = field(default_factory=list)  # objects that signatures tell apart by their identity


class Tracer:
    """What the functions that trace syntax nodes share. ``frame``: the function being traced."""

    def __init__(self, trace: Trace, frame: Frame, handlers: Mapping[type[ast.AST], Handler], assumptions: Assumptions) -> None:
        self.trace = trace
        self.b: Builder = trace.b
        self.frame = frame
        self._handlers = handlers
        self.assumptions = assumptions
        self.captures = Captures()
        self.fields: dict[FieldRef, ScalarField] = {}  # which field each reference stands for
        self.real_functions = RealFunctions()
        self.displays: dict[int, tuple[object, int]] = {}  # lists, dicts and sets by identity, with the depth of the block that made them
        self.random_stream: RandomStream | None = None  # None in functions that are called, which draw no random numbers
        self.loop_options: dict[str, object] = {}  # for the next loop
        self.parallel_loops = 0  # traced so far
        self.freed_regions: list[object] = []  # in which the kernel deactivates cells
        self.activated: dict[Hashable, tuple[Value | None, list[Op]]] = {}  # cells, with the block in which they were activated
        self.visited: VisitedCell | None = None  # by the loop being traced
        self.in_static = False  # whether an argument of `static` is traced
        self.call_depth = 0  # of functions that are inlined
        self.temps = 0  # how many names of memory were given
        self.environments = Environments()  # of the batch whose fields the kernel uses
        self.probes: Probes | None = None  # of kernel coverage, if it is measured
        self._probes_at_end: list[Probe] = []

    # --- dispatch ----------------------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Any:
        """Return the object that an expression stands for: a `Value`, a `Matrix` or a `Struct` if the kernel computes it."""
        return self.located(self._handler(node), node)

    def statement(self, node: ast.stmt) -> None:
        """Emit what a statement does."""
        self.located(self._handler(node), node)

    def _handler(self, node: ast.expr | ast.stmt) -> Handler:
        handler = self._handlers.get(type(node))
        if handler is None:
            what, hint = unsupported(node)
            raise self.syntax_error(f"{what} is not supported in kernels", node, hint)
        return handler

    @contextmanager
    def within_static(self) -> Iterator[None]:
        """Trace the argument of a `static`."""
        before, self.in_static = self.in_static, True
        try:
            yield
        finally:
            self.in_static = before

    # --- kernel coverage ---------------------------------------------------------------------------------------------------

    def reached(self, node: ast.stmt, skipped: bool = False) -> None:
        """Emit the probe of a statement. ``skipped``: that of the path on which an `if` runs nothing."""
        if self.probes is None or self.frame.source.of_library:
            return
        loc = self.frame.loc(node)
        probe = Probe(loc.file, loc.line, skipped)
        if self.b.depth == 1 and self.random_stream is not None:  # It runs in each launch; a store here would be a task.
            self._probes_at_end.append(probe)
        else:
            self._store_probe(probe)

    def store_probes(self) -> None:
        """Emit the probes of the statements at the top level of the kernel."""
        for probe in dict.fromkeys(self._probes_at_end):
            self._store_probe(probe)

    def _store_probe(self, probe: Probe) -> None:
        assert self.probes is not None
        field, index = self.probes.element(probe)
        ref = field.refs()
        self.fields[ref] = field
        self.b.store(ref, self.b.const(index, i32), self.b.const(1, i32))

    # --- source locations --------------------------------------------------------------------------------------------------

    def at(self, node: ast.AST) -> None:
        """Set the source location of operations and errors to that of ``node``."""
        frame = self.frame
        self.b.loc = frame.locs.get(node) or frame.loc(node)

    def located(self, handler: Handler, node: ast.AST) -> Any:
        """Return ``handler(self, node)``; errors without a source location get the current one."""
        self.at(node)
        try:
            return handler(self, node)
        except SpirogradCompilationError as error:
            if error.loc is not None:
                raise error from error.__cause__
            raise type(error)(error.message, self.b.loc, error.hint) from error.__cause__
        except SpirogradRuntimeError as error:
            if hasattr(error, "located"):
                raise
            new = type(error)(render(str(error), self.b.loc))
            new.located = True  # type: ignore[attr-defined]
            raise new from None
        except _INTERNAL_ERRORS as error:
            message = f"the compiler failed here, which is a bug of spirograd: {type(error).__name__}: {error}"
            raise SpirogradCompilationError(message, self.b.loc, "please report it; SG_TRACEBACK=1 shows more") from error

    def syntax_error(self, message: str, node: ast.AST, hint: str = "") -> SpirogradSyntaxError:
        return SpirogradSyntaxError(message, self.frame.loc(node), hint)

    # --- batches -----------------------------------------------------------------------------------------------------------

    def environment(self, batch: Batch | None = None) -> Op:
        """Return the number of the environment, see `Environments.index_in`. Raises NotCallable in a function that is called."""
        if self.random_stream is None:
            raise NotCallable("it uses the environments of a batch")
        return self.environments.index_in(batch)

    # --- names of memory ---------------------------------------------------------------------------------------------------

    def new_temp(self, name: str, t: DType, shape: tuple[int, ...] = ()) -> TempRef:
        """Return new memory of the kernel, under a name of its own."""
        self.temps += 1
        return TempRef(f"{name}.{self.temps}", t, shape)
