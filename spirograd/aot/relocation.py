"""Relocation of kernel IR: fields, trees and files get numbers and names that are the same in each process."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.loc import Loc
from spirograd.base.records import replace
from spirograd.ir.nodes import FieldRef, Kernel, MemoryCall, Op, Ref
from spirograd.ir.rewrite import Rewriter


class ShortLocations:
    """Locations with files without their folders. ``original``: the locations that they replace."""

    def __init__(self) -> None:
        self._short: dict[Loc, Loc] = {}
        self.original: dict[Loc, Loc] = {}

    def __call__(self, loc: Loc | None) -> Loc | None:
        if loc is None:
            return None
        short = self._short.get(loc)
        if short is None:  # operations that shared a location still share it
            name = loc.file.replace("\\", "/").rpartition("/")[2]
            short = self._short[loc] = replace(loc, file=name, caller=self(loc.caller))
            self.original.setdefault(short, loc)
        return short


def relocated(
    kernel: Kernel,
    place: Callable[[FieldRef], FieldRef] = lambda ref: ref,
    locate: Callable[[Loc | None], Loc | None] = lambda loc: loc,
) -> Kernel:
    """Return ``kernel`` with ``place`` applied to each reference to a field, and ``locate`` to each location."""
    return _Relocation(place, locate).kernel(kernel)


class _Relocation(Rewriter):
    def __init__(self, place: Callable[[FieldRef], FieldRef], locate: Callable[[Loc | None], Loc | None]) -> None:
        super().__init__()
        self._place = place
        self._locate = locate

    def _rewritten(self, kernel: Kernel) -> Kernel:  # what has no handler changes, too
        functions = tuple([f.with_body(self.region(f.body)) for f in kernel.functions])
        return replace(kernel, body=self.region(kernel.body), functions=functions, loc=self._locate(kernel.loc))

    def copy(self, op: Op) -> Op:
        args = self.args(op)
        regions = tuple([self.region(r) for r in op.regions])
        return self.b.append(Op(op.code, op.type, args, self._attr(op.attr), regions, self._locate(op.loc), op.primal))

    def _ref(self, ref: Ref) -> Ref:
        return self._place(ref) if isinstance(ref, FieldRef) else ref

    def _attr(self, attr: object) -> object:
        if isinstance(attr, FieldRef):
            return self._place(attr)
        if isinstance(attr, tuple):
            return tuple([self._attr(part) for part in attr])
        if isinstance(attr, MemoryCall):
            accesses = tuple([(effect, self._ref(ref)) for effect, ref in attr.accesses])
            return replace(attr, accesses=accesses, found_in=None if attr.found_in is None else self._ref(attr.found_in))
        if isinstance(attr, (FaultSite, PrintSite)):
            return replace(attr, loc=self._locate(attr.loc))
        return attr
