"""Conversions to integers, whose derivative is 0, where memory with a gradient depends on differentiated values only through them; and
`stop_grad`."""

from __future__ import annotations

from spirograd.autodiff.activity import FIXED, Activity, ShadowOf
from spirograd.autodiff.derivative import Mention
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, ref_of


def int_casts(kernel: Kernel, activity: Activity, shadow: ShadowOf) -> tuple[Mention, ...]:
    """Return each conversion of a differentiable value to an integer that all paths from the value to memory with a gradient pass through:
    the memory, and the location of the conversion."""
    casts = [op for op in kernel.walk() if op.code is ops.cast and op.args[0] in activity.varied and not _is_float(op)]
    if not casts:
        return ()
    users = _users(kernel)
    places: dict[Mention, None] = {}
    for cast in casts:
        for op in _reached(cast, users):
            ref = ref_of(op)
            if op.code.effect not in ("write", "atomic") or op.args[-1] in activity.varied or not isinstance(ref, (FieldRef, ArrayRef)):
                continue
            if ref.dtype.is_float and shadow(ref) is not None:
                places[Mention(ref, cast.loc)] = None
    return tuple(places)


def cast_warning(place: Mention) -> str:
    """Return the warning about a conversion."""
    return (
        f"{place.loc}: the derivative of a conversion to an integer is 0, and `{place.ref.name}` depends on differentiated "
        "values only through this conversion"
    )


def stops(kernel: Kernel, activity: Activity) -> tuple[Loc, ...]:
    """Return the locations of `stop_grad` of values that depend on active inputs."""
    stopped = [op.loc for op in kernel.walk() if op.code is ops.stop_grad and op.args[0] in activity.varied]
    return tuple(dict.fromkeys([loc for loc in stopped if loc is not None]))


def _is_float(op: Op) -> bool:
    return isinstance(op.type, DType) and op.type.is_float


def _users(kernel: Kernel) -> dict[Op, list[Op]]:
    """Return, for each value, the operations that use it as a number, not as an index or a condition."""
    users: dict[Op, list[Op]] = {}

    def flow(a: Op, b: Op) -> None:
        users.setdefault(a, []).append(b)

    for op in kernel.walk():
        if op.code is ops.result:
            owner, k = op.args[0], op.attr
            for region in owner.regions if owner.code is ops.if_ else owner.regions[-1:]:
                flow(region.results[k], op)
            if owner.code in FIXED:
                flow(owner.args[FIXED[owner.code] + k], op)
        elif op.code in FIXED:
            region, initial = op.regions[-1], op.args[FIXED[op.code] :]
            for p, a, r in zip(region.params[len(region.params) - len(initial) :], initial, region.results):
                flow(a, p)
                flow(r, p)
        elif op.code.effect in ("write", "atomic"):
            flow(op.args[-1], op)
        elif op.code.effect == "pure":
            for a in op.args[1:] if op.code is ops.select else op.args:
                flow(a, op)
    return users


def _reached(start: Op, users: dict[Op, list[Op]]) -> list[Op]:
    seen: dict[Op, None] = {start: None}
    work = [start]
    while work:
        for op in users.get(work.pop(), ()):
            if op not in seen:
                seen[op] = None
                work.append(op)
    return list(seen)
