"""Kernels of a batch: a trace for one environment becomes a kernel that runs for each.

`over_environments` defines the number of the environment, see `environments`. A parallel loop becomes a loop over pairs of an iteration and
an environment, the environment fastest, like a loop over ``ndrange(m, n)``. What stands between parallel loops becomes a parallel loop over
environments. What is the same for all of them (constants, arguments, memory that is not of the batch and that the kernel does not change)
stays outside of these loops, as do the bounds of the parallel loops. Other values that one of the new loops computes and another one uses
are computed again, or saved in memory of the launch with an axis of the environments. The result is a kernel like any other, so that
derivatives and passes know no environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from spirograd.base.dtypes import DType, Type, Vec, i32, u32
from spirograd.base.errors import SpirogradTypeError, SpirogradUnsupportedError
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, LoopAttr, Op, Ref, Region, TempRef, accesses_of, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.lang import randoms, scalar
from spirograd.lang.context import Trace
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.environments import Environments
from spirograd.lang.frontend.trip_counts import extent, product
from spirograd.lang.scalar import Value

# The largest number of operations for which a loop computes a value again.
_MAX_COST = 12


def for_each_environment(body: Region, trace: Trace, environments: Environments, fields: dict[FieldRef, ScalarField]) -> Region:
    """Return the body of a kernel for all environments of the batch whose fields it uses. ``fields``: what references stand for; the mask
    of the batch is added.

    Raises SpirogradTypeError if there is no batch, SpirogradUnsupportedError for what a kernel of a batch cannot do."""
    index, batch = environments.index, environments.batch
    if index is None:
        return body
    if batch is None:
        problem = "`sg.batch.index()` needs a kernel that uses fields of a batch, which says how many environments there are"
        raise SpirogradTypeError(problem, index.loc)
    _refuse_shared_stores(body, fields)
    mask = batch.flags.refs() if batch.masked else None
    if mask is not None:
        fields[mask] = batch.flags
    return over_environments(body, trace, index, batch.size, mask)


def _refuse_shared_stores(body: Region, fields: Mapping[FieldRef, ScalarField]) -> None:
    """Raise SpirogradUnsupportedError for stores to memory that environments share."""
    for op in body.walk():
        for effect, ref in accesses_of(op):
            own = isinstance(ref, TempRef) or (isinstance(ref, FieldRef) and (fields[ref].batch is not None or fields[ref].hidden))
            if effect == "write" and not own:
                problem = f"all environments of the batch would store to `{ref.name}`, which is not a field of the batch"
                hint = "make it by `batch.field`; if they share it, add to it with `+=`, or use another atomic operation"
                raise SpirogradUnsupportedError(problem, op.loc, hint)


def over_environments(body: Region, trace: Trace, environment: Op, count: int, mask: FieldRef | None = None) -> Region:
    """Return ``body`` for ``count`` environments, ``environment`` being the number of one. ``mask``: only where this field is not 0.

    Emits into the builder of ``trace``, the current one."""
    return _OverEnvironments(body, trace, environment, count, mask).run()


@dataclass(slots=True, eq=False)
class _Part:
    """A part of the body that becomes a parallel loop: serial code, or a parallel loop. ``saved``: values for other parts."""

    ops: list[Op] = field(default_factory=list)
    loop: Op | None = None
    saved: list[Op] = field(default_factory=list)

    def used(self) -> dict[Op, None]:
        """Return the values from outside of the part, in order of their uses."""
        inside = [op for op in self.ops if op is not self.loop]
        own = set(inside)
        used = [value for op in inside for value in op.args if value not in own]
        for op in self.ops:
            for region in op.regions:
                used += [value for value in region.uses_from_outside() if value not in own]
        return dict.fromkeys(used)


class _OverEnvironments(Rewriter):
    def __init__(self, body: Region, trace: Trace, environment: Op, count: int, mask: FieldRef | None) -> None:
        super().__init__()
        self.b, self.trace = trace.b, trace
        self.body, self.environment, self.count, self.mask = body, environment, count, mask
        self.index = environment  # In the loop that is built.
        self.written = {_memory(ref) for op in body.walk() for effect, ref in accesses_of(op) if effect in ("write", "atomic")}
        self.shared: set[Op] = set()
        self.home: dict[Op, _Part] = {}
        self.temps: dict[Op, TempRef] = {}
        self.handlers = {ops.seed: self._seed, ops.label: self._label, ops.for_: self._inner_loop}
        self.handlers |= dict.fromkeys((ops.load, ops.store, ops.atomic, ops.cas), self._access)

    def run(self) -> Region:
        self.b.begin()
        parts = self._divide()
        for part in parts:
            for value in part.used():
                origin = self.home.get(value)
                if origin not in (None, part) and self._cost(value) > _MAX_COST and value not in self.temps:
                    self._save(value)
        for part in parts:
            self._emit(part)
        self.handlers = {}
        return self.b.end()

    # --- what becomes a loop ---------------------------------------------------------------------------------------------

    def _divide(self) -> list[_Part]:
        """Emit what environments share, and divide the rest into parts."""
        parts = [_Part()]
        for op in self.body.ops[:-1]:
            if self._is_shared(op):
                self.shared.add(op)
                self.b.append(op)
            elif op.code is ops.result:
                self.home[op.args[0]].ops.append(op)
                self.home[op] = self.home[op.args[0]]
            elif op.code is ops.for_ and op.attr.parallel and self._is_outer(op):
                parts += [_Part([op], op), _Part()]
            else:
                parts[-1].ops.append(op)
                self.home[op] = parts[-1]
        return parts

    def _is_shared(self, op: Op) -> bool:
        """Return whether ``op`` only computes, and the same in all environments."""
        inside = [op, *[inner for region in op.regions for inner in region.walk()]]
        if not all(map(self._computes, inside)) or not self.shared.issuperset(op.args):
            return False
        return all(self.shared.issuperset(region.live_ins) for region in op.regions)

    def _computes(self, op: Op) -> bool:
        """Return whether ``op`` itself has no effect, and reads only memory that stays as it is. A check of the size of a loop may fail."""
        if op.code.effect == "read":
            return not isinstance(ref := ref_of(op), TempRef) and not self.written & {_memory(ref), "arrays"}
        if op.code is ops.check:
            return bool(op.attr.code == "space")
        return op.code.effect in ("pure", "control", "structure") and op.code is not ops.seed

    def _is_outer(self, loop: Op) -> bool:
        """Return whether a parallel loop gets the axis of the environments; if not, each environment runs it in order."""
        if loop.attr.grouped:
            problem = "groups of threads (barriers, shared memory, subgroups) cannot run for each environment of a batch"
            raise SpirogradUnsupportedError(problem, loop.loc, "loop without them, or use fields with an axis of your own")
        if self.shared.issuperset(loop.args):
            return True
        self.trace.warn(
            ("bounds of a batch", str(loop.loc)),
            f"{loop.loc}: this loop runs in order, not in parallel: its bounds differ between the environments of the batch. "
            "Loop to a bound that all share, and test inside of the loop, to run its iterations in parallel.",
        )
        return False

    # --- values that cross from part to part -----------------------------------------------------------------------------

    def _cost(self, value: Op) -> int:
        """Return how many operations compute ``value`` again; more than `_MAX_COST` if that is impossible."""
        if value in self.shared or value is self.environment:
            return 0
        if value.code.effect != "pure" or value.regions or value.code in (ops.result, ops.call, ops.param):
            return _MAX_COST + 1
        cost = 1
        for operand in value.args:
            cost += self._cost(operand)
            if cost > _MAX_COST:
                break
        return cost

    def _save(self, value: Op) -> None:
        t: Type = value.type
        elem, width = (t.elem, (t.n,)) if isinstance(t, Vec) else (t, ())
        assert isinstance(elem, DType)
        self.temps[value] = TempRef(f"of_environment{len(self.temps)}", elem, (*width, self.count))
        self.home[value].saved.append(value)

    def _again(self, value: Op) -> Op:
        """Return a value of another part in this one."""
        if value in self.env:
            return self.env[value]
        if value in self.shared:
            return value
        if value in self.temps:
            new = self._loaded(self.temps[value])
        else:
            new = self.b.append(Op(value.code, value.type, tuple(map(self._again, value.args)), value.attr, (), value.loc))
            new = self._mixed(new) if value.code is ops.seed else new
        self.env[value] = new
        return new

    def _loaded(self, ref: TempRef) -> Op:
        if len(ref.shape) == 1:
            return self.b.load(ref, self.index)
        return self.b.emit(ops.vec, *[self.b.load(ref, self.b.const(k), self.index) for k in range(ref.shape[0])])

    def _store(self, value: Op) -> None:
        ref, new = self.temps[value], self.value(value)
        if len(ref.shape) == 1:
            self.b.store(ref, self.index, new)
            return
        for k in range(ref.shape[0]):
            at = self.b.const(k)
            self.b.store(ref, at, self.index, self.b.emit(ops.extract, new, at))

    # --- loops -----------------------------------------------------------------------------------------------------------

    def _emit(self, part: _Part) -> None:
        b, loop = self.b, part.loop
        if not part.saved and not any(op.regions or op.code.effect not in ("pure", "read") for op in part.ops):
            return  # Others compute again what they need.
        b.loc = part.ops[0].loc
        if loop is None:
            begin, end, attr = b.const(0), b.const(self.count), LoopAttr(True, apart=self.trace.options.unfused_by)
            (self.index,) = b.begin(i32)
            self.env = {self.environment: self.index}
        else:
            begin, end, attr = *self._pairs(loop), loop.attr
            (flat,) = b.begin(end.type)
            self.env = {self.environment: self._environment_of(flat), loop.regions[0].params[0]: self._iteration_of(flat, loop)}
        if self.mask is not None:
            runs = b.emit(ops.ne, b.load(self.mask, self.index), b.const(0))
            b.begin()
        for value in part.used():
            if self.home.get(value) not in (None, part):
                self._again(value)
        self.visit_all(part.ops if loop is None else loop.regions[0].ops[:-1])
        for value in part.saved:
            self._store(value)
        if self.mask is not None:
            then = b.end()
            b.begin()
            b.if_(runs, then, b.end())
        region = b.end()
        b.loc = part.ops[0].loc
        b.emit(ops.for_, begin, end, attr=attr, type=(), regions=(region,))

    def _pairs(self, loop: Op) -> tuple[Op, Op]:
        """Return the bounds of the loop over pairs of an iteration of ``loop`` and an environment."""
        low, high = map(Value, loop.args)
        total = product([extent(low, high), (scalar.constant(self.count, low.dtype), scalar.constant(True))])
        return scalar.constant(0, total.dtype).op, total.op

    def _environment_of(self, flat: Op) -> Op:
        self.index = scalar.cast(scalar.raw_mod(Value(flat), self.count), i32).op
        return self.index

    def _iteration_of(self, flat: Op, loop: Op) -> Op:
        low = Value(loop.args[0])
        number = scalar.cast(scalar.raw_div(Value(flat), self.count), low.dtype)
        return (number if scalar.known(low) == 0 else scalar.emit(ops.add, number, low)).op

    # --- operations of a part --------------------------------------------------------------------------------------------

    def _access(self, op: Op) -> Op:
        """Rewrite an access; memory of the launch gets an axis of the environments, the last one."""
        ref, args = ref_of(op), self.args(op)
        if not isinstance(ref, TempRef):
            return self.copy(op)
        rank = len(ref.shape)
        new = replace(ref, shape=(*ref.shape, self.count))
        attr = new if op.attr is ref else (op.attr[0], new)
        return self.b.append(Op(op.code, op.type, (*args[:rank], self.index, *args[rank:]), attr, (), op.loc, op.primal))

    def _seed(self, op: Op) -> Op:
        return self._mixed(self.b.append(op))

    def _mixed(self, seed: Op) -> Op:
        return randoms.seed_of_environment(Value(seed), scalar.cast(Value(self.index), u32)).op

    def _label(self, op: Op) -> Op:
        """Add the environment to the label of an iteration."""
        if op.attr.of is not None:
            return self.copy(op)
        return self.b.append(Op(op.code, op.type, (self.index, *self.args(op)), op.attr, (), op.loc))

    def _inner_loop(self, op: Op) -> Op:
        if not op.attr.parallel:
            return self.copy(op)
        regions = (self.region(op.regions[0]),)
        return self.b.append(Op(op.code, op.type, self.args(op), LoopAttr(False, op.attr.name), regions, op.loc))


def _memory(ref: Ref | None) -> object:
    """Return what tells memory that overlaps no other apart; arrays may overlap anything."""
    return (ref.key, ref.role) if isinstance(ref, FieldRef) else "arrays" if isinstance(ref, ArrayRef) else ref
