"""Traces in the offline cache: a kernel whose reads give what they gave when it was traced is launched without tracing it again.

A trace is found by the code of the kernel, the types of its arguments, the options, and the source of spirograd. Each entry holds the reads
of a trace (`recorded_reads`), the texts of the values, the key of the compiled kernel, and what a launch needs besides. An entry is valid
if all reads, repeated in order, give the same texts. Then the methods of `Captures` that collected what the launch takes from outside are
called as the trace called them. The IR is kept as text, and parsed when a derivative or a stage is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import types
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import FieldRef, Kernel
from spirograd.ir.text import parse
from spirograd.lang import context
from spirograd.lang.context import Trace
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import Field, ScalarField
from spirograd.lang.frontend.captures import Captures
from spirograd.lang.frontend.kernel_tracing import declare, result_of
from spirograd.lang.frontend.parameters import Parameter
from spirograd.lang.frontend.pure_functions import called
from spirograd.lang.frontend.read_values import PLAIN, Differs, Unrecordable, Values, field_text
from spirograd.lang.frontend.texts import Text
from spirograd.lang.frontend.trace_events import Event, digest, looked_up, python_function, read_name, text_and_signature
from spirograd.lang.language_options import LanguageOptions
from spirograd.lang.leaves import ValueType

if TYPE_CHECKING:
    import inspect

    from spirograd.base.arguments import Plan
    from spirograd.lang.frontend.recorded_reads import Reads
    from spirograd.lang.frontend.source import Source
    from spirograd.lang.session_protocol import Session

    LocRow = tuple[str, int, int, int, int, str, int]

    class Row(TypedDict):
        """An entry, as it is stored.

        ``events`` and ``texts``: the reads and the values; ``fields``: number, reference (if the kernel accesses it) and text of each
        field; ``args``: the flat arguments; ``warnings``: for the user; ``locs``: the source locations that ``events`` name by number;
        ``key``: of the compiled kernel; ``ir``: the name of its IR; ``tasks`` and ``task_locs``: the locations of its tasks.
        """

        events: list[list[object]]
        texts: list[str]
        fields: list[tuple[int, str | None, str]]
        args: str
        warnings: list[str]
        locs: list[LocRow]
        key: str
        ir: str
        tasks: list[int]
        task_locs: list[LocRow]


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, zlib.error)


@dataclass(slots=True, eq=False)
class Traced:
    """The function of a kernel. ``text``: the text that it comes from; ``part``: see `Kernel.traced_part`."""

    function: types.FunctionType
    text: Text | None
    part: str
    parameters: Sequence[Parameter]
    signature: inspect.Signature


class Call:
    """The kernel and the arguments of a trace, and the name under which it is stored; None if it is not."""

    def __init__(self, session: Session, kernel: Traced, args: Sequence[object], options: LanguageOptions) -> None:
        self.session, self.args, self.options = session, args, options
        self.function, self.text, self._part, self.parameters = kernel.function, kernel.text, kernel.part, kernel.parameters
        signature = kernel.signature
        self.returns = signature.return_annotation
        self._annotations = [p.annotation for p in signature.parameters.values()]
        self.name = None if self.text is None else session.name_of_trace(self._named(self._declared()))

    def _declared(self) -> Captures:
        """Return captures in which the arguments are declared, as a trace declares them."""
        trace = Trace(Builder(), self.options)
        before = context.set_trace(trace)
        try:
            trace.b.begin()
            captures = Captures()
            declare(captures, self.parameters, self.args)
        finally:
            context.set_trace(before)
        return captures

    def _named(self, captures: Captures) -> str:
        """Return what the name of the trace stands for: whatever can be compared without an entry."""
        code = self.function.__code__
        held = [cell.cell_contents for cell in self.function.__closure__ or () if _is_plain(cell)]
        constants = [value for value in self.constants() if type(value) in PLAIN]
        where = (self.function.__module__, self.function.__qualname__, self._part, code.co_filename, code.co_firstlineno, _code_text(code))
        parts = (sys.version, np.__version__, where, self.options, captures.declarations.args, held, constants)
        return "\0".join(map(repr, parts))

    def new_reads(self, source: Source) -> Reads | None:
        """Return the reads of a trace that begins: the kernel, and the arguments that are known while compiling."""
        if self.name is None:
            return None
        from spirograd.lang.frontend.recorded_reads import Reads  # A process whose traces are in the cache records none.

        reads = Reads()
        for value in self.roots():
            reads.root(value)
        reads.kernel_source(source, self.text)
        return reads

    def constants(self) -> list[object]:
        """Return the arguments that are known while compiling, and their parts."""
        return [obj for parameter, value in zip(self.parameters, self.args) for _, obj in parameter.constants(value)]

    def roots(self) -> list[object]:
        """Return what every trace begins with: the kernel, which is number 0, its annotations, and the arguments that are known."""
        return [self.function, *self._annotations, self.returns, *self.constants()]


def _is_plain(cell: types.CellType) -> bool:
    try:
        return type(cell.cell_contents) in PLAIN
    except ValueError:  # not assigned yet
        return False


def _code_text(code: types.CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, types.CodeType) else f"{type(c).__name__} {c!r}" for c in code.co_consts]
    parts = (code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


# --- recalling ---------------------------------------------------------------------------------------------------------------


class StoredKernel:
    """A kernel whose trace is in the cache. ``key``: of the compiled kernel; ``locations``: of its tasks; ``ir``: its compressed text."""

    def __init__(self, key: str, locations: list[Loc | None], ir: bytes) -> None:
        self.key, self.locations, self._ir = key, locations, ir

    @functools.cached_property
    def parsed(self) -> Kernel:
        """The kernel as IR."""
        return parse(zlib.decompress(self._ir).decode("utf-8", "surrogatepass"))


@dataclass(slots=True, eq=False)
class RecalledTrace:
    """A trace from the cache: what `TracedKernel` has."""

    kernel: StoredKernel
    returns: ValueType | None
    captures: Captures
    fields: Mapping[FieldRef, ScalarField]
    warnings: Mapping[Hashable, str]


def recall(call: Call) -> RecalledTrace | None:
    """Return the trace for a call from the cache; None if there is none whose reads give the same."""
    if call.name is None:
        return None
    for entry in entries(call.session, call.name):
        try:
            return _replayed(call, entry)
        except (Differs, Unrecordable, *_UNREADABLE):
            continue
    return None


def entries(session: Session, name: str) -> list[Row]:
    data = session.stored_trace(name)
    if data is None:
        return []
    try:
        rows: list[Row] = json.loads(data)
        return rows
    except _UNREADABLE:
        return []


def _replayed(call: Call, entry: Row) -> RecalledTrace:
    """Repeat the reads of an entry. Raises `Differs` or another error if one gives something else."""
    locs, values = _locs_of(entry["locs"]), Values(entry["texts"])
    events = [_event(row, locs) for row in entry["events"]]
    for value in call.roots():
        values.add(value)
    found = [_repeat(call, values, event) for event in events]
    if len(values.texts) != len(entry["texts"]):
        raise Differs
    captures = _captured(call, values, events, found)
    if repr(captures.declarations.args) != entry["args"]:
        raise Differs
    fields: dict[FieldRef, ScalarField] = {}
    for number, name, text in entry["fields"]:
        field = values.objects[number]
        assert isinstance(field, ScalarField)
        if name is not None:
            field.snode.tree.settle()  # As the trace did: until then the field has no layout.
        if field_text(field) != text or (name is not None and repr(field.refs()) != name):
            raise Differs
        if name is not None:
            fields[field.refs()] = field
    ir = call.session.stored_trace(entry["ir"])
    if ir is None:
        raise Differs
    locations = _locs_of(entry["task_locs"])
    stored = StoredKernel(entry["key"], [_loc(locations, number) for number in entry["tasks"]], ir)
    return RecalledTrace(stored, result_of(call.returns), captures, fields, {text: text for text in entry["warnings"]})


def _repeat(call: Call, values: Values, event: Event) -> object:
    """Repeat one read, and compare the value; return it."""
    base, value = values.objects[event.base], None
    if event.kind == "source":
        text, signature = (call.text, "") if event.base == 0 else text_and_signature(base)
        count, hashed = cast("tuple[int, str]", event.key)
        if text is None or digest(python_function(base), text, count, signature) != hashed:
            raise Differs
        return None
    if event.kind == "array":
        return base
    if event.kind == "name":
        value = read_name(python_function(base), event.name)
    elif event.kind == "attribute":
        value = getattr(base, event.name)
    elif event.kind == "result":
        value = called(base, cast("str", event.key))
    elif event.kind == "call":
        assert callable(base)
        value = base()
    elif event.kind == "look":
        value = looked_up(base, event.name)
    else:
        value = base[tuple(event.key) if isinstance(event.key, list) else event.key]  # type: ignore[index]
    values.add(value)
    return value


def _captured(call: Call, values: Values, events: Sequence[Event], found: Sequence[object]) -> Captures:
    """Return what the trace captured, by the methods that captured it."""
    trace = Trace(Builder(), call.options)
    before = context.set_trace(trace)
    try:
        trace.b.begin()
        captures = Captures()
        declare(captures, call.parameters, call.args)
        for event, value in zip(events, found):
            base = values.objects[event.base]
            trace.b.loc = event.loc
            if event.kind == "name":
                captures.outside.name(python_function(base), event.name, value, event.loc)
                captures.global_name(event.name, value)
            elif event.kind == "attribute":
                captures.attribute(base, event.name, value, event.text)
            elif event.kind == "item":
                captures.outside.item(base, event.key, value, event.text, event.loc)
                if event.named and isinstance(value, Field):
                    value.suggest_name(event.named)
                captures.item(value)
            elif event.kind == "array":
                assert isinstance(value, Ndarray)
                captures.item(value, event.name)
    finally:
        context.set_trace(before)
    return captures


def _event(row: list[object], locs: list[Loc]) -> Event:
    kind, base, name, key, loc, text, named = cast("tuple[str, int, str, object, int, str, str]", row)
    return Event(kind, base, name, key, _loc(locs, loc), text, named)


def _locs_of(rows: Sequence[LocRow]) -> list[Loc]:
    out: list[Loc] = []
    for file, line, col, end_line, end_col, function, caller in rows:
        out.append(Loc(file, line, col, end_line, end_col, function, None if caller < 0 else out[caller]))
    return out


def _loc(locs: list[Loc], number: int) -> Loc | None:
    return None if number < 0 else locs[number]


def prepare_recalled(session: Session, stored: StoredKernel) -> Plan:
    """Prepare the launch of a kernel whose trace was in the cache."""
    plan = session.recall(stored.key, stored.locations, lambda: stored.parsed)
    return session.prepare(stored.parsed) if plan is None else plan
