"""Forward mode: derivatives along one direction of the parameters, computed with the values."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.exposed import Exposed, clear_elements
from spirograd.ad.memory_keys import FieldOrArray, Key, MemoryRef, ProgramRecorder, Returned
from spirograd.ad.thread_tapes import tangents
from spirograd.ad.versions import Saved, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.loc import Loc
from spirograd.base.near_names import NearNames
from spirograd.base.protocols import Scalar
from spirograd.base.recorder import Clear, R
from spirograd.derivatives.broken_chains import report
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir.nodes import FieldRef
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer
from spirograd.lang.scalar import describe
from spirograd.lang.traced_numbers import RefusedNumbers, TracedNumber

logger = logging.getLogger("spirograd")


class FwdMode(ProgramRecorder, NearNames):
    """Run kernels with tangents: ``with FwdMode(loss=y, param=x, seed=v): kernel()`` leaves the derivative of y along v in ``y.dual``.

    ``loss``: a field or array with tangents, or a list of several: the results. ``param``: the field or array to differentiate with
    respect to. ``seed``: the direction, an array of the shape of ``param`` with the axes of elements last; by default 1 if ``param`` is
    one scalar. ``clear_gradients``: set all tangents to zero on entry. On exit the tangent of ``param`` is zero again. What the host
    writes to other memory in the block has no tangent.

    Raises SpirogradRuntimeError for memory without tangents, for a seed of another shape, and if a kernel reads memory without tangents to
    which another kernel wrote values with tangents; SpirogradTypeError if ``loss`` or ``param`` is no field or array.
    """

    def __init__(self, loss: object, param: object, seed: object = None, clear_gradients: bool = True) -> None:
        losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
        self.losses = [_checked(one, "loss") for one in losses]
        self.param = _checked(param, "param")
        self.seed = _seed(self.param, seed)
        self.clear_gradients = clear_gradients
        self._chain = Chain()
        self._mode = "forward"
        self._numbers = RefusedNumbers(self, "forward mode does not follow numbers of Python")
        self._before: ProgramRecorder | None = None
        self._tangents = contextlib.ExitStack()  # left when the block ends
        self._exposed: Exposed | None = None

    def __enter__(self) -> FwdMode:
        if context.recorder() is not None:
            raise SpirogradRuntimeError("a `FwdMode` cannot be opened inside of another one, or of a tape: end that block first")
        with contextlib.ExitStack() as stack:
            stack.enter_context(tangents("`FwdMode`"))
            if self.clear_gradients:
                shadows.clear("dual")
            self.param.dual.from_numpy(self.seed)
            self._chain = Chain()
            self._exposed = Exposed(self._used, self._unseen_write)
            self._before = context.set_recorder(self)
            self._tangents = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._tangents:
            context.set_recorder(self._before)
            self.param.dual.fill(0.0)
            self._exposed = None

    def aside(self, function: Callable[[], R], replaced: bool) -> R:
        """Run ``function``, which is left out of differentiation: its values have no tangents. ``replaced``: it has a gradient for
        reverse mode, which means nothing here.
        """
        before, self._mode = self._mode, self._mode if replaced else "constant"
        try:
            return function()
        finally:
            self._mode = before

    def read_numbers(
        self, memory: FieldOrArray, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> Sequence[Scalar | TracedNumber]:
        """Return the numbers ``values`` of the element at ``key`` of ``memory`` as such that cannot be used; ``location``: the line."""
        followed = memory.dtype.is_float and memory.has_dual() and not shadows.is_shadow(memory) and self._mode != "constant"
        return self._numbers.of(values, location()) if followed else values

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        """Clear the tangent of the element ``key`` of ``memory``, which the host writes: numbers have none. Or copy the tangent of
        ``source``. ``clear`` and ``repeat`` are not used. See `Recorder`.
        """
        if shadows.is_shadow(memory) or memory is self.param:
            return
        if self._exposed is not None and self._exposed.active:
            self._exposed.look(memory_identity(memory)[0], None)
        if source is not None:
            self._chain.check(object_key(source), getattr(source, "name", "the array"), "`copy_from`", None)
        if source is not None and source.has_dual() and memory.has_dual():
            memory.dual.copy_from(source.dual)
        elif source is not None and source.has_dual():
            self._chain.lose(object_key(memory), "`copy_from`", None, memory)
        elif memory.has_dual():
            clear("dual")
        elif key is None:
            self._chain.forget(object_key(memory))

    def _used(self) -> list[FieldOrArray]:
        """Return the fields and ndarrays that may have tangents."""
        return shadows.primals("dual")

    def _unseen_write(self, key: Key, storage: FieldOrArray, before: Saved, changed: Array) -> None:
        """Clear the tangents of elements that the host wrote in memory that was handed out: see `Exposed`."""
        if storage is self.param:
            return
        if storage.has_dual():
            clear_elements(storage.dual, changed)
        elif changed.all():
            self._chain.forget(object_key(storage))

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        """Launch the forward mode of ``kernel``: its ``specialization``, with ``args`` as the ``packer`` has them. See
        `Recorder`.
        """
        assert self._exposed is not None
        launch = Launch(context.session(), kernel, specialization, packer, args) if self._exposed.active else None
        if launch is not None:
            self._exposed.before(launch, footprint_of(specialization).used)
        mode = self._mode
        derivative = specialization.derivatives.get(mode)
        if derivative is None:
            derivative = specialization.derivatives[mode] = SpecializedDerivative(context.session(), kernel, specialization, mode)
            for warning in derivative.derivative.warnings:
                logger.warning(warning)
        self._chain.follow(derivative, packer)
        values = derivative.plan.main.launch(packer.on(derivative.trees))
        if launch is not None:
            self._exposed.after(launch, footprint_of(specialization).written)
        return values


class Chain:
    """The memory without dual that got values with tangents: reading it for a result would give a wrong tangent.

    ``role``: what the memory lacks, "dual" or "grad" (second derivatives make the duals of what has a gradient).
    """

    def __init__(self, role: str = "dual") -> None:
        self.role = role
        self._lost: dict[Key, tuple[str, Loc | None, object]] = {}  # by memory: the writer, the line, what keeps the memory alive

    def follow(self, derivative: SpecializedDerivative, packer: Packer) -> None:
        """Look at a launch before it; raises SpirogradRuntimeError, with the line, where a chain breaks."""
        lost = self._lost
        relayed = [written for read, written in derivative.derivative.relays if memory_key(read.ref, packer) in lost]
        for place in (*derivative.derivative.inactive_writes, *relayed):
            owner = None if isinstance(place.ref, FieldRef) else packer.arrays[place.ref.arg]
            self.lose(memory_key(place.ref, packer), derivative.label, place.loc, owner)
        for place in derivative.derivative.inactive_reads:
            self.check(memory_key(place.ref, packer), place.ref.name, derivative.label, place.loc)

    def lose(self, key: Key, writer: str, loc: Loc | None, owner: object) -> None:
        """Note that memory without dual gets values with tangents."""
        self._lost.setdefault(key, (writer, loc, owner))

    def forget(self, key: Key) -> None:
        """Note that all of the memory gets values without tangents."""
        self._lost.pop(key, None)

    def check(self, key: Key, name: str, reader: str, loc: Loc | None) -> None:
        """Raise if memory that is read has lost tangents."""
        lost = self._lost.get(key)
        if lost is None:
            return
        writer, written, _ = lost
        what = {"dual": "dual", "grad": "gradient"}[self.role]
        problem = (
            f"`{name}` has no {what}, so tangents end there: {writer} gives it values that have tangents"
            f"{f' ({written})' if written is not None else ''}, and {reader} takes them"
        )
        hint = f"declare it with `needs_{self.role}=True`, or say that this is meant: `sg.stop_grad(value)`"
        report(context.session(), problem, loc, hint, while_running=True)


def object_key(memory: FieldOrArray) -> Key:
    """Return the `memory_key` of a field or ndarray."""
    return ("array", memory.allocation.address) if isinstance(memory, Ndarray) else ("field", memory.tree.id, memory.key)


def memory_key(ref: MemoryRef, packer: Packer) -> Key:
    """Return a key of memory that is the same in all launches."""
    if isinstance(ref, FieldRef):
        return ("field", ref.tree, ref.key)
    binding = packer.array(ref.arg)
    host = packer.transfers.host_address(binding) if packer.transfers is not None else 0
    return ("host array", host) if host else ("array", binding.address)


def _checked(memory: object, what: str) -> FieldOrArray:
    """Return ``memory``; raise unless it is one field or array with a dual."""
    if not isinstance(memory, (ScalarField, Ndarray)):
        several = "; several losses are a list" if what == "loss" else "; differentiate by several at once by putting them into one"
        raise SpirogradTypeError(f"`{what}` is one field or array, got {describe(memory)}{several}")
    if not memory.has_dual():
        hint = "declare it with `needs_dual=True`" if memory.dtype.is_float else "only floats have tangents"
        raise SpirogradRuntimeError(render(f"`{what}`, {describe(memory)}, has no dual", None, hint))
    return memory


def _seed(param: FieldOrArray, seed: object) -> Array:
    """Return the seed as an array of the shape of ``param``."""
    shape = (*param.shape, *param.element_shape)
    if seed is None:
        if math.prod(shape) != 1:
            raise SpirogradRuntimeError(f"`param`, {describe(param)} of shape {shape}, needs a `seed` of that shape: the direction")
        return np.ones(shape, param.dtype.np)
    try:
        direction = np.asarray(seed.to_numpy() if hasattr(seed, "to_numpy") else seed).astype(param.dtype.np)
    except (TypeError, ValueError):
        raise SpirogradTypeError(f"`seed` is an array of numbers of shape {shape}, got {describe(seed)}") from None
    if not shape and direction.size == 1:
        return direction.reshape(())
    if direction.shape != shape:
        raise SpirogradRuntimeError(
            f"`seed` has shape {direction.shape}, and `param`, {describe(param)}, shape {shape}: a seed has the shape of `param`"
        )
    return direction
