"""Storing traces in the offline cache: see `stored_traces`, which reads them. A process that traces nothing does not import this module."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir.nodes import FieldRef, Kernel
from spirograd.ir.text import to_text
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.read_values import Unrecordable, Values, field_text
from spirograd.lang.frontend.recorded_reads import fields_described
from spirograd.lang.frontend.stored_traces import Call, entries

if TYPE_CHECKING:
    from spirograd.base.arguments import Plan
    from spirograd.lang.frontend.kernel_tracing import TracedKernel
    from spirograd.lang.frontend.stored_traces import LocRow, Row
    from spirograd.lang.session_protocol import Session

_MOST_ENTRIES = 16  # under one name: the newest ones


@dataclass(slots=True, eq=False)
class Entry:
    """An entry to store. ``name``: of the trace, which may have several entries; ``row``: with what is known before the kernel is compiled;
    ``text``: the compressed IR."""

    name: str
    row: Row
    text: bytes


def entry_of(call: Call, traced: TracedKernel) -> Entry | None:
    """Return the entry for a trace; None if it is not kept."""
    reads = traced.captures.reads
    if call.name is None or reads is None or reads.refused:
        return None
    try:
        fields = _texts_of_fields(reads.values, traced.fields)
    except Unrecordable as error:
        reads.refuse(str(error))
        return None
    locs = _Locs()
    row: Row = {
        "events": [[e.kind, e.base, e.name, e.key, locs.number(e.loc), e.text, e.named] for e in reads.events],
        "texts": reads.values.texts,
        "fields": fields,
        "args": repr(traced.captures.declarations.args),
        "warnings": list(traced.warnings.values()),
        "locs": locs.rows,
        "key": "",
        "ir": "",
        "tasks": [],
        "task_locs": [],
    }
    row["ir"] = f"ir\0{call.name}\0{hashlib.sha256(repr(row).encode('utf-8', 'surrogatepass')).hexdigest()}"
    return Entry(call.name, row, zlib.compress(to_text(traced.kernel, locs=True).encode("utf-8", "surrogatepass"), 1))


class PrepareAndStore:
    """Prepares the launch of a kernel that was traced, and stores the trace, which is then forgotten here."""

    def __init__(self, session: Session, entry: Entry | None) -> None:
        self._session, self._entry = session, entry

    def __call__(self, kernel: Kernel) -> Plan:
        session, entry = self._session, self._entry
        plan = session.prepare(kernel)
        if entry is not None:
            locs, row = _Locs(), entry.row
            row["key"] = plan.compiled.key
            row["tasks"] = [locs.number(loc) for loc in (plan.locations() if plan.locations is not None else ())]
            row["task_locs"] = locs.rows
            others = [other for other in entries(session, entry.name) if other["ir"] != row["ir"]]
            session.store_trace(row["ir"], entry.text)
            session.store_trace(entry.name, json.dumps([row, *others[: _MOST_ENTRIES - 1]], separators=(",", ":")).encode())
            self._entry = None
        return plan


def _texts_of_fields(values: Values, accessed: Mapping[FieldRef, ScalarField]) -> list[tuple[int, str | None, str]]:
    """Return (number, name in the IR or None, text) of each field that was read, those that the kernel accesses first."""
    used = {number: (ref, field) for number, ref, field in fields_described(values, accessed)}
    out: list[tuple[int, str | None, str]] = [(number, repr(ref), field_text(field)) for number, (ref, field) in used.items()]
    others = [(k, f) for k, f in enumerate(values.objects) if isinstance(f, ScalarField) and k not in used]
    return [*out, *[(number, None, field_text(field)) for number, field in others]]


class _Locs:
    """Source locations as numbers of rows; the last number of a row is that of the call that inlined it."""

    def __init__(self) -> None:
        self.rows: list[LocRow] = []
        self._numbers: dict[int, tuple[int, Loc]] = {}

    def number(self, loc: Loc | None) -> int:
        if loc is None:
            return -1
        known = self._numbers.get(id(loc))
        if known is None:
            caller = self.number(loc.caller)
            self.rows.append((loc.file, loc.line, loc.col, loc.end_line, loc.end_col, loc.function, caller))
            known = self._numbers[id(loc)] = len(self.rows) - 1, loc
        return known[0]
