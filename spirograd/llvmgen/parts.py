"""Outlining: large regions become several functions. For serial tasks, and for operations of a parallel loop that are large by themselves.

LLVM's time grows with the square of the size of a function, above all where there are many branches. `stages` cuts the body of a parallel
loop, whose iterations still pass through it in vectors. What is cut here is not vectorised across iterations any more, so it has to be
larger. Parts are runs of operations of a region. They take the values that they use as arguments and return the values used after them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate, pairwise

from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.function import FunctionEmitter, Handler
from spirograd.llvmgen.module import BLOCK_PARAMETER, ModuleText, is_array, returned_type, type_name
from spirograd.llvmgen.stages import LARGE, LARGEST_STAGE, REMADE, cuts

# Operations in one operation of a parallel loop from which on its regions are cut: if LLVM does not vectorise it anyway, and if it may.
_LARGE_OPERATION, _LARGE_VECTORISED = 2000, 4000
# One control operation among so many means that all branches together would take too long for vectors.
_FEW_BRANCHES = 32
# By region that is cut: where its parts begin and end, as numbers of its operations.
Parts = Mapping[Region, tuple[int, ...]]


def parts_of_serial(region: Region) -> Parts:
    """How to cut code that runs once."""
    found: dict[Region, tuple[int, ...]] = {}
    if sum([1 for _ in region.walk()]) > LARGE:
        _find(region, found)
    return found


def parts_of_iteration(body: Region) -> Parts:
    """How to cut the regions of those operations of ``body`` that are large."""
    found: dict[Region, tuple[int, ...]] = {}
    for op in body.ops:
        if op.regions and _is_large(op):
            for region in op.regions:
                _find(region, found)
    return found


def _is_large(op: Op) -> bool:
    inner = [below for region in op.regions for below in region.walk()]
    if len(inner) <= _LARGE_OPERATION:
        return False
    control = sum([bool(below.regions) for below in inner])
    vectorised = control * _FEW_BRANCHES < len(inner) and not any(loop in r.codes for r in op.regions for loop in (ops.for_, ops.while_))
    return not (vectorised and op.code is ops.if_) or len(inner) > _LARGE_VECTORISED


def _find(region: Region, found: dict[Region, tuple[int, ...]]) -> int:
    """Cut ``region`` and those in it; returns how many operations are left in its function."""
    sizes = [1 + sum([_find(inner, found) for inner in op.regions]) for op in region.ops]
    if sum(sizes) <= LARGEST_STAGE:
        return sum(sizes)
    last = len(region.ops) - 1
    found[region] = (0, *cuts(sizes[:last], _crossing(region)), last)
    return len(found[region])


def _used(op: Op) -> Collection[Op]:
    return set(op.args).union(*[inner.live_ins for inner in op.regions]) if op.regions else op.args


def _last_uses(region: Region) -> dict[Op, int]:
    """By value, the number of the last operation of ``region`` that uses it."""
    return {value: k for k, op in enumerate(region.ops) for value in _used(op)}


def _crossing(region: Region) -> list[int | None]:
    """By cut before each operation, how many values cross; None where a value does that no function returns."""
    count = len(region.ops)
    values, refused = [0] * (count + 1), [0] * (count + 1)
    last = _last_uses(region)
    for k, op in enumerate(region.ops):
        if op in last and op.code not in REMADE:
            for counts in (values, *([] if _returnable(op) else [refused])):
                counts[k + 1] += 1
                counts[last[op] + 1] -= 1
    return [None if bad else crossing for crossing, bad in zip(accumulate(values), accumulate(refused))][:count]


def _returnable(op: Op) -> bool:
    return not isinstance(op.type, tuple) and not is_array(op.type)


class PartsEmitter(FunctionEmitter):
    """Emits the function ``name``, with ``parts`` as functions of their own."""

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler], name: str, parts: Parts, memory_suffix: str = "") -> None:
        super().__init__(module, handlers, memory_suffix)
        self.function = name
        self.parts = parts

    def region(self, region: Region) -> list[str]:
        bounds = self.parts.get(region)
        if bounds is None:
            return super().region(region)
        last = _last_uses(region)
        for start, end in pairwise(bounds):
            part = region.ops[start:end]
            self._part(part, [op for op in part if last.get(op, -1) >= end])
        return [self.env[v] for v in region.results]

    def _part(self, part: tuple[Op, ...], later: list[Op]) -> None:
        """Emit a part: a call, or the operations themselves if there is a value that no function takes or returns. ``later``: those of its
        operations whose results are used after it."""
        results = [op for op in later if op.code not in REMADE]
        values = self._taken(part)
        if not all(map(_returnable, results)) or any(isinstance(v.type, tuple) for v in values):
            for op in part:
                self.at(op.loc)
                self.emit(op)
            return
        for op in later:
            if op.code in REMADE:
                self.emit(op)
        callee = PartsEmitter(self.module, self.handlers, self.function, self.parts)
        callee.last_uses = self.last_uses
        passed = self._passed(callee, part, values)
        kind, name = self._define(callee, part, results, [f"{t} {param}" for t, _, param in passed])
        call = f"call {kind} @{name}({', '.join(['ptr %block', *[f'{t} {argument}' for t, argument, _ in passed]])})"
        if not results:
            self.line(call)
        elif len(results) == 1:
            self.set(results[0], call)
        else:
            whole = self.value(call)
            for k, op in enumerate(results):
                self.set(op, f"extractvalue {kind} {whole}, {k}")

    def _taken(self, part: tuple[Op, ...]) -> list[Op]:
        """The values from outside that a part uses, in an order that does not depend on hashes."""
        inner = set(part)
        values: dict[Op, None] = {}
        for op in part:
            used = sorted(_used(op), key=lambda v: str(self.env.get(v))) if op.regions else op.args
            values.update(dict.fromkeys(v for v in used if v not in inner))
        return list(values)

    def _passed(self, callee: FunctionEmitter, part: tuple[Op, ...], values: list[Op]) -> list[tuple[str, str, str]]:
        """Type, argument and parameter for each of ``values``, which become known to ``callee``; what is cheap is computed there again."""
        passed = []
        for k, v in enumerate(values):
            if v.code in REMADE:
                callee.emit(v)
                continue
            passed.append(("ptr" if is_array(v.type) else type_name(v.type), self.env[v], f"%p{k}"))
            callee.env[v] = f"%p{k}"
        inside = (inner.codes for op in part for inner in op.regions)
        if any(op.code is ops.thread_slot for op in (*part, *values)) or any(ops.thread_slot in codes for codes in inside):
            passed.append(("i32", "%slot", "%slot"))
        return passed

    def _define(self, callee: PartsEmitter, part: tuple[Op, ...], results: list[Op], params: list[str]) -> tuple[str, str]:
        """The function of a part: the type that it returns, and its name."""
        for op in part:
            callee.at(op.loc)
            callee.emit(op)
        kind = "void" if not results else type_name(results[0].type)
        if len(results) > 1:
            kind, whole = returned_type([op.type for op in results]), "poison"
            for k, op in enumerate(results):
                whole = callee.value(f"insertvalue {kind} {whole}, {callee.typed(op)}, {k}")
            callee.line(f"ret {kind} {whole}")
        else:
            callee.line(f"ret {kind} {callee.operand(results[0])}" if results else "ret void")
        name = self.module.unique(f"{self.function}.part")
        head = f"define internal {kind} @{name}({', '.join([BLOCK_PARAMETER, *params])}) noinline nounwind"
        self.module.functions.append(f"{head} {{\n{callee.body_text()}\n}}\n")
        return kind, name
