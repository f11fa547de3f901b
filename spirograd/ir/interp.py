"""The reference interpreter: runs IR of either level on NumPy scalars, by the evaluators of the op table.

A kernel is compiled once into Python closures, one per operation, that work on a list of values (``env``); running it is calling them in
order. Memory is reached only through ``memory.resolve(address)``, and every index is checked: what is out of range is recorded in the fault
record as a ``bounds`` fault, reads as zero, and is not written.

To step through a kernel, pass ``on_op``: it is called after each operation with the operation and a `Values`, which gives the value of
every operation that has run (``values[op]``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.base.artifact import ArgBlock, FaultSite, PrintSite, Slot
from spirograd.base.dtypes import DType, i64, storage, u1, u32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.interp_memory import Memory, array_extents, numbering, resolve
from spirograd.ir.interp_reports import bits, record_fault, record_print
from spirograd.ir.nodes import ArrayRef, BufferRef, BuiltIn, FieldRef, Kernel, Op, Ref, Region, TapeRef, TaskAttr, TempRef, ref_of
from spirograd.ir.ops import OpCode

Env = list[Any]
Step = Callable[[Env], None]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A kernel ready to run. ``faults`` holds the sites handed in, then one ``bounds`` site per memory access.

    ``run(block, memory)`` runs the whole kernel once with an argument block (``block.size`` bytes).
    """

    run: Callable[[bytes | bytearray, Memory], None]
    faults: tuple[FaultSite, ...]


class Values(Mapping[Op, Any]):
    """The values of the operations that have run: NumPy scalars, tuples for vectors and for the results of control operations."""

    def __init__(self, entries: Mapping[Op, int], env: Env) -> None:
        self._entries = entries
        self._env = env

    def __getitem__(self, op: Op) -> Any:
        return self._env[self._entries[op]]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


OnOp = Callable[[Op, Values], None]

# Operators of Python that do on two NumPy scalars of one type what the evaluator does, faster. A test compares them.
FAST: dict[OpCode, Callable[..., Any]] = {
    ops.add: operator.add, ops.sub: operator.sub, ops.mul: operator.mul, ops.div: operator.truediv,
    ops.and_: operator.and_, ops.or_: operator.or_, ops.xor: operator.xor, ops.not_: operator.invert,
    ops.eq: operator.eq, ops.ne: operator.ne, ops.lt: operator.lt, ops.le: operator.le, ops.gt: operator.gt, ops.ge: operator.ge,
    ops.neg: operator.neg, ops.isnan: np.isnan, ops.isinf: np.isinf, ops.sqrt: np.sqrt, ops.floor: np.floor, ops.ceil: np.ceil,
    ops.trunc: np.trunc, ops.round_: np.rint,
}  # fmt: skip

# The first entries of env; a null view stands for a buffer that the block lacks.
_FAULT, _PRINT, _LAUNCH, _VALUES, _FIRST = 0, 1, 2, 3, 4


class _Compiler:
    """Turns one kernel into closures. Every operation gets an entry of env; so does the view of every memory reference."""

    def __init__(self, kernel: Kernel, block: ArgBlock, temps: Mapping[TempRef, int]) -> None:
        self.kernel = kernel
        self.block = {(s.kind, s.index, s.axis, s.role): s for s in block.slots}
        self.temps = temps
        self.entries: dict[Op, int] = {}
        self.template: Env = [None] * _FIRST
        self.prologue: list[Callable[[Env, bytes, Memory], None]] = []
        self.views: dict[Ref, tuple[int, int]] = {}
        self.tapes: dict[TapeRef, int] = {}
        self.faults: list[FaultSite] = []
        self.checks: dict[FaultSite, int] = {}  # the number of each site that a check reports
        self.prints: dict[PrintSite, int] = {}
        self.on_op: OnOp | None = None
        self.functions: dict[str, tuple[list[int], list[Step], list[int]]] = {}

    def new(self, value: Any = None) -> int:
        self.template.append(value)
        return len(self.template) - 1

    def entry(self, op: Op) -> int:
        if op not in self.entries:
            self.entries[op] = self.new(op.type.np.type(op.attr) if op.code is ops.const and isinstance(op.type, DType) else None)
        return self.entries[op]

    def args(self, op: Op) -> list[int]:
        return [self.entry(a) for a in op.args]

    def region(self, region: Region) -> tuple[list[int], list[Step], list[int]]:
        """Entries of the parameters, steps, entries of the results."""
        params = [self.entry(p) for p in region.params]
        steps = [step for op in region.ops[:-1] if (step := self.step(op)) is not None]
        return params, steps, [self.entry(r) for r in region.results]

    def step(self, op: Op) -> Step | None:
        maker = _MAKERS.get(op.code, _evaluation)
        step = maker(self, op)
        if step is None or self.on_op is None:
            return step
        done: Step = step
        on_op = self.on_op

        def observed(env: Env) -> None:
            done(env)
            on_op(op, env[_VALUES])

        return observed

    def fault(self, site: FaultSite) -> int:
        """A number for ``site``; bounds sites are told apart by the access, so each gets its own."""
        self.faults.append(site)
        return len(self.faults) - 1

    def buffer(self, kind: str, index: int = 0, role: str = "primal") -> Slot:
        found = self.block.get((kind, index, 0, role))
        if found is None:
            raise ValueError(f"{self.kernel.name}: the argument block has no entry for {kind} {index} ({role})")
        return found

    # Memory references

    def view(self, ref: Ref) -> tuple[int, int]:
        """The entries of the typed view and of the extents of ``ref``; both are set when a run begins."""
        if ref not in self.views:
            view, extents = self.new(), self.new()
            self.views[ref] = (view, extents)
            self.prologue.append(self.opener(ref, view, extents))
        return self.views[ref]

    def opener(self, ref: Ref, view: int, extents: int) -> Callable[[Env, bytes, Memory], None]:
        """Sets the view and the extents of ``ref``."""
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

        def open_view(env: Env, block: bytes, memory: Memory) -> None:
            raw = resolve(memory, block, slot)[start:]
            typed = raw[: len(raw) // dtype.size * dtype.size].view(dtype.np)
            env[view] = typed
            if isinstance(ref, ArrayRef):
                env[extents] = array_extents(ref, axes, block, len(typed))
            else:
                env[extents] = (len(typed),) if shape is None else shape

        return open_view

    def tape(self, ref: TapeRef) -> int:
        """The entry of what a tape holds: a dictionary. Iterations run one after the other here, so one dictionary serves all of them."""
        if ref not in self.tapes:
            entry = self.tapes[ref] = self.new()

            def clear(env: Env, block: bytes, memory: Memory) -> None:
                env[entry] = {}

            self.prologue.append(clear)
        return self.tapes[ref]

    def locate(self, op: Op, ref: Ref, indices: list[int]) -> Callable[[Env], int]:
        """A function that gives the element that ``op`` accesses; -1, and a fault on record, if it is out of range."""
        view, extents = self.view(ref)
        number, origin = numbering(ref, len(indices))
        text = ", ".join([f"{{{k}}}" for k in range(len(indices))])
        sizes = ", ".join([f"{{{k + len(indices)}}}" for k in range(len(indices))])
        site = FaultSite("bounds", f"index ({text}) is out of range of {ref.name} of shape ({sizes})", (i64,) * (2 * len(indices)), op.loc)
        fault = self.fault(site)

        def out_of_range(env: Env) -> int:
            record_fault(env[_FAULT], env[_LAUNCH], fault, site, [np.int64(x) for x in (*[env[s] for s in indices], *env[extents])])
            return -1

        if len(indices) == 1 and number is None and not any(origin):
            only = indices[0]

            def locate_flat(env: Env) -> int:
                i = int(env[only])
                return i if 0 <= i < env[extents][0] and i < len(env[view]) else out_of_range(env)

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


# --- makers of steps: one per operation that is not evaluated by the table ------------------------------------------------


def _evaluation(c: _Compiler, op: Op) -> Step:
    """A pure operation, by its evaluator."""
    t, out, args = op.type, c.entry(op), c.args(op)
    function = FAST.get(op.code)
    if function is not None:
        return _apply(function, out, args)
    if op.code is ops.cast and isinstance(t, DType) and t.is_float:
        return _apply(t.np.type, out, args)
    evaluate = op.code.evaluate
    if evaluate is None:
        raise ValueError(f"{op.code.name} cannot be interpreted here")
    return _apply(lambda *values: evaluate(t, *values), out, args)


def _apply(function: Callable[..., Any], out: int, args: list[int]) -> Step:
    """Store the value of ``function`` of ``args``."""
    if len(args) == 1:
        (a,) = args

        def unary(env: Env) -> None:
            env[out] = function(env[a])

        return unary
    if len(args) == 2:
        a, b = args

        def binary(env: Env) -> None:
            env[out] = function(env[a], env[b])

        return binary

    def call(env: Env) -> None:
        env[out] = function(*[env[a] for a in args])

    return call


def _const(c: _Compiler, op: Op) -> None:
    c.entry(op)


def _result(c: _Compiler, op: Op) -> Step:
    out, source, k = c.entry(op), c.entry(op.args[0]), op.attr

    def step(env: Env) -> None:
        env[out] = env[source][k]

    return step


def _if(c: _Compiler, op: Op) -> Step:
    out, condition = c.entry(op), c.entry(op.args[0])
    _, then, then_results = c.region(op.regions[0])
    _, orelse, orelse_results = c.region(op.regions[1])

    def step(env: Env) -> None:
        if env[condition]:
            for s in then:
                s(env)
            env[out] = tuple([env[r] for r in then_results])
        else:
            for s in orelse:
                s(env)
            env[out] = tuple([env[r] for r in orelse_results])

    return step


def _for(c: _Compiler, op: Op) -> Step:
    out, begin, end, *initial = [c.entry(op), *c.args(op)]
    (index, *carried), steps, results = c.region(op.regions[0])
    t = op.args[0].type
    assert isinstance(t, DType)
    convert = t.np.type

    def step(env: Env) -> None:
        values = [env[s] for s in initial]
        for i in range(int(env[begin]), int(env[end])):
            env[index] = convert(i)
            for s, value in zip(carried, values):
                env[s] = value
            for run in steps:
                run(env)
            values = [env[s] for s in results]
        env[out] = tuple(values)

    return step


def _while(c: _Compiler, op: Op) -> Step:
    out, initial = c.entry(op), c.args(op)
    tested, condition, (verdict,) = c.region(op.regions[0])
    carried, steps, results = c.region(op.regions[1])

    def step(env: Env) -> None:
        values = [env[s] for s in initial]
        while True:
            for s, value in zip(tested, values):
                env[s] = value
            for run in condition:
                run(env)
            if not env[verdict]:
                break
            for s, value in zip(carried, values):
                env[s] = value
            for run in steps:
                run(env)
            values = [env[s] for s in results]
        env[out] = tuple(values)

    return step


def _task(c: _Compiler, op: Op) -> Step:
    attr = op.attr
    assert isinstance(attr, TaskAttr) and (attr.kind != "invocations" or attr.group_size == 1), "one invocation is interpreted"
    if attr.kind != "range_for":
        _, steps, _ = c.region(op.regions[0])

        def serial(env: Env) -> None:
            for run in steps:
                run(env)

        return serial
    _, bounds, limits = c.region(op.regions[0])
    (index, *accumulators), body, results = c.region(op.regions[1])
    totals, finish, _ = c.region(op.regions[2])
    identities = [r.dtype.np.type(ops.identity(r.kind, r.dtype)) for r in attr.reductions]
    t = op.regions[1].params[0].type
    assert isinstance(t, DType)
    convert = t.np.type

    def range_for(env: Env) -> None:
        for run in bounds:
            run(env)
        values: list[Any] = identities
        for i in range(int(env[limits[0]]), int(env[limits[1]])):
            env[index] = convert(i)
            for s, value in zip(accumulators, values):
                env[s] = value
            for run in body:
                run(env)
            values = [env[s] for s in results]
        for s, value in zip(totals, values):
            env[s] = value
        for run in finish:
            run(env)

    return range_for


def _block_entry(c: _Compiler, op: Op) -> None:
    """arg, shape, address, seed and slot: read from the argument block when a run begins."""
    if op.code is ops.slot:
        slot = op.attr
    else:
        keys: dict[Any, Callable[[], tuple[Any, ...]]] = {
            ops.arg: lambda: ("scalar", op.attr, 0, "primal"),
            ops.shape: lambda: ("shape", *op.attr, "primal"),
            ops.address: lambda: ("array", op.attr[0], 0, op.attr[1]),
            ops.seed: lambda: ("seed", 0, 0, "primal"),
        }
        found = c.block.get(keys[op.code]())
        if found is None:
            raise ValueError(f"{c.kernel.name}: the argument block has no entry for {op!r}")
        slot = found
    t = op.type
    assert isinstance(t, DType)
    entry = storage(slot.dtype or t)  # what the block holds may be wider than the argument
    out, offset, convert = c.entry(op), slot.offset, ops.cast.evaluate
    assert convert is not None

    def read(env: Env, block: bytes, memory: Memory) -> None:
        value = np.frombuffer(block[offset : offset + entry.size], entry.np)[0]
        env[out] = value if entry is t else convert(t, value)

    c.prologue.append(read)


def _invocation(c: _Compiler, op: Op) -> Step:
    """One invocation runs here, number 0 everywhere, in one workgroup of one subgroup."""
    value = np.int32(op.attr in (BuiltIn.WORKGROUPS, BuiltIn.SUBGROUPS))
    return _apply(lambda: value, c.entry(op), [])


def _tape_word(c: _Compiler, op: Op) -> Step:
    """Tapes grow as they are written here."""
    return _apply(lambda: np.int32(2**31 - 1), c.entry(op), [])


def _load_tape(c: _Compiler, op: Op) -> Step:
    tape, out, (iteration, part) = c.tape(op.attr), c.entry(op), c.args(op)

    def step(env: Env) -> None:
        env[out] = env[tape][int(env[iteration]), int(env[part])]  # a KeyError is a defect of the compiler: nothing was saved there

    return step


def _store_tape(c: _Compiler, op: Op) -> Step:
    tape, (iteration, part, value) = c.tape(op.attr), c.args(op)

    def step(env: Env) -> None:
        env[tape][int(env[iteration]), int(env[part])] = env[value]

    return step


def _load(c: _Compiler, op: Op) -> Step:
    ref = ref_of(op)
    assert ref is not None
    if isinstance(ref, TapeRef):
        return _load_tape(c, op)
    locate, view, out = c.locate(op, ref, c.args(op)), c.view(ref)[0], c.entry(op)
    zero, truth = ref.dtype.np.type(0), ref.dtype is u1

    def step(env: Env) -> None:
        n = locate(env)
        env[out] = env[view][n] if n >= 0 else zero

    def step_truth(env: Env) -> None:
        n = locate(env)
        env[out] = np.bool_(env[view][n] != 0) if n >= 0 else zero

    return step_truth if truth else step


def _store(c: _Compiler, op: Op) -> Step:
    ref = ref_of(op)
    assert ref is not None
    if isinstance(ref, TapeRef):
        return _store_tape(c, op)
    *indices, value = c.args(op)
    locate, view = c.locate(op, ref, indices), c.view(ref)[0]

    def step(env: Env) -> None:
        n = locate(env)
        if n >= 0:
            env[view][n] = env[value]

    return step


def _atomic(c: _Compiler, op: Op) -> Step:
    kind, ref = op.attr
    *indices, value = c.args(op)
    locate, view, out = c.locate(op, ref, indices), c.view(ref)[0], c.entry(op)
    t, convert = ref.dtype, ref.dtype.np.type
    combine = ops.COMBINE[kind].evaluate if kind != "exchange" else lambda t, old, new: new
    assert combine is not None

    def step(env: Env) -> None:
        n = locate(env)
        if n < 0:
            env[out] = t.np.type(0)
            return
        old = convert(env[view][n])
        env[out] = old
        env[view][n] = combine(t, old, env[value])

    return step


def _cas(c: _Compiler, op: Op) -> Step:
    ref = op.attr
    *indices, expected, desired = c.args(op)
    locate, view, out = c.locate(op, ref, indices), c.view(ref)[0], c.entry(op)
    t, convert = ref.dtype, ref.dtype.np.type

    def step(env: Env) -> None:
        n = locate(env)
        if n < 0:
            env[out] = t.np.type(0)
            return
        old = convert(env[view][n])
        env[out] = old
        if bits(t, old) == bits(t, env[expected]):
            env[view][n] = env[desired]

    return step


def _call(c: _Compiler, op: Op) -> Step:
    params, steps, results = c.functions[op.attr if op.code is ops.call else op.attr.name]
    args, out, several = c.args(op), c.entry(op), len(results) != 1

    def step(env: Env) -> None:
        for param, arg in zip(params, args):
            env[param] = env[arg]
        for inner in steps:
            inner(env)
        env[out] = tuple([env[r] for r in results]) if several else env[results[0]]

    return step


def _barrier(c: _Compiler, op: Op) -> None:
    """Nothing: the interpreter is one thread, and does everything in order."""


def _check(c: _Compiler, op: Op) -> Step:
    condition, *operands = c.args(op)
    site = op.attr
    if site not in c.checks:
        c.checks[site] = c.fault(site)
    number = c.checks[site]

    def step(env: Env) -> None:
        if not env[condition]:
            record_fault(env[_FAULT], env[_LAUNCH], number, site, [env[s] for s in operands])

    return step


def _print(c: _Compiler, op: Op) -> Step:
    operands, site = c.args(op), op.attr
    if site not in c.prints:
        raise ValueError(f"{c.kernel.name}: the table of print sites lacks {site}")
    number = c.prints[site]

    def step(env: Env) -> None:
        record_print(env[_PRINT], env[_LAUNCH], number, site, [env[s] for s in operands])

    return step


_MAKERS: dict[OpCode, Callable[[_Compiler, Op], Step | None]] = {
    ops.const: _const, ops.result: _result, ops.if_: _if, ops.for_: _for, ops.while_: _while, ops.task: _task,
    ops.arg: _block_entry, ops.shape: _block_entry,
    ops.address: _block_entry, ops.seed: _block_entry, ops.slot: _block_entry, ops.tape_word: _tape_word,
    ops.thread_slot: _invocation, ops.builtin: _invocation, ops.claim: _invocation, ops.call: _call, ops.check: _check, ops.print_: _print,
    ops.load: _load, ops.store: _store, ops.atomic: _atomic, ops.cas: _cas, ops.call_memory: _call,
    **dict.fromkeys((ops.barrier, ops.workgroup_barrier, ops.subgroup_reduce, ops.subgroup_shuffle), _barrier),
}  # fmt: skip


def compile_for_run(
    kernel: Kernel,
    block: ArgBlock,
    temps: Mapping[TempRef, int],
    faults: Sequence[FaultSite] = (),
    prints: Sequence[PrintSite] = (),
    on_op: OnOp | None = None,
) -> Program:
    """Prepare ``kernel``, of any level, for running with argument blocks of the layout ``block``.

    ``temps``: byte offset of each temporary (analysis.temps); ``faults``, ``prints``: the numbered sites (analysis.sites). The block should
    have a ``fault`` entry: without one a fault raises SpirogradAssertionError at once. Raises ValueError if the block lacks another entry
    that the kernel needs. ``on_op(op, values)`` is called after each operation but constants and arguments.
    """
    c = _Compiler(kernel, block, temps)
    c.faults, c.on_op = list(faults), on_op
    c.checks = {site: k for k, site in enumerate(faults)}
    c.prints = {site: k for k, site in enumerate(prints)}
    for function in kernel.functions:
        c.functions[function.name] = c.region(function.body)
    _, steps, _ = c.region(kernel.body)
    special = {kind: c.block.get((kind, 0, 0, "primal")) for kind in ("fault", "print", "launch")}

    def run(block: bytes | bytearray, memory: Memory) -> None:
        data = bytes(block)
        env = list(c.template)
        env[_VALUES] = None if on_op is None else Values(c.entries, env)  # it refers to them: memory would stay until the collector comes
        for entry, kind in ((_FAULT, "fault"), (_PRINT, "print")):
            slot = special[kind]
            raw = resolve(memory, data, slot) if slot is not None else ()
            env[entry] = raw[: len(raw) // 4 * 4].view(u32.np) if isinstance(raw, np.ndarray) and len(raw) else None
        launch = special["launch"]
        env[_LAUNCH] = int.from_bytes(data[launch.offset : launch.offset + 4], "little") if launch is not None else 0
        with np.errstate(all="ignore"):
            for prepare in c.prologue:
                prepare(env, data, memory)
            for step in steps:
                step(env)

    return Program(run, tuple(c.faults))
