"""Kernels as functions of JAX arrays, which JAX compiles, differentiates and batches."""

from __future__ import annotations

import copy
import functools
import hashlib
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradTypeError, SpirogradUnsupportedError, render
from spirograd.base.python_limits import deep_recursion
from spirograd.interop.jax_calls import Call
from spirograd.interop.jax_primitives import alike, primitives
from spirograd.interop.pure_kernels import COPY_HINT, check_pure, check_writes, result_type
from spirograd.ir.text import to_text
from spirograd.lang import context
from spirograd.lang.data.foreign_buffers import HostBuffer
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, Parameter, ScalarParameter, TemplateParameter
from spirograd.lang.frontend.scalar_cells import with_cells
from spirograd.lang.scalar import describe


def jax_function(
    kernel: Any, outputs: Mapping[str, Any] | None = None, template_args: Mapping[str, Any] | None = None
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
    if not isinstance(kernel, (Kernel, BoundKernel)):
        raise SpirogradTypeError("`jax_function` takes a kernel: a function decorated with `@sg.kernel`")
    function = JaxFunction(kernel, dict(outputs or {}), dict(template_args or {}))
    primitives()
    return functools.wraps(function.kernel.function)(lambda *args, **kwargs: function(args, kwargs))


class JaxFunction:
    """A kernel as JAX sees it. ``constants``: template arguments by name; ``outputs``: the names of what it writes; ``results``: these, or
    one name for the number that it returns; ``arrays``: the arguments that are arrays."""

    def __init__(self, kernel: Any, outputs: dict[str, Any], constants: dict[str, Any]) -> None:
        self.kernel: Kernel = kernel.kernel if isinstance(kernel, BoundKernel) else kernel
        self.bound = (kernel.instance,) if isinstance(kernel, BoundKernel) else ()
        self.label = f"kernel `{self.kernel.function.__name__}`"
        self.constants = constants
        parameters = {p.name: p for p in self.kernel.parameters()[len(self.bound) :]}
        unknown = [name for name in (*constants, *outputs) if name not in parameters]
        if unknown:
            raise SpirogradTypeError(f"{self.label} has no parameter `{unknown[0]}`")
        self.inputs = {name: p for name, p in parameters.items() if name not in constants and name not in outputs}
        for parameter in (*self.inputs.values(), *(parameters[name] for name in outputs)):
            _check_kind(parameter, self.label, parameter.name in outputs)
        self.outputs = tuple(outputs)
        self.arrays = frozenset(name for name, p in self.inputs.items() if isinstance(p, ArrayParameter))
        self._allocated: dict[str, tuple[Any, Any]] = {name: (spec, parameters[name]) for name, spec in outputs.items()}
        self._result = None if outputs else result_type(self.kernel)
        self.results = self.outputs or ("the result",)
        self._numbers: dict[str, Any] = {}  # by their texts
        self._variants: dict[frozenset[str], JaxFunction] = {}  # by the numbers that they take from memory
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._digests: dict[Call, str] = {}

    # --- calls -----------------------------------------------------------------------------------------------------------

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if context.recorder() is not None:
            raise SpirogradRuntimeError("a `jax_function` has its gradient from JAX: call it outside of tapes and of `FwdMode`")
        import jax

        passed: dict[str, Any] = {}
        fixed: dict[str, str] = {}
        given = self._given(args, kwargs)
        inputs: Mapping[str, Any] = self.inputs
        cells = {name: value.astype(inputs[name].t.np).reshape(1) for name, value in given.items() if self._has_gradient(name, value)}
        if cells:
            return self._with_cells(frozenset(cells))((), {**given, **cells})
        for name, value in given.items():
            operand = self._operand(name, value)
            if operand is None:
                fixed[name] = self._fixed(name, value)
            else:
                passed[name] = operand
        shapes, dtypes = self._types({**given, **passed})
        call = Call(self, tuple(fixed.items()), tuple(passed), shapes, dtypes)
        specialization = self.check(self._stand_ins(call, passed))[1]
        if call not in self._digests:
            with deep_recursion():
                self._digests[call] = hashlib.sha256(to_text(specialization.kernel).encode()).hexdigest()
        found = primitives().launch.bind(*alike(jax, [*passed.values()]), call=call, wanted=(), along=())
        return found[0] if len(found) == 1 else tuple(found)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = list(self.inputs)
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

    def _has_gradient(self, name: str, value: Any) -> bool:
        """Whether a number is an array of JAX without axes, to which derivatives can flow: a float of a type that JAX has."""
        import jax

        parameter: Any = self.inputs[name]
        if not isinstance(parameter, ScalarParameter) or not parameter.t.is_float or not isinstance(value, jax.Array) or value.shape:
            return False
        return parameter.t.size < 8 or bool(jax.config.jax_enable_x64)

    def _with_cells(self, names: frozenset[str]) -> JaxFunction:
        """The function of the kernel that takes these numbers from memory, made once: see `scalar_cells`."""
        if names not in self._variants:
            which = {k: frozenset((0,)) for k, p in enumerate(self.kernel.parameters()) if p.name in names}
            kernel: Any = with_cells(self.kernel, which)
            kernel = BoundKernel(kernel, *self.bound) if self.bound else kernel
            outputs = {name: spec for name, (spec, _) in self._allocated.items()}
            self._variants[names] = JaxFunction(kernel, outputs, self.constants)
        return self._variants[names]

    def _operand(self, name: str, value: Any) -> Any:
        """The array of JAX that XLA passes; None for what is fixed."""
        import jax

        is_array = isinstance(value, (jax.Array, np.ndarray))
        parameter: Any = self.inputs[name]
        if isinstance(parameter, ArrayParameter):
            if not is_array:
                hint = "convert it with `jnp.asarray`"
                problem = f"{self.label}: argument `{name}` takes an array of JAX or NumPy, got {describe(value)}"
                raise SpirogradRuntimeTypeError(render(problem, None, hint))
            return jax.numpy.asarray(value)
        if not is_array or isinstance(value, np.ndarray):
            return None
        wanted = () if isinstance(parameter, ScalarParameter) else parameter.t.shape
        floats = parameter.t.is_float if isinstance(parameter, ScalarParameter) else parameter.t.leaf_dtypes()[0].is_float
        fits = jax.numpy.issubdtype(value.dtype, jax.numpy.floating if floats else jax.numpy.integer) or value.dtype.kind in "biu"
        if tuple(value.shape) != tuple(wanted) or not fits:
            what = "a number" if wanted == () else f"numbers of shape {tuple(wanted)}"
            problem = f"{self.label}: argument `{name}` takes {what} ({parameter.t}), got an array of {value.dtype} of shape {value.shape}"
            raise SpirogradRuntimeTypeError(problem)
        return value

    def _fixed(self, name: str, value: Any) -> str:
        """A text that stands for a number; different texts for 0.0 and -0.0, for 1 and True."""
        number = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        parameter: Any = self.inputs[name]
        parameter.numbers(number)  # raises for what does not fit
        text = repr(number)
        self._numbers[text] = copy.deepcopy(number)  # the caller may change a list
        return text

    def digest(self, call: Call) -> str:
        """What the kernel computes in a call, as a hash of its IR; empty before the call."""
        return self._digests.get(call, "")

    def replaces(self, other: JaxFunction) -> bool:
        """Whether this is the same function as ``other``, now and later: objects that a kernel belongs to, or gets, may change."""
        return self.kernel is other.kernel and self.outputs == other.outputs and not (self.bound or self.constants or other.constants)

    def number(self, text: str) -> Any:
        """The number that a text of `Call.fixed` stands for."""
        return self._numbers[text]

    def _types(self, given: dict[str, Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
        """Shapes and types of the results."""
        import jax

        if self._result is not None:
            return ((),), (self._held(self._result.np, "the result"),)
        known = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) if name in self.arrays else v for name, v in given.items()}
        shapes, dtypes = [], []
        for name, (spec, parameter) in self._allocated.items():
            if isinstance(spec, str) and spec not in self.arrays:
                raise SpirogradTypeError(f"{self.label}: output `{name}` has the shape of `{spec}`, which is no array among the arguments")
            found = known[spec].shape if isinstance(spec, str) else spec(**known) if callable(spec) else spec
            declared = parameter.t.dtype
            shapes.append(tuple(int(n) for n in found))
            dtypes.append(self._held(self._likely(known) if declared is None else declared.np, f"output `{name}`"))
        return tuple(shapes), tuple(dtypes)

    def _likely(self, known: dict[str, Any]) -> np.dtype[Any]:
        """The type of an output whose declaration leaves it open: that of the first array of floats, else of the first array."""
        arrays = [known[name].dtype for name in known if name in self.arrays]
        default: Any = context.session().language.default_fp.np
        return next((t for t in arrays if t.kind == "f"), arrays[0] if arrays else default)

    def _held(self, dtype: Any, what: str) -> str:
        """The name of a type that JAX holds as it is."""
        import jax

        wanted = np.dtype(dtype)
        if wanted.itemsize == 8 and not jax.config.jax_enable_x64:
            hint = "`jax.config.update('jax_enable_x64', True)` when the program starts, or declare a type of 32 bits"
            raise SpirogradRuntimeTypeError(render(f"{self.label}: {what} is {wanted.name}, which JAX has only with x64", None, hint))
        return str(wanted.name)

    # --- what a kernel must be -------------------------------------------------------------------------------------------

    def _stand_ins(self, call: Call, types: Mapping[str, Any], wanted: Collection[str] = ()) -> dict[str, Any]:
        """Arguments of the kernel that have the types of those of a call, and take no memory. ``wanted``: arrays with gradients."""

        def like(name: str, shape: tuple[int, ...], dtype: Any) -> HostBuffer:
            made = np.broadcast_to(np.zeros((), dtype), shape).view(HostBuffer)
            made.requires_grad = name in wanted
            return made

        passed = [like(name, types[name].shape, types[name].dtype) for name in call.names]
        outputs = {name: like(name, shape, t) for name, shape, t in zip(self.outputs, call.shapes, call.dtypes)}
        return {**call.values(passed), **outputs}

    def check(self, values: dict[str, Any]) -> Any:
        """The session, what is compiled for these arguments, and these in order. Raise unless it is a function of them."""
        session, specialization, args = self.kernel.specialized(self.bound, values)
        if specialization not in self._checked:
            check_writes(self.kernel, specialization, self.outputs)
            check_pure(self.kernel, specialization, "a function of JAX, which merges and repeats calls", "an array")
            self._checked.add(specialization)
        return session, specialization, args

    def check_gradient(self, call: Call, types: Mapping[str, Any], wanted: Collection[str]) -> None:
        """Raise if the kernel has no gradient with respect to the arguments ``wanted``. ``types``: of its arguments by name."""
        session, specialization, _ = self.check(self._stand_ins(call, types, {*wanted, *self.active_outputs(call)}))
        self.kernel.grad.of(session, specialization).check_bare(COPY_HINT.format(framework="JAX"))

    def check_differentiable(self, names: Collection[str]) -> None:
        """Raise if there is a number among the arguments that a derivative is taken with respect to."""
        for name in names:
            if name not in self.arrays:
                problem = f"{self.label}: argument `{name}` is a number, with respect to which kernels have no derivative"
                hint = f"declare `{name}: sg.types.ndarray()`, and pass an array of one element; or `jax.lax.stop_gradient({name})`"
                raise SpirogradUnsupportedError(problem, None, hint)

    def refuse_third(self) -> Any:
        """Raise for derivatives that there are not."""
        hint = "differentiate at most twice, and not with respect to a direction"
        raise SpirogradUnsupportedError(f"{self.label} has first and second derivatives, no third ones", None, hint)

    def active_outputs(self, call: Call) -> tuple[str, ...]:
        """The outputs that have gradients."""
        return tuple(name for name, dtype in zip(self.outputs, call.dtypes) if np.dtype(dtype).kind == "f")


def _check_kind(p: Parameter, label: str, output: bool) -> None:
    """Raise for a parameter that no value of JAX can be passed for."""
    vector = isinstance(p, AggregateParameter) and len({t.is_float for t in p.t.leaf_dtypes()}) == 1
    if isinstance(p, ArrayParameter) or (not output and (isinstance(p, ScalarParameter) or vector)):
        return
    if output:
        raise SpirogradTypeError(f"{label}: output `{p.name}` is no array", None, f"declare `{p.name}: sg.types.ndarray()`")
    template = isinstance(p, TemplateParameter)
    hint = f"`jax_function(..., template_args={{{p.name!r}: ...}})`" if template else "pass its members one by one"
    what = "a template argument" if template else "no number, array or vector"
    raise SpirogradTypeError(f"{label}: `{p.name}` is {what}, which a function of JAX cannot take", None, hint)


__all__ = ["jax_function"]
