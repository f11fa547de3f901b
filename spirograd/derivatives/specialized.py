"""The derivative of a kernel for one signature, ready to launch."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import SupportsFloat
from weakref import WeakValueDictionary

from spirograd.autodiff.access_rule import checking
from spirograd.autodiff.derivative import Derivative, Residual, Saving
from spirograd.autodiff.differentiate import differentiate
from spirograd.base.dtypes import DType, i32, storage
from spirograd.base.errors import OutOfDeviceMemory, SpirogradCompilationError, SpirogradRuntimeError, SpirogradRuntimeTypeError, render
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.once import one_at_a_time
from spirograd.base.protocols import Place, Scalar
from spirograd.base.records import dataclass, replace
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.spans import span
from spirograd.base.validity import StepRecorder
from spirograd.derivatives.broken_chains import report
from spirograd.derivatives.explained import name_of
from spirograd.derivatives.memory_plan import MemoryPlan, memory_plan
from spirograd.derivatives.nested_checkpoints import NestedCheckpoints
from spirograd.derivatives.plan import DerivativePlan, GrowthLimit
from spirograd.derivatives.shared_arrays import refuse_shared
from spirograd.derivatives.sized_plans import derivative_plan
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, Ref, ScalarArg, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang import session_protocol as protocol
from spirograd.lang.data.tree import trees_of
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.native_calls import NativeCalls
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer
from spirograd.lang.leaves import AggregateType
from spirograd.lang.scalar import describe
from spirograd.lang.session_protocol import CompileTarget
from spirograd.runtime import graph_recording
from spirograd.runtime.adstack_heap import AdstacksTooLarge
from spirograd.runtime.launcher import LaunchPlan
from spirograd.session import Session

_ROLES = {"reverse": "grad", "forward": "dual", "constant": "dual"}
TAPE_HINT = (
    "record the launches with `with sg.ad.Tape(loss):`, which saves what is overwritten; if memory holds what it held before the kernel, "
    "`kernel.grad(..., replay=True)`"
)

INACTIVE_HINT = "declare it with `needs_grad=True`, or say that this is meant: `sg.stop_grad(value)`"

UNFOLLOWED = object()  # the adjoint of a result that nothing else depends on

logger = logging.getLogger("spirograd")

# Called with each derivative: its primal, its mode, the shadow of memory, and the result.
observers: list[Callable[[KernelIR, str, Callable[[Ref], Ref | None], Derivative], None]] = []


def derive(
    target: CompileTarget, kernel: KernelIR, mode: str, shadow: Callable[[Ref], Ref | None], nesting: Nesting | None = None
) -> Derivative:
    """Return `differentiate` for the device and the options of ``target``."""
    derivative = differentiate(kernel, mode, shadow, target.caps, target.compile_options, nesting)
    for observer in observers:
        observer(kernel, mode, shadow, derivative)
    return derivative


@dataclass(slots=True, eq=False)
class Planned:
    """A derivative and how to launch it."""

    derivative: Derivative
    plan: DerivativePlan


def _planned(session: Session, derivative: Derivative) -> Planned:
    """Compile ``derivative``. The interpreter's adstacks grow as they are written: they are sized only if there is a limit."""
    limit, counting = None, derivative.sizing
    if session.device.caps.target.interpreted:
        budget = session.launcher.adstacks.budget
        if budget is None:
            counting = ()
        else:
            limit = GrowthLimit(budget, tuple([(r.adstack.name, r.bytes, r.adstack.capacity) for r in derivative.records]))
    sizing = [session.prepare(c.kernel, opt_level=1, overlapping=True) for c in counting]  # locks are held while they run
    main = session.prepare(derivative.kernel)
    return Planned(derivative, derivative_plan(session.launcher, derivative.adstack_sizing, main, sizing, limit))


class SpecializedDerivative:
    """A specialization's derivative, ready to launch. ``trees``: the allocations of its field trees, those of gradients too.
    ``target``: what it is derived for; by default the session."""

    def __init__(
        self, session: protocol.Session, kernel: Kernel, specialization: Specialization, mode: str, target: CompileTarget | None = None
    ) -> None:
        self.role = _ROLES[mode]
        self.primal = specialization
        self.label = f"kernel `{kernel.function.__name__}`"
        self.fields = WeakValueDictionary(specialization.fields)  # which field each reference stands for
        assert isinstance(session, Session)
        self._session, self._mode = session, mode
        self._target: CompileTarget = session if target is None else target
        with span(f"differentiate {kernel.function.__name__}", "compile"):
            self.derivative = self.derived(None)
        self._checkpoints: NestedCheckpoints[Planned] | None = None
        self.trees = trees_of(self.fields.values(), self)
        buffers = self.derivative.saving.buffers if self.derivative.saving is not None else ()
        own = self.derivative.kernel.args[len(specialization.kernel.args) + len(buffers) :]
        self.returned = [arg.returned for arg in own if isinstance(arg, ScalarArg) and arg.returned is not None]
        # What the derivative reads of memory that others see.
        self.residuals = tuple(residual for residual in self.derivative.residuals if residual.ref not in buffers)
        # Whether it does anything: kernels that store numbers only have it set gradients to zero.
        self.acts = any(op.code.effect in ("write", "atomic") and _role(op) == self.role for op in self.derivative.kernel.walk())
        self._checked = self._reported = self._warned = False
        self._replays: bool | None = None  # see `needs_replay`
        # Array arguments that the kernel writes, with a line of it that does; those that it accesses, if it writes any.
        written = self.derivative.writes if mode == "reverse" else ()
        self.written = {w.ref.arg: w.loc for w in written if isinstance(w.ref, ArrayRef)}
        refs = [ref_of(op) for op in self.primal.kernel.walk()] if self.written else []
        self.accessed = frozenset([ref.arg for ref in refs if isinstance(ref, ArrayRef)])
        self.native = NativeCalls(session, most=1)  # so that sizes are those of the last launch by Python
        self.footprint: object = None  # what a tape knows of it
        self._access_check: tuple[LaunchPlan | None, Sequence[FieldRef | ArrayRef]] | None = None
        # The plans of the primal that saves what it reads, and of the kernel that counts the values.
        self._saving: tuple[LaunchPlan, LaunchPlan | None] | None = None

    @one_at_a_time
    def shadow(self, ref: Ref) -> FieldRef | ArrayRef | None:
        """Return the memory of the gradient (or tangent) of primal memory, None if there is none."""
        if isinstance(ref, ArrayRef) and ref.role == "primal":
            decl = self.primal.kernel.args[ref.arg]
            assert not isinstance(decl, ScalarArg)
            there = decl.needs_grad if self.role == "grad" else decl.needs_dual
            return replace(ref, role=self.role, name=f"{ref.name}.{self.role}") if there else None
        field = self.fields.get(ref) if isinstance(ref, FieldRef) and ref.role == "primal" else None
        if field is None or not (field.has_grad() if self.role == "grad" else field.has_dual()):
            return None
        shadow = field.grad if self.role == "grad" else field.dual
        ref_of_shadow: FieldRef = shadow.refs()
        self.fields[ref_of_shadow] = shadow
        return ref_of_shadow

    def release(self) -> None:
        """Free what was compiled: one of its field trees is gone. See `Specialization.release`."""
        self._checkpoints = self._saving = self._access_check = None
        self.native.forget()
        for mode, derivative in list(self.primal.derivatives.items()):
            if derivative is self:
                del self.primal.derivatives[mode]

    @property
    def plan(self) -> DerivativePlan:
        """How to launch it without nested checkpoints; compiled at the first need."""
        return self.checkpoints.plain.plan

    @property
    def checkpoints(self) -> NestedCheckpoints[Planned]:
        """The plain form, and those with nested checkpoints, compiled when they are needed."""
        checkpoints = self._checkpoints
        return self._plan_checkpoints() if checkpoints is None else checkpoints

    @one_at_a_time
    def _plan_checkpoints(self) -> NestedCheckpoints[Planned]:
        if self._checkpoints is None:
            nested = self._nested if self.role == "grad" and self.derivative.records else None
            self._checkpoints = NestedCheckpoints(_planned(self._session, self.derivative), nested)
        return self._checkpoints

    def _nested(self, nesting: Nesting) -> Planned:
        with span(f"differentiate {self.label} with nested checkpoints", "compile"):
            return _planned(self._session, self.derived(nesting))

    def derived(self, nesting: Nesting | None) -> Derivative:
        """Return the derivative of the primal, in reverse mode with nested checkpoints as ``nesting`` says."""
        return derive(self._target, self.primal.kernel, self._mode, self.shadow, nesting)

    @property
    def last_derivative(self) -> Derivative:
        """The derivative that was launched last, which may have nested checkpoints."""
        return self.derivative if self._checkpoints is None else self._checkpoints.last.derivative

    @property
    def adstack_bytes(self) -> int:
        """Bytes of the adstacks of its last launch; 0 before the first."""
        return 0 if self._checkpoints is None else self._checkpoints.last.plan.adstack_bytes

    def needs_replay(self) -> bool:
        """Return whether the kernel overwrites what this reads, and the session reads memory as it is now instead."""
        if self._replays is None:
            lost = self._overwritten()
            self._replays = lost is not None and self._target.broken_chains != "error"
            if lost is not None and self._replays:
                report(self._target, f"{self._lost(lost)}: it is computed from what that holds now", lost.loc, TAPE_HINT)
        return self._replays

    def _overwritten(self) -> Residual | None:
        """Return the first residual that this reads as it was before the kernel, and that the kernel overwrites."""
        saved = self.derivative.saving.loads if self.derivative.saving is not None else ()
        return next((r for r in (*self.residuals, *saved) if r.when == "before" and r.overwritten is not None), None)

    def _lost(self, residual: Residual) -> str:
        return (
            f"the gradient of {self.label} needs {name_of(residual.ref)} as it was before the kernel, which overwrites it "
            f"({residual.overwritten})"
        )

    def check_bare(self, hint: str = TAPE_HINT, replayed: bool = False) -> None:
        """Raise, with the line and ``hint``, unless this can run by itself, right after the kernel, or (``replayed``) from memory as it was
        before. Warns once of gradients that end."""
        if self._checked:
            return
        lost = self._overwritten()
        if not self._reported:
            self.warn()
            if not self.acts and not self.returned:
                self._refuse_without_active_output()
        if lost is not None and not replayed:
            raise SpirogradCompilationError(self._lost(lost), lost.loc, hint)
        for place in () if self._reported else self.derivative.inactive_writes:
            text = f"no gradient flows through {name_of(place.ref)}, which {self.label} gives values that depend on others with gradients"
            if self._target.broken_chains != "ignore":
                logger.warning(render(text, place.loc, INACTIVE_HINT))
        self._reported = True
        self._checked = lost is None  # else each launch says whether it is one that replays

    def warn(self) -> None:
        """Tell the user, once, what the derivative has to say. Raises, with the line, where a chain breaks inside of the kernel."""
        if self._warned:
            return
        broken = self.derivative.broken
        if broken is not None:
            written, read = broken
            problem = (
                f"gradients end at {name_of(read.ref)}, which has none: {self.label} reads it after giving it values that depend on memory "
                f"with gradients{f' ({written.loc})' if written.loc is not None else ''}"
            )
            report(self._target, problem, read.loc, INACTIVE_HINT)
        for text in self.derivative.warnings:
            logger.warning(text)
        self._warned = True

    def _refuse_without_active_output(self) -> None:
        derivative = self.derivative
        if any(self.shadow(w.ref) is not None for w in derivative.writes):
            return  # what it writes has gradients, and depends on nothing that has
        hint = "declare it with `needs_grad=True`"
        place = next(iter(derivative.inactive_writes), None) or next((w for w in derivative.writes if w.ref.dtype.is_float), None)
        if place is None:
            problem = f"{self.label} has no gradient: it writes no memory of floats, and returns nothing that depends on any"
            report(self._target, problem, self.primal.kernel.loc, "have it write a field or array with `needs_grad=True`")
        else:
            report(self._target, f"{self.label} has no gradient: it writes {name_of(place.ref)}, which has none", place.loc, hint)

    def launch(self, packer: Packer, returned: object, number: int | None) -> None:
        """Run it on packed arguments (`Kernel.pack` with gradients). ``returned``: the adjoint of what the kernel returns. ``number``: of
        the launch whose random numbers it draws again."""
        if self.written:
            refuse_shared(self.label, self.primal.kernel.args, packer, self.written, self.accessed)
        if returned is not None or self.returned:
            self._put_returned(packer, returned)
        plan = (self._checkpoints or self.checkpoints).launch(packer.on(self.trees), number).plan
        if packer.transfers is not None:
            packer.transfers.finish({index for kind, index in plan.compiled.effects.writes if kind == "array"})
        if plan.compiled.faults or plan.compiled.prints:
            self._session.launched()

    def prepare(self, args: Sequence[object], packer: Packer, native: NativeCalls | None = None) -> None:
        """Have compiled code do launches like the last one, which had these arguments. ``native``: where to keep them, for callers that
        know that no arrays of their launches share memory."""

        def record(args: Sequence[object], into: StepRecorder) -> None:
            if self.written and native is None:  # whether arrays share memory was found out for these
                into.keep_arrays()
            self.primal.record(args, into)

        (self.native if native is None else native).prepare(self.checkpoints.last.plan, packer.on(self.trees), args, record)

    def memory_plan(self, packer: Packer, number: int | None) -> MemoryPlan:
        """Return what a launch would need for its adstacks. Arguments as of `launch`."""
        if self.derivative.saving is not None:
            self.check_bare()
        for _ in self.returned:
            packer.put_scalar(0.0)  # no loop depends on the adjoint
        variant, arguments = self.checkpoints.current, packer.on(self.trees)
        try:
            forecast = variant.plan.plan(arguments, number)
        except AdstacksTooLarge as error:
            variant, forecast = self.checkpoints.fitting(error, lambda plan: plan.plan(arguments, number))
        return memory_plan(self.label, variant.derivative, variant.plan.compiled, forecast)

    @one_at_a_time
    def access_check(self) -> tuple[LaunchPlan | None, Sequence[FieldRef | ArrayRef]]:
        """Return the primal with checks of the rule of global data access, and the memory that it has marks for; see `checking`."""
        if self._access_check is None:
            session = self._session
            kernel, marked = checking(self.primal.kernel, self.shadow, session.device.caps, session.compile_options)
            self._access_check = (session.prepare(kernel) if marked else None, marked)
        return self._access_check

    def saved_nbytes(self, packer: Packer) -> Iterator[int]:
        """Yield the bytes of the saved-value buffers of a launch, as far as the host knows them before."""
        saving = self.derivative.saving if self.acts else None
        for ref, sizes in zip(saving.buffers, saving.sizes) if saving is not None else ():
            known = [int(evaluate(size, packer.scalars, packer.arrays)) for size in sizes if size is not None]
            if len(known) == len(sizes):
                yield math.prod([n if n > 0 else 0 for n in known]) * ref.dtype.size

    @one_at_a_time
    def _prepare_saving(self, saving: Saving) -> tuple[LaunchPlan, LaunchPlan | None]:
        if self._saving is None:
            counting = None if saving.counting is None else self._session.prepare(saving.counting)
            self._saving = self._session.prepare(saving.kernel), counting
        return self._saving

    def launch_saving(
        self,
        packer: Packer,
        drawn: int | None,
        scratch: Callable[[DType, tuple[int, ...], Loc | None], Place],
        kept: AbstractContextManager[None],
    ) -> tuple[tuple[Scalar, ...] | None, int | None, list[Place]]:
        """Launch the primal such that it saves what no memory keeps: what the launch returns, its number, and its saved-value buffers.
        ``drawn``: it draws the random numbers of the launch of this number. ``scratch``: makes buffers from types, shapes, and
        the line for errors. ``kept``: a block after which memory holds what it held, of all that the primal writes."""
        refuse_shared(self.label, self.primal.kernel.args, packer, self.written, self.accessed)
        saving = self.derivative.saving
        assert saving is not None
        plan, counting = self._saving or self._prepare_saving(saving)
        number = self._session.launcher.next_number() if drawn is None else drawn
        counts: Sequence[Scalar] = ()
        if any(None in sizes for sizes in saving.sizes):
            graph_recording.refuse(f"the host has to know how many values {self.label} overwrites that its gradient needs")
            with kept if saving.counting_writes else contextlib.nullcontext():
                assert counting is not None
                counts = counting.launch(packer, drawn=number) or ()
        loc = saving.loads[0].loc if saving.loads else None
        buffers = []
        for k, (ref, sizes) in enumerate(zip(saving.buffers, saving.sizes)):
            counted = counts[2 * k : 2 * k + 2] or (0, 0)
            shape = [n if size is None else evaluate(size, packer.scalars, packer.arrays) for n, size in zip(counted, sizes)]
            rows, entries = (max(int(n), 0) for n in shape)
            if rows * entries >= i32.max:
                nbytes = rows * entries * storage(ref.dtype).size
                text = (
                    f"{self.label} overwrites values that its gradient needs, and saving them takes {nbytes:,} bytes or more: a launch "
                    f"saves fewer than {int(i32.max):,} of them"
                )
                raise OutOfDeviceMemory(render(text, loc, "run fewer iterations in one launch"))
            buffers.append(scratch(ref.dtype, (rows, entries), loc))
        values = plan.launch(packer.followed_by(*buffers), drawn=number)
        return values, number, buffers

    def _put_returned(self, packer: Packer, returned: object) -> None:
        if returned is UNFOLLOWED:
            for _ in self.returned:
                packer.put_scalar(0.0)
            return
        if returned is None:
            if self.returned:
                self._put_default(packer)
            return
        if not self.returned:
            raise SpirogradRuntimeError(
                f"{self.label}: `returned=` is given, but nothing that the kernel returns depends on memory with gradients; omit it"
            )
        values = _leaves(self.primal.returns, returned, self.label)
        for number in self.returned:
            packer.put_scalar(values[number])

    def _put_default(self, packer: Packer) -> None:
        """Put the adjoint of a result that none is given for: 1, if the result is a number and all that derivatives flow from."""
        if len(self.returned) == 1 and not isinstance(self.primal.returns, AggregateType) and not self.derivative.active_outputs:
            packer.put_scalar(1.0)
            return
        hint = "`kernel.grad(..., returned=1.0)`"
        problem = f"{self.label} returns a value: its gradient starts from the adjoint of that"
        report(self._target, problem, None, hint, while_running=True)
        self._put_returned(packer, UNFOLLOWED)


def _role(op: Op) -> str:
    """Return the role of the outer memory that an operation names."""
    ref = ref_of(op)
    return ref.role if isinstance(ref, (FieldRef, ArrayRef)) else ""


def _leaves(returns: object, value: object, label: str) -> Sequence[float]:
    """Return the scalars of an adjoint that is shaped like the value that a kernel returns."""
    try:
        if isinstance(returns, AggregateType):
            return [float(entry) for entry in returns.leaves_of(value)]
        if isinstance(value, SupportsFloat):
            return [float(value)]
        raise TypeError
    except TypeError:
        raise SpirogradRuntimeTypeError(f"{label}: `returned=` takes what the kernel returns ({returns}), got {describe(value)}") from None
