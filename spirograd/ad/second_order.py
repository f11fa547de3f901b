"""Second derivatives: products of a Hessian with a vector, by forward mode over reverse mode."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from spirograd.ad.entries import Launch, derivative_footprint_of, footprint_of
from spirograd.ad.exposed import Exposed, clear_elements
from spirograd.ad.forward_mode import Chain, object_key
from spirograd.ad.memory_keys import FieldOrArray, Key, Part, ProgramRecorder, Returned, numbers_of
from spirograd.ad.saving_rule import Version
from spirograd.ad.tape_numbers import is_followed
from spirograd.ad.thread_tapes import clear_all, refuse_used, tangents
from spirograd.ad.versions import Saved, Stored, memory_identity, slice_at
from spirograd.autodiff.derivative import Derivative
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.protocols import Scalar
from spirograd.base.recorder import Clear, R
from spirograd.base.records import replace
from spirograd.derivatives.specialized import SpecializedDerivative, derive
from spirograd.ir.nodes import ArrayRef, FieldRef, Ref
from spirograd.lang import context
from spirograd.lang.data import numpy_transfer, shadows
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
    if numbers_of(loss) != 1:
        raise SpirogradTypeError(f"`loss` is one scalar, got {describe(loss)} of shape {(*loss.shape, *loss.element_shape)}")
    if context.recorder() is not None:
        raise SpirogradRuntimeError("`hvp` cannot run inside of a tape, of a `FwdMode`, or of another `hvp`: call it after the block")

    def seed() -> None:
        for p, direction in zip(checked, directions):
            p.dual.from_numpy(_direction(p, direction))

    clear_all("dual", "grad_dual")
    with second_derivatives(function, [*checked, loss], seed) as reverse:
        loss.grad.fill(1.0)
        reverse()
        results = [p.grad.dual.to_numpy() for p in checked]
    return results[0] if single else results


@contextlib.contextmanager
def first_derivatives(
    function: Callable[[], object], memory: Sequence[FieldOrArray], seed: Callable[[], None], numbers: Sequence[int | None] = ()
) -> Iterator[None]:
    """Run ``function`` with tangents. ``memory``: parameters and results, which get tangents, as all memory with gradients that it uses
    does: zeros at first, while other memory keeps its own. ``seed`` sets those of the parameters. ``numbers``: of launches, one after the
    other, by which they draw random numbers. In the block, the tangents are in ``dual``."""
    with _running(_TangentRecorder("`jvp`", numbers), function, memory, seed):
        yield


@contextlib.contextmanager
def second_derivatives(
    function: Callable[[], object], memory: Sequence[FieldOrArray], seed: Callable[[], None], numbers: Sequence[int | None] = ()
) -> Iterator[Callable[[], None]]:
    """Do the same, and yield a function that runs the gradients with their tangents, from the gradients of results that the block sets:
    the gradients are then in ``grad`` of the parameters, and their tangents in ``grad.dual``."""
    recorder = _Recorder("`hvp`", numbers)
    with _running(recorder, function, memory, seed):
        yield recorder.reverse


@contextlib.contextmanager
def _running(
    recorder: _TangentRecorder, function: Callable[[], object], memory: Sequence[FieldOrArray], seed: Callable[[], None]
) -> Iterator[None]:
    with tangents(recorder.what):
        for one in memory:
            recorder.begin_use(one)
        seed()
        context.set_recorder(recorder)
        try:
            function()
        finally:
            context.set_recorder(None)
        yield


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


class _TangentRecorder(ProgramRecorder):
    """Runs kernels with tangents, see `Recorder`. ``what``: the caller, for messages. ``numbers``: see `first_derivatives`."""

    def __init__(self, what: str, numbers: Sequence[int | None]) -> None:
        self.what = what
        self._drawn = iter(numbers)
        self._used_keys: set[Key] = set()
        self.launches: list[Launch] = []
        self.chain = Chain("grad")
        self.exposed = Exposed(self._used, self._unseen_write)
        self._numbers = RefusedNumbers(self, f"{what} does not follow numbers of Python")

    def read_numbers(
        self, memory: FieldOrArray, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> Sequence[Scalar | TracedNumber]:
        """See `Recorder`."""
        return self._numbers.of(values, location()) if is_followed(memory) else values

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        session = context.session()
        self._make_duals(session, kernel, specialization, packer, args)
        first = tangents_of(session, kernel, specialization)
        self.chain.follow(first, packer)
        launch = Launch(session, kernel, specialization, packer, args)
        self.before(launch)
        values = first.plan.main.launch(packer.on(first.trees), drawn=next(self._drawn, None))
        launch.number = first.plan.main.last_number
        self.launches.append(launch)
        self.after(launch)
        return values

    def begin_use(self, memory: FieldOrArray) -> None:
        """Have tangents in memory with a gradient, zeros when it is used for the first time."""
        key, storage = memory_identity(memory)
        if key not in self._used_keys:
            self._used_keys.add(key)
            memory.make_duals()
            self.clear(storage)

    def clear(self, memory: FieldOrArray) -> None:
        """Set the derivatives of memory that is used for the first time to zero."""
        memory.dual.fill(0.0)

    def before(self, launch: Launch) -> None:
        """Called before the launch of a kernel."""
        if self.exposed.active:
            self.exposed.before(launch, footprint_of(launch.specialization).used)

    def after(self, launch: Launch) -> None:
        """Called after the launch of a kernel."""
        if self.exposed.active:
            self.exposed.after(launch, footprint_of(launch.specialization).written)

    def aside(self, function: Callable[[], R], replaced: bool) -> R:
        what = "has a gradient of its own, which gives no other derivatives" if replaced else "is left out of differentiation"
        raise SpirogradRuntimeError(f"{self.what} does not run `{getattr(function, 'func', function).__name__}`, which {what}")

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        """Clear the derivatives of what the host writes, or copy those of ``source``. See `Recorder`."""
        if shadows.is_shadow(memory):
            return
        if self.exposed.active:
            self.exposed.look(memory_identity(memory)[0], None)
        self.before_write(memory, slice_at(key))
        if memory.has_grad():
            self.begin_use(memory)
            self.write(memory, clear, source)
        elif key is None:
            self.chain.forget(object_key(memory))

    def write(self, memory: FieldOrArray, clear: Clear, source: FieldOrArray | None) -> None:
        """The host writes to memory with a gradient."""
        if source is not None and source.has_grad():
            self.begin_use(source)
            memory.dual.copy_from(source.dual)
        else:
            clear("dual")

    def before_write(self, memory: FieldOrArray, at: Part | None) -> None:
        """Called before the host writes to memory. ``at``: the slice, if it is known."""

    def _used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""
        return (memory for launch in self.launches for memory in launch.used())

    def _unseen_write(self, key: Key, storage: FieldOrArray, before: Saved, changed: Array) -> None:
        """Clear the derivatives of elements that the host wrote in memory that was handed out: see `Exposed`."""
        self.after_unseen_write(storage)
        if storage.has_grad():
            self.begin_use(storage)
            self.clear_elements(storage, changed)
        elif changed.all():
            self.chain.forget(object_key(storage))

    def after_unseen_write(self, memory: FieldOrArray) -> None:
        """Called after the host wrote to memory that was handed out."""

    def clear_elements(self, storage: FieldOrArray, changed: Array) -> None:
        """Clear the derivatives of elements."""
        clear_elements(storage.dual, changed)

    def _make_duals(self, session: Session, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> None:
        """Have tangents in all memory with gradients."""
        for field in specialization.fields.values():
            if field.role == "primal" and field.has_grad():
                self.begin_use(field)
        places = list(packer.arrays)
        for k, array in enumerate(objects_of(specialization.steps, args)):
            if isinstance(array, Ndarray) and array.grad is not None:
                self.begin_use(array)
                places[k] = session.bind(array)
            elif getattr(array, "requires_grad", False):
                raise SpirogradTypeError(
                    f"{self.what} works on fields and ndarrays, not on torch tensors that require a gradient: copy them with `from_torch`"
                )
        packer.arrays = places


class _Recorder(_TangentRecorder):
    """Runs kernels with tangents, and keeps what their gradients need, also of memory that is overwritten: with its tangents, and put back
    in the reverse pass, as a tape does it (see `saving_rule`)."""

    def __init__(self, what: str, numbers: Sequence[int | None]) -> None:
        super().__init__(what, numbers)
        self.events: list[Callable[[], None]] = []  # their reverse
        self._saved: list[Saved] = []  # in the order of the writes
        self._kept: tuple[list[Saved], list[Saved]] = ([], [])  # of a launch: what its own gradient reads, and other memory

    def clear(self, memory: FieldOrArray) -> None:
        super().clear(memory)
        for shadow in (memory.grad, memory.grad.dual):
            refuse_used(shadow)
            shadow.fill(0.0)

    def before(self, launch: Launch) -> None:
        second = self._second(launch)
        self._refuse(second)
        footprint = derivative_footprint_of(second)
        if self.exposed.active:
            self.exposed.before(launch, footprint.accesses)
        own = {launch.key(access) for access, version in footprint.residuals if version is Version.BEFORE}
        needed: dict[Key, FieldOrArray] = {}
        for access in footprint.writes:
            key, storage = launch.memory(access)
            if key in own or self._is_needed(key, launch.part(access.at)):
                if storage is None:
                    self._refuse_write(access.name, second.label, access.loc)
                needed[key] = storage
        self._kept = ([], [])
        for key, storage in needed.items():
            self._kept[key not in own].extend(self._save(storage))
        _snapshot(second, launch, Version.BEFORE)

    def after(self, launch: Launch) -> None:
        second, (own, others) = self._second(launch), self._kept
        _snapshot(second, launch, Version.AFTER)
        if self.exposed.active:
            self.exposed.after(launch, derivative_footprint_of(second).writes)

        def reverse() -> None:
            for saved in own:
                saved.swap()
            second.launch(launch.again(), None, launch.number)
            for saved in others:
                saved.swap()

        self.events.append(reverse)

    def _save(self, storage: FieldOrArray) -> list[Saved]:
        """Copy memory and its tangents."""
        if storage.has_grad():
            storage.make_duals()
        name = getattr(storage, "name", "the array")
        saved = [Saved(Stored(name, one), None) for one in (storage, *([storage.dual] if storage.has_grad() else ()))]
        self._saved += saved
        return saved

    def _second(self, launch: Launch) -> SpecializedDerivative:
        return second_of(launch.session, launch.kernel, launch.specialization)

    def write(self, memory: FieldOrArray, clear: Clear, source: FieldOrArray | None) -> None:
        super().write(memory, clear, source)
        self.events += [lambda: clear("grad"), lambda: clear("grad_dual")]  # run after what is added below
        if source is not None and source.has_grad():
            if memory_identity(source)[0] == memory_identity(memory)[0]:
                problem = "`copy_from` between two parts of one array has no derivative inside of `hvp`"
                raise SpirogradRuntimeError(render(problem, None, "copy in a kernel"))
            for to, of in ((source.grad, memory.grad), (source.grad.dual, memory.grad.dual)):
                self.events.append(functools.partial(_add, to, of))

    def clear_elements(self, storage: FieldOrArray, changed: Array) -> None:
        super().clear_elements(storage, changed)
        self.events += [lambda: clear_elements(storage.grad, changed), lambda: clear_elements(storage.grad.dual, changed)]

    def _refuse(self, second: SpecializedDerivative) -> None:
        label = second.label
        if second.returned:
            raise SpirogradRuntimeError(
                render(f"{label} returns a value that depends on memory with gradients, which ends there", None, "store it to a field")
            )
        saving = second.derivative.saving
        if saving is not None:
            load = saving.loads[0]
            problem = f"{label} overwrites `{load.ref.name}` more than once, and its gradient needs what it held in between"
            raise SpirogradRuntimeError(render(problem, load.loc, f"{_HINT}, or in a kernel of its own"))

    def _is_needed(self, key: Key, at: Part | None) -> bool:
        """Return whether gradients of earlier launches need memory as it is, or the slice ``at``."""
        for launch in self.launches:
            for access, _ in derivative_footprint_of(self._second(launch)).residuals:
                if launch.key(access) == key:
                    there = launch.part(access.at)
                    if at is None or there is None or at[0] != there[0] or at == there:
                        return True
        return False

    def _refuse_write(self, name: str, writer: str, loc: Loc | None) -> NoReturn:
        raise SpirogradRuntimeError(render(f"{writer} overwrites `{name}`, which the gradient of an earlier kernel needs", loc, _HINT))

    def before_write(self, memory: FieldOrArray, at: Part | None) -> None:
        key, storage = memory_identity(memory)
        if self._is_needed(key, at):
            kept = self._save(storage)
            self.events += [saved.swap for saved in kept]

    def after_unseen_write(self, memory: FieldOrArray) -> None:
        if self._is_needed(memory_identity(memory)[0], None):
            self._refuse_write(getattr(memory, "name", "the array"), "the host", None)

    def reverse(self) -> None:
        """Run the gradients with their tangents, last kernel first. Afterwards memory holds what it held."""
        if self.exposed.active:
            self.exposed.look_everywhere()
        for event in reversed(self.events):
            event()
        for saved in self._saved:
            saved.swap()


def _add(to: FieldOrArray, of: FieldOrArray) -> None:
    numpy_transfer.add(to.tree.allocation, to.view, of.tree.allocation, of.view)


def _snapshot(second: SpecializedDerivative, launch: Launch, version: Version) -> None:
    """Keep the arrays of NumPy and torch that a gradient needs: they may change unseen."""
    for access, needed in derivative_footprint_of(second).residuals:
        if needed is version and launch.memory(access)[1] is None:
            list(launch.snapshot(access))
