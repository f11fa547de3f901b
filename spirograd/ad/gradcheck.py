"""Comparing the gradient of a kernel, or of a program, with finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spirograd.ad.check_report import GradCheck, Row
from spirograd.ad.memories import KernelMemory, Key, memories_of
from spirograd.ad.program_check import CheckedProgram, check_program
from spirograd.analysis import trial
from spirograd.autodiff.in_f64 import field_memory, in_f64
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradAssertionError, SpirogradRuntimeError, SpirogradTypeError
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef
from spirograd.lang.frontend.kernel import BoundKernel, Kernel

Arrays = dict[Key, Array]


def gradcheck(
    kernel: object,
    inputs: Sequence[object] | Mapping[str, object] = (),
    eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    entries: int = 64,
    seed: int = 0,
    raise_exception: bool = True,
    **static: object,
) -> GradCheck:
    """Compare ``kernel.grad(*inputs)`` on the device with central differences of the kernel in f64 on the reference interpreter.

    All memory that the kernel writes and that has a gradient gets a random adjoint. The gradient of each element that it reads must be
    within ``atol + rtol * |difference|`` of the difference quotient with steps ``eps * max(1, |x|)``, 1e-6 by default. By default both
    tolerances are 1e-5 if all gradients are f64, 5e-2 if one is f16, and 1e-3 otherwise. ``entries``: the most elements that are compared
    of one memory, chosen at random from ``seed``. Memory and gradients are restored afterwards.

    For a program (`sg.ad.program`), ``inputs`` are the values of a call, and ``static`` its other arguments. See `program_check`: the
    differences are those of the program itself, on its device and in its types.

    Raises SpirogradTypeError for what is neither; SpirogradAssertionError with the table and the first wrong element, unless
    ``raise_exception`` is False; SpirogradRuntimeError for kernels that draw random numbers or read nothing that has a gradient.
    """
    tested: object = kernel
    if isinstance(kernel, BoundKernel):
        tested, inputs = kernel.kernel, (kernel.instance, *inputs)
    rng = np.random.default_rng(seed)
    if isinstance(tested, CheckedProgram):
        result = check_program(tested, inputs, static, rng, eps, rtol, atol, entries)
    elif not isinstance(tested, Kernel) or static:
        problem = f"gradcheck takes a kernel or a program, not {type(tested).__name__}"
        if static:
            problem = f"`{next(iter(static))}` is no argument of gradcheck for kernels"
        raise SpirogradTypeError(problem, None, "decorate a kernel with `@sg.kernel`; `sg.ad.program` makes a program of a function")
    else:
        result = _Check(tested, tuple(inputs), rng).run(1e-6 if eps is None else eps, rtol, atol, entries)
    if raise_exception and not result:
        wrong = next(row for row in result.rows if row.first_wrong is not None)
        kind = "kernel" if isinstance(tested, Kernel) else "program"
        raise SpirogradAssertionError(
            f"the gradient of {kind} `{result.kernel}` by `{wrong.name}` is not what finite differences give, first at element "
            f"{list(wrong.first_wrong or ())}\n{result}"
        )
    return result


class _Check:
    def __init__(self, kernel: Kernel, inputs: tuple[object, ...], rng: np.random.Generator) -> None:
        self.kernel, self.inputs, self.rng = kernel, inputs, rng
        self.session, self.specialization, self.bound = kernel.specialized(inputs, {})
        self.gradient = kernel.grad.of(self.session, self.specialization)
        self.name = kernel.function.__name__
        primal = self.specialization.kernel
        if any(op.code is ops.seed for op in primal.walk()):
            raise SpirogradRuntimeError(
                f"kernel `{self.name}` draws random numbers, and finite differences would compare different ones: pass them in, in an array"
            )
        self.twin, self.twins = in_f64(primal)
        self.memories = memories_of(primal, self.specialization, self.bound)
        self.scalars = kernel.pack(self.session, self.specialization, self.bound).scalars
        self.active = {key: m for key, m in self.memories.items() if m.gradient is not None}
        if not self.active:
            raise SpirogradRuntimeError(
                f"kernel `{self.name}` reads and writes nothing that has a gradient: declare a field with `needs_grad=True`"
            )
        self.adjoints: Arrays = {}
        self.returned = [float(self.rng.standard_normal()) for _ in self.gradient.returned]

    def run(self, eps: float, rtol: float | None, atol: float | None, entries: int) -> GradCheck:
        values = {key: m.read() for key, m in self.memories.items()}
        gradients = {key: m.read_gradient() for key, m in self.active.items()}
        try:
            computed = self._gradients(values)
        finally:
            for key, m in self.memories.items():
                m.write(values[key])
            for key, m in self.active.items():
                m.write_gradient(gradients[key])
        default = max(_TOLERANCES[m.dtype.name] for m in self.active.values())
        rtol, atol = default if rtol is None else rtol, default if atol is None else atol
        rows = [self._row(key, m, values, computed[key], eps, rtol, atol, entries) for key, m in self.active.items()]
        return GradCheck(self.name, tuple(rows))

    def _gradients(self, values: Arrays) -> Arrays:
        """Return gradients from the device, for random adjoints of what the kernel writes, from memory in the state that they read."""
        self.kernel(*self.inputs)
        written = {self._key(place.ref) for place in self.gradient.derivative.active_outputs}
        for key, m in self.active.items():
            shape = values[key].shape
            self.adjoints[key] = self.rng.standard_normal(shape).astype(m.dtype.np) if key in written else np.zeros(shape, m.dtype.np)
            m.write_gradient(self.adjoints[key])
        for residual in self.gradient.derivative.residuals:
            if residual.when == "before" and residual.overwritten is not None:
                self.memories[self._key(residual.ref)].write(values[self._key(residual.ref)])
        packer = self.kernel.pack(self.session, self.specialization, self.bound, gradients=True)
        adjoint = (self.returned[0] if len(self.returned) == 1 else self.returned) if self.returned else None
        self.gradient.launch(packer, adjoint, None)
        return {key: m.read_gradient().astype(np.float64) for key, m in self.active.items()}

    def _key(self, ref: FieldRef | ArrayRef) -> Key:
        return ref.arg if isinstance(ref, ArrayRef) else ref

    # --- finite differences ----------------------------------------------------------------------------------------------

    def _loss(self, values: Arrays) -> float:
        """Return the sum of what the kernel leaves and returns, weighted by the adjoints."""
        args = [values[k].copy() if k in values else self.scalars[k] for k in range(len(self.twin.args))]
        trees = {}
        for ref, twin in self.twins.items():
            trees[twin.tree] = values[ref].reshape(-1).copy()
            assert trees[twin.tree].size == field_memory(twin)
        outcome = trial.run(self.twin, args, trees)
        loss = 0.0
        for key in self.active:
            after = args[key] if isinstance(key, int) else trees[self.twins[key].tree]
            loss += float(np.vdot(self.adjoints[key].astype(np.float64), after))
        return loss + sum(w * float(outcome.returns[k]) for w, k in zip(self.returned, self.gradient.returned))

    def _row(self, key: Key, m: KernelMemory, values: Arrays, gradient: Array, eps: float, rtol: float, atol: float, entries: int) -> Row:
        wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in values.items()}
        size = wide[key].size
        chosen = np.arange(size) if size <= entries else np.sort(self.rng.choice(size, entries, replace=False))
        worst: tuple[float, tuple[int, ...], float, float] = (-1.0, (), 0.0, 0.0)
        first_wrong: tuple[int, ...] | None = None
        for flat in chosen:
            at = tuple(int(k) for k in np.unravel_index(flat, wide[key].shape))
            x = wide[key][at]
            step = eps * max(1.0, abs(x))
            losses = []
            for moved in (x + step, x - step):
                wide[key][at] = moved
                losses.append(self._loss(wide))
            wide[key][at] = x
            difference, g = (losses[0] - losses[1]) / (2 * step), float(gradient[at])
            excess = abs(g - difference) / (atol + rtol * abs(difference))
            excess = np.inf if np.isnan(excess) else excess
            if excess > worst[0]:
                worst = (excess, at, g, difference)
            if excess > 1 and first_wrong is None:
                first_wrong = at
        return Row(m.name, len(chosen), size, worst[1], worst[2], worst[3], first_wrong)


_TOLERANCES = {"f64": 1e-5, "f32": 1e-3, "f16": 5e-2}
