"""What type checkers see of the language; nothing here exists at run time, where the names mean the objects of the language itself.

Kernels and functions keep their signatures. A scalar type is `float`, `int` or `bool`; an array argument is anything with a shape
and elements (arrays of NumPy, torch and spirograd); a template argument is anything; vectors and matrices are `Matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from spirograd.lang.matrix import Matrix

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound=type)
Template = Any


class NDArray(Protocol):
    """An array argument: ``NDArray[sg.f32, 2]``."""

    def __class_getitem__(cls, item: Any) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...


class MatrixValue(Matrix):
    """A vector or matrix of fixed size: ``sg.math.vec3``."""

    def __new__(cls, *entries: Any) -> MatrixValue: ...
    def __init__(self, *entries: Any) -> None: ...


vec2 = MatrixValue
vec3 = MatrixValue
vec4 = MatrixValue
ivec2 = MatrixValue
ivec3 = MatrixValue
ivec4 = MatrixValue
uvec2 = MatrixValue
uvec3 = MatrixValue
uvec4 = MatrixValue
mat2 = MatrixValue
mat3 = MatrixValue
mat4 = MatrixValue

class Func(Generic[P, R_co]):
    """A function of the kernel language."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Func[P, R_co]: ...
    @overload
    def __get__(self: Func[Concatenate[Any, Q], R_co], instance: object, owner: Any = None) -> Func[Q, R_co]: ...


class Kernel(Generic[P, R_co]):
    """A kernel: called like the function that it was made of."""

    grad: Any

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Kernel[P, R_co]: ...
    @overload
    def __get__(self: Kernel[Concatenate[Any, Q], R_co], instance: object, owner: Any = None) -> Kernel[Q, R_co]: ...

    def stages(self) -> dict[str, Any]: ...
    def ir(self, stage: str = "kernel") -> str: ...
    def spirv(self) -> dict[str, bytes]: ...
    def spirv_asm(self) -> dict[str, str]: ...
    def llvm(self, optimized: bool = False) -> str: ...
    def asm(self) -> str: ...


@overload
def kernel(function: Callable[P, R], /) -> Kernel[P, R]: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...


def func(function: Callable[P, R], /) -> Func[P, R]: ...
def pyfunc(function: Callable[P, R], /) -> Func[P, R]: ...
def real_func(function: Callable[P, R], /) -> Func[P, R]: ...


@overload
def data_oriented(cls: C, /) -> C: ...
@overload
def data_oriented(**options: Any) -> Callable[[C], C]: ...


def static(*values: Any) -> Any: ...
