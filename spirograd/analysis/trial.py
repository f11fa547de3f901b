"""Trial runs of a kernel on NumPy arrays through the reference interpreter, for tests of passes and for inspection."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from spirograd.analysis.sites import collect_sites
from spirograd.analysis.temps import temp_offsets
from spirograd.base import artifact
from spirograd.base.arrays import Array
from spirograd.base.artifact import ArgBlock, FaultSite, PrintSite, Slot
from spirograd.base.dtypes import DType, storage
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.interp import compile_for_run
from spirograd.ir.interp_state import OnOp
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, ScalarArg, ref_of

_GAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: returned scalars; the first fault (site, operands), if any; prints (site, values) in order."""

    returns: tuple[object, ...]
    fault: tuple[FaultSite, tuple[object, ...]] | None
    prints: tuple[tuple[PrintSite, tuple[object, ...]], ...]


class HostMemory:
    """A memory of NumPy arrays at artificial addresses that lie 4 GiB apart."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def add(self, array: Array) -> int:
        """Add a contiguous array, which the kernel accesses in place. Return its address."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("a kernel needs contiguous, writable arrays")
        self._arrays.append(array.reshape(-1).view(np.uint8))
        return len(self._arrays) * _GAP

    def resolve(self, address: int) -> Array:
        k = address // _GAP
        if not 1 <= k <= len(self._arrays):
            raise LookupError(f"no array at {address:#x}")
        return self._arrays[k - 1][address % _GAP :]


def plain_block(kernel: Kernel) -> ArgBlock:
    """Return an argument block for kernel IR with every entry that a run can need: buffers first, then scalars and extents, 8 bytes
    each."""
    entries: dict[Slot, None] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef):
            entries.setdefault(Slot("tree", index=ref.tree))
        elif isinstance(ref, ArrayRef):
            entries.setdefault(Slot("array", index=ref.arg, role=ref.role))
        elif op.code is ops.seed:
            entries.setdefault(Slot("seed"))
    entries.update(dict.fromkeys((Slot("temps"), Slot("fault"), Slot("print"), Slot("launch"))))
    for k, argument in enumerate(kernel.args):
        if isinstance(argument, ScalarArg):
            entries.setdefault(Slot("scalar", index=k, dtype=argument.dtype))
        else:
            entries.update(dict.fromkeys([Slot("shape", index=k, axis=axis) for axis in range(argument.ndim)]))
    slots = tuple([Slot(s.kind, s.index, s.axis, s.role, s.dtype, 8 * at) for at, s in enumerate(entries)])
    return ArgBlock(slots, f"<{8 * len(slots)}s", 8 * len(slots))


def _array(argument: Array | float) -> Array:
    assert isinstance(argument, np.ndarray), argument
    return argument


def _scalar_bytes(value: object, dtype: DType) -> bytes:
    return bytes(np.asarray(value).astype(storage(dtype).np).tobytes())


class _Packing:
    """The memory of one run, and the contents of its argument block."""

    def __init__(
        self, kernel: Kernel, args: Sequence[Array | float], trees: Mapping[int, Array], grads: Mapping[tuple[int, str], Array], seed: int
    ) -> None:
        self.kernel, self.args, self.trees, self.grads, self.seed = kernel, args, trees, grads, seed
        self.memory = HostMemory()
        self.offsets, size = temp_offsets(kernel)
        self.temps = np.zeros(max(size, 8), np.uint8)
        self.fault = np.zeros(artifact.FAULT_WORDS, np.uint32)
        self.ring = np.zeros(artifact.PRINT_WORDS, np.uint32)
        self.locks = np.zeros(artifact.LOCK_WORDS, np.uint32)
        self.ring[artifact.PRINT_CAPACITY] = artifact.PRINT_WORDS - artifact.PRINT_DATA

    def entry(self, slot: Slot) -> bytes:
        """Return the bytes of one entry of the block."""
        buffers: dict[str, Array] = {"temps": self.temps, "fault": self.fault, "print": self.ring, "locks": self.locks}
        own = buffers.get(slot.kind)
        if own is not None:
            return struct.pack("<Q", self.memory.add(own))
        if slot.kind == "tree":
            return struct.pack("<Q", self.memory.add(self.trees[slot.index]))
        if slot.kind == "array":
            array = _array(self.args[slot.index]) if slot.role == "primal" else self.grads.get((slot.index, slot.role))
            return struct.pack("<Q", 0 if array is None else self.memory.add(array))
        if slot.kind == "shape":
            return struct.pack("<i", _array(self.args[slot.index]).shape[slot.axis])
        if slot.kind == "scalar":
            argument = self.kernel.args[slot.index]
            return _scalar_bytes(self.args[slot.index], slot.dtype or argument.dtype)
        return struct.pack("<I", self.seed if slot.kind == "seed" else 0)

    def pack(self, block: ArgBlock) -> bytes:
        data = bytearray(block.size)
        for slot in block.slots:
            content = self.entry(slot)
            data[slot.offset : slot.offset + len(content)] = content
        return bytes(data)


def _decoded(words: object, dtypes: Sequence[DType]) -> tuple[object, ...]:
    """Return values from pairs of words."""
    raw = np.ascontiguousarray(words, np.uint32).tobytes()
    return tuple([np.frombuffer(raw[8 * k : 8 * k + t.size], storage(t).np)[0].item() for k, t in enumerate(dtypes)])


def _prints(
    ring: np.ndarray[tuple[int], np.dtype[np.uint32]], sites: Sequence[PrintSite]
) -> tuple[tuple[PrintSite, tuple[object, ...]], ...]:
    out = []
    at, end = artifact.PRINT_DATA, artifact.PRINT_DATA + min(int(ring[artifact.PRINT_CURSOR]), int(ring[artifact.PRINT_CAPACITY]))
    while at < end:
        site = sites[int(ring[at])]
        n = 2 * len(site.dtypes)
        if at + 2 + n > end:  # The record did not fit into the ring.
            break
        out.append((site, _decoded(ring[at + 2 : at + 2 + n], site.dtypes)))
        at += 2 + n
    return tuple(out)


def run(
    kernel: Kernel,
    args: Sequence[Array | float] = (),
    trees: Mapping[int, Array] | None = None,
    *,
    grads: Mapping[tuple[int, str], Array] | None = None,
    source: Kernel | None = None,
    block: ArgBlock | None = None,
    sites: tuple[tuple[FaultSite, ...], tuple[PrintSite, ...]] | None = None,
    seed: int = 0,
    on_op: OnOp | None = None,
    chunks: int = 1,
    uncontended: bool = False,
) -> Outcome:
    """Run ``kernel`` once. ``args``: one scalar or array for each argument (a NumPy array is accessed in place); ``trees``: the memory of
    each field tree, as any contiguous array; ``grads``: arrays for ``(argument, role)``.

    For device IR pass ``source``, the kernel IR that it was lowered from (temporaries and return values are laid out by it), the ``block``
    of its layout, and ``sites`` if its diagnostics are already plain memory operations. ``chunks``, ``uncontended``: see `compile_for_run`.
    Raises ValueError if an array does not fit.
    """
    origin = source or kernel
    for argument, given in zip(origin.args, args):
        if not isinstance(argument, ArrayArg):
            continue
        value = _array(given)
        axes = argument.ndim + len(argument.element_shape)
        if value.dtype not in (argument.dtype.np, storage(argument.dtype).np) or value.ndim != axes:
            raise ValueError(f"array {argument.name} is {value.dtype} with {value.ndim} axes, which does not fit {argument}")
    layout = block or plain_block(origin)
    faults, prints = sites or collect_sites(origin)
    packing = _Packing(origin, args, trees or {}, grads or {}, seed)
    program = compile_for_run(kernel, layout, packing.offsets, faults, prints, on_op, chunks=chunks, uncontended=uncontended)
    program.run(packing.pack(layout), packing.memory)
    fault = None
    if packing.fault[artifact.FAULT_FLAG]:
        site = program.faults[int(packing.fault[artifact.FAULT_SITE])]
        fault = (site, _decoded(packing.fault[artifact.FAULT_OPERANDS :], site.dtypes[: artifact.FAULT_MAX_OPERANDS]))
    returned = []
    for ref in origin.returns:
        at, t = packing.offsets[ref], storage(ref.dtype)
        returned.append(ref.dtype(packing.temps[at : at + t.size].view(t.np)[0]))
    return Outcome(tuple(returned), fault, _prints(packing.ring, prints))
