"""The state of compiling a kernel for the interpreter: the entry of ``env`` of each value and view of memory, and the sites of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.base.artifact import ArgBlock, FaultSite, PrintSite, Slot
from spirograd.base.dtypes import DType, i64, storage
from spirograd.ir import ops
from spirograd.ir.array_layouts import in_program_order
from spirograd.ir.interp_memory import AddressSpace, array_extents, numbering, resolve
from spirograd.ir.interp_reports import record_fault
from spirograd.ir.nodes import AdstackRef, ArrayRef, BufferRef, FieldRef, Kernel, Op, Ref, Region, SharedRef, TempRef
from spirograd.ir.ops import OpCode

if TYPE_CHECKING:
    from spirograd.ir.interp_races import Races

Env = list[Any]  # values: NumPy scalars, tuples of them, and NumPy arrays with an element for each lane
Step = Callable[[Env], None]


class Values(Mapping[Op, object]):
    """A mapping of the operations that have run to their values: NumPy scalars, and tuples for vectors and for results of control
    operations."""

    def __init__(self, entries: Mapping[Op, int], env: Env) -> None:
        self._entries = entries
        self._env = env

    def __getitem__(self, op: Op) -> object:
        return self._env[self._entries[op]]

    def __iter__(self) -> Iterator[Op]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


OnOp = Callable[[Op, Values], None]

# The first entries of env. A null view stands for a buffer that the block lacks. The entry of the iteration of a parallel loop is set if
# races are detected, and in grouped loops. There ``LOOPS_ENTERED`` has the inner loops that the invocation has entered: the number of each,
# and the number of its regions that have run.
FAULT, PRINT, LAUNCH, VALUES, ITERATION, LOOPS_ENTERED, FIRST = 0, 1, 2, 3, 4, 5, 6


class Compiler:
    """A compiler of one kernel to closures. Every operation has an entry of env, and so has the view of every memory reference.

    ``maker_of``: returns the function that makes the step of an operation with a given code. That function returns None for operations that
    do nothing in a run.
    """

    def __init__(self, kernel: Kernel, block: ArgBlock, temps: Mapping[TempRef, int], maker_of: Callable[[OpCode], Maker]) -> None:
        self.kernel = kernel
        self._maker_of = maker_of
        self.block = {(s.kind, s.index, s.axis, s.role): s for s in block.slots}
        self.temps = temps
        self.entries: dict[Op, int] = {}
        self.template: Env = [None] * FIRST
        self.prologue: list[Callable[[Env, bytes, AddressSpace], None]] = []
        self.views: dict[Ref, tuple[int, int]] = {}
        self.adstacks: dict[AdstackRef, int] = {}
        self.faults: list[FaultSite] = []
        self.checks: dict[FaultSite, int] = {}  # The number of each site that a check reports.
        self.prints: dict[PrintSite, int] = {}
        self.on_op: OnOp | None = None
        self.lanes = 1  # The number of lanes of a subgroup.
        self.lane_slots = 1  # Thread slots of a thread in the current task.
        self.chunks = 1  # The number of chunks of the range of a task.
        self.uncontended = False  # Whether the uncontended variants of tasks run.
        self.order: dict[Op, int] = {}  # Numbers of the operations of a grouped loop in the order of the program.
        self.races: Races | None = None
        self.functions: dict[str, tuple[list[int], list[Step], list[int]]] = {}
        self.recursive = kernel.recursive()

    def new(self, value: object = None) -> int:
        self.template.append(value)
        return len(self.template) - 1

    def entry(self, op: Op) -> int:
        if op not in self.entries:
            self.entries[op] = self.new(op.type.np.type(op.attr) if op.code is ops.const and isinstance(op.type, DType) else None)
        return self.entries[op]

    def args(self, op: Op) -> list[int]:
        return [self.entry(a) for a in op.args]

    def region(self, region: Region) -> tuple[list[int], list[Step], list[int]]:
        """Return the entries of the parameters, the steps, and the entries of the results."""
        params = [self.entry(p) for p in region.params]
        steps = [step for op in region.ops[:-1] if (step := self.step(op)) is not None]
        return params, steps, [self.entry(r) for r in region.results]

    def step(self, op: Op) -> Step | None:
        step = self._maker_of(op.code)(self, op)
        if step is None or self.on_op is None:
            return step
        done: Step = step
        on_op = self.on_op

        def observed(env: Env) -> None:
            done(env)
            on_op(op, env[VALUES])

        return observed

    def fault(self, site: FaultSite) -> int:
        """Return the number of ``site``. Sites of bounds checks are distinct for each access."""
        self.faults.append(site)
        return len(self.faults) - 1

    def buffer(self, kind: str, index: int = 0, role: str = "primal") -> Slot:
        slot = self.block.get((kind, index, 0, role))
        if slot is None:
            raise ValueError(f"{self.kernel.name}: the argument block has no entry for {kind} {index} ({role})")
        return slot

    # Memory references

    def view(self, ref: Ref) -> tuple[int, int]:
        """Return the entries of the typed view and of the extents of ``ref``; both are set when a run begins."""
        if ref not in self.views:
            view, extents = self.new(), self.new()
            self.views[ref] = (view, extents)
            if isinstance(ref, SharedRef):
                self.template[view] = np.zeros(ref.length, ref.dtype.np)
                self.template[extents] = (ref.length,)
                return self.views[ref]
            self.prologue.append(self.opener(ref, view, extents))
        return self.views[ref]

    def opener(self, ref: Ref, view: int, extents: int) -> Callable[[Env, bytes, AddressSpace], None]:
        """Return a function that sets the view and the extents of ``ref``."""
        start = 0
        shape: tuple[int, ...] | None = None
        axes: tuple[Slot | None, ...] = ()
        if isinstance(ref, BufferRef):
            slot = ref.slot
        elif isinstance(ref, FieldRef):
            slot = self.buffer("tree", ref.tree)
            shape = ref.shape + ref.element_shape
        elif isinstance(ref, TempRef):
            slot, start, shape = self.buffer("temps"), self.temps[ref], ref.shape
        else:
            assert isinstance(ref, ArrayRef), ref
            slot = self.buffer("array", ref.arg, ref.role)
            axes = tuple([self.block.get(("shape", ref.arg, k, "primal")) for k in range(ref.ndim)])
            if any(axis is None for axis in axes[1:]):
                raise ValueError(f"{self.kernel.name}: the argument block lacks extents of array {ref.name}")
        dtype = storage(ref.dtype)

        def open_view(env: Env, block: bytes, memory: AddressSpace) -> None:
            raw = resolve(memory, block, slot)[start:]
            typed = raw[: len(raw) // dtype.size * dtype.size].view(dtype.np)
            env[view] = typed
            if isinstance(ref, ArrayRef):
                env[extents] = array_extents(ref, axes, block, len(typed))
            else:
                env[extents] = (len(typed),) if shape is None else shape

        return open_view

    def adstack(self, ref: AdstackRef) -> int:
        """Return the entry of the contents of an adstack, a dictionary. Iterations run one after the other here, so one dictionary serves
        all of them."""
        if ref not in self.adstacks:
            entry = self.adstacks[ref] = self.new()

            def clear(env: Env, block: bytes, memory: AddressSpace) -> None:
                env[entry] = {}

            self.prologue.append(clear)
        return self.adstacks[ref]

    def locate(self, op: Op, ref: Ref, indices: list[int]) -> Callable[[Env], int]:
        """Return a function that computes the number of the element that ``op`` accesses. It returns -1 and records a fault if the index is
        out of range."""
        view, extents = self.view(ref)
        number, origin = numbering(ref, len(indices))
        order = in_program_order(ref.layout if isinstance(ref, ArrayRef) else (), range(len(indices)))
        text = ", ".join([f"{{{k}}}" for k in order])
        sizes = ", ".join([f"{{{k + len(indices)}}}" for k in order])
        site = FaultSite("bounds", f"index ({text}) is out of range of {ref.name} of shape ({sizes})", (i64,) * (2 * len(indices)), op.loc)
        fault = self.fault(site)

        def out_of_range(env: Env) -> int:
            record_fault(env[FAULT], env[LAUNCH], fault, site, [np.int64(x) for x in (*[env[s] for s in indices], *env[extents])])
            return -1

        if len(indices) == 1 and number is None and not any(origin):
            only = indices[0]

            def locate_flat(env: Env) -> int:
                i = int(env[only])
                if not (0 <= i < env[extents][0] and i < len(env[view])):
                    return out_of_range(env)
                return i

            return locate_flat

        def locate(env: Env) -> int:
            sizes = env[extents]
            index = [int(env[s]) - o for s, o in zip(indices, origin)]
            for i, n in zip(index, sizes):
                if not 0 <= i < n:
                    return out_of_range(env)
            if number is not None:
                element = number(index)
            else:
                element = 0
                for i, n in zip(index, sizes):
                    element = element * n + i
            return element if element < len(env[view]) else out_of_range(env)

        return locate


Maker = Callable[[Compiler, Op], Step | None]
