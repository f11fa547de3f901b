"""The steps of operations in the interpreter: one function for each operation that the table of operations does not evaluate."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable

import numpy as np

from spirograd.base.artifact import FAULT_FLAG
from spirograd.base.dtypes import DType, Lanes, Type, i64, scalar_of, storage, u1
from spirograd.ir import interp_lanes, ops
from spirograd.ir.fixed_chunks import fixed_chunk
from spirograd.ir.interp_groups import grouped_loop
from spirograd.ir.interp_loops import LOOPS
from spirograd.ir.interp_memory import AddressSpace
from spirograd.ir.interp_races import label, locate_access, watched_loop
from spirograd.ir.interp_reports import bits, record_fault, record_print
from spirograd.ir.interp_state import FAULT, LAUNCH, PRINT, Compiler, Env, Maker, Step
from spirograd.ir.nodes import AdstackRef, BuiltIn, Op, PrivateCopy, Reduction, Region, TaskAttr, callee_of, ref_of
from spirograd.ir.ops import OpCode

# The number of Python frames that a call may take in the interpreter: one for itself, and one for each block around another call.
_FRAMES_OF_A_CALL = 100
# Python operators that compute the same as the evaluator on two NumPy scalars of one type, faster. A test compares them.
FAST: dict[OpCode, Callable[..., object]] = {
    ops.add: operator.add, ops.sub: operator.sub, ops.mul: operator.mul, ops.div: operator.truediv,
    ops.and_: operator.and_, ops.or_: operator.or_, ops.xor: operator.xor, ops.not_: operator.invert,
    ops.eq: operator.eq, ops.ne: operator.ne, ops.lt: operator.lt, ops.le: operator.le, ops.gt: operator.gt, ops.ge: operator.ge,
    ops.neg: operator.neg, ops.isnan: np.isnan, ops.isinf: np.isinf, ops.sqrt: np.sqrt, ops.floor: np.floor, ops.ceil: np.ceil,
    ops.trunc: np.trunc, ops.round_: np.rint,
}  # fmt: skip


def _evaluation(c: Compiler, op: Op) -> Step:
    """Return the step of a pure operation, which calls its evaluator."""
    t, out, args = op.type, c.entry(op), c.args(op)
    function = FAST.get(op.code)
    if interp_lanes.has_lanes(op):
        return _evaluation_of_lanes(c, op)
    if function is not None:
        return _apply(function, out, args)
    if op.code is ops.cast and isinstance(t, DType) and (t.is_float or _is_wider(t, op.args[0].type)):
        return _apply(t.np.type, out, args)
    evaluate = op.code.evaluate
    if evaluate is None:
        raise ValueError(f"{op.code.name} cannot be interpreted here")
    return _apply(functools.partial(evaluate, t), out, args)


def _evaluation_of_lanes(c: Compiler, op: Op) -> Step:
    """Return the step of a pure operation on lanes."""
    if op.code in FAST:
        return _apply(FAST[op.code], c.entry(op), c.args(op))
    if op.code is ops.extract:
        return interp_lanes.extract_lane(c, op)
    evaluate = op.code.evaluate
    assert evaluate is not None, op
    return interp_lanes.over_lanes(c, op, functools.partial(evaluate, scalar_of(op.type)))


def _is_wider(t: DType, source: Type) -> bool:
    """Return whether every value of ``source`` is a value of the integer type ``t``."""
    return isinstance(source, DType) and t.is_int and not source.is_float and t.min <= source.min and source.max <= t.max


def _apply(function: Callable[..., object], out: int, args: list[int]) -> Step:
    """Return a step that stores the value of ``function`` of ``args``."""
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


def _const(c: Compiler, op: Op) -> None:
    c.entry(op)


def _result(c: Compiler, op: Op) -> Step:
    out, source, k = c.entry(op), c.entry(op.args[0]), op.attr

    def step(env: Env) -> None:
        env[out] = env[source][k]

    return step


def _if(c: Compiler, op: Op) -> Step:
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


def _outlined(c: Compiler, op: Op) -> Step:
    out = c.entry(op)
    _, steps, results = c.region(op.regions[0])

    def step(env: Env) -> None:
        for run in steps:
            run(env)
        env[out] = tuple([env[r] for r in results])

    return step


def _stream(c: Compiler, op: Op) -> Step:
    source, target = (c.view(ref)[0] for ref in op.attr)
    first, count = c.args(op)

    def step(env: Env) -> None:
        start, n = int(env[first]), int(env[count])
        if not 0 <= start <= start + n <= len(env[target]):
            raise IndexError(f"{op} writes {n} elements from {start} on, of {len(env[target])}")
        env[target][start : start + n] = env[source][:n]

    return step


def _loop(c: Compiler, op: Op) -> Step:
    if op.code is ops.for_ and op.attr.grouped:
        return grouped_loop(c, op)
    loop = LOOPS[op.code](c, op, c.region)
    if c.races is not None and op.code is ops.for_ and op.attr.parallel:
        loop = watched_loop(c.races, loop, c.entry(op.regions[0].params[0]))

    def step(env: Env) -> None:
        for steps in loop(env):
            for run in steps:
                run(env)

    return step


def _task(c: Compiler, op: Op) -> Step:
    attr = op.attr
    assert isinstance(attr, TaskAttr) and (attr.kind != "invocations" or attr.group_size == 1), "one invocation is interpreted"
    if attr.kind == "chunks":
        return _chunks(c, op)
    if attr.kind != "range_for":
        _, steps, _ = c.region(op.regions[0])

        def serial(env: Env) -> None:
            for run in steps:
                run(env)

        return serial
    _, bounds, limits = c.region(op.regions[0])
    (index, *accumulators), body, results = c.region(op.regions[1])
    totals, finish, _ = c.region(op.regions[2])
    identities = [r.dtype.np.type(r.start) for r in attr.reductions]
    copies = [_copy(c, copy, flush) for copy, flush in zip(attr.copies, op.regions[3:])]
    if attr.shares > 1:
        raise ValueError("workgroups that share iterations cannot be interpreted")
    t = op.regions[1].params[0].type
    assert isinstance(t, DType)
    convert = t.np.type

    def range_for(env: Env) -> None:
        for run in bounds:
            run(env)
        values: list[object] = identities
        indices = range(int(env[limits[0]]), int(env[limits[1]]))
        for i in indices:
            env[index] = convert(i)
            for s, value in zip(accumulators, values):
                env[s] = value
            for run in body:
                run(env)
            values = [env[s] for s in results]
        for s, value in zip(totals, values):
            env[s] = value
        for run in finish if indices else ():
            run(env)
        for flush in copies:
            flush(env)

    return range_for


def _chunks(c: Compiler, op: Op) -> Step:
    """Return a step that runs a task in `Compiler.chunks` chunks."""
    _, bounds, limits = c.region(op.regions[0])
    uncontended = c.uncontended and len(op.regions) > 2
    c.lane_slots = op.attr.chunks.lanes
    (begin, end), body, _ = c.region(op.regions[2 if uncontended else 1])
    unit, fixed = op.attr.chunks.unit, op.attr.chunks.fixed

    def chunks(env: Env) -> None:
        for run in bounds:
            run(env)
        first, last = (int(env[limit]) // unit for limit in limits[:2])
        size = fixed_chunk(last - first) if fixed else max(-(-(last - first) // c.chunks), 1)
        for start in range(first, last, size):
            env[begin], env[end] = i64.np.type(start), i64.np.type(min(start + size, last))
            for run in body:
                run(env)

    return chunks


def _copy(c: Compiler, copy: PrivateCopy, flush: Region) -> Step:
    """Return a step that updates memory by the changed elements of a copy, and clears them."""
    (number, held), steps, _ = c.region(flush)
    view, t = c.view(copy.shared)[0], copy.shared.dtype
    start = t.np.type(Reduction(copy.kind, t).start)
    c.template[c.views[copy.shared][0]][:] = start

    def update(env: Env) -> None:
        for k in range(copy.shared.length - 1):
            value = env[view][k]
            if bits(t, value) == bits(t, start):
                continue
            env[number], env[held] = np.int32(k), value
            for run in steps:
                run(env)
        env[view][:] = start

    return update


def _block_entry(c: Compiler, op: Op) -> None:
    """Compile arg, shape, address, seed and slot, which are read from the argument block when a run begins."""
    if op.code is ops.slot:
        slot = op.attr
    else:
        keys: dict[OpCode, Callable[[], tuple[str, int, int, str]]] = {
            ops.arg: lambda: ("scalar", op.attr, 0, "primal"),
            ops.shape: lambda: ("shape", *op.attr, "primal"),
            ops.address: lambda: ("tree", op.attr[1], 0, "primal") if op.attr[0] == "tree" else ("array", op.attr[0], 0, op.attr[1]),
            ops.seed: lambda: ("seed", 0, 0, "primal"),
        }
        loaded = c.block.get(keys[op.code]())
        if loaded is None:
            raise ValueError(f"{c.kernel.name}: the argument block has no entry for {op!r}")
        slot = loaded
    t = op.type
    assert isinstance(t, DType)
    entry = storage(slot.dtype or t)  # The entry in the block may be wider than the argument.
    out, offset, convert = c.entry(op), slot.offset, ops.cast.evaluate
    assert convert is not None

    def read(env: Env, block: bytes, memory: AddressSpace) -> None:
        value = np.frombuffer(block[offset : offset + entry.size], entry.np)[0]
        env[out] = value if entry is t else convert(t, value)

    c.prologue.append(read)


def _invocation(c: Compiler, op: Op) -> Step:
    """Return the step of a built-in. One invocation runs here: it has number 0 everywhere, in one workgroup of one subgroup."""
    value = np.int32(op.attr in (BuiltIn.WORKGROUPS, BuiltIn.SUBGROUPS))
    return _apply(lambda: value, c.entry(op), [])


def _adstack_word(c: Compiler, op: Op) -> Step:
    """Return the step of an access to an adstack. Adstacks grow as they are written."""
    return _apply(lambda: np.int32(2**31 - 1), c.entry(op), [])


def _load_adstack(c: Compiler, op: Op) -> Step:
    adstack, out, (iteration, part) = c.adstack(op.attr), c.entry(op), c.args(op)

    def step(env: Env) -> None:
        env[out] = env[adstack][int(env[iteration]), int(env[part])]  # A KeyError is a defect of the compiler: no value was saved there.

    return step


def _store_adstack(c: Compiler, op: Op) -> Step:
    adstack, (iteration, part, value) = c.adstack(op.attr), c.args(op)

    def step(env: Env) -> None:
        env[adstack][int(env[iteration]), int(env[part])] = env[value]

    return step


def _load(c: Compiler, op: Op) -> Step:
    ref = ref_of(op)
    assert ref is not None
    if isinstance(op.type, Lanes):
        return interp_lanes.gather(c, op)
    if isinstance(ref, AdstackRef):
        return _load_adstack(c, op)
    locate, view, out = locate_access(c, op, ref, c.args(op)), c.view(ref)[0], c.entry(op)
    zero, truth = ref.dtype.np.type(0), ref.dtype is u1

    def step(env: Env) -> None:
        n = locate(env)
        env[out] = env[view][n] if n >= 0 else zero

    def step_truth(env: Env) -> None:
        n = locate(env)
        env[out] = np.bool_(env[view][n] != 0) if n >= 0 else zero

    return step_truth if truth else step


def _store(c: Compiler, op: Op) -> Step:
    ref = ref_of(op)
    assert ref is not None
    if isinstance(ref, AdstackRef):
        return _store_adstack(c, op)
    *indices, value = c.args(op)
    locate, view = locate_access(c, op, ref, indices), c.view(ref)[0]

    def step(env: Env) -> None:
        n = locate(env)
        if n >= 0:
            env[view][n] = env[value]

    return step


def _atomic(c: Compiler, op: Op) -> Step:
    kind, ref = op.attr
    *indices, value = c.args(op)
    locate, view, out = locate_access(c, op, ref, indices), c.view(ref)[0], c.entry(op)
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


def _cas(c: Compiler, op: Op) -> Step:
    ref = op.attr
    *indices, expected, desired = c.args(op)
    locate, view, out = locate_access(c, op, ref, indices), c.view(ref)[0], c.entry(op)
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


def _recursive_call(c: Compiler, op: Op) -> Step:
    """Return the step of a call of a function that may be active already: its values are restored afterwards."""
    args, out, name = c.args(op), c.entry(op), callee_of(op)
    assert name is not None

    def step(env: Env) -> None:
        params, steps, results = c.functions[name]
        values, kept = [env[arg] for arg in args], list(env)
        for param, value in zip(params, values):
            env[param] = value
        for inner in steps:
            inner(env)
        returned = tuple([env[r] for r in results])
        env[:] = kept
        env[out] = returned if len(returned) != 1 else returned[0]

    return step


def _call(c: Compiler, op: Op) -> Step:
    name = callee_of(op)
    assert name is not None
    if name in c.recursive:
        return _recursive_call(c, op)
    if isinstance(op.type, Lanes):
        return interp_lanes.call(c, op, c.functions[name])
    params, steps, results = c.functions[name]
    args, out, several = c.args(op), c.entry(op), len(results) != 1

    def step(env: Env) -> None:
        for param, arg in zip(params, args):
            env[param] = env[arg]
        for inner in steps:
            inner(env)
        env[out] = tuple([env[r] for r in results]) if several else env[results[0]]

    return step


def _stack_room(c: Compiler, op: Op) -> Step:
    """Return the step that checks the depth of the stack. It is the stack of Python, and the number of frames of a call depends on the
    nesting of the function."""
    out = c.entry(op)

    def step(env: Env) -> None:
        record = env[FAULT]
        env[out] = np.bool_((record is None or not record[FAULT_FLAG]) and _has_frames(_FRAMES_OF_A_CALL))

    return step


def _has_frames(count: int) -> bool:
    try:
        return count == 0 or _has_frames(count - 1)
    except RecursionError:
        return False


def _barrier(c: Compiler, op: Op) -> None:
    """Emit no step, because the interpreter is one thread and does everything in order."""


def _clock(c: Compiler, op: Op) -> Step:
    """Return the step of a clock that increases by one on each read."""
    out = c.entry(op)

    def step(env: Env) -> None:
        env[out] = np.int64(next(_READINGS))

    return step


def _check(c: Compiler, op: Op) -> Step:
    condition, *operands = c.args(op)
    site = op.attr
    if site not in c.checks:
        c.checks[site] = c.fault(site)
    number = c.checks[site]

    def step(env: Env) -> None:
        if not env[condition]:
            record_fault(env[FAULT], env[LAUNCH], number, site, [env[s] for s in operands])

    return step


def _print(c: Compiler, op: Op) -> Step:
    operands, site = c.args(op), op.attr
    if site not in c.prints:
        raise ValueError(f"{c.kernel.name}: the table of print sites lacks {site}")
    number = c.prints[site]

    def step(env: Env) -> None:
        record_print(env[PRINT], env[LAUNCH], number, site, [env[s] for s in operands])

    return step


_READINGS = itertools.count(1)
_MAKERS: dict[OpCode, Maker] = {
    ops.const: _const, ops.result: _result, ops.if_: _if, **dict.fromkeys(LOOPS, _loop), ops.task: _task,
    ops.outlined: _outlined, ops.stream: _stream,
    ops.arg: _block_entry, ops.shape: _block_entry,
    ops.address: _block_entry, ops.seed: _block_entry, ops.slot: _block_entry, ops.adstack_word: _adstack_word,
    ops.thread_slot: _invocation, ops.builtin: _invocation, ops.claim: _invocation, ops.call: _call, ops.check: _check, ops.print_: _print,
    **interp_lanes.MAKERS, ops.clock: _clock, ops.label: label, ops.stack_room: _stack_room,
    ops.load: _load, ops.store: _store, ops.atomic: _atomic, ops.cas: _cas, ops.call_memory: _call,
    **dict.fromkeys((ops.barrier, ops.workgroup_barrier, ops.subgroup_barrier, ops.subgroup_shuffle), _barrier),
}  # fmt: skip


def maker_of(code: OpCode) -> Maker:
    """Return the function that makes the step of operations with this code."""
    return _MAKERS.get(code, _evaluation)
