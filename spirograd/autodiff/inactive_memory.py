"""Inactive memory: float memory without a gradient between active inputs and active outputs. It breaks the chain of derivatives.

Values also flow through inactive memory: a kernel that gives `x` values that depend on active inputs, and then `y` values that depend on
`x`, has broken the chain at `y`, too. So activity is continued through inactive memory here: from each store to the loads that come after
it, and, within a serial loop around both, to those before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from spirograd.analysis.effects import may_alias, region_of
from spirograd.autodiff.activity import Activity, ShadowOf
from spirograd.autodiff.derivative import Mention, Outer
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, ref_of

_LOOPS = (ops.for_, ops.while_)
# For each node, the nodes that it depends on. Nodes are those of `Activity.flows`, and the contents of memory at some point.
_Flows = dict[Hashable, list[Hashable]]


@dataclass(frozen=True, slots=True)
class InactiveMemory:
    """The inactive memory of a kernel.

    ``writes``: that which receives values that depend on active inputs. ``reads``: that on which active outputs depend. ``relays``: pairs
    of memory, read and written, where the values that are written depend on those that are read. ``broken``: memory of which an active
    output reads what the kernel has written, as (writing, reading).
    """

    writes: tuple[Mention, ...] = ()
    reads: tuple[Mention, ...] = ()
    relays: tuple[tuple[Mention, Mention], ...] = ()
    broken: tuple[Mention, Mention] | None = None


def inactive_memory(kernel: Kernel, activity: Activity, shadow: ShadowOf) -> InactiveMemory:
    """Return the inactive memory of ``kernel``. ``shadow``: returns the gradient of outer memory, or None if it has none."""
    accesses = [(op, loops) for op, loops in _walk(kernel.body, ()) if _is_inactive(op, shadow)]
    loads, stores = ([op for op, _ in accesses if op.code.effect in (kind, "atomic")] for kind in ("read", "write"))
    if not accesses:
        return InactiveMemory()
    flows: _Flows = {node: list(inputs) for node, inputs in activity.flows.items()}
    for node, inputs in _through_memory(accesses).items():
        flows[node] = [*flows.get(node, ()), *inputs]
    users = _inverted(flows)
    varied = _marked(dict.fromkeys(activity.varied, 1), users)
    useful = _marked(dict.fromkeys(activity.useful, 1), flows)
    return InactiveMemory(
        _places(op for op in stores if op.args[-1] in varied),
        _places(op for op in loads if op in useful),
        _relays(loads, stores, users),
        _broken(accesses, varied, useful),
    )


def _through_memory(accesses: list[tuple[Op, tuple[Op, ...]]]) -> _Flows:
    """Return the flows from stores to loads of the same memory, through its contents after each store, and those of each serial loop."""
    flows: _Flows = {}
    stored: dict[Hashable, int] = {}  # By memory, the number of stores so far.
    for op, loops in accesses:
        ref = region_of(_outer(op), separate_arrays=True)
        count = stored.get(ref, 0)
        serial = [loop for loop in loops if not _is_parallel(loop)]
        if op.code.effect in ("read", "atomic"):
            flows.setdefault(op, []).extend([(ref, count), *((ref, loop) for loop in serial)])
        if op.code.effect in ("write", "atomic"):
            flows[ref, count + 1] = [(ref, count), op.args[-1]]
            for loop in serial:
                flows.setdefault((ref, loop), []).append(op.args[-1])
            stored[ref] = count + 1
    return flows


def _relays(loads: list[Op], stores: list[Op], users: _Flows) -> tuple[tuple[Mention, Mention], ...]:
    first = {ref: op for op in reversed(loads) for ref in [_outer(op)]}
    bits = {ref: 1 << number for number, ref in enumerate(first)}
    marked = _marked({op: bits[_outer(op)] for op in loads}, users)
    pairs: dict[tuple[Outer, Outer], tuple[Mention, Mention]] = {}
    for store in stores:
        mask = marked.get(store.args[-1], 0)
        for ref, bit in bits.items() if mask else ():
            if mask & bit and ref != _outer(store):
                pairs.setdefault((ref, _outer(store)), (_place(first[ref]), _place(store)))
    return tuple(pairs.values())


def _broken(
    accesses: list[tuple[Op, tuple[Op, ...]]], varied: Mapping[Hashable, int], useful: Mapping[Hashable, int]
) -> tuple[Mention, Mention] | None:
    """Return the first read of memory, on which an active output depends, after a write of values that depend on active inputs."""
    written: list[tuple[Op, set[Op]]] = []
    read: list[tuple[int, Op, set[Op]]] = []  # With the number of writes before it.
    for op, loops in accesses:
        writer = op.code.effect in ("write", "atomic") and op.args[-1] in varied
        reader = op.code.effect in ("read", "atomic") and op in useful
        serial = {loop for loop in loops if not _is_parallel(loop)}
        if writer and reader and len(serial) < len(loops):
            return _place(op), _place(op)  # Iterations of a parallel loop share it, so the old value depends on additions of others.
        if reader:
            read.append((len(written), op, serial))
        if writer:
            written.append((op, serial))
    for before, reading, inside in read:
        for number, (writing, around) in enumerate(written):
            if may_alias(_outer(writing), _outer(reading), separate_arrays=True) and (number < before or inside & around):
                return _place(writing), _place(reading)
    return None


def _marked(start: Mapping[Hashable, int], edges: Mapping[Hashable, Iterable[Hashable]]) -> dict[Hashable, int]:
    """Return the marks of all nodes that can be reached: the union, bit by bit, of the marks of those from which each is reached."""
    marks = dict(start)
    work = list(marks)
    while work:
        node = work.pop()
        for other in edges.get(node, ()):
            mark = marks.get(other, 0) | marks[node]
            if mark != marks.get(other):
                marks[other] = mark
                work.append(other)
    return marks


def _inverted(flows: _Flows) -> _Flows:
    users: _Flows = {}
    for node, inputs in flows.items():
        for one in inputs:
            users.setdefault(one, []).append(node)
    return users


def _is_parallel(loop: Op) -> bool:
    return loop.code is ops.for_ and bool(loop.attr.parallel)


def _is_inactive(op: Op, shadow: ShadowOf) -> bool:
    ref = ref_of(op)
    return isinstance(ref, (FieldRef, ArrayRef)) and ref.dtype.is_float and shadow(ref) is None


def _places(accesses: Iterable[Op]) -> tuple[Mention, ...]:
    return tuple(dict.fromkeys(_place(op) for op in accesses))


def _place(op: Op) -> Mention:
    return Mention(_outer(op), op.loc)


def _outer(op: Op) -> Outer:
    ref = ref_of(op)
    assert isinstance(ref, (FieldRef, ArrayRef))
    return ref


def _walk(region: Region, loops: tuple[Op, ...]) -> Iterable[tuple[Op, tuple[Op, ...]]]:
    """Return all operations in order, with the loops around each."""
    for op in region.ops:
        yield op, loops
        for inner in op.regions:
            yield from _walk(inner, (*loops, op) if op.code in _LOOPS else loops)
