"""Forward mode: a kernel that does what its primal does, and also computes the tangents of the values.

Each float that depends on memory with a dual has a tangent, a second value. A tangent that is known to be zero is not represented, and no
code is emitted for it. The tangents of memory are its dual: a load loads both, a store stores both, so overwriting memory overwrites its
dual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Union

from spirograd.autodiff import rules
from spirograd.autodiff.activity import FIXED, OWN, Activity, ShadowOf, activity, is_float
from spirograd.autodiff.adjoint_values import zero
from spirograd.autodiff.derivative import Derivative, Mention
from spirograd.autodiff.inactive_memory import InactiveMemory, inactive_memory
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayRef, FieldRef, Kernel, LoopAttr, Op, Ref, Region, SharedRef, TempRef, ref_of
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

Own = Union[TempRef, AdstackRef, SharedRef]  # Memory that is private to a launch. Its duals are created here.
_EXTREMA = ("min", "max")
_ROUNDED = (ops.add, ops.sub, ops.mul, ops.div)


def forward(kernel: Kernel, shadow: ShadowOf, ctx: PassContext, constant: bool = False) -> Derivative:
    """Return the forward derivative of ``kernel``, which is kernel IR before `offload`. It runs in place of the primal, with the same
    arguments.

    ``shadow``: returns the dual of outer memory, or None if it has none; temporaries and adstacks get duals of their own. ``constant``: no
    value has a tangent, and memory that is written gets the tangent 0. The tangent of a value that the kernel returns is lost, with a
    warning. Raises SpirogradUnsupportedError, with the line, for operations without derivative.
    """
    analysis = Activity() if constant else activity(kernel, shadow)
    tangents = _Forward(kernel, shadow, analysis).run()
    new = simplify(tangents, ctx)
    _refuse_changed(new)
    inactive = InactiveMemory() if constant else inactive_memory(kernel, analysis, shadow)
    return Derivative(
        new,
        active_outputs=_places(kernel, shadow, ("write", "atomic")),
        active_inputs=_places(kernel, shadow, ("read", "atomic")),
        inactive_writes=inactive.writes,
        inactive_reads=inactive.reads,
        relays=inactive.relays,
        warnings=_lost_returns(kernel, analysis),
    )


def _places(kernel: Kernel, shadow: ShadowOf, effects: tuple[str, ...]) -> tuple[Mention, ...]:
    """Return the memory with a dual on which the kernel has an effect among ``effects``, each once."""
    places: dict[Ref, Mention] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, (FieldRef, ArrayRef)) and op.code.effect in effects and ref.dtype.is_float and shadow(ref) is not None:
            places.setdefault(ref, Mention(ref, op.loc))
    return tuple(places.values())


def _lost_returns(kernel: Kernel, activity: Activity) -> tuple[str, ...]:
    if not any(ref in activity.varied for ref in kernel.returns):
        return ()
    return (f"kernel `{kernel.name}` returns a value with a tangent, which is lost; store the value to a field instead",)


def _refuse_changed(kernel: Kernel) -> None:
    """Raise if the winners of a minimum or maximum depend on memory that the loop changes."""
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, TempRef) and ref.kind is TempKind.CHANGED:
            raise SpirogradUnsupportedError(
                "the tangent of an atomic minimum or maximum recomputes the winning value from this memory, but the loop changes it",
                op.loc,
                "compute the values in one loop, and take the minimum or maximum in another one",
            )


class _Forward:
    """An emitter of the primal with tangents. ``env``: primal value -> its current value; ``tangents``: primal value -> its tangent, if
    any."""

    def __init__(self, kernel: Kernel, shadow: ShadowOf, activity: Activity) -> None:
        self.old = kernel
        self.shadow = shadow
        self.activity = activity
        self.b = Builder()
        self.env: dict[Op, Op] = {}
        self.tangents: dict[Op, Op] = {}
        self.results: dict[Op, dict[int, int]] = {}  # control operation -> number of a result -> number of the result that is its tangent
        self.loop: Op | None = None  # the parallel loop that is being emitted
        self.exact = False  # whether recomputed values must have the same bits
        read = {ref_of(op) for op in kernel.walk() if op.code.effect in ("read", "atomic") and is_float(op.type)}
        self.own: dict[Own, Own] = {
            ref: replace(ref, name=f"{ref.name}.dual") for ref in activity.varied & activity.useful if isinstance(ref, OWN) and ref in read
        }
        self.wanted = _wanted(kernel, activity)

    def run(self) -> Kernel:
        self.b.begin()
        self.b.loc = self.old.loc
        self.walk(self.old.body.ops[:-1])
        return Kernel(f"{self.old.name}_fwd", self.old.args, self.b.end(), self.old.returns, self.old.loc)

    def walk(self, body: Sequence[Op]) -> None:
        for op in body:
            self.b.loc = op.loc
            handler = _HANDLERS.get(op.code)
            if handler is not None:
                handler(self, op)
            else:
                self.plain(op)

    def args(self, op: Op) -> tuple[Op, ...]:
        return tuple([self.env[a] for a in op.args])

    def clone(self, op: Op) -> Op:
        attr = "exact" if self.exact and op.attr is None and op.code in _ROUNDED and is_float(op.type) else op.attr
        new = self.env[op] = self.b.append(Op(op.code, op.type, self.args(op), attr, (), op.loc))
        return new

    def active(self, op: Op) -> bool:
        """Return whether the tangent of a value that may have one is used."""
        return self.activity.active(op)

    def tangent(self, op: Op) -> Op:
        """Return the tangent of a value, as a constant if it is 0."""
        activity = self.tangents.get(op)
        return zero(self.b, op.type) if activity is None else activity

    def dual(self, ref: Ref) -> Ref | None:
        """Return the memory of the tangents of ``ref``, or None."""
        if not ref.dtype.is_float:
            return None
        return self.own.get(ref) if isinstance(ref, OWN) else self.shadow(ref)

    # --- values ----------------------------------------------------------------------------------------------------------

    def plain(self, op: Op) -> None:
        """Emit an operation on scalars that has a rule, or an operation that has neither regions nor a derivative."""
        new = self.clone(op)
        if not self.active(op):
            return
        tangents = [self.tangents.get(a) for a in op.args]
        if any(t is not None for t in tangents):
            tangent = rules.pushforward(self.b, op, self.args(op), new, tuple(tangents))
            if tangent is not None:
                self.tangents[op] = tangent

    def structure(self, op: Op) -> None:
        """Emit an operation on vectors, or a selection. The tangent is computed by the same operation as the value."""
        self.clone(op)
        moved = op.args[:1] if op.code is ops.extract else (op.args[0], op.args[2]) if op.code is ops.insert else op.args
        moved = op.args[1:] if op.code is ops.select else moved
        if self.active(op) and any(a in self.tangents for a in moved):
            parts = tuple([self.tangent(a) if a in moved and is_float(a.type) else self.env[a] for a in op.args])
            self.b.loc = op.loc
            if op.code is ops.select and op.attr == "guard":  # A guarded flow of 0 has a tangent, except at a point without derivative.
                undefined = self.b.emit(ops.isnan, self.env[op.args[2]])
                parts = (self.b.emit(ops.and_, parts[0], undefined), *parts[1:])
            self.tangents[op] = self.b.append(Op(op.code, op.type, parts, op.attr, (), op.loc))

    def subgroup_read(self, op: Op) -> None:
        self.clone(op)
        value, lane = op.args
        if self.active(op) and value in self.tangents:
            self.tangents[op] = self.b.emit(op.code, self.tangents[value], self.env[lane], type=op.type)

    def result(self, op: Op) -> None:
        owner, k = op.args[0], op.attr
        self.env[op] = self.b.emit(ops.result, self.env[owner], attr=k, type=op.type)
        number = self.results[owner].get(k)
        if number is not None:
            self.tangents[op] = self.b.emit(ops.result, self.env[owner], attr=number, type=op.type)

    # --- memory ----------------------------------------------------------------------------------------------------------

    def load(self, op: Op) -> None:
        self.clone(op)
        dual = self.dual(op.attr) if self.active(op) else None
        if dual is not None:
            self.tangents[op] = self.b.load(dual, *self.args(op))

    def store(self, op: Op) -> None:
        self.clone(op)
        dual = self.dual(op.attr)
        if dual is not None:
            self.b.store(dual, *self.args(op)[:-1], self.tangent(op.args[-1]))

    def atomic(self, op: Op) -> None:
        kind, ref = op.attr
        dual = self.dual(ref)
        if dual is None:
            self.clone(op)
            return
        if self.loop is not None:
            if kind == "exchange" and op.args[-1] not in self.tangents and _is_adjoint(ref):
                # In a gradient kernel, one of the winners of a minimum or maximum claims the adjoint, and any of them may.
                self.clone(op)
                self.tangents[op] = self.b.atomic("exchange", dual, *self.args(op)[:-1], zero(self.b, op.type))
                return
            if self.active(op):
                _refuse(
                    op, "the value that an atomic operation in a parallel loop returns has no tangent: the order of iterations decides it"
                )
            self.atomic_parallel(op, kind, ref, dual)
            return
        at = self.args(op)[:-1]
        before = self.b.load(dual, *at)
        if self.active(op):
            self.tangents[op] = before
        old = self.clone(op)
        self.b.store(dual, *at, _SERIAL[kind](self, op, old, before, self.b.load(ref, *at)))

    def atomic_parallel(self, op: Op, kind: str, ref: Ref, dual: Ref) -> None:
        """Emit an atomic in a parallel loop. Other iterations may change the same element at the same time."""
        *at, value = self.args(op)
        tangent = self.tangents.get(op.args[-1])
        self.clone(op)
        if kind == "add":
            if tangent is not None:
                self.b.atomic("add", dual, *at, tangent)
        elif kind == "mul" and tangent is None:
            self.b.atomic("mul", dual, *at, value)
        elif kind not in _EXTREMA or isinstance(ref, SharedRef):
            what = {"mul": "multiplication"}.get(kind, kind)
            _refuse(op, f"an atomic {what} in a parallel loop has no tangent, because other iterations change the same element in between")

    def cas(self, op: Op) -> None:
        if self.dual(op.attr) is not None:
            _refuse(op, "compare-and-swap has no tangent")
        self.clone(op)

    # --- control ---------------------------------------------------------------------------------------------------------

    def if_(self, op: Op) -> None:
        assert isinstance(op.type, tuple)
        wanted = self.wanted[op]
        regions = tuple([self.region(region, (), wanted) for region in op.regions])
        self.b.loc = op.loc
        types = (*op.type, *[op.type[k] for k in wanted])
        self.finish(op, Op(ops.if_, types, self.args(op), op.attr, regions, op.loc))

    def for_(self, op: Op) -> None:
        if not op.attr.parallel or self.b.depth > 1:
            self.carry(op)
            return
        written = [inner for inner in op.regions[0].walk() if inner.code.effect in ("write", "atomic")]
        sites = [w for w in written if w.code is ops.atomic and w.attr[0] in _EXTREMA and self.dual(w.attr[1]) is not None]
        self.loop, self.exact = op, bool(sites)
        self.carry(op)
        self.loop, self.exact = None, False
        if sites:
            self.winners(op, sites, written)

    def carry(self, op: Op) -> None:
        """Emit a loop that also carries the tangents of loop-carried values, after these values."""
        assert isinstance(op.type, tuple)
        wanted = self.wanted[op]
        initial = op.args[FIXED[op.code] :]
        args = (*self.args(op), *[self.tangent(initial[k]) for k in wanted])
        last = len(op.regions) - 1
        regions = tuple([self.region(r, r.params[-len(initial) :] if initial else (), wanted, k == last) for k, r in enumerate(op.regions)])
        attr = op.attr
        if op.code is ops.for_ and attr.parallel and self.b.depth > 1:
            attr = LoopAttr(name=attr.name)
        self.b.loc = op.loc
        self.finish(op, Op(op.code, (*op.type, *[op.type[k] for k in wanted]), args, attr, regions, op.loc))

    def region(self, region: Region, carried: Sequence[Op], wanted: Sequence[int], yields: bool = True) -> Region:
        """Return a copy of ``region`` that takes (and yields) the ``wanted`` tangents of its loop-carried values after its other
        parameters."""
        b = self.b
        behind = [carried[k] for k in wanted] if carried else []
        params = b.begin(*[p.type for p in region.params], *[p.type for p in behind])
        self.env.update(zip(region.params, params))
        self.tangents.update(zip(behind, params[len(region.params) :]))
        self.walk(region.ops[:-1])
        b.loc = region.ops[-1].loc
        values = [self.env[v] for v in region.results]
        return b.end([*values, *[self.tangent(region.results[k]) for k in wanted]] if yields else values)

    def finish(self, op: Op, new: Op) -> None:
        assert isinstance(op.type, tuple)
        self.env[op] = self.b.append(new)
        self.results[op] = {k: len(op.type) + n for n, k in enumerate(self.wanted[op])}

    # --- minima and maxima of parallel loops -----------------------------------------------------------------------------

    def winners(self, op: Op, sites: Sequence[Op], written: Sequence[Op]) -> None:
        """Emit, after a parallel loop with atomic minima and maxima, a loop that recomputes the values and stores tangents of winners."""
        for site in sites:
            for other in written:
                ref = ref_of(other)
                same = ref is not None and _memory(ref) == _memory(site.attr[1])
                if same and (other.code is not ops.atomic or other.attr[0] != site.attr[0]):
                    _refuse(
                        other,
                        "this loop also takes a minimum or maximum in this memory, so the tangent depends on the order of iterations",
                    )
        again = _Winners(self, {_memory(ref) for ref in map(ref_of, written) if ref is not None})
        again.carry(op)


class _Winners(_Forward):
    """The second run of a parallel loop, which writes only the tangents of values that equal the final minimum or maximum."""

    def __init__(self, first: _Forward, changed: set[object]) -> None:
        super().__init__(first.old, first.shadow, first.activity)
        self.b = first.b
        self.env = dict(first.env)
        self.tangents = dict(first.tangents)
        self.results = dict(first.results)
        self.changed = changed
        self.exact = True

    def walk(self, body: Sequence[Op]) -> None:
        super().walk([op for op in body if op.code.effect not in ("print", "check")])

    def finish(self, op: Op, new: Op) -> None:
        if op.code is ops.for_ and new.attr.parallel:
            new.attr = replace(new.attr, name=f"{new.attr.name}_winners" if new.attr.name else "")
        super().finish(op, new)

    def load(self, op: Op) -> None:
        if _memory(op.attr) in self.changed:
            self.unknown(op)
        else:
            super().load(op)

    def store(self, op: Op) -> None:
        pass

    def unknown(self, op: Op) -> None:
        """Handle a value that cannot be recomputed; see `_refuse_changed`."""
        ref = ref_of(op)
        assert ref is not None
        self.env[op] = self.b.load(TempRef("changed", ref.dtype, kind=TempKind.CHANGED))

    def cas(self, op: Op) -> None:
        self.unknown(op)

    def atomic(self, op: Op) -> None:
        kind, ref = op.attr
        dual = self.dual(ref)
        if kind in _EXTREMA and dual is not None:
            *at, value = self.args(op)
            wins = self.b.emit(ops.eq, value, self.b.load(ref, *at))
            self.b.begin()
            self.b.store(dual, *at, self.tangent(op.args[-1]))
            then = self.b.end()
            self.b.begin()
            self.b.if_(wins, then, self.b.end())
        self.unknown(op)


def _memory(ref: Ref) -> object:
    """Return a key that is equal for references to the same memory."""
    if isinstance(ref, FieldRef):
        return ("field", ref.key, ref.role)
    return ("array", ref.arg, ref.role) if isinstance(ref, ArrayRef) else ref


def _is_adjoint(ref: Ref) -> bool:
    """Return whether memory belongs to reverse mode."""
    return ref.kind is TempKind.ADJOINT if isinstance(ref, TempRef) else getattr(ref, "role", "") == "grad"


def _wanted(kernel: Kernel, activity: Activity) -> dict[Op, tuple[int, ...]]:
    """Return, for each control operation, the results whose tangents are used."""
    wanted: dict[Op, set[int]] = {}
    for op in kernel.walk():
        if op.code is ops.result and activity.active(op):
            wanted[op.args[0]].add(op.attr)
        elif op.code in FIXED or op.code is ops.if_:
            numbers = wanted.setdefault(op, set())
            for region in op.regions if op.code in FIXED else ():
                carried = region.params[len(region.params) - len(op.args) + FIXED[op.code] :]
                numbers |= {k for k, p in enumerate(carried) if activity.active(p)}
    return {op: tuple(sorted(numbers)) for op, numbers in wanted.items()}


def _refuse(op: Op, message: str) -> NoReturn:
    ref = ref_of(op)
    assert ref is not None
    hint = f"let each iteration update elements of its own, or accumulate with `+=`; to exclude `{ref.name}`, use memory without a dual"
    raise SpirogradUnsupportedError(message, op.loc, hint)


# --- atomics of serial code: (operation, old value, its tangent, new value) -> the tangent of the new value ------------------


def _after_add(f: _Forward, op: Op, old: Op, before: Op, now: Op) -> Op:
    tangent = f.tangents.get(op.args[-1])
    return before if tangent is None else f.b.emit(ops.add, before, tangent)


def _after_mul(f: _Forward, op: Op, old: Op, before: Op, now: Op) -> Op:
    scaled = f.b.emit(ops.mul, before, f.env[op.args[-1]])
    tangent = f.tangents.get(op.args[-1])
    return scaled if tangent is None else f.b.emit(ops.add, scaled, f.b.emit(ops.mul, old, tangent))


def _after_exchange(f: _Forward, op: Op, old: Op, before: Op, now: Op) -> Op:
    return f.tangent(op.args[-1])


def _after_extremum(f: _Forward, op: Op, old: Op, before: Op, now: Op) -> Op:
    """Return the tangent of the winner. Of equal values, the first one wins. A NaN loses to a number."""
    b = f.b
    wins = b.emit(ops.and_, b.emit(ops.eq, f.env[op.args[-1]], now), b.emit(ops.ne, old, now))
    return b.emit(ops.select, wins, f.tangent(op.args[-1]), before)


_SERIAL: dict[str, Callable[[_Forward, Op, Op, Op, Op], Op]] = {
    "add": _after_add,
    "mul": _after_mul,
    "exchange": _after_exchange,
    "min": _after_extremum,
    "max": _after_extremum,
}
_HANDLERS: dict[ops.OpCode, Callable[[_Forward, Op], None]] = {
    ops.vec: _Forward.structure,
    ops.extract: _Forward.structure,
    ops.insert: _Forward.structure,
    ops.select: _Forward.structure,
    ops.result: _Forward.result,
    ops.subgroup_read: _Forward.subgroup_read,
    ops.load: lambda f, op: f.load(op),
    ops.store: lambda f, op: f.store(op),
    ops.atomic: lambda f, op: f.atomic(op),
    ops.cas: lambda f, op: f.cas(op),
    ops.if_: _Forward.if_,
    ops.for_: _Forward.for_,
    ops.while_: _Forward.carry,
}
