"""The adstacks of a kernel by number: the task that owns each one, and where that task reads its sizes."""

from __future__ import annotations

from spirograd.base.adstack_layout import AdstackWord
from spirograd.base.artifact import AdstackInfo
from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, ArrayArg, ArrayRef, Kernel, Op, TempRef
from spirograd.ir.temp_kinds import TempKind

# The array argument (i32) with the capacities of adstacks by number, of kernels that compute or read them on the device.
SIZES = ArrayArg("%sizes", i32, 1)


def adstacks_of(kernel: Kernel, slots_by_thread: bool = False) -> dict[AdstackRef, AdstackInfo]:
    """Return the adstacks of ``kernel``, a list of tasks, in order of first appearance. The position of an adstack is its number.
    ``slots_by_thread``: whether the threads of a group share a thread slot, as on the CPU."""
    infos: dict[AdstackRef, AdstackInfo] = {}
    for task in kernel.body.ops:
        if task.code is not ops.task:
            continue
        if not any(isinstance(ref, AdstackRef) for region in task.regions for _, ref in region.accesses):
            continue
        owner = None if task.attr.kind == "serial" else task.attr.name
        threads = task.attr.group_size if task.attr.grouped and slots_by_thread else 1
        used = [op for region in task.regions for op in region.walk() if op.code is ops.claim or isinstance(op.attr, AdstackRef)]
        claimed = {guard_of(op) for op in used if op.code is ops.claim}
        for op in used:
            ref = op.attr
            if isinstance(ref, AdstackRef) and ref not in infos:
                infos[ref] = AdstackInfo(ref.name, ref.dtype, ref.width, ref.capacity, owner, ref.slots, ref.slots in claimed, threads)
    return infos


def counter(guard: int) -> TempRef:
    """Return the ticket counter from which a task claims thread slots. ``guard``: `AdstackInfo.slots`."""
    return TempRef(f"claims{guard}", i32, kind=TempKind.CLAIMS, number=guard)


def guard_of(claim: Op) -> int:
    """Return the number of the size that is the guard count of ``claim``, the number of iterations that pass its guard."""
    return int(claim.attr.number)


def sizes_of(kernel: Kernel) -> ArrayRef | None:
    """Return the argument `SIZES` of ``kernel``, or None if it has none: then the host knows the sizes."""
    return next((ArrayRef(a.name, k, i32, 1) for k, a in enumerate(kernel.args) if a == SIZES), None)


def checked_capacities(kernel: Kernel) -> frozenset[int]:
    """Return the numbers of the capacities that loops of ``kernel`` may exceed, as far as the compiler can tell. The kernel checks
    these."""
    words = [op.attr for op in kernel.walk() if op.code is ops.adstack_word] if ops.adstack_word in kernel.codes else []
    return frozenset([number for kind, number in words if kind == AdstackWord.CAPACITY])


def word(kind: AdstackWord, number: int) -> TempRef:
    """Return the temporary that holds a word of an adstack, or the number of thread slots of a task."""
    return TempRef(f"{kind}{number}", i32, kind=TempKind(kind), number=number)


def is_placed(kernel: Kernel) -> bool:
    """Return whether ``kernel``, a list of tasks, places its adstacks itself."""
    return any(op.code is ops.task and op.attr.places for op in kernel.body.ops)
