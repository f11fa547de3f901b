"""Strategies for atomics on devices without compare-and-swap, or without 64-bit atomics. The choice is the same on kernel IR and on device
IR, so that the argument block, the checks of loops and the lowering agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from spirograd.base.artifact import FaultSite
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, storage
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, BufferRef, FieldRef, Kernel, Op, Ref, Region, SharedRef, accesses_of, ref_of

# A region of memory: equal for references of kernel IR and of device IR.
Place = tuple[str | int, ...]


class Strategy(Enum):
    """The strategies for atomics."""

    NATIVE = "native"  # the device supports it; exchanges of floats use their bits
    # A loop of two exchanges, without locks (`lower_atomics.exchange_loop`). While it runs, the element may hold a placeholder instead of
    # its value, so everything that the task does to that memory must be of this kind.
    EXCHANGE = "exchange"
    # Under a lock of the lock table: atomics whose result is used, compare-and-swap, elements of 8 and 16 bits, and memory that several
    # kinds of atomics update, or that is also read or written. Also all 64-bit elements where `Capabilities.locks_int64`: plain accesses
    # at the same time may see one new word and one old word.
    LOCK = "lock"
    REFUSE = "refuse"  # 64-bit elements on a device without 64-bit atomics; elements of 8 and 16 bits of shared arrays

    @property
    def loops(self) -> bool:
        """Return whether atomics with this strategy are loops."""
        return self in (Strategy.EXCHANGE, Strategy.LOCK)


def is_native(kind: str, t: DType, caps: Capabilities) -> bool:
    """Return whether the device itself has this atomic."""
    if kind == "mul" or (t.is_float and kind == "exchange"):
        return False
    if t.is_int:
        return t.bits == 32 or (caps.atomic_int64 if t.bits == 64 else caps.atomic_narrow)
    if t.bits == 16:
        return kind == "add" and caps.atomic_f16_add and caps.float16
    if t.bits == 32:
        return caps.atomic_f32_add if kind == "add" else caps.atomic_f32_minmax
    return t.bits == 64 and (caps.atomic_f64_add if kind == "add" else caps.atomic_f64_minmax)


def place(ref: Ref) -> Place:
    """Return the memory behind a reference: by name within its buffer. Arrays of one type count as one, since an array may be passed
    twice."""
    t = storage(ref.dtype).name
    if isinstance(ref, ArrayRef) or (isinstance(ref, BufferRef) and ref.slot.kind == "array"):
        return ("array", t)
    if isinstance(ref, BufferRef):
        return (ref.slot.kind, ref.slot.index, ref.name, t)
    if isinstance(ref, FieldRef):
        return ("tree", ref.tree, ref.name if ref.role == "primal" else f"{ref.name}.{ref.role}", t)
    return ("temps", 0, ref.name, t)


def _exactly(ref: Ref) -> Place:
    """Return `place`, but tell arrays of one type apart."""
    if isinstance(ref, ArrayRef):
        return ("array", ref.arg, ref.role, storage(ref.dtype).name)
    if isinstance(ref, BufferRef) and ref.slot.kind == "array":
        return ("array", ref.slot.index, ref.slot.role, ref.dtype.name)
    return place(ref)


def strategies_of(task: Op | Region, caps: Capabilities) -> dict[Op, Strategy]:
    """Return the strategy of each atomic in ``task``. On devices with compare-and-swap, only atomics under locks have one."""
    strategies: dict[Op, Strategy] = {}
    if caps.atomic_cas and not caps.locks_int64:
        return strategies
    regions = (task,) if isinstance(task, Region) else task.regions
    everything = [op for region in regions for op in region.walk()]
    if caps.atomic_cas:
        return {op: Strategy.LOCK for op in everything for effect, ref in accesses_of(op) if effect == "atomic" and _is_long(ref)}
    used = {a for op in everything for a in op.args}
    groups: dict[Place, list[Op]] = {}
    plain: set[Place] = set()
    for op in everything:
        for effect, ref in accesses_of(op):
            if isinstance(ref, SharedRef):
                if effect == "atomic":
                    # Code generators reject wider ones that do not exist.
                    strategies[op] = Strategy.NATIVE if ref.dtype.bits >= 32 else Strategy.REFUSE
            elif effect == "atomic":
                groups.setdefault(place(ref), []).append(op)
            else:
                plain.add(_exactly(ref))
    for group in groups.values():
        strategies.update(_together(group, {op: _by_itself(op, op in used, caps) for op in group}, plain))
    return strategies


def _is_long(ref: Ref) -> bool:
    return not isinstance(ref, SharedRef) and storage(ref.dtype).bits == 64


def _ref(op: Op) -> Ref:
    ref = ref_of(op)
    assert ref is not None
    return ref


def _by_itself(op: Op, used: bool, caps: Capabilities) -> Strategy:
    """Return the strategy of an atomic on memory that no other operation touches."""
    t = storage(_ref(op).dtype)
    kind = op.attr[0] if op.code is ops.atomic else "add" if op.code is ops.claim else "cas"
    words = t.bits == 32 or (t.bits == 64 and caps.atomic_int64)
    if kind != "cas" and (is_native(kind, t, caps) or (kind == "exchange" and words)):
        return Strategy.NATIVE
    if t.bits == 64 and not words:
        return Strategy.LOCK if caps.locks_int64 else Strategy.REFUSE
    return Strategy.LOCK if kind == "cas" or used or not words else Strategy.EXCHANGE


def _together(group: list[Op], own: dict[Op, Strategy], plain: set[Place]) -> dict[Op, Strategy]:
    """Return the strategies of the atomics of one region of memory. If an atomic is rejected, the others do not matter."""
    distinct = set(own.values())
    if distinct <= {Strategy.NATIVE, Strategy.REFUSE}:
        return own
    pure = (
        distinct == {Strategy.EXCHANGE} and len({op.attr[0] for op in group}) == 1 and not any(_exactly(_ref(op)) in plain for op in group)
    )
    return own if pure else {op: s if s is Strategy.REFUSE else Strategy.LOCK for op, s in own.items()}


# --- of whole kernels --------------------------------------------------------------------------------------------------


def _tasks(kernel: Kernel) -> Iterable[Op | Region]:
    tasks = [op for op in kernel.body.ops if op.code is ops.task]
    return tasks or (kernel.body,)


def _all(kernel: Kernel, caps: Capabilities) -> Iterator[tuple[Op, Strategy]]:
    for task in _tasks(kernel):
        yield from strategies_of(task, caps).items()


def needs_locks(kernel: Kernel, caps: Capabilities) -> bool:
    """Return whether ``kernel`` uses the lock table."""
    return any(strategy is Strategy.LOCK for _, strategy in _all(kernel, caps))


def unfinished(op: Op, caps: Capabilities) -> FaultSite:
    """Return the fault site for drivers that end the loop of ``op`` before the atomic is complete."""
    message = f"this driver ends loops after {caps.loop_limit:,} iterations in one invocation, before an atomic was complete"
    return FaultSite("loop", message, (), op.loc)


def unfinished_sites(kernel: Kernel, caps: Capabilities) -> tuple[FaultSite, ...]:
    """Return the fault sites of `unfinished` that lowering ``kernel`` uses: none for drivers without a limit."""
    if not caps.loop_limit:
        return ()
    return tuple(dict.fromkeys([unfinished(op, caps) for op, strategy in _all(kernel, caps) if strategy.loops]))
