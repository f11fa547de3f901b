"""Programs (`sg.ad.program`) as functions of JAX."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.ad.program_runs import ProgramRuns, Run, Static
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradRuntimeTypeError, render
from spirograd.base.records import dataclass
from spirograd.interop import arrays_of_numpy
from spirograd.interop.jax_kernels import JaxCall, JaxDifferentiable
from spirograd.interop.jax_primitives import alike, primitives
from spirograd.interop.jax_works import check_aliases
from spirograd.interop.xla_frames import Buffer
from spirograd.lang.data.foreign_buffers import DeviceBuffer, HostBuffer
from spirograd.lang.data.ndarray import Ndarray

if TYPE_CHECKING:
    import jax


@dataclass(slots=True, eq=False)
class _LastCall:
    """A call. ``values``: copies of its inputs, because XLA uses their memory again; ``run``: None if it has no tape; ``has_gradient``:
    whether a gradient followed."""

    values: Sequence[Array]
    run: Run | None = None
    has_gradient: bool = False

    def has_values(self, others: Sequence[Array]) -> bool:
        """Return whether ``others`` are the same values, bit by bit."""
        return all(mine.tobytes() == other.tobytes() for mine, other in zip(self.values, others))


class JaxProgram(JaxDifferentiable):
    """A program as JAX sees it, with other arguments that are fixed."""

    def __init__(self, runs: ProgramRuns, static: Static) -> None:
        primitives()
        self._runs, self._static = runs, static
        self.label = f"program `{runs.name}`"
        self.inputs = [f"input_{k}" for k in range(len(runs.inputs.leaves))]
        self.outputs = {f"output_{k}": leaf for k, leaf in enumerate(runs.outputs.leaves)}
        self.results = tuple(self.outputs)
        self._last: _LastCall | None = None
        self._gradients_follow = False  # whether a gradient came after a call with the same values

    def __call__(self, *values: object) -> Sequence[jax.Array]:
        """Return the outputs for these inputs."""
        import jax

        arrays = [self._argument(k, leaf, value) for k, (leaf, value) in enumerate(zip(self._runs.inputs.leaves, values))]
        shapes = tuple((*leaf.shape, *leaf.element_shape) for leaf in self._runs.outputs.leaves)
        dtypes = tuple(self._held(leaf) for leaf in self._runs.outputs.leaves)
        call = JaxCall(self, (), tuple(self.inputs), shapes, dtypes)
        results: Sequence[jax.Array] = primitives()["launch"].bind(*alike(jax, arrays), call=call, wanted=(), along=())
        return results

    def _argument(self, k: int, leaf: FieldOrArray, value: object) -> jax.Array:
        """Return the value of an input in the type and shape of its memory."""
        import jax

        array = jax.numpy.asarray(value, self._held(leaf))
        shape = (*leaf.shape, *leaf.element_shape)
        if array.shape != shape and not (array.size == 1 and all(n == 1 for n in shape)):
            raise SpirogradRuntimeTypeError(f"{self.label}: input {k} has shape {shape}, got an array of shape {array.shape}")
        reshaped: jax.Array = array.reshape(shape)
        return reshaped

    def _held(self, leaf: FieldOrArray) -> str:
        """Return the name of the type of memory, which JAX must have."""
        import jax

        if leaf.dtype.size == 8 and not jax.config.jax_enable_x64:
            hint = "`jax.config.update('jax_enable_x64', True)` when the program starts, or declare memory of 32 bits"
            problem = f"{self.label} has memory of {leaf.dtype}, which JAX has only with x64"
            raise SpirogradRuntimeTypeError(render(problem, None, hint))
        return str(leaf.dtype.np.name)

    def digest(self, call: JaxCall) -> str:
        return ""  # Python code: programs that JAX has serialized do not find it in another process

    def replaces(self, other: JaxDifferentiable) -> bool:
        return self is other

    def check_gradient(self, call: JaxCall, types: Mapping[str, object], wanted: Collection[str]) -> None:
        """Do nothing: the tape raises where there is no gradient."""

    def work(
        self, kind: str, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
    ) -> None:
        runs, outputs = self._runs, self._runs.outputs.leaves
        if kind == "launch":
            values, zeros = call.split(given)
            check_aliases(zeros, results)
            with runs.exclusive():
                self._launch(values)
                _store(outputs, results)
            return
        if kind == "gradient":
            values, _, adjoints, zeros = call.split(given, len(outputs), len(wanted))
            check_aliases([*adjoints, *zeros], results)
            with runs.exclusive():
                runs.gradient(self._recorded(values), adjoints, load)
                _store([leaf.grad for leaf in self._named(wanted)], results[len(outputs) :])
            return
        values, _, adjoints, directions = call.split(given, len(outputs) if kind == "hessian" else 0, len(along))
        named = dict(zip(along, directions))
        every = [named.get(name) for name in self.inputs]
        if kind == "tangent":
            with runs.tangent(values, every, load, self._static):
                _store([leaf.dual for leaf in outputs], results)
            return
        with runs.second(values, every, adjoints, load, self._static):
            _store([leaf.grad.dual for leaf in self._named(wanted)], results)

    def _launch(self, values: Sequence[Buffer]) -> None:
        """Run the program, with a tape if gradients have followed on calls so far."""
        if self._last is not None and self._last.run is not None and not self._last.has_gradient:
            self._gradients_follow = False
        copies = _copies(values)
        self._last = None if copies is None else _LastCall(copies)
        if self._last is None or not self._gradients_follow:
            self._runs.run(values, load, self._static)
        else:
            self._last.run = self._runs.record(self._last.values, arrays_of_numpy.load, self._static)

    def _recorded(self, values: Sequence[Buffer]) -> Run:
        """Return the run with these values: that of the last call if it had the same, else a new one."""
        copies, last = _copies(values), self._last
        if copies is None:
            return self._runs.record(values, load, self._static)
        if last is not None and last.has_values(copies):
            self._gradients_follow = last.has_gradient = True
            if last.run is not None and self._runs.is_last(last.run):
                return last.run
        self._last = last = _LastCall(copies, has_gradient=True)
        last.run = self._runs.record(copies, arrays_of_numpy.load, self._static)
        return last.run

    def _named(self, names: Sequence[str]) -> list[FieldOrArray]:
        memory = dict(zip(self.inputs, self._runs.inputs.leaves))
        return [memory[name] for name in names]


def _copies(values: Sequence[Buffer]) -> list[Array] | None:
    """Return copies of buffers; None if one is not in memory of the host."""
    if not all(isinstance(value, HostBuffer) for value in values):
        return None
    return [np.array(value) for value in values]


def load(memory: FieldOrArray, value: object) -> None:
    """Set memory to a buffer of XLA, or to zero for None."""
    if not isinstance(value, (HostBuffer, DeviceBuffer)):
        memory.fill(0.0)
    elif isinstance(value, HostBuffer):
        arrays_of_numpy.load(memory, value)
    else:
        copy = _like(memory)
        value.copy_to(copy)
        memory.copy_from(copy)


def _store(memories: Sequence[FieldOrArray], results: Sequence[Buffer]) -> None:
    for memory, result in zip(memories, results):
        if isinstance(memory, Ndarray):
            result.copy_from(memory)
        else:
            copy = _like(memory)
            copy.copy_from(memory)
            result.copy_from(copy)


def _like(memory: FieldOrArray) -> Ndarray:
    """Return an ndarray like a field, row-major."""
    return Ndarray(memory.dtype, memory.shape, memory.element_shape, False)
