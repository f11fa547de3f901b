"""`Tape(grad_check=[...])`: the gradients of a program against central differences, for which its launches run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.losses import FieldLoss, TensorLoss
from spirograd.ad.memory_keys import FieldOrArray, Key
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.errors import SpirogradAssertionError, SpirogradRuntimeError, render
from spirograd.lang import context
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe

_TOLERANCE = 0.01  # of the relative error, as in the family
_STEP = 1e-6  # of the difference, relative to the value


class TapeCheck:
    """Compares the gradients of some memory, with respect to its contents at the begin of a tape, with central differences of the loss.

    It keeps the contents, at that time, of all memory that the program writes, and how to do each of its steps again. One line is printed
    for each memory. Raises SpirogradAssertionError if a relative error is above 0.01, and unless all is in f64.
    """

    def __init__(self, loss: FieldLoss | TensorLoss | None, checked: object) -> None:
        if not isinstance(checked, (list, tuple)):
            raise SpirogradAssertionError("`grad_check` takes a list of the fields and ndarrays whose gradients are checked")
        if loss is None or not isinstance(loss.storage, (ScalarField, Ndarray)):
            raise SpirogradAssertionError("`grad_check` needs a loss that is a field or ndarray")
        for storage in (loss.storage, *checked):
            if not isinstance(storage, (ScalarField, Ndarray)) or not storage.has_grad():
                raise SpirogradAssertionError(f"`grad_check` takes fields and ndarrays with gradients, got {describe(storage)}")
            if storage.dtype.np != np.float64:
                raise SpirogradAssertionError(f"`grad_check` works in f64 only: {describe(storage)} is of {storage.dtype}")
        self._loss = loss.storage
        self._checked: Sequence[FieldOrArray] = checked
        self._start: dict[Key, Saved] = {}
        self._steps: list[Callable[[], object]] = []
        self._written: dict[Key, FieldOrArray] = {}  # by the host, since the last step
        self._gradients: list[Array] = []

    def before(self, launch: Launch) -> None:
        """Keep what a launch is about to write."""
        if launch.external:
            problem = "`grad_check` runs launches again, which it cannot do with arrays of NumPy and torch"
            raise SpirogradRuntimeError(render(problem, None, "pass fields or ndarrays"))
        self._settle()
        for access in footprint_of(launch.specialization).written:
            storage = launch.memory(access)[1]
            assert storage is not None
            self._keep(storage)

    def after(self, launch: Launch) -> None:
        """Note the contents after a launch."""
        self._steps.append(launch.run)

    def host_write(self, memory: FieldOrArray) -> None:
        """Keep what the host is about to write."""
        key, storage = memory_identity(memory)
        self._keep(storage)
        self._written[key] = storage

    def begin(self) -> None:
        """Keep the gradients before the reverse pass."""
        self._settle()
        self._gradients = [storage.grad.to_numpy() for storage in self._checked]

    def run(self) -> None:
        """Compare the gradients, once the reverse pass has run. Afterwards memory holds what it held."""
        gradients = [storage.grad.to_numpy() - before for storage, before in zip(self._checked, self._gradients)]
        recorder = context.set_recorder(None)
        for storage in self._checked:
            self._keep(storage)  # of which nothing was written: else it is there
        end = [Saved(start.memory, None) for start in self._start.values()]
        try:
            with context.session().without_prints():
                wanted = [self._differences(storage) for storage in self._checked]
        finally:
            for saved in end:
                saved.put()
            context.set_recorder(recorder)
        wrong = []
        for storage, has, should in zip(self._checked, gradients, wanted):
            name = getattr(storage, "name", "") or describe(storage)
            scale = np.maximum(np.abs(has), np.abs(should))
            errors = np.abs(has - should) / np.maximum(scale, 1e-6 * max(scale.max(initial=0.0), 1e-6))
            worst = float(errors.max(initial=0.0))
            passed = worst <= _TOLERANCE
            print(f"grad check of `{name}`: {'passed' if passed else 'FAILED'}, relative error {worst:.3g} (at most {_TOLERANCE})")
            if not passed:
                at = np.unravel_index(int(errors.argmax()), errors.shape)
                index = ", ".join(str(int(i)) for i in at)
                wrong.append(f"the gradient of `{name}[{index}]` is {has[at]:.9g}, differences give {should[at]:.9g}")
        if wrong:
            raise SpirogradAssertionError("the gradient check failed: " + "; ".join(wrong))

    def _keep(self, storage: FieldOrArray) -> None:
        key = memory_identity(storage)[0]
        if key not in self._start:
            self._start[key] = Saved(Stored(getattr(storage, "name", "an ndarray"), storage), None)

    def _settle(self) -> None:
        """Make a step of what the host has written."""
        for storage in self._written.values():
            self._steps.append(Saved(Stored("", storage), None).put)
        self._written = {}

    def _differences(self, storage: FieldOrArray) -> Array:
        self._start[memory_identity(storage)[0]].put()
        values = storage.to_numpy()
        out = np.zeros(values.shape)
        for index in np.ndindex(values.shape):
            step = _STEP * max(1.0, abs(float(values[index])))
            ends = [self._value(storage, values, index, sign * step) for sign in (1, -1)]
            out[index] = (ends[0] - ends[1]) / (2 * step)
        return out

    def _value(self, storage: FieldOrArray, values: Array, index: tuple[int, ...], step: float) -> float:
        """Return the loss of the program that starts with another element."""
        for saved in self._start.values():
            saved.put()
        moved = values.copy()
        moved[index] += step
        storage.from_numpy(moved)
        for run in self._steps:
            run()
        return float(self._loss.to_numpy().reshape(()))
