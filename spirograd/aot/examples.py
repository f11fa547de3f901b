"""Arguments for which a kernel of a module is traced: values of template arguments, and stand-ins for the arguments of callers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from spirograd.base.errors import SpirogradUnsupportedError, SpirogradValueError, render
from spirograd.lang.annotations import MatrixType, NdarrayType, element_type
from spirograd.lang.data.ndarray import Ndarray, ndarray
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.parameters import (
    AggregateParameter,
    ArrayParameter,
    Parameter,
    ScalarParameter,
    TemplateParameter,
    TensorParameter,
)


def example_arguments(
    kernel: Kernel, first: Sequence[object], template_args: Mapping[str, object], gradients: bool
) -> tuple[list[Parameter], list[object]]:
    """Return the parameters of a kernel that callers provide, and all arguments to trace it for. ``first``: arguments given by position.

    Raises SpirogradValueError for unknown names and missing examples; SpirogradUnsupportedError for kinds of parameters that modules do not
    support.
    """
    label, given = f"kernel `{kernel.function.__name__}`", dict(template_args)
    parameters = kernel.parameters()
    names = [p.name for p in parameters[len(first) :]]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise SpirogradValueError(f"{label} has no parameter `{unknown[0]}`; it has {', '.join(f'`{n}`' for n in names) or 'none'}")
    defaults = {name: p.default for name, p in inspect.signature(kernel.function).parameters.items() if p.default is not p.empty}
    args, called = list(first), []
    for p in parameters[len(first) :]:
        fixed = isinstance(p, TemplateParameter) and not isinstance(given.get(p.name), Ndarray)
        if fixed and p.name not in given and p.name in defaults:
            args.append(defaults[p.name])
        else:
            args.append(_example(p, label, given, gradients))
        if isinstance(p, TensorParameter) and not isinstance(args[-1], Ndarray):
            fixed = True
        if not fixed:
            called.append(p)
    return called, args


def _example(p: Parameter, label: str, given: Mapping[str, object], gradients: bool) -> object:
    if isinstance(p, ScalarParameter):
        return p.t(0)
    if isinstance(p, AggregateParameter):
        if not isinstance(p.t, MatrixType):
            raise _unsupported(p, label, "a struct", "pass its members one by one")
        return p.t(0)
    if isinstance(p, ArrayParameter):
        return _array(p, label, given, gradients)
    if not isinstance(p, TemplateParameter):
        raise _unsupported(p, label, "an instance of a class", "pass its members one by one")
    if p.name not in given:
        problem = f"{label}: `{p.name}` is a template argument, whose value a module must know"
        raise SpirogradValueError(render(problem, None, f"`add_kernel(..., template_args={{{p.name!r}: ...}})`"))
    return given[p.name]


def _array(p: ArrayParameter, label: str, given: Mapping[str, object], gradients: bool) -> object:
    example = given.get(p.name)
    if example is not None:
        wanted = gradients and isinstance(example, Ndarray) and example.dtype.is_float and example.grad is None
        if wanted:
            raise SpirogradValueError(f"{label}: the example of `{p.name}` has no gradient: make it with `needs_grad=True`")
        return example
    t: NdarrayType = p.t
    if t.dtype is None or t.ndim is None or t.element_shape is None:
        problem = f"{label}: the annotation of `{p.name}` leaves open which arrays it takes"
        hint = f"write `sg.types.NDArray[sg.f32, 1]`, or give an example: `template_args={{{p.name!r}: array}}`"
        raise SpirogradValueError(render(problem, None, hint))
    shape, dtype = t.element_shape, t.dtype
    element = element_type(shape, dtype) if shape else dtype
    return ndarray(element, (1,) * t.ndim, needs_grad=gradients and dtype.is_float)


def _unsupported(p: Parameter, label: str, what: str, hint: str) -> SpirogradUnsupportedError:
    return SpirogradUnsupportedError(f"{label}: `{p.name}` is {what}, which kernels of a module cannot take", None, hint)
