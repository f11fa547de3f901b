"""Taichi's ``graph``: a sequence of kernel launches with named arguments, built once and run with values."""

from __future__ import annotations

import enum
import inspect
import warnings
from collections.abc import Iterator

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradCallError, SpirogradRuntimeTypeError, SpirogradTypeError, SpirogradUnsupportedError
from spirograd.base.near_names import NearNames
from spirograd.base.records import dataclass
from spirograd.lang import arithmetic
from spirograd.lang.annotations import MatrixType, NdarrayType
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.func import resolved_signature
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import describe, is_number


class ArgKind(enum.Enum):
    """The kind of an argument of a graph."""

    SCALAR = 0
    NDARRAY = 1
    MATRIX = 2
    TEXTURE = 3
    RWTEXTURE = 4


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument of a graph: its kind, its name, the type of its elements, and for an ndarray the number of its axes."""

    tag: ArgKind
    name: str
    dtype: object
    ndim: int = 0
    field_dim: int | None = None  # an older name of ``ndim``
    element_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.field_dim is not None:
            problem = "The field_dim argument for ndarray will be deprecated in v1.6.0, use ndim instead."
            warnings.warn(problem, DeprecationWarning, stacklevel=3)
        if self.tag in (ArgKind.TEXTURE, ArgKind.RWTEXTURE):
            raise SpirogradUnsupportedError(f"argument `{self.name}`: textures are not supported", None, "use a field or an ndarray")
        if self.tag is ArgKind.SCALAR and isinstance(self.dtype, MatrixType):
            raise SpirogradTypeError(f"argument `{self.name}` is a scalar, but its type is {self.dtype!r}", None, "use `ArgKind.MATRIX`")
        if self.tag is ArgKind.MATRIX and not isinstance(self.dtype, MatrixType):
            raise SpirogradTypeError(f"argument `{self.name}` is a matrix, but its type is {self.dtype!r}", None, "use `ArgKind.SCALAR`")

    @property
    def type(self) -> tuple[DType, tuple[int, ...]]:
        """The type of its numbers, and the shape of its elements."""
        if isinstance(self.dtype, MatrixType):
            return self.dtype.dtype, self.dtype.shape
        return arithmetic.as_dtype(self.dtype), tuple(self.element_shape)

    def check(self, value: object) -> None:
        """Raise SpirogradRuntimeTypeError if ``value`` does not fit this argument."""
        if self.tag is ArgKind.NDARRAY:
            if not isinstance(value, Ndarray):
                raise SpirogradRuntimeTypeError(f"argument `{self.name}` of the graph is an ndarray, got {describe(value)}")
            dtype, element_shape = self.type
            wanted = NdarrayType(dtype, self.ndim if self.field_dim is None else self.field_dim, element_shape=element_shape)
            problem = wanted.mismatch(value.dtype, value.shape, value.element_shape)
            if problem is not None:
                raise SpirogradRuntimeTypeError(f"argument `{self.name}` of the graph: {problem}")
        elif not (is_number(value) if self.tag is ArgKind.SCALAR else isinstance(value, (Matrix, list, tuple))):
            raise SpirogradRuntimeTypeError(f"argument `{self.name}` of the graph is a {self.tag.name.lower()}, got {describe(value)}")


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel with its arguments of the graph."""

    kernel: Kernel | BoundKernel
    arguments: tuple[Arg, ...]


class Sequential(NearNames):
    """A sequence of launches and of other sequences."""

    def __init__(self) -> None:
        self._steps: list[_Launch | Sequential] = []

    def dispatch(self, kernel_fn: object, *args: Arg) -> None:
        """Add a launch of ``kernel_fn``. Raises SpirogradTypeError for objects that are not arguments of a graph, and for types that the
        kernel does not take; SpirogradCallError for a wrong number of arguments."""
        if not isinstance(kernel_fn, (Kernel, BoundKernel)):
            raise SpirogradTypeError(f"a graph launches kernels, got {describe(kernel_fn)}")
        parameters = [*resolved_signature(kernel_fn.function).parameters.values()]
        if isinstance(kernel_fn, BoundKernel):
            del parameters[0]
        if len(parameters) != len(args):
            raise SpirogradCallError(f"{kernel_fn!r} takes {len(parameters)} arguments, and the graph gives it {len(args)}")
        for parameter, arg in zip(parameters, args):
            if not isinstance(arg, Arg):
                hint = "make it with `graph.Arg`; its value is given to `run`"
                raise SpirogradTypeError(f"argument `{parameter.name}`: expected an argument of the graph, got {describe(arg)}", None, hint)
            _check_annotation(parameter, arg)
        self._steps.append(_Launch(kernel_fn, args))

    def append(self, sequence: Sequential) -> None:
        """Add all launches of another sequence, as it is when the graph is compiled."""
        self._steps.append(sequence)

    def _launches(self) -> Iterator[_Launch]:
        for step in self._steps:
            if isinstance(step, _Launch):
                yield step
            else:
                yield from step._launches()


class GraphBuilder(Sequential):
    """Builds a graph: `dispatch`, `append`, then `compile`."""

    def create_sequential(self) -> Sequential:
        """Return a new sequence for `append`."""
        return Sequential()

    def compile(self) -> Graph:
        """Return the graph of all launches so far. Raises SpirogradTypeError if two different arguments have the same name."""
        launches = list(self._launches())
        arguments: dict[str, Arg] = {}
        for launch in launches:
            for arg in launch.arguments:
                if arguments.setdefault(arg.name, arg) != arg:
                    raise SpirogradTypeError(f"two different arguments of the graph have the name `{arg.name}`: rename one of them")
        return Graph(launches, arguments)


class Graph(NearNames):
    """A compiled graph. ``run(arguments)`` launches its kernels with values by name."""

    def __init__(self, launches: list[_Launch], arguments: dict[str, Arg]) -> None:
        self._launches = launches
        self._arguments = arguments

    def run(self, args: dict[str, object]) -> None:
        """Launch the kernels. Raises SpirogradCallError if an argument is missing, SpirogradRuntimeTypeError for a value of another type;
        values that the graph has no argument for are ignored, as by the family."""
        missing = [name for name in self._arguments if name not in args]
        if missing:
            raise SpirogradCallError(f"these arguments of the graph have no value: {', '.join(missing)}; give them to `run`")
        for name, arg in self._arguments.items():
            arg.check(args[name])
        for launch in self._launches:
            launch.kernel(*(args[a.name] for a in launch.arguments))


def _check_annotation(parameter: inspect.Parameter, arg: Arg) -> None:
    """Raise SpirogradTypeError if the parameter of a kernel does not take ``arg``."""
    annotation, (dtype, shape) = parameter.annotation, arg.type
    if isinstance(annotation, NdarrayType):
        fits = arg.tag is ArgKind.NDARRAY and annotation.dtype in (None, dtype) and annotation.element_shape in (None, shape)
    elif isinstance(annotation, MatrixType):
        fits = arg.tag is ArgKind.MATRIX and annotation.entry_dtype in (None, dtype) and annotation.shape == shape
    else:
        fits = (
            arg.tag is ArgKind.SCALAR
            and (annotation in (int, float, bool) or isinstance(annotation, DType))
            and arithmetic.as_dtype(annotation) is dtype
        )
    if not fits:
        kind = f"{arg.tag.name.lower()} of {dtype}" + (f" with elements {shape}" if shape else "")
        given = f"argument `{arg.name}` of the graph, a {kind}"
        raise SpirogradTypeError(f"parameter `{parameter.name}` of the kernel: expected {annotation!r}, got {given}")
