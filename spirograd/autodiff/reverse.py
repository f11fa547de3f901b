"""Reverse mode: from a kernel to the kernel that computes gradients of its inputs from gradients of its outputs.

Each region is walked twice. The forward sweep (`sweep`) recomputes the values that derivatives need. The reverse sweep, in this module,
walks the region backwards, with the adjoint of each value as an SSA value. Loops save their loop-carried values in the forward sweep. Their
reverse is a loop over the iterations backwards, each of which is swept forwards from the saved values, then backwards. An adstack therefore
serves one level of a nest, and inner ones are reused in each outer iteration: memory grows with the sum of trip counts, not their product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from spirograd.analysis.dependence import Dependence, access_of, accesses_in, iterations_of
from spirograd.analysis.loop_invariants import Spans
from spirograd.autodiff import rules
from spirograd.autodiff.activity import FIXED, Activity, ShadowOf, activity, is_float
from spirograd.autodiff.adjoint_values import add_temp, load_temp, store_temp, temp_of, total, zero
from spirograd.autodiff.derivative import Mention
from spirograd.autodiff.groups import WAITING, Groups
from spirograd.autodiff.nested_loops import NestedLoops, nested_loops
from spirograd.autodiff.nests import Nests, relevant_operations
from spirograd.autodiff.number_checks import check_derivative
from spirograd.autodiff.residuals import states
from spirograd.autodiff.segments import NO_SEGMENTS, Segments
from spirograd.autodiff.sweep import IN_I32, Counter, SavedLoop, Sweep, segments, trip_count
from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, LoopAttr, Op, Ref, Region, ScalarArg, SharedRef, TempRef, ref_of
from spirograd.ir.temp_kinds import TempKind


@dataclass(slots=True)
class Reversed:
    """A gradient kernel before clean-up, with what is known about it."""

    kernel: Kernel
    loops: NestedLoops
    sweep: Sweep
    activity: Activity
    active_outputs: list[Mention] = field(default_factory=list)
    active_inputs: list[Mention] = field(default_factory=list)


def reverse(
    kernel: Kernel,
    shadow: ShadowOf,
    *,
    checks: str = "",
    segments: Segments = NO_SEGMENTS,
    counter: Counter = IN_I32,
    nested: NestedLoops | None = None,
    lanes: int = 32,
) -> Reversed:
    """Return the gradient kernel of ``kernel``, which is kernel IR before `offload`.

    ``shadow``: returns the gradient of outer memory, or None if it has none. The gradient kernel has the arguments of ``kernel``, then a
    scalar argument for each float that the kernel returns: the adjoint of that value. ``checks``: "nan" to check each step for new NaN,
    "finite" for infinities, too. ``nested``: ``kernel`` with nests in place of loops, to be reversed in its place. ``lanes``: the threads
    of a subgroup. Raises SpirogradUnsupportedError, with the line, for operations without derivative.
    """
    return _Reverse(nested or nested_loops(kernel, None), shadow, checks, segments, counter, states(kernel), lanes).run()


class _Reverse:
    """An emitter of the forward sweep of a region and of its reverse (`walk`), recursively for the regions inside.

    Invariant of the walk: when it reaches an operation, all users of its result in this region have been walked, so ``adjoints`` holds the
    complete adjoint of the result, and the operation removes it. Values of the primal are not used directly: ``sweep.env`` maps each of
    them to its current value in the gradient kernel.
    """

    def __init__(
        self,
        nested: NestedLoops,
        shadow: ShadowOf,
        checks: str,
        segments: Segments,
        counter: Counter,
        read: Mapping[Op, str],
        lanes: int,
    ) -> None:
        self.nested = nested
        kernel = self.old = nested.kernel
        self.checks = checks
        self.indices: list[Op] = []  # indices of the enclosing loops, outermost first
        self.shadow = shadow
        self.activity = activity(kernel, shadow)
        self.b = Builder()
        self.adjoints: dict[Op, Op] = {}  # adjoints of values whose definition the reverse sweep has not reached yet
        self.results: dict[Op, dict[int, Op]] = {}  # control operation -> adjoints of its results
        self.temps: dict[TempRef, TempRef] = {}
        self.relevant = relevant_operations(kernel, self._matters)
        self.groups = Groups(self.b, kernel, lanes, self.activity)
        self.nests = Nests(kernel, self.relevant, self.groups.acting)
        self.sweep = Sweep(self.b, kernel.returns, segments, read, counter, self.nests.nest, nested.bounds, self.groups)
        self.spans = Spans(kernel)
        self.live_ins: dict[Op, set[Op]] = {}  # by control operation; a cache of `_active_live_ins`
        self.active_outputs: dict[tuple[object, object], Mention] = {}
        self.active_inputs: dict[tuple[object, object], Mention] = {}
        self.accumulators = 0
        self.extrema: dict[Op, int] = {}  # numbered, because no two may share the load of their result: see `memory_states`
        self.parallel_loop: Op | None = None  # the primal loop whose iteration is being reversed

    def run(self) -> Reversed:
        b, old = self.b, self.old
        b.begin()
        b.loc = old.loc
        args = [*old.args]
        for node in self.activity.flows:
            if isinstance(node, TempRef) and self.activity.active(node):
                self.temps[node] = replace(node, name=f"{node.name}.grad", kind=TempKind.ADJOINT)
        for ref in sorted(self.temps, key=lambda r: r.name):
            self._fill(self.temps[ref])
        for k, ref in enumerate(old.returns):
            if ref in self.temps:
                args.append(ScalarArg(f"returned{k}", ref.dtype, k))
                b.store(self.temps[ref], b.emit(ops.arg, attr=len(args) - 1, type=ref.dtype))
        body = old.body.ops[:-1]
        self.sweep.run(body, True)
        self.sweep.fresh = False
        self.walk(body)
        new = Kernel(f"{old.name}_grad", tuple(args), b.end(), (), old.loc)
        return Reversed(new, self.nested, self.sweep, self.activity, list(self.active_outputs.values()), list(self.active_inputs.values()))

    def _fill(self, ref: TempRef) -> None:
        """Set a temporary to zero."""
        b = self.b
        size = 1
        for n in ref.shape:
            size *= n
        for flat in range(size):
            at, rest = [], flat
            for n in reversed(ref.shape):
                at.append(b.const(rest % n))
                rest //= n
            b.store(ref, *reversed(at), b.const(0.0, ref.dtype))

    # --- adjoints --------------------------------------------------------------------------------------------------------

    def active(self, value: Op) -> bool:
        return self.activity.active(value)

    def accumulate(self, value: Op, contribution: Op) -> None:
        """Add to the adjoint of a primal value."""
        if self.active(value):
            before = self.adjoints.get(value)
            self.adjoints[value] = contribution if before is None else total(self.b, before, contribution)

    def gradient(self, ref: Ref) -> Ref | None:
        """Return the memory of the adjoint of ``ref``, or None if it has none."""
        if isinstance(ref, SharedRef):
            return self.groups.adjoints.get(ref)
        return self.temps.get(ref) if isinstance(ref, TempRef) else self.shadow(ref)

    def _matters(self, op: Op) -> bool:
        """Return whether the reverse sweep must handle ``op`` itself, regardless of its regions."""
        ref = ref_of(op)
        written = ref is not None and op.code.effect in ("write", "atomic") and self._has_gradient(ref)
        return written or self.activity.active(op) or op.code in WAITING

    def _has_gradient(self, ref: Ref) -> bool:
        return self.activity.active(ref) if isinstance(ref, (TempRef, SharedRef)) else self.shadow(ref) is not None

    # --- walking backwards -----------------------------------------------------------------------------------------------

    def walk(self, body: Sequence[Op]) -> None:
        """Emit the reverse sweep over the operations of a region, just after its forward sweep."""
        for op in reversed(body):
            self.b.loc = op.loc
            handler = _HANDLERS.get(op.code)
            if handler is not None:
                handler(self, op)
                continue
            adjoint = self.adjoints.pop(op, None)
            if adjoint is not None:
                args = self.sweep.args(op)
                for a, part in zip(op.args, rules.pullback(self.b, op, args, self.sweep.env[op], adjoint)):
                    if part is not None:
                        self.accumulate(a, part)
                        if self.checks:
                            check_derivative(self.b, op, part, adjoint, args, self.indices, self.checks == "finite")

    def result(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        if adjoint is not None:
            self.results.setdefault(op.args[0], {})[op.attr] = adjoint

    # --- vectors and choices ---------------------------------------------------------------------------------------------

    def vec(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        if adjoint is not None:
            for k, a in enumerate(op.args):
                if self.active(a):
                    self.accumulate(a, self.b.emit(ops.extract, adjoint, self.b.const(k)))

    def extract(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        vector = op.args[0]
        if adjoint is None or not self.active(vector):
            return
        b, at = self.b, self.sweep.env[op.args[1]]
        before = self.adjoints.get(vector)
        if before is None:
            before = zero(b, vector.type)
        else:
            adjoint = b.emit(ops.add, b.emit(ops.extract, before, at), adjoint)
        self.adjoints[vector] = b.emit(ops.insert, before, at, adjoint)

    def insert(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        if adjoint is None:
            return
        vector, index, value = op.args
        b, at = self.b, self.sweep.env[index]
        if self.active(value):
            self.accumulate(value, b.emit(ops.extract, adjoint, at))
        if self.active(vector):
            self.accumulate(vector, b.emit(ops.insert, adjoint, at, zero(b, value.type)))

    def select(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        if adjoint is None:
            return
        b, condition, none = self.b, self.sweep.env[op.args[0]], zero(self.b, op.type)
        for a, choice in ((op.args[1], (adjoint, none)), (op.args[2], (none, adjoint))):
            if self.active(a):
                self.accumulate(a, b.emit(ops.select, condition, *choice))

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _at(self, op: Op, values: int) -> tuple[Op, ...]:
        """Return the indices of an access with ``values`` operands other than indices."""
        args = op.args[: len(op.args) - values]
        return tuple([self.sweep.env[a] for a in args])

    def _add_place(self, places: dict[tuple[object, object], Mention], ref: Ref, op: Op) -> None:
        if not isinstance(ref, (TempRef, SharedRef)):
            places.setdefault((ref, op.loc), Mention(ref, op.loc))  # type: ignore[arg-type]

    def load(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        grad = None if adjoint is None else self.gradient(op.attr)
        if grad is not None and adjoint is not None:
            self._add_place(self.active_inputs, op.attr, op)
            self.b.atomic("add", grad, *self._at(op, 0), adjoint)

    def store(self, op: Op) -> None:
        grad = self.gradient(op.attr) if is_float(op.args[-1].type) else None
        if grad is None:
            return
        b, at, value = self.b, self._at(op, 1), op.args[-1]
        if self.active(value):
            self._add_place(self.active_outputs, op.attr, op)
            self.accumulate(value, b.load(grad, *at))
        b.store(grad, *at, b.const(0.0, op.attr.dtype))

    def atomic(self, op: Op) -> None:
        kind, ref = op.attr
        grad = self.gradient(ref) if ref.dtype.is_float else None
        adjoint = self.adjoints.pop(op, None)
        if grad is None:
            return
        handler = _ATOMICS.get(kind)
        if handler is None or (isinstance(ref, SharedRef) and kind != "add"):
            raise SpirogradUnsupportedError(
                f"an atomic {_NAMES.get(kind, kind)} has no derivative here, because other iterations change the same element in between",
                op.loc,
                "let each iteration update elements of its own, or accumulate with `+=`; to exclude "
                f"`{ref.name}` from differentiation, use `sg.stop_grad` or memory without a gradient",
            )
        if adjoint is not None:  # The old value is differentiated as a load.
            self._refuse_shared_old(op)
        handler(self, op, grad)
        if adjoint is not None:
            self.b.atomic("add", grad, *self._at(op, 1), adjoint)

    def _refuse_shared_old(self, op: Op) -> None:
        """Raise if the old value, which has an adjoint, depends on the order of the iterations of a parallel loop."""
        if self.parallel_loop is None:
            return
        ref = op.attr[1]
        query, writes = Dependence(separate_arrays=True), [a for a in accesses_in(self.parallel_loop.regions) if a.writes]
        if not query.is_private(access_of(op), writes, iterations_of(self.parallel_loop)):
            raise SpirogradUnsupportedError(
                "the value that an atomic operation in a parallel loop returns has no derivative: the order of iterations decides it",
                op.loc,
                "let each iteration update elements of its own, or make the loop serial; to exclude "
                f"`{ref.name}` from differentiation, use `sg.stop_grad` or memory without a gradient",
            )

    def atomic_add(self, op: Op, grad: Ref) -> None:
        if self.active(op.args[-1]):
            self._add_place(self.active_outputs, op.attr[1], op)
            self.accumulate(op.args[-1], self.b.load(grad, *self._at(op, 1)))

    def atomic_extremum(self, op: Op, grad: Ref) -> None:
        """Give the gradient to the first value that equals the final one: its iteration claims it, and leaves 0 to the others.

        Values are equal up to the last digits, because the value is recomputed with functions that may round differently from the primal's
        code.
        """
        b, at, value = self.b, self._at(op, 1), op.args[-1]
        ref = op.attr[1]
        if not self.active(value):
            return
        self._add_place(self.active_outputs, ref, op)
        number = self.extrema.setdefault(op, len(self.extrema))
        final = b.append(Op(ops.load, ref.dtype, at, replace(ref, state=f"final{number}"), (), op.loc, op.primal or op))
        there, t = self.sweep.env[value], ref.dtype
        apart = b.emit(ops.abs_, b.emit(ops.sub, there, final))
        near = b.emit(ops.le, apart, b.emit(ops.mul, b.emit(ops.abs_, final), b.const(_SAME[t.bits] * float(np.finfo(t.np).eps), t)))
        wins = b.emit(ops.or_, near, b.emit(ops.eq, there, final))
        b.begin()
        claimed = b.atomic("exchange", grad, *at, b.const(0.0, ref.dtype))
        then = b.end([claimed])
        b.begin()
        orelse = b.end([zero(b, ref.dtype)])
        (share,) = b.if_(wins, then, orelse)
        self.accumulate(value, share)

    def wait(self, op: Op) -> None:
        """Reverse a barrier: what comes before it is separated from what comes after it in both directions."""
        self.b.emit(op.code, *self.sweep.args(op), type=VOID)

    def subgroup_read(self, op: Op) -> None:
        adjoint = self.adjoints.pop(op, None)
        if adjoint is not None and self.active(op.args[0]):
            self.accumulate(op.args[0], self.groups.scatter(self.sweep.env[op.args[1]], adjoint))

    def cas(self, op: Op) -> None:
        if op.attr.dtype.is_float and self.gradient(op.attr) is not None:
            raise SpirogradUnsupportedError(
                "compare-and-swap has no derivative", op.loc, f"declare `{op.attr.name}` without a gradient, or use other atomics"
            )

    # --- control ---------------------------------------------------------------------------------------------------------

    def captured(self, op: Op) -> list[Op]:
        """Return the active values from outside that the regions of ``op`` use, in the order of the kernel."""
        return sorted(self._active_live_ins(op), key=self.spans.number)

    def _active_live_ins(self, op: Op) -> set[Op]:
        """Return the values of `captured`, unordered."""
        live_ins = self.live_ins.get(op)
        if live_ins is not None:
            return live_ins
        candidates: set[Op] = set()
        flows = self.activity.flows
        for region in op.regions:
            for node in (*region.params, *region.ops):
                reads = (*(flows.get(node, ()) if self.active(node) else ()), *_stored(node))
                candidates.update([a for a in reads if isinstance(a, Op) and self.active(a)])
                if node.regions:
                    candidates |= self._active_live_ins(node)
        if op.code is ops.if_ or op.code in FIXED:
            yielding = op.regions[-1:] if op.code in FIXED else op.regions
            candidates.update([v for r in yielding for v in r.results if self.active(v)])
        inside = self.spans.inside(op)
        live_ins = self.live_ins[op] = {value for value in candidates if value not in inside}
        return live_ins

    def if_(self, op: Op) -> None:
        seeds = self.results.pop(op, {})
        if op not in self.relevant and not seeds:
            return
        b, outer = self.b, self.adjoints
        self.groups.restore_before(op)
        captured = self.captured(op)
        condition = self.sweep.env[op.args[0]]
        regions = []
        for region in op.regions:
            b.begin()
            self.groups.begin_again(op)
            self.adjoints = {v: outer[v] for v in captured if v in outer}
            for k, adjoint in seeds.items():
                self.accumulate(region.results[k], adjoint)
            self._sweep_both_ways(region)
            regions.append(b.end([self._adjoint_or_zero(v) for v in captured]))
        b.loc = op.loc
        self.adjoints = outer
        self.adjoints.update(zip(captured, b.if_(condition, *regions)))

    def _sweep_both_ways(self, region: Region) -> None:
        """Sweep a region forwards, then backwards. The forward sweep omits branches whose results are not needed before the end of the
        region, because their reverse recomputes them: otherwise a chain of such branches would run once for each of its levels."""
        body = region.ops[:-1]
        passed = {op for op in body if self.nests.is_passed(op)}
        self.sweep.run([op for op in body if not (op in passed or (op.code is ops.result and op.args[0] in passed))], True)
        self.walk(body)

    def _adjoint_or_zero(self, value: Op) -> Op:
        adjoint = self.adjoints.get(value)
        return zero(self.b, value.type) if adjoint is None else adjoint

    def for_(self, op: Op) -> None:
        if op not in self.relevant and op not in self.results:
            return
        if op.attr.parallel and self.b.depth == 1:
            self.parallel(op)
            return
        begin, end = self.sweep.args(op)[:2]
        self.loop(op, begin, trip_count(self.b, begin, end))

    def while_(self, op: Op) -> None:
        if op not in self.relevant and op not in self.results:
            return
        count = self.sweep.recordings[op].count
        assert count is not None
        t, most = self.sweep.counter.dtype, self.sweep.counter.most
        if most is not None:
            message = f"this loop runs more than {most:,} iterations, which its gradient cannot count: this device has no 64-bit integers"
            site = FaultSite("loop", message, (), op.loc)
            self.b.emit(ops.check, self.b.emit(ops.le, count, self.b.const(most, t)), attr=site, type=VOID)
        self.loop(op, self.b.const(0, t), count)

    def loop(self, op: Op, begin: Op, count: Op) -> None:
        """Reverse a serial loop of ``count`` iterations."""
        self.groups.restore_before(op)
        b, outer = self.b, self.adjoints
        region, initial = op.regions[-1], op.args[FIXED[op.code] :]
        params = region.params[len(region.params) - len(initial) :]
        seeds = self.results.pop(op, {})
        # If the body sets a value and never reads it, nothing depends on the parameter, but the result may be used.
        carried = [k for k, p in enumerate(params) if k in seeds or self.active(p)]
        captured = self.captured(op)
        start = [seeds[k] if k in seeds else zero(b, params[k].type) for k in carried]
        start += [self._adjoint_or_zero(v) for v in captured]
        recording = self.sweep.recordings.get(op, SavedLoop(op, ()))
        body = _Body(op, region, params, carried, captured, begin)
        if recording.in_one:
            assert isinstance(count.type, DType)
            given = self.sweep.args(op)[FIXED[op.code] :]
            final: Sequence[Op] = self._segment(body, b.const(0, count.type), None, recording.segment, given, start)
        else:
            final = self._segments(body, count, recording, start)
        self.adjoints = outer
        self.adjoints.update(zip(captured, final[len(carried) :]))
        for k, adjoint in zip(carried, final):
            self.accumulate(initial[k], adjoint)

    def _segments(self, body: _Body, count: Op, recording: SavedLoop, start: Sequence[Op]) -> Sequence[Op]:
        """Return a loop over the segments of ``count`` iterations, the last one first. It begins with the adjoints ``start``, and returns
        the adjoints of the initial values of the primal loop."""
        b, op = self.b, body.loop
        assert isinstance(count.type, DType)
        total_segments = segments(b, count, recording.segment)
        step, *adjoints = b.begin(count.type, *[a.type for a in start])
        entry = b.emit(ops.sub, b.emit(ops.sub, total_segments, b.const(1, count.type), attr="nsw"), step, attr="nsw")
        values = tuple([self.sweep.recall(adstack, entry) for adstack in recording.adstacks])
        if recording.segment == 1:
            results = self._iteration(body, entry, values, adjoints)
        else:
            first = b.emit(ops.mul, entry, b.const(recording.segment, count.type), attr="nsw")
            last = b.emit(ops.sub, count, b.const(1, count.type), attr="nsw")
            results = self._segment(body, first, last, recording.segment, values, adjoints)
        loop = b.end(results)
        b.loc = op.loc
        name = op.attr.name if op.code is ops.for_ else ""
        return b.for_(b.const(0, count.type), total_segments, start, loop, LoopAttr(name=name))

    def _enter(self, body: _Body, number: Op, values: Sequence[Op]) -> None:
        """Map the parameters of a loop to iteration ``number``, which begins with the loop-carried ``values``."""
        env = self.sweep.env
        if body.loop.code is ops.for_:
            t = body.begin.type
            assert isinstance(t, DType)
            attr = "nsw" if number.type is t else "wrap"
            number = env[body.region.params[0]] = self.b.emit(ops.add, body.begin, self.b.cast(number, t), attr=attr)
        env.update(zip(body.params, values))
        self.indices[-1:] = [number]

    def _iteration(self, body: _Body, number: Op, values: Sequence[Op], adjoints: Sequence[Op]) -> list[Op]:
        """Emit one iteration forwards, then backwards. Return the adjoints of its initial and captured values, given those after it."""
        self.indices.append(number)
        self.groups.begin_iteration(body.loop, number)
        self._enter(body, number, values)
        self.adjoints = dict(zip(body.captured, adjoints[len(body.carried) :]))
        for k, adjoint in zip(body.carried, adjoints):
            self.accumulate(body.region.results[k], adjoint)
        self._sweep_both_ways(body.region)
        self.indices.pop()
        return [*[self._adjoint_or_zero(body.params[k]) for k in body.carried], *[self._adjoint_or_zero(v) for v in body.captured]]

    def _segment(self, body: _Body, first: Op, last: Op | None, length: int, values: Sequence[Op], adjoints: Sequence[Op]) -> list[Op]:
        """Emit the iterations of a segment from ``first`` on: forwards, for the initial values of each, then each backwards, the last one
        first. ``last``: the last iteration of the loop, which may come before the end of the segment; None if both coincide."""
        b, t = self.b, first.type
        assert isinstance(t, DType)
        numbers, begins = [], [tuple(values)]
        loads = any(op.code is ops.load for op in body.region.ops)
        self.indices.append(first)
        for k in range(length):
            number = b.emit(ops.add, first, b.const(k, t), attr="nsw")
            numbers.append(number)
            if k + 1 < length:  # past the end of the loop the last iteration is repeated, whose loads are in bounds
                self._enter(body, number if last is None else b.emit(ops.min_, number, last), begins[-1])
                self.sweep.run(body.region.ops[:-1], False)
                following = [self.sweep.env[v] for v in body.region.results]
                if loads and last is not None:
                    goes_on = b.emit(ops.lt, number, last)
                    following = [b.emit(ops.select, goes_on, new, old) for new, old in zip(following, begins[-1])]
                begins.append(tuple(following))
        self.indices.pop()
        results = list(adjoints)
        for number, begin in zip(reversed(numbers), reversed(begins)):
            if last is None:
                results = self._iteration(body, number, begin, results)
                continue
            b.begin()
            then = b.end(self._iteration(body, number, begin, results))
            b.begin()
            orelse = b.end(results)
            results = list(b.if_(b.emit(ops.le, number, last), then, orelse))
        return results

    def parallel(self, op: Op) -> None:
        """Reverse a parallel loop, into a parallel loop. Adjoints of live-in values accumulate in temporaries."""
        b, outer = self.b, self.adjoints
        captured = self.captured(op)
        temps = []
        for value in captured:
            temps.append(temp_of(f"adjoint{self.accumulators}", value.type))
            self.accumulators += 1
            store_temp(b, temps[-1], zero(b, value.type))
        begin, end = self.sweep.args(op)[:2]
        region = op.regions[0]
        self.adjoints = {}
        self.groups.prepare(op, begin, end)
        (index,) = b.begin(begin.type)
        self.groups.enter(op, index, begin, end)
        self.sweep.env[region.params[0]] = index
        self.indices.append(index)
        self.parallel_loop = op
        self._sweep_both_ways(region)
        self.parallel_loop = None
        self.indices.pop()
        for value, temp in zip(captured, temps):
            if value in self.adjoints:
                add_temp(b, temp, self.adjoints[value])
        body = b.end()
        b.loc = op.loc
        name = f"{op.attr.name}_grad" if op.attr.name else ""
        b.for_(begin, end, (), body, LoopAttr(True, name, op.attr.group_size, op.attr.apart, op.attr.grouped))
        self.adjoints = outer
        for value, temp in zip(captured, temps):
            self.accumulate(value, load_temp(b, temp, value.type))


@dataclass(frozen=True, slots=True)
class _Body:
    """A serial loop to be reversed. ``params``: its loop-carried values; ``carried``: the active ones; ``captured``: active values from
    outside; ``begin``: the index of the first iteration."""

    loop: Op
    region: Region
    params: tuple[Op, ...]
    carried: list[int]
    captured: list[Op]
    begin: Op


def _stored(node: Op) -> Iterable[Op]:
    """Return the float that ``node`` writes to memory, whose gradient is the adjoint of that float."""
    if node.code.effect in ("write", "atomic") and is_float(node.args[-1].type):
        return (node.args[-1],)
    return ()


# The largest error of a recomputed extremum, in units in the last place, by the bits of its type.
_SAME = {16: 2, 32: 16, 64: 16}
_NAMES = {"mul": "multiplication"}
_ATOMICS: dict[str, Callable[[_Reverse, Op, Ref], None]] = {
    "add": _Reverse.atomic_add,
    "min": _Reverse.atomic_extremum,
    "max": _Reverse.atomic_extremum,
}
_HANDLERS: dict[ops.OpCode, Callable[[_Reverse, Op], None]] = {
    ops.result: _Reverse.result,
    ops.vec: _Reverse.vec,
    ops.extract: _Reverse.extract,
    ops.insert: _Reverse.insert,
    ops.select: _Reverse.select,
    ops.load: _Reverse.load,
    ops.store: _Reverse.store,
    ops.atomic: _Reverse.atomic,
    ops.cas: _Reverse.cas,
    **dict.fromkeys(WAITING, _Reverse.wait),
    ops.subgroup_read: _Reverse.subgroup_read,
    ops.if_: _Reverse.if_,
    ops.for_: _Reverse.for_,
    ops.while_: _Reverse.while_,
}
