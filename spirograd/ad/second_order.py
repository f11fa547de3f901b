"""Second derivatives: products of a Hessian with a vector, by forward mode over reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from spirograd.ad.entries import Launch, derivative_footprint_of
from spirograd.ad.exposed import Exposed, clear_elements
from spirograd.ad.forward_mode import Chain, memory_key, object_key
from spirograd.ad.memory_keys import FieldOrArray, Key, Part, ProgramRecorder, Returned
from spirograd.ad.saving_rule import Version
from spirograd.ad.tape_numbers import is_followed
from spirograd.ad.thread_tapes import clear_all, tangents
from spirograd.ad.versions import Saved, memory_identity, slice_at
from spirograd.autodiff.derivative import Derivative
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.protocols import Scalar
from spirograd.base.recorder import Clear, R
from spirograd.base.records import dataclass, replace
from spirograd.derivatives.specialized import SpecializedDerivative, derive
from spirograd.ir.nodes import ArrayRef, FieldRef, Ref
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer, objects_of
from spirograd.lang.scalar import describe
from spirograd.lang.session_protocol import Session
from spirograd.lang.traced_numbers import RefusedNumbers, TracedNumber

_DUALS = {"primal": "dual", "grad": "grad_dual"}
_HINT = "write to other memory, or to another index at each step (`x[t + 1]` from `x[t]`)"


def hvp(function: Callable[[], object], loss: object, x: object, v: object) -> Array | list[Array]:
    """Return the Hessian of ``loss`` with respect to ``x``, times ``v``: a NumPy array of the shape of ``x``.

    ``function()`` runs the kernels that compute ``loss``, a field or array of one scalar, from ``x``. It runs them from the start, so it
    sets ``loss`` to zero itself if it accumulates into it. ``x``: a field or array with a gradient, or a list of several; then ``v`` and
    the result are lists, too. All memory between ``x`` and ``loss`` needs gradients; tangents are made where they are needed. ``hvp``
    clears all gradients, and leaves the gradient of ``loss`` in them.

    Raises SpirogradTypeError for arguments of other kinds, for lists ``x`` and ``v`` of different lengths, and for torch tensors with
    gradients; SpirogradRuntimeError, with the line, if a kernel overwrites what the gradient of an earlier one reads, or if a chain leads
    through memory without a gradient; SpirogradUnsupportedError for what has no derivative.
    """
    single = not isinstance(x, (list, tuple))
    parameters = list(x) if isinstance(x, (list, tuple)) else [x]
    if not single and not isinstance(v, Iterable):
        raise SpirogradTypeError(f"`x` is a list of fields or arrays, so `v` is a list of directions, got {describe(v)}")
    directions = list(v) if isinstance(v, Iterable) and not single else [v]
    if len(parameters) != len(directions):
        raise SpirogradTypeError(
            f"`x` are {len(parameters)} fields or arrays, and `v` {len(directions)} directions: give one direction for each"
        )
    checked = [_checked(p, "x") for p in parameters]
    loss = _checked(loss, "loss")
    if int(np.prod((*loss.shape, *loss.element_shape))) != 1:
        raise SpirogradTypeError(f"`loss` is one scalar, got {describe(loss)} of shape {(*loss.shape, *loss.element_shape)}")
    if context.recorder() is not None:
        raise SpirogradRuntimeError("`hvp` cannot run inside of a tape, of a `FwdMode`, or of another `hvp`: call it after the block")
    with tangents("`hvp`"):
        for memory in (*checked, loss):
            memory.make_duals()
        clear_all("dual", "grad_dual")
        for p, direction in zip(checked, directions):
            p.dual.from_numpy(_direction(p, direction))
        recorded = _Recorder()
        context.set_recorder(recorded)
        try:
            function()
        finally:
            context.set_recorder(None)
        loss.grad.fill(1.0)
        recorded.reverse()
        results = [p.grad.dual.to_numpy() for p in checked]
    return results[0] if single else results


def _checked(memory: object, what: str) -> FieldOrArray:
    if not isinstance(memory, (ScalarField, Ndarray)):
        raise SpirogradTypeError(f"`{what}` is a field or array, got {describe(memory)}")
    if not memory.has_grad():
        raise SpirogradRuntimeError(render(f"`{what}`, {describe(memory)}, has no gradient", None, "declare it with `needs_grad=True`"))
    return memory


def _direction(x: FieldOrArray, v: object) -> Array:
    shape = (*x.shape, *x.element_shape)
    direction = np.asarray(v.to_numpy() if hasattr(v, "to_numpy") else v, x.dtype.np)
    if direction.shape != shape:
        raise SpirogradRuntimeError(
            f"`v` has shape {direction.shape}, and `x`, {describe(x)}, shape {shape}: a direction has the shape of `x`"
        )
    return direction


def _dual(derivative: SpecializedDerivative, ref: Ref) -> FieldRef | ArrayRef | None:
    """Return the memory of tangents, for primal memory with a gradient and for such gradients."""
    if not isinstance(ref, (FieldRef, ArrayRef)) or ref.role not in _DUALS:
        return None
    if isinstance(ref, ArrayRef):
        args = derivative.primal.kernel.args  # what comes after them are saved values, of kernels that `_refuse` refuses
        there = ref.arg < len(args) and getattr(args[ref.arg], "needs_grad", False)
        return replace(ref, role=_DUALS[ref.role]) if there else None
    field = derivative.fields.get(ref)
    if field is None or (ref.role == "primal" and not field.has_grad()):
        return None
    dual: FieldRef = field.dual.refs()
    derivative.fields[dual] = field.dual
    return dual


class _Tangents(SpecializedDerivative):
    """A kernel in forward mode, with tangents in all memory that has a gradient."""

    def __init__(self, session: Session, kernel: Kernel, specialization: Specialization) -> None:
        super().__init__(session, kernel, specialization, "forward")

    def shadow(self, ref: Ref) -> FieldRef | ArrayRef | None:
        return _dual(self, ref)


class _Second(SpecializedDerivative):
    """The gradient of a kernel in forward mode."""

    def __init__(self, session: Session, kernel: Kernel, specialization: Specialization) -> None:
        super().__init__(session, kernel, specialization, "reverse")

    def derived(self, nesting: Nesting | None) -> Derivative:
        """See `SpecializedDerivative.derived`."""
        first = super().derived(nesting)
        second = derive(self._session, first.kernel, "forward", lambda ref: _dual(self, ref))
        return replace(first, kernel=second.kernel)


def tangents_of(session: Session, kernel: Kernel, specialization: Specialization) -> SpecializedDerivative:
    """Return the kernel in forward mode, derived once. All memory with a gradient has duals already."""
    derivative: SpecializedDerivative | None = specialization.derivatives.get("tangents")
    if derivative is None:
        derivative = specialization.derivatives["tangents"] = _Tangents(session, kernel, specialization)
    return derivative


def second_of(session: Session, kernel: Kernel, specialization: Specialization) -> SpecializedDerivative:
    """Return the gradient of the kernel in forward mode, derived once. All memory with a gradient has duals already."""
    derivative: SpecializedDerivative | None = specialization.derivatives.get("second")
    if derivative is None:
        derivative = specialization.derivatives["second"] = _Second(session, kernel, specialization)
    return derivative


@dataclass(slots=True, eq=False)
class _Launch:
    """A kernel that ran."""

    second: SpecializedDerivative
    launch: Launch

    def reverse(self) -> None:
        self.second.launch(self.launch.again(), None, self.launch.number)


class _Recorder(ProgramRecorder):
    """Runs kernels with tangents, and keeps what their gradients need; see `Recorder`."""

    def __init__(self) -> None:
        self.launches: list[_Launch] = []
        self.events: list[Callable[[], None]] = []  # their reverse
        self.chain = Chain("grad")
        self.exposed = Exposed(self._used, self._unseen_write)
        self._numbers = RefusedNumbers(self, "`hvp` does not follow numbers of Python")

    def read_numbers(
        self, memory: FieldOrArray, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> Sequence[Scalar | TracedNumber]:
        """See `Recorder`."""
        return self._numbers.of(values, location()) if is_followed(memory) else values

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        session = context.session()
        self._make_duals(session, kernel, specialization, packer, args)
        first, second = tangents_of(session, kernel, specialization), second_of(session, kernel, specialization)
        self._refuse(second)
        self.chain.follow(first, packer)
        launch = Launch(session, kernel, specialization, packer, args)
        if self.exposed.active:
            self.exposed.before(launch, derivative_footprint_of(second).accesses)
        for write in second.derivative.writes:
            self._write(memory_key(write.ref, packer), launch.part(write.at), write.ref.name, second.label, write.loc)
        _snapshot(second, launch, Version.BEFORE)
        values = first.plan.main.launch(packer.on(first.trees))
        launch.number = first.plan.main.last_number
        _snapshot(second, launch, Version.AFTER)
        if self.exposed.active:
            self.exposed.after(launch, derivative_footprint_of(second).writes)
        self.launches.append(_Launch(second, launch))
        self.events.append(self.launches[-1].reverse)
        return values

    def aside(self, function: Callable[[], R], replaced: bool) -> R:
        what = "has a gradient of its own, which gives no second derivatives" if replaced else "is left out of differentiation"
        raise SpirogradRuntimeError(f"`hvp` does not run `{getattr(function, 'func', function).__name__}`, which {what}")

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        """Clear the derivatives of what the host writes. See `Recorder`."""
        if shadows.is_shadow(memory):
            return
        if source is not None and source.has_grad():
            raise SpirogradRuntimeError(
                render("`copy_from` inside of `hvp` has no derivative, and copies from memory with a gradient", None, "copy in a kernel")
            )
        if self.exposed.active:
            self.exposed.look(memory_identity(memory)[0], None)
        name = object_key(memory)
        self._write(name, slice_at(key), getattr(memory, "name", "the array"), "the host", None)
        if memory.has_grad():
            memory.make_duals()
            clear("dual")
            self.events += [lambda: clear("grad"), lambda: clear("grad_dual")]
        elif key is None:
            self.chain.forget(name)

    def _used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""
        return (memory for launched in self.launches for memory in launched.launch.used())

    def _unseen_write(self, key: Key, storage: FieldOrArray, before: Saved, changed: Array) -> None:
        """Clear the derivatives of elements that the host wrote in memory that was handed out: see `Exposed`."""
        self._write(object_key(storage), None, getattr(storage, "name", "the array"), "the host", None)
        if storage.has_grad():
            storage.make_duals()
            clear_elements(storage.dual, changed)
            self.events += [lambda: clear_elements(storage.grad, changed), lambda: clear_elements(storage.grad.dual, changed)]
        elif changed.all():
            self.chain.forget(object_key(storage))

    def _make_duals(self, session: Session, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> None:
        """Have tangents in all memory with gradients."""
        for field in specialization.fields.values():
            if field.role == "primal" and field.has_grad():
                field.make_duals()
        places = list(packer.arrays)
        for k, array in enumerate(objects_of(specialization.steps, args)):
            if isinstance(array, Ndarray) and array.grad is not None:
                array.make_duals()
                places[k] = session.bind(array)
            elif getattr(array, "requires_grad", False):
                raise SpirogradTypeError(
                    "`hvp` works on fields and ndarrays, not on torch tensors that require a gradient: copy them with `from_torch`"
                )
        packer.arrays = places

    def _refuse(self, second: SpecializedDerivative) -> None:
        label = second.label
        if second.returned:
            raise SpirogradRuntimeError(
                render(f"{label} returns a value that depends on memory with gradients, which ends there", None, "store it to a field")
            )
        saving = second.derivative.saving
        for residual in second.derivative.residuals if saving is None else saving.loads:
            if saving is not None or (residual.when == "before" and residual.overwritten is not None):
                problem = (
                    f"the gradient of {label} needs `{residual.ref.name}` as it was before the kernel, which overwrites it "
                    f"({residual.overwritten})"
                )
                raise SpirogradRuntimeError(render(problem, residual.loc, f"{_HINT}: `hvp` saves nothing"))

    def _write(self, key: object, at: Part | None, name: str, writer: str, loc: Loc | None) -> None:
        """Raise if a write overwrites what the gradients of earlier launches need. ``at``: the slice, if it is known."""
        for launch in self.launches:
            for residual in launch.second.derivative.residuals:
                if memory_key(residual.ref, launch.launch.packer) != key:
                    continue
                there = launch.launch.part(residual.at)
                if at is None or there is None or at[0] != there[0] or at == there:
                    problem = f"{writer} overwrites `{name}`, which the gradient of an earlier {launch.second.label} needs"
                    raise SpirogradRuntimeError(render(problem, loc, f"{_HINT}: `hvp` saves nothing"))

    def reverse(self) -> None:
        """Run the gradients with their tangents, last kernel first."""
        if self.exposed.active:
            self.exposed.look_everywhere()
        for event in reversed(self.events):
            event()


def _snapshot(second: SpecializedDerivative, launch: Launch, version: Version) -> None:
    """Keep the arrays of NumPy and torch that a gradient needs: they may change unseen."""
    for access, needed in derivative_footprint_of(second).residuals:
        if needed is version and launch.memory(access)[1] is None:
            list(launch.snapshot(access))
