"""A compile-time check that barriers and operations on tiles are not in control flow in which the threads of a group diverge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradSyntaxError
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.transforms.pass_context import PassContext

# Operations that all threads of a group must reach together, with their names and advice for users.
_TOGETHER = (
    (frozenset((ops.workgroup_barrier,)), "a barrier", "put `block.sync()` where"),
    (ops.TILES, "an operation on a tile", "move it to where"),
)
# The largest number of threads whose conditions are evaluated.
_MOST = 2048


def check_barriers(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Return ``kernel`` unchanged. Raise SpirogradSyntaxError for such an operation in a branch or a `for` whose condition or bounds depend
    on the index and constants only, and differ between the threads of a group."""
    for op in kernel.body.ops:
        if op.code is ops.for_ and op.attr.grouped and _in(op.regions):
            begin, end = op.args
            groups = list(_groups(begin, end, op.attr.group_size))
            _check(op.regions[0], op.regions[0].params[0], groups)
    return kernel


def _groups(begin: Op, end: Op, size: int) -> Iterator[range]:
    """Yield the indices of each group, or, if there are many groups, of the first and the last one; nothing if they are unknown."""
    if begin.code is not ops.const:
        return
    first, last = begin.attr, end.attr if end.code is ops.const else begin.attr + size
    starts = range(first, last, size)
    for start in starts if last - first <= _MOST else (starts[0], starts[-1]):
        yield range(start, min(start + size, last))


def _check(region: Region, index: Op, groups: Sequence[range]) -> None:
    for op in region.ops:
        problem = _in(op.regions)
        if not problem:
            continue
        for condition in op.args[: 2 if op.code is ops.for_ else 1 if op.code is ops.if_ else 0]:
            for group in groups:
                values = _values(condition, index, group)
                if values is not None and any(value != values[0] for value in values):
                    other = next(k for k, value in enumerate(values) if value != values[0])
                    what, mend = problem
                    raise SpirogradSyntaxError(
                        f"not all threads of a group reach {what} in here together: threads 0 and {other} diverge",
                        op.loc,
                        f"{mend} all threads of a group reach it, and put the work of single threads in an `if` without it",
                    )
        for inner in op.regions:
            _check(inner, index, groups)


def _in(regions: Sequence[Region]) -> tuple[str, str] | None:
    """Return the entry of `_TOGETHER` for an operation in ``regions``, or None."""
    codes = frozenset().union(*[region.codes for region in regions])
    return next(((what, mend) for together, what, mend in _TOGETHER if not together.isdisjoint(codes)), None)


def _values(value: Op, index: Op, group: range) -> list[object] | None:
    """Return ``value`` in each thread of a group, or None if it depends on more than the index and constants."""
    known: dict[Op, list[object]] = {}
    pending = [value]
    while pending:
        op = pending[-1]
        if op in known:
            pending.pop()
            continue
        if op is not index and (op.code.effect != "pure" or (op.code.evaluate is None and op.code is not ops.const)):
            return None
        t = op.type
        assert isinstance(t, DType) or op.code.evaluate is not None
        if op is index or op.code is ops.const:
            assert isinstance(t, DType)
            known[op] = [t.np.type(k) for k in group] if op is index else [t.np.type(op.attr)] * len(group)
            continue
        missing = [a for a in op.args if a not in known]
        if missing:
            pending += missing
            continue
        known[op] = [ops.evaluate(op.code, t, args) for args in zip(*[known[a] for a in op.args])]
    return known[value]
