"""Tracing a kernel: from its syntax tree and arguments to kernel IR, and what the kernel takes from outside."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.python_limits import deep_recursion
from spirograd.ir.builder import Builder
from spirograd.ir.called_accesses import restate_calls
from spirograd.ir.nodes import FieldRef, Kernel, TempRef, called
from spirograd.lang import context, scalar
from spirograd.lang.context import Trace
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.assumptions import Assumptions, Contradiction
from spirograd.lang.frontend.captures import Captures
from spirograd.lang.frontend.environment_loops import for_each_environment
from spirograd.lang.frontend.frames import Frame
from spirograd.lang.frontend.freed_cells import collect
from spirograd.lang.frontend.function_bodies import function_body
from spirograd.lang.frontend.guards import Path
from spirograd.lang.frontend.handlers import HANDLERS
from spirograd.lang.frontend.parameters import Parameter
from spirograd.lang.frontend.random_streams import RandomStream
from spirograd.lang.frontend.runtime_values import leaves
from spirograd.lang.frontend.source import Source
from spirograd.lang.frontend.stopped_memory import apply_stops
from spirograd.lang.frontend.syntax_facts import RESULT, RNG
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.language_options import LanguageOptions
from spirograd.lang.leaves import ValueType, as_type, leaf_dtypes
from spirograd.lang.scalar import Value
from spirograd.lang.tuples import result_type

if TYPE_CHECKING:
    from spirograd.lang.data.batches import Batch
    from spirograd.lang.frontend.recorded_reads import Reads
    from spirograd.lang.probes import Probes


class TracedKernel(NamedTuple):
    """``kernel``: the IR; ``returns``: the type of its result, or None; ``fields``: which field each reference stands for; ``warnings``:
    for the user, by what they are about."""

    kernel: Kernel
    returns: ValueType | None
    captures: Captures
    fields: Mapping[FieldRef, ScalarField]
    warnings: Mapping[Hashable, str]


NewReads = Callable[[Source], "Reads | None"]


def no_reads(source: Source) -> None:
    """Return what records the reads of a trace that is not kept: nothing."""


def trace_kernel(
    source: Source,
    parameters: Sequence[Parameter],
    returns: object,
    args: Sequence[object],
    options: LanguageOptions,
    new_reads: NewReads = no_reads,
    probes: Probes | None = None,
) -> TracedKernel:
    """Trace a kernel for arguments like ``args``. ``returns``: the annotation of its result; ``new_reads``: gives what records the reads
    of a trace; ``probes``: of kernel coverage."""
    assumptions = Assumptions()
    while True:
        try:
            return _trace(source, parameters, returns, args, options, assumptions, new_reads(source), probes)
        except Contradiction:
            assumptions.begin_trace()


def _trace(
    source: Source,
    parameters: Sequence[Parameter],
    annotation: object,
    args: Sequence[object],
    options: LanguageOptions,
    assumptions: Assumptions,
    reads: Reads | None,
    probes: Probes | None,
) -> TracedKernel:
    trace, loc = Trace(Builder(), options), source.loc(source.tree, None)
    trace.whole = (source.function.__module__ or "").startswith("spirograd.")
    before = context.set_trace(trace)
    try:
        trace.b.loc = loc
        returns = result_of(annotation)
        frame = Frame(source, source.names(), True, returns, constants=frozenset(p.name for p in parameters))
        t = Tracer(trace, frame, HANDLERS, assumptions)
        t.captures.reads = reads
        t.probes = probes
        trace.b.begin()
        frame.variables |= declare(t.captures, parameters, args)
        t.random_stream = RandomStream(trace.b)
        frame.variables[RNG] = t.random_stream.first
        _refuse_assigned_arguments(source, parameters)
        with deep_recursion():
            function_body(t, source.tree.body)
            t.store_probes()
            collect(t)
        results = _store_result(t, returns)
        body = for_each_environment(trace.b.end(), trace, t.environments, t.fields)
    finally:
        context.set_trace(before)
    kernel = Kernel(source.name, tuple(t.captures.declarations.args), body, results, loc, called(t.real_functions.functions, (body,)))
    if t.real_functions.recursive:
        kernel = restate_calls(kernel)
    if trace.stops:
        kernel = apply_stops(kernel)
    return TracedKernel(kernel, returns, t.captures, t.fields, trace.warnings)


def result_of(annotation: object) -> ValueType | None:
    """Return the type of the result of a kernel, by its annotation; None if it has none."""
    return None if annotation in (inspect.Signature.empty, None, type(None)) else as_type(result_type(annotation))


def declare(captures: Captures, parameters: Sequence[Parameter], args: Sequence[object]) -> dict[str, object]:
    """Declare the arguments of a kernel; return the objects that its parameters stand for."""
    variables: dict[str, object] = {}
    for number, (parameter, value) in enumerate(zip(parameters, args)):
        for names, obj in parameter.constants(value):
            captures.reachable(Path(number, names), obj)
        variables[parameter.name] = parameter.declare(value, captures.declarations)
    return variables


def _refuse_assigned_arguments(source: Source, parameters: Sequence[Parameter]) -> None:
    """Raise SpirogradSyntaxError for assignments to arguments of the kernel, which are constants of the launch."""
    names = {p.name for p in parameters}
    for node in ast.walk(source.tree) if names else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            message = f"argument `{node.id}` of a kernel cannot be assigned to"
            raise SpirogradSyntaxError(message, source.loc(node, None), f"copy it first: `{node.id}_ = {node.id}`")


# --- the result --------------------------------------------------------------------------------------------------------------


def _store_result(t: Tracer, returns: ValueType | None) -> tuple[TempRef, ...]:
    """Store the value of the kernel where the launcher reads it."""
    if returns is None:
        return ()
    value, source = t.frame.variables.get(RESULT), t.frame.source
    if value is None:
        message = f"kernel `{source.name}` says that it returns a value, but does not on every path"
        raise SpirogradSyntaxError(message, source.loc(source.tree, None), "end it with `return`")
    refs = []
    batch = t.environments.batch
    for k, (leaf, dtype) in enumerate(zip(leaves(value), leaf_dtypes(returns))):
        if batch is not None:
            _store_in_batch(t, batch, scalar.cast(leaf, dtype), f"result{k}")
            continue
        ref = TempRef(f"result{k}", dtype)
        t.b.store(ref, scalar.cast(leaf, dtype).op)
        refs.append(ref)
    return tuple(refs)


def _store_in_batch(t: Tracer, batch: Batch, value: Value, name: str) -> None:
    """Store a number of the result of each environment in memory of its own, from which the call returns it."""
    field = batch.field(value.dtype, name=name)
    assert isinstance(field, ScalarField)
    ref = field.refs()
    t.fields[ref] = field
    t.captures.results.append(field)
    t.b.store(ref, t.environment(batch), value.op)
