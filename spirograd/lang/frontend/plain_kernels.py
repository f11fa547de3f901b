"""Calls of kernels on ``arch=sg.python``: Python runs the function itself, so that a debugger can step through it.

Arguments and results are converted as annotations say. Arrays of NumPy and tensors of torch are copied to ndarrays, and back afterwards.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spirograd.base.errors import SpirogradSyntaxError, SpirogradUnsupportedError
from spirograd.lang import arithmetic, context, plain_python
from spirograd.lang.annotations import MatrixType, element_type
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray
from spirograd.lang.frontend.func import Func, is_scalar_type, is_template
from spirograd.lang.frontend.parameters import (
    AggregateParameter,
    ArrayParameter,
    DataclassParameter,
    OptionalParameter,
    Parameter,
    ScalarParameter,
    TensorParameter,
)
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import is_scalar
from spirograd.lang.tuples import result_type


def run(function: Callable[..., object], parameters: Sequence[Parameter], signature: inspect.Signature, args: Sequence[object]) -> object:
    """Run the function of a kernel. Raises SpirogradUnsupportedError under a tape, and what the function raises."""
    if plain_python.state.running:
        raise SpirogradSyntaxError("a kernel cannot be called from a kernel", None, "make it a function with `@sg.func`")
    if context.recorder() is not None:
        refuse_gradients()
    copies: list[tuple[object, Ndarray]] = []
    values = {name: _argument(p, value, copies) for (name, p), value in zip(zip(signature.parameters, parameters), args)}
    with _running():
        by_name = {n: v for n, v in values.items() if signature.parameters[n].kind is inspect.Parameter.KEYWORD_ONLY}
        result = function(*[v for n, v in values.items() if n not in by_name], **by_name)
    for array, copy in copies:
        _put_back(array, copy)
    return _value(result, result_type(signature.return_annotation))


def refuse_gradients() -> None:
    """Raise SpirogradUnsupportedError: nothing is compiled that derivatives could be made of."""
    problem = "on `arch=sg.python` kernels run as plain Python: they are not compiled, and have no gradients"
    raise SpirogradUnsupportedError(problem, None, "use `arch=sg.interpreter`, or any other back end")


def call(func: Func, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Return a call of a function of the kernel language: its arguments are values."""
    bound = func.signature.bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        parameter = func.signature.parameters[name]
        if name not in func.references() and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            bound.arguments[name] = _value(value, parameter.annotation)
    return _value(func.function(*bound.args, **bound.kwargs), func.returns)


@contextmanager
def _running() -> Iterator[None]:
    plain_python.state.running, plain_python.state.call = True, call
    try:
        yield
    finally:
        plain_python.state.running = False


def _argument(parameter: Parameter, value: object, copies: list[tuple[object, Ndarray]]) -> object:
    if isinstance(parameter, OptionalParameter):
        return _argument(parameter.of(value), value, copies)
    if isinstance(parameter, ScalarParameter):
        return parameter.t(parameter.convert(value))
    if isinstance(parameter, DataclassParameter):
        parameter.key(value)
        members = {name: _argument(member, getattr(value, name), copies) for name, member in parameter.members.items()}
        copy = object.__new__(type(value))
        for name, member in {**vars(value), **members}.items():
            object.__setattr__(copy, name, member)
        return copy
    parameter.key(value)  # which checks it
    array = parameter.array if isinstance(parameter, TensorParameter) else parameter
    if isinstance(array, ArrayParameter) and not hasattr(value, "tree"):
        return _copied(array, value, copies)
    if isinstance(parameter, AggregateParameter):
        return parameter.t.converted(value)
    return value


def _copied(parameter: ArrayParameter, array: Any, copies: list[tuple[object, Ndarray]]) -> Ndarray:
    """Return an ndarray with the contents of an array of another library."""
    dtype, ndim, element_shape, *_ = parameter.external(array)
    shape = tuple(array.shape)[:ndim]
    copy = element_type(element_shape, dtype).ndarray(shape) if element_shape else ScalarNdarray(dtype, shape)
    fill = copy.from_torch if hasattr(array, "detach") else copy.from_numpy
    fill(array.detach() if hasattr(array, "detach") else array)
    copies.append((array, copy))
    return copy


def _put_back(array: Any, copy: Ndarray) -> None:
    if hasattr(array, "detach"):
        array.detach().copy_(copy.to_torch(device=array.device))
    elif array.flags.writeable:
        array[...] = copy.to_numpy()


def _value(value: object, annotation: object) -> object:
    """Return a value as a parameter or a result with this annotation has it; not the same vector, which could be changed."""
    if is_scalar_type(annotation) and is_scalar(value):
        return arithmetic.cast(value, arithmetic.as_dtype(annotation))
    if isinstance(annotation, MatrixType) and annotation.entry_dtype is None:
        return operator.mul(value, 1)
    if isinstance(annotation, AggregateType) and value is not None:
        return annotation.converted(value)
    return value * 1 if isinstance(value, Matrix) and not is_template(annotation) else value
