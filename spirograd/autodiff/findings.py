"""Findings of differentiation, for explanations and messages: saved values and their purposes, recomputed operations, operations without
derivatives."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.extents import extents
from spirograd.autodiff.activity import is_float
from spirograd.autodiff.derivative import Record, Residual, Saving
from spirograd.autodiff.residuals import Conflict
from spirograd.autodiff.reverse import Reversed
from spirograd.autodiff.saved_values import SavingKernels
from spirograd.base.dtypes import Vec
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region
from spirograd.ir.temp_kinds import TempKind

_PLUMBING = frozenset((ops.vec, ops.extract, ops.insert, ops.select, ops.cast, ops.result))


def records(gradient: Kernel, unclean: Reversed) -> tuple[Record, ...]:
    """Return the records of the adstacks that are left in a gradient kernel, in order of appearance. ``unclean``: the kernel before
    clean-up."""
    sweep, loops = unclean.sweep, unclean.loops
    by_name = {adstack.name: (value, sweep.loops[adstack.capacity]) for adstack, value in sweep.adstacks.items()}
    owners = {p: loop for loop in loops.numbers for p in loop.regions[-1].params}
    segment = {adstack.name: recording.segment for recording in sweep.recordings.values() for adstack in recording.adstacks}
    capacities = extents(gradient, TempKind.CAPACITY)
    left = dict.fromkeys(op.attr for op in gradient.walk() if isinstance(op.attr, AdstackRef))
    result = []
    arrays = {array.adstack.name: array for array in unclean.sweep.groups.saved}
    for adstack in left:
        array = arrays.get(adstack.name)
        if array is not None:
            entries, why = capacities[adstack.capacity], "needed to run what is inside again"
            number = loops.numbers.get(array.owner, loops.numbers[array.around])
            result.append(Record(adstack, array.owner.loc, f"`{array.ref.name}`, a shared array,", why, 1, entries, number))
            continue
        value, loop = by_name[adstack.name]
        owner = owners[value]
        every = segment.get(adstack.name, 1) * loops.spans.get(owner, 1)
        number, most = loops.numbers[owner], loops.bounds.get(owner)
        result.append(Record(adstack, loop, _what(value), _why(gradient, adstack), every, capacities[adstack.capacity], number, most))
    return tuple(result)


def _what(value: Op) -> str:
    t = value.type
    kind = f"vector of {t.n} {t.elem}" if isinstance(t, Vec) else str(t)
    return f"`{value.attr}`, a loop-carried {kind}," if value.attr else f"a loop-carried {kind}"


def _why(gradient: Kernel, adstack: AdstackRef) -> str:
    """Return a description of what the recorded value is used for."""
    loads = {op for op in gradient.walk() if op.code is ops.load and op.attr == adstack}
    users = [op for op in gradient.walk() if any(a in loads for a in op.args)]
    reasons = []
    names = dict.fromkeys(op.code.name for op in users if op.code.effect == "pure" and op.code not in _PLUMBING)
    if names:
        reasons.append(f"for {', '.join(list(names)[:4])}")
    if any(op.code in (ops.for_, ops.while_) for op in users):
        reasons.append("to run the inner loop again")
    if any(op.code is ops.if_ for op in users):
        reasons.append("to take the same branch")
    if any(op.code.effect in ("read", "write", "atomic") for op in users):
        reasons.append("as an index")
    return "needed " + " and ".join(reasons or ["by later operations"])


def recomputed(gradient: Kernel) -> tuple[tuple[Loc | None, int], ...]:
    """Return the number of float operations of the primal that a gradient kernel recomputes, by the line of the serial loop around them."""
    counts: dict[Loc | None, int] = {}

    def look(region: Region, loop: Loc | None) -> None:
        for op in region.ops:
            if _computes(op) and op.primal is not None and op.primal.code is op.code:
                counts[loop] = counts.get(loop, 0) + 1
            serial = op.code is ops.while_ or (op.code is ops.for_ and not op.attr.parallel)
            for inner in op.regions:
                look(inner, op.loc if serial else loop)

    look(gradient.body, None)
    return tuple(counts.items())


def _computes(op: Op) -> bool:
    return op.code.effect == "pure" and bool(op.args) and op.code is not ops.result and is_float(op.type)


def refuse_lost(lost: Sequence[Conflict], saved: bool = False) -> None:
    """Raise SpirogradUnsupportedError for values that a gradient kernel needs and that the primal cannot save as it runs.

    ``saved``: whether all values that can be saved have been saved.
    """
    for conflict in lost:
        if conflict.savable and not saved:
            continue
        raise SpirogradUnsupportedError(
            f"the gradient needs the value of `{conflict.ref.name}` that is read here, but the kernel changes it both before and after "
            f"this read ({conflict.write_loc})",
            conflict.load_loc,
            "split the kernel, store each step to an element of its own (another index), or carry the value in a local variable",
        )


def refuse_nesting(nested: Sequence[Residual], plain: Sequence[Residual], lost: Sequence[Conflict]) -> None:
    """Raise SpirogradUnsupportedError if a gradient with nested checkpoints, whose residuals are ``nested``, reads memory that the
    ``plain`` gradient does not read because its adstacks save the values, or if it needs values that are ``lost``."""
    known = {(residual.ref, residual.when, residual.at) for residual in plain}
    more = [(r.ref, r.loc) for r in nested if (r.ref, r.when, r.at) not in known] + [(c.ref, c.load_loc) for c in lost]
    for ref, loc in more:
        message = f"this loop cannot have nested checkpoints: they would read `{ref.name}` again after the kernel has changed it"
        raise SpirogradUnsupportedError(message, loc, "carry the value in a local variable")


def saving_of(saved: SavingKernels, lost: Sequence[Conflict]) -> Saving:
    """Return the description of the kernel that saves the values ``lost``, for launches of the derivative."""
    loads = tuple([Residual(c.ref, "before", c.load_loc, c.write_loc) for c in lost])  # type: ignore[arg-type]
    sizes = tuple([(buffer.rows, buffer.capacity) for buffer in saved.buffers])
    return Saving(saved.saving, saved.counting, tuple([buffer.ref for buffer in saved.buffers]), sizes, loads, saved.counting_writes)
