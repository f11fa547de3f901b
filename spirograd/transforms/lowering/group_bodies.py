"""The bodies of grouped tasks, in pieces between the points at which the threads of a group synchronise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spirograd.analysis.group_values import GroupValues, meets
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, Type, Vec, i32, u1
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.matrix_shapes import SHAPES, TOTAL, row_stride
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter

# Operations that are emitted in the same way for the group and in branches and loops that each invocation runs by itself.
_AS_IN_BRANCHES = ops.TILES | {ops.workgroup_barrier}


class GroupBody(Rewriter):
    """A walk over the operations at group level. ``pending``: the operations since the last synchronisation, which each thread runs by
    itself.

    A subclass defines how a piece runs (`flush`), and how threads synchronise (`meet`).
    """

    def __init__(self, b: Builder, values: GroupValues) -> None:
        super().__init__()
        self.b = b
        self.values = values
        self.pending: list[Op] = []
        self.handlers = dict.fromkeys((ops.irem, ops.floormod, ops.and_), self._remainder)

    def _remainder(self, op: Op) -> Op:
        """Return the number of the thread in its group, which needs no division."""
        assert isinstance(op.type, DType)
        return self.b.cast(self.thread_number(), op.type) if self.values.numbers_threads(op) else self.copy(op)

    def thread_number(self) -> Op:
        """Emit the number of the thread in its group, an i32."""
        raise NotImplementedError

    def flush(self) -> None:
        """Emit the pending operations."""
        raise NotImplementedError

    def meet(self, op: Op) -> None:
        """Emit an operation at which threads synchronise, after a flush."""
        raise NotImplementedError

    def statements(self, region: Region) -> None:
        """Emit the operations of a region at group level."""
        for op in region.ops[:-1]:
            self.b.at(op)
            if op.code is ops.result and (op in self.env or op.args[0].regions):
                continue  # handled with its operation
            if op in self.values.shared:
                if op.code.effect != "pure":
                    self.flush()  # it reads memory
                self.visit(op)
                self.env.setdefault(op, op)  # without operands that change, the operation is its own replacement
                for result in self.values.results.get(op, ()):
                    self.visit(result)
            elif self.values.at_group_level(op):
                self.flush()
                self.b.at(op)
                self.meet(op)
            else:
                self.pending += [op, *(self.values.results.get(op, ()) if op.regions else ())]
        self.flush()

    def left(self, done: Sequence[Op]) -> list[Op]:
        """Return the values of ``done`` that are used elsewhere."""
        inside = set(done)
        users = self.values.users
        return [op for op in done if isinstance(op.type, (DType, Vec)) and not inside.issuperset(users.get(op, ()))]


class MaskedBody(GroupBody):
    """The body of an invocation on a GPU, in a group in which some invocations may have no iteration. ``first``: the index of the first
    thread. ``number``: the number of this invocation in its group. ``active``: whether it has an iteration; None: all have one. Inactive
    invocations only take part in synchronisation. A condition of the group that is not known to be uniform is taken from the first thread,
    so that all threads take the same branch."""

    def __init__(self, b: Builder, values: GroupValues, caps: Capabilities, size: int, first: Op, active: Op | None, number: Op) -> None:
        super().__init__(b, values)
        self.caps, self.size, self.first, self.active, self.number = caps, size, first, active, number
        self.memory: dict[object, SharedRef] = {}
        self.handlers |= {
            **dict.fromkeys((ops.idiv, ops.floordiv, ops.shr), self._quotient),
            ops.subgroup_barrier: self._barrier_in_branch,
            ops.tile_entries: self._tile_entries,
            ops.tile_rows: self._tile_rows,
            ops.tile_product: self._tile_product,
        }

    def _quotient(self, op: Op) -> Op:
        """Return the number of the group, computed from the index of its first thread, which assemblers of GPUs recognise as uniform."""
        return self.b.emit(op.code, self.first, self.value(op.args[1]), type=op.type) if self.values.numbers_groups(op) else self.copy(op)

    def flush(self) -> None:
        done, self.pending = self.pending, []
        if self.active is None or all(op.code.effect == "pure" for op in done):
            for op in done:
                self.visit(op)
            return
        out = self.left(done)
        b = self.b
        b.begin()
        for op in done:
            self.visit(op)
        then = b.end([self.value(op) for op in out])
        b.begin()
        orelse = b.end([_zero(b, op.type) for op in out])
        self.env.update(zip(out, b.if_(self.active, then, orelse)))

    def meet(self, op: Op) -> None:
        if op.code in _AS_IN_BRANCHES:
            self.visit(op)
        elif op.code is ops.subgroup_ballot:
            self._vote(op)
        elif op.code is ops.subgroup_barrier:
            native = self.caps.subgroup_read and not self.caps.target.naga
            self.b.emit(op.code if native else ops.workgroup_barrier, type=VOID)
        elif op.code is ops.subgroup_read:
            self._read(op)
        elif op.code in (ops.subgroup_reduce, ops.subgroup_scan):
            self._combine(op)
        elif op.code is ops.if_:
            (self._divergent_if if op in self.values.divergent else self._if)(op)
        elif op.code is ops.for_:
            self._for(op)
        else:
            self._while(op)

    def _barrier_in_branch(self, op: Op) -> Op:
        """Emit a subgroup barrier among the operations that each invocation runs by itself."""
        if self.caps.target.naga:
            raise SpirogradUnsupportedError(
                "this target has no subgroup barriers in branches and loops whose condition differs between the threads of a group",
                op.loc,
                "move the barrier out of the branch, or compute the condition from values that are the same in the whole group",
            )
        return self.copy(op)

    def _stood_for(self, op: Op, values: Sequence[Op]) -> None:
        for result in self.values.results.get(op, ()):
            self.env[result] = values[result.attr]

    def _branch(self, region: Region) -> Region:
        self.b.begin()
        self.statements(region)
        return self.b.end([self.value(v) for v in region.results])

    def _if(self, op: Op) -> None:
        condition = self._of_group(op.args[0], op)
        then, orelse = [self._branch(region) for region in op.regions]
        self._stood_for(op, self.b.if_(condition, then, orelse, attr=ops.UNIFORM))

    def _divergent_if(self, op: Op) -> None:
        """Emit both branches, each for the invocations that take it. The others take part in its barriers only, see `check_divergence`."""
        b, outer, takes = self.b, self.active, self.value(op.args[0])
        ends = []
        for region, mine in zip(op.regions, (takes, b.emit(ops.not_, takes))):
            self.active = mine if outer is None else b.emit(ops.and_, outer, mine)
            self.statements(region)
            b.begin()
            ends.append(b.end([self.value(v) for v in region.results]))
        self.active = outer
        self._stood_for(op, b.if_(takes, *ends))

    def _entered(self, region: Region) -> None:
        params = self.b.begin(*[p.type for p in region.params], names=[p.attr for p in region.params])
        self.env.update(zip(region.params, params))
        self.statements(region)

    def _for(self, op: Op) -> None:
        begin, end = [self._of_group(v, op) for v in op.args[:2]]
        initial = [self.value(v) for v in op.args[2:]]
        (region,) = op.regions
        self._entered(region)
        body = self.b.end([self.value(v) for v in region.results])
        self._stood_for(op, self.b.for_(begin, end, initial, body, replace(op.attr, uniform=True)))

    def _while(self, op: Op) -> None:
        initial = [self.value(v) for v in op.args]
        condition, body = op.regions
        self._entered(condition)
        tested = self.b.end([self._of_group(condition.results[0], op)])
        self._entered(body)
        repeated = self.b.end([self.value(v) for v in body.results])
        self._stood_for(op, self.b.while_(initial, tested, repeated, attr=ops.UNIFORM))

    # --- values of other threads ---------------------------------------------------------------------------------------------

    def thread_number(self) -> Op:
        return self.number

    def _barrier(self) -> None:
        self.b.emit(ops.workgroup_barrier, type=VOID)

    def _shared(self, use: str, t: DType, length: int) -> SharedRef:
        return self.memory.setdefault((use, t), SharedRef(f"{use}_{t.name}", t, length))

    def _of_group(self, value: Op, op: Op) -> Op:
        """Return the value of ``value`` in the first thread of the group, which always has an iteration."""
        if value in self.values.shared:
            return self.value(value)
        b = self.b
        t = value.type
        assert isinstance(t, DType)
        held, mine = (i32, b.cast(self.value(value), i32)) if t is u1 else (t, self.value(value))
        place, zero = self._shared("of_group", held, 1), b.const(0)
        first = b.emit(ops.eq, self.thread_number(), zero)
        b.begin()
        b.store(place, zero, mine)
        then = b.end()
        b.begin()
        b.if_(first, then, b.end())
        self._barrier()
        first_value = b.load(place, zero)
        self._barrier()
        return b.emit(ops.ne, first_value, zero) if t is u1 else first_value

    def _vote(self, op: Op) -> None:
        """Emit a vote, in which invocations without an iteration do not count."""
        b, (holds,) = self.b, self.args(op)
        if self.active is not None:
            holds = b.emit(ops.and_, self.active, holds)
        self.env[op] = b.emit(op.code, holds, type=op.type)

    def _combine(self, op: Op) -> None:
        """Emit a reduction or scan, to which invocations without an iteration contribute the identity."""
        b, t, (value,) = self.b, op.type, self.args(op)
        assert isinstance(t, DType)
        if self.active is not None:
            value = b.emit(ops.select, self.active, value, b.const(ops.identity(op.attr, t), t))
        self.env[op] = b.emit(op.code, value, attr=op.attr, type=t)

    def _read(self, op: Op) -> None:
        """Emit a read of another lane's value, by an instruction of the device or through shared memory."""
        b, t = self.b, op.type
        assert isinstance(t, DType)
        value, lane = self.args(op)
        if self.caps.subgroup_read:
            self.env[op] = b.emit(op.code, value, lane, type=t)
            return
        place, local = self._shared("exchanged", t, self.size), self.thread_number()
        b.store(place, local, value)
        self._barrier()
        self.env[op] = b.load(place, lane_of_group(b, local, lane, self.caps.group_lanes, b.const(self.size)))
        self._barrier()

    # --- tiles: groups of a single subgroup, or of four ----------------------------------------------------------------------

    def _tile_entries(self, op: Op) -> Op:
        """Return the entries of a tile. Rows are stored to shared memory, from which invocations load the entries that the instruction
        requires."""
        n, t = len(op.args), op.args[0].type
        ref = self._shared_rows(n, t)
        self._lay_row(ref, self.args(op))
        return self._between_barriers(ops.matrix_load, (), ((self._instruction(t, op.attr), n, op.attr), ref), op.type)

    def _tile_rows(self, op: Op) -> Op:
        assert isinstance(op.type, Vec)
        b, n, t = self.b, op.type.n, op.type.elem
        ref = self._shared_rows(n, t)
        self._between_barriers(ops.matrix_store, self.args(op), ((self._instruction(t, TOTAL), n, TOTAL), ref), VOID)
        first = self._first_of_row(n, t)
        row = b.emit(ops.vec, *[b.load(ref, b.emit(ops.add, first, b.const(k), attr="nsw")) for k in range(n)])
        return row if n == self.size else self._in_rows(n, row)

    def _tile_product(self, op: Op) -> Op:
        assert isinstance(op.type, Vec)
        attr = (self._instruction(op.type.elem, TOTAL), math.isqrt(op.type.n * self.size))
        return self.b.emit(ops.matrix_product, *self.args(op), attr=attr, type=op.type)

    def _instruction(self, t: Type, use: str) -> str:
        """Return the name of the device's matrix product whose total, or whose factors, have type ``t``."""
        return next(name for name in self.caps.matrix_shapes if SHAPES[name].element(use) is t)

    def _between_barriers(self, code: ops.OpCode, args: Sequence[Op], attr: object, t: Type) -> Op:
        b = self.b
        barrier = ops.subgroup_barrier if self.caps.subgroup_size == self.size else ops.workgroup_barrier
        b.emit(barrier, type=VOID)
        result = b.emit(code, *args, attr=attr, type=t)
        b.emit(barrier, type=VOID)
        return result

    def _shared_rows(self, n: int, t: Type) -> SharedRef:
        assert isinstance(t, DType)
        return self._shared(f"tile{n}", t, n * row_stride(n, t))

    def _first_of_row(self, n: int, t: DType) -> Op:
        """Return the index in shared memory at which the row of this thread begins, or the index of another row in threads without one."""
        b, row = self.b, self.thread_number()
        if n < self.size:
            row = b.emit(ops.and_, row, b.const(n - 1))
        return b.emit(ops.mul, row, b.const(row_stride(n, t)), attr="nsw")

    def _lay_row(self, ref: SharedRef, row: Sequence[Op]) -> None:
        b, n = self.b, len(row)
        first = self._first_of_row(n, ref.dtype)
        has_row = self._has_row(n) if n < self.size else None
        if has_row is not None:
            b.begin()
        for k, entry in enumerate(row):
            b.store(ref, b.emit(ops.add, first, b.const(k), attr="nsw"), entry)
        if has_row is not None:
            stores = b.end()
            b.begin()
            b.if_(has_row, stores, b.end())

    def _in_rows(self, n: int, row: Op) -> Op:
        """Return ``row`` in threads that have a row, and zeros in others."""
        b, t = self.b, row.type
        has_row = self._has_row(n)
        assert isinstance(t, Vec)
        at = [b.emit(ops.extract, row, b.const(k)) for k in range(n)]
        return b.emit(ops.vec, *[b.emit(ops.select, has_row, entry, b.const(0, t.elem)) for entry in at])

    def _has_row(self, n: int) -> Op:
        return self.b.emit(ops.lt, self.thread_number(), self.b.const(n))


def lane_of_group(b: Builder, local: Op, lane: Op, lanes: int, count: Op) -> Op:
    """Return the number in the group of lane ``lane`` in the subgroup of thread ``local``, which is always below ``count``."""
    first = b.emit(ops.and_, local, b.const(-lanes))
    inside = b.emit(ops.and_, lane, b.const(lanes - 1))
    return b.emit(ops.min_, b.emit(ops.add, first, inside), b.emit(ops.sub, count, b.const(1)))


def check_divergence(values: GroupValues) -> None:
    """Raise SpirogradUnsupportedError for a subgroup operation in a loop or branch in which threads diverge (except for branches that only
    contain barriers), on GPUs where the compiler forms the subgroups."""
    for op in sorted(values.divergent, key=lambda op: op.loc.line if op.loc else 0):
        if not (op.code is ops.if_ and _only_waits(op, values)):
            what = "a branch" if op.code is ops.if_ else "a loop"
            raise SpirogradUnsupportedError(
                f"this target has no subgroup operations in {what} whose condition differs between the threads of a group",
                op.loc,
                "compute the condition from values that are the same in the whole group, or move the operation out",
            )


def _only_waits(branch: Op, values: GroupValues) -> bool:
    """Return whether threads synchronise in ``branch`` only at subgroup barriers, and no memory access in it is made for the entire group,
    which threads that do not take the branch would make, too."""
    inside = [op for region in branch.regions for op in region.walk()]
    return all(
        (not meets(op) or bool(op.regions) or op.code is ops.subgroup_barrier) and (op not in values.shared or op.code.effect == "pure")
        for op in inside
    )


def _zero(b: Builder, t: Type) -> Op:
    if isinstance(t, Vec):
        return b.emit(ops.vec, *[b.const(0, t.elem)] * t.n)
    assert isinstance(t, DType)
    return b.const(0, t)
