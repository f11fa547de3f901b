"""What type checkers and editors see of the language; nothing here exists at run time, where the names mean the objects of the language.

Kernels and functions keep their signatures. A scalar type is `float`, `int` or `bool`; an array argument is anything with a shape
and elements (arrays of NumPy, torch and spirograd); a template argument is anything; vectors and matrices are `Matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import numpy as np
import torch

from spirograd.base.dtypes import DType
from spirograd.derivatives.memory_plan import MemoryPlan
from spirograd.lang.annotations import MatrixType
from spirograd.lang.data.enums import Layout
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.frontend.compilation_stages import Staged
from spirograd.lang.graph_statements import GraphStatus
from spirograd.lang.matrix import Matrix as Matrix
from spirograd.lang.session_protocol import OnOp
from spirograd.lang.streams import Stream
from spirograd.lang.struct import StructType

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound=type)

# --- types of arguments ---

Template: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]

class NDArray(Protocol):
    """An array argument: ``NDArray[sg.f32, 2]``, an array of spirograd, NumPy or torch."""

    def __class_getitem__(cls, item: object, /) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...

class SparseMatrixBuilder(Protocol):
    """An argument that is a builder of a sparse matrix."""

    def __getitem__(self, index: Any, /) -> float: ...
    def __setitem__(self, index: Any, value: float, /) -> None: ...

@runtime_checkable
class Tensor(Protocol):
    """A field or an array of spirograd."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def grad(self) -> Any:
        """The memory of gradients."""
    @property
    def dual(self) -> Any:
        """The memory of the tangents of forward mode."""
    def has_grad(self) -> bool:
        """Whether there is memory for gradients."""
    def has_dual(self) -> bool:
        """Whether there is memory for tangents."""
    def __getitem__(self, key: object, /) -> Any: ...
    def __setitem__(self, key: object, value: object, /) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def fill(self, value: object) -> None:
        """Set all elements to ``value``."""
    def copy_from(self, other: object) -> None:
        """Take over the contents of another field or array of the same shape."""
    def to_numpy(self, *args: Any, **options: Any) -> Array:
        """The contents as a NumPy array. ``copy=False``: over the memory itself, or ValueError."""
    def from_numpy(self, array: object) -> None:
        """Set the contents from a NumPy array."""
    def to_torch(self, *args: Any, **options: Any) -> torch.Tensor:
        """The contents as a torch tensor on ``device`` (the CPU by default)."""
    def from_torch(self, tensor: torch.Tensor) -> None:
        """Set the contents from a torch tensor."""

# --- vectors, matrices, structs ---

class MatrixOperators:
    """Operators of `Matrix`, which work entry by entry, with numbers, lists and matrices; and types: ``Vector[3, sg.f32]``."""

    def __class_getitem__(cls, item: object, /) -> Any: ...
    def _operator(self, other: object, /) -> Matrix: ...
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _operator
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operator
    __lt__ = __le__ = __gt__ = __ge__ = _operator
    def __eq__(self, other: object, /) -> Matrix: ...  # type: ignore[override]
    def __ne__(self, other: object, /) -> Matrix: ...  # type: ignore[override]

Vector: TypeAlias = Matrix
vec2: TypeAlias = Matrix
vec3: TypeAlias = Matrix
vec4: TypeAlias = Matrix
ivec2: TypeAlias = Matrix
ivec3: TypeAlias = Matrix
ivec4: TypeAlias = Matrix
uvec2: TypeAlias = Matrix
uvec3: TypeAlias = Matrix
uvec4: TypeAlias = Matrix
mat2: TypeAlias = Matrix
mat3: TypeAlias = Matrix
mat4: TypeAlias = Matrix

class DataClass:
    """A value of a class that `dataclass` made a struct type: members are attributes; those not given are zero."""

    def __init__(self, *values: object, **members: object) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...
    def to_dict(self, include_methods: bool = False) -> dict[str, Any]: ...
    @classmethod
    def field(
        cls,
        shape: object = None,
        name: str = "",
        offset: object = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Layout = ...,
        order: str | None = None,
    ) -> StructField:
        """A field of this type; options as of `field`, and ``layout``."""

def dataclass(cls: type) -> type[DataClass]:
    """Decorator: the annotations of a class become the members of a struct type, its functions the methods."""

# --- fields ---

# Types of elements of `field`.
ScalarType: TypeAlias = type[float] | type[int] | type[np.generic] | DType
AnyMatrixType: TypeAlias = type[Matrix] | MatrixType
AnyStructType: TypeAlias = type[DataClass] | StructType

@overload
def field(
    dtype: ScalarType,
    shape: object = None,
    order: str | None = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    *,
    fill: object = None,
) -> ScalarField:
    """A field of scalars, or of the elements of a vector, matrix or struct type.

    ``shape``: extents of the index space; without it the field must be placed by hand. ``order``: the axes from slowest to fastest in
    memory, as ``"ji"``. ``offset``: the smallest index of each axis. ``fill``: what all elements are at first. Raises SpirogradRuntimeError
    for bad shapes and orders.
    """

@overload
def field(
    dtype: AnyMatrixType,
    shape: object = None,
    order: str | None = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    *,
    fill: object = None,
) -> MatrixField: ...
@overload
def field(
    dtype: AnyStructType,
    shape: object = None,
    order: str | None = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    *,
    fill: object = None,
) -> StructField: ...

# --- kernels and functions ---

class Func(Generic[P, R_co]):
    """A function of the kernel language."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Func[P, R_co]: ...
    @overload
    def __get__(self: Func[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None) -> Func[Q, R_co]: ...

class Gradient(Staged, Generic[P]):
    """The derivative of a kernel in reverse mode: ``kernel.grad(*args)``, with the arguments of the kernel, after the kernel."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def __call__(self, *args: object, returned: object, **kwargs: object) -> None:
        """Launch the gradient. ``returned``: the adjoint of the value that the kernel returns."""

    def explain(self, *args: object, **kwargs: object) -> str:
        """In words: what is recorded and why, what runs again, where gradients come from and go to, where they end.

        Of what was compiled last, or for the arguments of a launch.
        """

    def memory_plan(self, *args: P.args, **kwargs: P.kwargs) -> MemoryPlan:
        """What a launch with these arguments, now, would need of memory for the tapes of its loops. Printable."""

    @property
    def adstack_bytes(self) -> int:
        """Bytes of the tapes in which its last launch kept values of loops; 0 before the first launch, and where it needs none."""

class Kernel(Staged, Generic[P, R_co]):
    """A kernel: called like the function that it was made of."""

    @property
    def grad(self) -> Gradient[P]:
        """The derivative of this kernel in reverse mode."""
    @property
    def function(self) -> Any:
        """The function that it was made of."""
    @property
    def __name__(self) -> str: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: object, stream: Stream | None, **kwargs: object) -> R_co:
        """Launch the kernel on ``stream``."""
    @overload
    def __call__(self, *args: object, qd_stream: Stream | None, **kwargs: object) -> R_co: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Kernel[P, R_co]: ...
    @overload
    def __get__(self: Kernel[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None) -> Kernel[Q, R_co]: ...
    def explain(self, *args: object, **kwargs: object) -> str:
        """Each task with its line, and which parallel loops were fused. Of what was compiled last, or for the arguments of a launch."""
    def step(self, on_op: OnOp, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run on ``arch=sg.interpreter`` and call ``on_op(op, values)`` after each operation: ``op.code``, ``op.loc``, ``values[op]``."""

class GraphKernel(Kernel[P, R_co]):
    """A kernel of ``@kernel(graph=True)``."""

    @property
    def parts(self) -> tuple[Kernel[P, None], ...]:
        """The kernels that it is compiled to, in the order of the source."""

    def resume(self, *args: object, from_checkpoint: object, **kwargs: object) -> R_co:
        """Run from the block of a checkpoint to the end."""

@overload
def kernel(function: Callable[P, R], /) -> Kernel[P, R]:
    """Make a kernel of a function: ``@kernel``.

    ``fuse=False``: one dispatch per parallel loop. Options of the family (``fastcache`` ...) need no setting.
    """

@overload
def kernel(
    *, graph: Literal[True], checkpoints: Literal[True], **options: Any
) -> Callable[[Callable[P, object]], GraphKernel[P, GraphStatus]]: ...
@overload
def kernel(*, graph: Literal[True], **options: Any) -> Callable[[Callable[P, None]], GraphKernel[P, None]]: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...
def func(function: Callable[P, R], /) -> Func[P, R]:
    """Mark a function that kernels and other such functions may call; it is inlined."""

def pyfunc(function: Callable[P, R], /) -> Func[P, R]:
    """Mark a function for both kernels, where it is inlined, and Python, where it runs as it is."""

def real_func(function: Callable[P, R], /) -> Func[P, R]: ...
@overload
def data_oriented(cls: C, /) -> C:
    """Mark a class whose methods may be kernels and functions."""

@overload
def data_oriented(**options: Any) -> Callable[[C], C]: ...
