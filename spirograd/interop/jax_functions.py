"""Kernels as functions of JAX arrays, which JAX compiles, differentiates and batches."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeTypeError, SpirogradTypeError, render
from spirograd.base.python_limits import deep_recursion
from spirograd.interop.jax_kernels import JaxCall, JaxKernel
from spirograd.interop.jax_primitives import alike, primitives
from spirograd.interop.kernel_function import Arguments
from spirograd.ir.text import to_text
from spirograd.lang import context
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, ScalarParameter
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from jax import Array

    from spirograd.base.arrays import ElementType


def jax_function(
    kernel: object, outputs: Mapping[str, object] | None = None, template_args: Mapping[str, object] | None = None
) -> Callable[..., Any]:
    """Make of ``kernel`` a function of JAX arrays: ``f = jax_function(kernel, {"y": "x"}); y = jax.jit(f)(x)``.

    ``outputs``: the parameters that the kernel writes, each with the shape to allocate, as zeros: the name of a parameter of the same
    shape, a shape, or a function of the arguments (`jax.ShapeDtypeStruct` for arrays, numbers) that returns a shape. The other parameters
    are the arguments, by position or by name. The function returns the outputs, one or a tuple; without outputs the result of the kernel,
    an array without axes. ``template_args``: values of template arguments, which are fixed.

    XLA calls the kernel with the addresses of its own buffers, on the CPU, and on CUDA in the order of its stream: nothing is copied to
    the host. Derivatives come from those of the kernel: `jax.grad`, `jax.jvp`, `jax.linearize`, `jax.hessian`, reverse mode over any of
    them once; not forward mode over forward mode, and no third derivatives. `jax.vmap` loops over the batch.

    Numbers of Python are part of the compiled program, as static arguments are, and have no gradient. Arrays without axes are passed anew
    in each call. Those for floats have gradients, in the types that JAX has (f64 with x64 only); a call waits for the others on CUDA.

    `jax.export` raises SpirogradUnsupportedError: kernels are no part of what it writes. An executable that JAX has serialized runs in a
    process that has called the function with the same types before, and raises an error in others.

    Raises SpirogradTypeError if ``kernel`` is no kernel, has no such parameter, or one that JAX has no type for. A call raises
    SpirogradRuntimeTypeError for arguments that do not fit, and SpirogradRuntimeError if the kernel writes to other arrays, uses fields or
    ndarrays, or draws random numbers. Needs JAX.
    """
    function = JaxFunction(kernel, outputs or {}, template_args)
    primitives()
    return functools.wraps(function.kernel.function)(lambda *args, **kwargs: function(args, kwargs))


class JaxFunction(JaxKernel):
    """A kernel that is called with values of JAX, and with numbers."""

    # --- calls -----------------------------------------------------------------------------------------------------------

    def __call__(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Array | tuple[Array, ...]:
        self.refuse_tapes()
        import jax

        passed: dict[str, Array] = {}
        fixed: dict[str, str] = {}
        given = self._given(args, kwargs)
        floats = {name: self._float(name, value) for name, value in given.items()}
        cells = {name: given[name].astype(t.np).reshape(1) for name, t in floats.items() if t is not None}
        if cells:
            return self.with_cells(cells)((), {**given, **cells})
        for name, value in given.items():
            operand = self._operand(name, value)
            if operand is None:
                fixed[name] = self._fixed(name, value)
            else:
                passed[name] = operand
        shapes, dtypes = self._types({**given, **passed})
        call = JaxCall(self, tuple(fixed.items()), tuple(passed), shapes, dtypes)
        specialization = self.specialized(self._stand_ins(call, passed))[1]
        if call not in self._digests:
            with deep_recursion():
                self._digests[call] = hashlib.sha256(to_text(specialization.kernel).encode()).hexdigest()
        results = primitives()["launch"].bind(*alike(jax, [*passed.values()]), call=call, wanted=(), along=())
        return results[0] if len(results) == 1 else tuple(results)

    def _given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
        names = self.inputs
        given = {**dict(zip(names, args)), **kwargs}
        problem = ""
        if len(args) > len(names):
            problem = f"takes {len(names)} arguments, got {len(args)}"
        elif unknown := [name for name in kwargs if name not in names]:
            problem = f"has no argument `{unknown[0]}`" + (", which is an output" if unknown[0] in self.outputs else "")
        elif twice := [name for name in names[: len(args)] if name in kwargs]:
            problem = f"gets its argument `{twice[0]}` twice"
        elif missing := [name for name in names if name not in given]:
            problem = f"needs its argument `{missing[0]}`"
        if problem:
            raise SpirogradTypeError(f"{self.label} {problem}")
        return {name: given[name] for name in names}

    def _float(self, name: str, value: object) -> DType | None:
        """Return the type of a number that is an array of JAX without axes, to which derivatives can flow: a float of a type that JAX has.
        None for other values."""
        import jax

        parameter = self.parameters[name]
        if not isinstance(parameter, ScalarParameter) or not parameter.t.is_float or not isinstance(value, jax.Array) or value.shape:
            return None
        return parameter.t if parameter.t.size < 8 or jax.config.jax_enable_x64 else None

    def _operand(self, name: str, value: Any) -> Array | None:
        """Return the array of JAX that XLA passes; None for what is fixed."""
        import jax

        is_array = isinstance(value, (jax.Array, np.ndarray))
        parameter: Any = self.parameters[name]
        if isinstance(parameter, ArrayParameter):
            if not is_array:
                hint = "convert it with `jnp.asarray`"
                problem = f"{self.label}: argument `{name}` takes an array of JAX or NumPy, got {describe(value)}"
                raise SpirogradRuntimeTypeError(render(problem, None, hint))
            array: Array = jax.numpy.asarray(value)
            return array
        if not is_array or isinstance(value, np.ndarray):
            return None
        wanted = () if isinstance(parameter, ScalarParameter) else parameter.t.shape
        floats = parameter.t.is_float if isinstance(parameter, ScalarParameter) else parameter.t.leaf_dtypes()[0].is_float
        fits = jax.numpy.issubdtype(value.dtype, jax.numpy.floating if floats else jax.numpy.integer) or value.dtype.kind in "biu"
        if tuple(value.shape) != tuple(wanted) or not fits:
            what = "a number" if wanted == () else f"numbers of shape {tuple(wanted)}"
            problem = f"{self.label}: argument `{name}` takes {what} ({parameter.t}), got an array of {value.dtype} of shape {value.shape}"
            raise SpirogradRuntimeTypeError(problem)
        operand: Array = value
        return operand

    def _fixed(self, name: str, value: object) -> str:
        """Return a text that stands for a number; different texts for 0.0 and -0.0, for 1 and True."""
        number = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        parameter = self.parameters[name]
        assert isinstance(parameter, (AggregateParameter, ScalarParameter)), name
        parameter.numbers(number)  # raises for what does not fit
        text = repr(number)
        self._numbers[text] = copy.deepcopy(number)  # the caller may change a list
        return text

    def _types(self, given: Arguments) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
        """Return the shapes and types of the results."""
        import jax

        if self.result is not None:
            return ((),), (self._held(self.result.np, "the result"),)
        known = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) if name in self.arrays else v for name, v in given.items()}
        shapes, dtypes = [], []
        for name in self.outputs:
            shapes.append(tuple(int(n) for n in self.output_shape(name, known)))
            declared = self.output_type(name)
            dtypes.append(self._held(self._likely(known) if declared is None else declared.np, f"output `{name}`"))
        return tuple(shapes), tuple(dtypes)

    def _likely(self, known: Arguments) -> ElementType:
        """Return the type of an output whose declaration leaves it open: as the first array of floats has, else the first array."""
        arrays: list[ElementType] = [known[name].dtype for name in known if name in self.arrays]
        default: ElementType = context.session().language.default_fp.np
        return next((t for t in arrays if t.kind == "f"), arrays[0] if arrays else default)

    def _held(self, dtype: ElementType, what: str) -> str:
        """Return the name of a type that JAX holds as it is."""
        import jax

        wanted = np.dtype(dtype)
        if wanted.itemsize == 8 and not jax.config.jax_enable_x64:
            hint = "`jax.config.update('jax_enable_x64', True)` when the program starts, or declare a type of 32 bits"
            raise SpirogradRuntimeTypeError(render(f"{self.label}: {what} is {wanted.name}, which JAX has only with x64", None, hint))
        return str(wanted.name)


__all__ = ["jax_function"]
