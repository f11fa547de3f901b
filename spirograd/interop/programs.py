"""Python functions that launch kernels, as differentiable functions of arrays: of NumPy here, of torch in `torch_programs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from spirograd.ad.memory_keys import numbers_of
from spirograd.ad.program_memory import Tree
from spirograd.ad.program_runs import ProgramRuns, Static, same_arguments
from spirograd.base.errors import SpirogradTypeError
from spirograd.base.near_names import NearNames
from spirograd.interop import arrays_of_numpy
from spirograd.interop.jax_programs import JaxProgram
from spirograd.interop.torch_programs import operator_of
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.scalar import describe

# In the form of inputs or outputs: numbers and arrays of the library of the values.
Results = Any


class Operator(Protocol):
    """A program as a function of the arrays of another library: of one for each field and ndarray of the inputs."""

    def __call__(self, *args: object) -> Results: ...


def program(
    function: object,
    inputs: object,
    outputs: object,
    state: object = (),
    *,
    check: bool = True,
    checkpoints: int | None = None,
    memory_GB: float | None = None,
) -> Program:
    """Make of ``function``, which launches kernels, one differentiable function: ``f = program(simulate, inputs=[x], outputs=loss)``.

    ``inputs``, ``outputs``: fields and ndarrays with gradients, or lists, tuples and dicts of them; a field of structs is a dict of its
    members. A call takes values in the form of ``inputs``: one argument for each entry of a list; for a dict, by position or by name. It
    sets the memory of the inputs, clears the outputs, calls ``function``, and returns copies of the outputs in their form. Other named
    arguments go to ``function`` as they are.

    ``state``: other memory whose contents the function uses and changes; each call finds what the first one found. Everything else that
    the function writes, it must set before it reads: the first call with each set of other arguments runs the function again, on other
    contents, and compares (``check=False`` leaves that out). ``checkpoints``, ``memory_GB``: as of `Tape`.

    Values may be numbers and arrays of NumPy, or arrays of torch or JAX, which then differentiate the function. Raises
    SpirogradTypeError for what is no field and no ndarray, SpirogradRuntimeError for memory without a gradient; a call raises
    SpirogradRuntimeError if the outputs depend on other memory that the function writes.
    """
    return Program(function, inputs, outputs, state, check, {"checkpoints": checkpoints, "memory_GB": memory_GB})


class Program(NearNames):
    """A differentiable function, made by `sg.ad.program`."""

    def __init__(
        self, function: object, inputs: object, outputs: object, state: object, check: bool, options: Mapping[str, object]
    ) -> None:
        if not callable(function):
            raise SpirogradTypeError(f"`program` takes a function that launches kernels, got {describe(function)}")
        given = inputs if isinstance(inputs, (Mapping, list, tuple)) else [inputs]
        trees = Tree("inputs", given), Tree("outputs", outputs), Tree("state", state)
        for tree in trees[:2]:
            tree.check_gradients()
        self.names = list(given) if isinstance(given, Mapping) else None
        self.count = len(given)
        self._is_alone = not isinstance(inputs, (Mapping, list, tuple))  # one field or ndarray, in no list
        self.runs = ProgramRuns(function, *trees, check, options)
        self._operators: list[tuple[Static, Operator]] = []
        self._functions: list[tuple[Static, Operator]] = []

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.runs.name

    def __repr__(self) -> str:
        inputs, outputs = self.runs.inputs.leaves, self.runs.outputs.leaves
        return f"<program {self.runs.name}: {len(inputs)} inputs, {len(outputs)} outputs>"

    def __call__(self, *args: object, **kwargs: object) -> Results:
        """Return the outputs for these inputs."""
        values, static = self.values(args, kwargs)
        if any(map(is_torch, values)):
            return self._outputs_like(self._torch_operator(static)(*_tensors(values)))
        if any(map(_is_jax, values)):
            return self._outputs_like(self._jax_function(static)(*values))
        with self.runs.exclusive():
            self.runs.run(values, arrays_of_numpy.load, static)
            return self._results("primal")

    def vjp(self, *args: object, **kwargs: object) -> tuple[Results, Callable[[object], Results]]:
        """Return the outputs, and a function that returns the gradients of the inputs, in their form, from those of the outputs."""
        values, static = self.values(args, kwargs)
        with self.runs.exclusive():
            run = self.runs.record([np.array(v) for v in values], arrays_of_numpy.load, static)
            outputs = self._results("primal")

        def pullback(adjoints: object) -> Results:
            with self.runs.exclusive():
                self.runs.gradient(run, self.runs.outputs.values(adjoints), arrays_of_numpy.load)
                return self._gradients()

        return outputs, pullback

    def value_and_grad(self, *args: object, **kwargs: object) -> tuple[Results, Results]:
        """Return the output, one number, and the gradients of the inputs, in the form of ``inputs``.

        The output of a batch is one number for each environment; inputs of the batch get the gradients of the environments."""
        self._one_output("value_and_grad")
        value, pullback = self.vjp(*args, **kwargs)
        gradients = pullback(self.runs.outputs.like([1.0]))
        return value, gradients[0] if self._is_alone else gradients

    def jvp(self, values: Sequence[object] | Mapping[str, object], tangents: object, **static: object) -> tuple[Results, Results]:
        """Return the outputs at ``values``, and their derivatives along ``tangents``, both in the form of the inputs."""
        given, directions = self.runs.inputs.values(values), self.runs.inputs.values(tangents)
        with self.runs.tangent(given, directions, arrays_of_numpy.load, static):
            return self._results("primal"), self._results("dual")

    def hvp(self, values: Sequence[object] | Mapping[str, object], directions: object, **static: object) -> Results:
        """Return the Hessian of the output, one number, at ``values`` times ``directions``, all in the form of the inputs."""
        self._one_output("hvp")
        given, along = self.runs.inputs.values(values), self.runs.inputs.values(directions)
        with self.runs.second(given, along, [1.0], arrays_of_numpy.load, static):
            return self.runs.inputs.like([leaf.grad.dual.to_numpy() for leaf in self.runs.inputs.leaves])

    def values(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[list[object], Static]:
        """Return the values of the inputs, and the arguments of the function."""
        if self.names is None:
            given: object = args
            if len(args) != self.count:
                raise SpirogradTypeError(f"program `{self.runs.name}` takes {self.count} inputs, got {len(args)}")
            return self.runs.inputs.values(given), kwargs
        named = {**dict(zip(self.names, args)), **{name: kwargs[name] for name in self.names if name in kwargs}}
        missing = [name for name in self.names if name not in named]
        if missing or len(args) > self.count:
            problem = f"needs its input `{missing[0]}`" if missing else f"takes {self.count} inputs, got {len(args)}"
            raise SpirogradTypeError(f"program `{self.runs.name}` {problem}")
        return self.runs.inputs.values(named), {name: value for name, value in kwargs.items() if name not in self.names}

    def torch_op(self, **static: object) -> Operator:
        """Return the program as an operator of torch, for other arguments ``static`` that are fixed: `torch.compile` keeps it as one node
        of a graph. It takes and returns what a call does."""
        operator = self._torch_operator(static)

        def call(*args: object, **kwargs: object) -> object:
            return self._outputs_like(operator(*self.values(args, kwargs)[0]))

        return call

    def _torch_operator(self, static: Static) -> Operator:
        """Return the operator of torch for other arguments, one for equal ones."""
        return self._known(self._operators, static, operator_of)

    def _jax_function(self, static: Static) -> Operator:
        """Return the function of JAX for other arguments, one for equal ones."""
        return self._known(self._functions, static, JaxProgram)

    def _known(self, known: list[tuple[Static, Operator]], static: Static, make: Callable[[ProgramRuns, Static], Operator]) -> Operator:
        found = next((one for other, one in known if same_arguments(other, static)), None)
        if found is None:
            found = make(self.runs, static)
            known.append((static, found))
        return found

    def _outputs_like(self, results: object) -> object:
        """Return what an operator returns in the form of the outputs."""
        return self.runs.outputs.like(list(results) if isinstance(results, (list, tuple)) else [results])

    def _one_output(self, what: str) -> None:
        leaves = self.runs.outputs.leaves
        if len(leaves) != 1 or numbers_of(leaves[0]) != 1:
            raise SpirogradTypeError(f"`{what}` is for programs with one number as output: `{self.runs.name}` has others; use `vjp`")

    def _results(self, role: str) -> object:
        leaves = self.runs.outputs.leaves
        return self.runs.outputs.like([leaf.to_numpy() if role == "primal" else leaf.dual.to_numpy() for leaf in leaves])

    def _gradients(self) -> object:
        return self.runs.inputs.like([leaf.grad.to_numpy() for leaf in self.runs.inputs.leaves])


def _is_jax(value: object) -> bool:
    """Return whether a value is an array of JAX, or stands for one while JAX traces a function."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _tensors(values: Sequence[object]) -> list[object]:
    """Return values as tensors, on the device of the first one."""
    import torch

    first = next(v for v in values if is_torch(v))
    return [v if is_torch(v) else torch.as_tensor(np.asarray(v), device=first.device) for v in values]


__all__ = ["program"]
