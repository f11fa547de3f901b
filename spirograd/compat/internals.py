"""Names of the Taichi family's ``lang.util``, ``lang.matrix``, ``_lib.core`` and tables of types that programs use."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from spirograd.base import dtypes
from spirograd.base.dtypes import ALL, FLOATS, INTEGERS, DType, u1
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.compat import facade
from spirograd.lang import arithmetic, context
from spirograd.lang.data import scalar_field
from spirograd.lang.data.field import MatrixField
from spirograd.lang.data.node_inspection import SNodeGradType, SNodeType

if TYPE_CHECKING:
    import torch

# --- types: the family counts Python's own among them ------------------------------------------------------------------------

_INTEGERS = {*INTEGERS, u1, int, bool}
_FLOATS = {*FLOATS, float}
TYPE_TABLES: dict[str, object] = {
    "all_types": {*ALL, int, float, bool},
    "integer_types": _INTEGERS,
    "real_types": _FLOATS,
    "type_ids": {id(t) for t in (*ALL, int, float, bool)},
    "integer_type_ids": {id(t) for t in _INTEGERS},
    "real_type_ids": {id(t) for t in _FLOATS},
}


def cook_dtype(dtype: object) -> DType:
    """Return a type; Python's ``int``, ``float`` and ``bool`` are the current default types. Raises ValueError for other objects."""
    if isinstance(dtype, DType) or dtype in (int, float, bool):
        return arithmetic.as_dtype(dtype)
    raise ValueError(f"{dtype!r} is no data type")


def to_numpy_type(dtype: object) -> type:
    """Return the scalar type of NumPy for ``dtype``."""
    return cook_dtype(dtype).np.type


def to_pytorch_type(dtype: object) -> torch.dtype:
    """Return the dtype of torch, which is imported, for ``dtype``."""
    import torch

    converted: torch.dtype = getattr(torch, {"u1": "bool"}.get(cook_dtype(dtype).name, cook_dtype(dtype).np.name))
    return converted


def to_family_type(dtype: object) -> DType:
    """Return the type for a dtype of NumPy or torch. Raises AssertionError for other objects."""
    if isinstance(dtype, DType):
        return dtype
    try:
        return dtypes.from_numpy(str(dtype).rpartition(".")[2] if str(dtype).startswith("torch.") else dtype)
    except (TypeError, ValueError, KeyError):
        raise AssertionError(f"{dtype!r} is no data type") from None


def has_pytorch() -> bool:
    """Return whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def in_python_scope() -> bool:
    """Return whether no kernel is being traced."""
    return context.current_trace() is None


def is_data_oriented(x: object) -> bool:
    """Return whether the class of ``x`` is decorated with `data_oriented`."""
    return getattr(type(x), "_data_oriented", False)


UTIL: dict[str, object] = {
    **{f.__name__: f for f in (cook_dtype, to_numpy_type, to_pytorch_type, has_pytorch, in_python_scope, is_data_oriented)},
    **dict.fromkeys(("to_taichi_type", "to_quadrants_type"), to_family_type),
    **dict.fromkeys(("in_taichi_scope", "in_quadrants_scope"), facade.inside_kernel),
}


# --- classes that programs only give to `isinstance`, and that divide objects in another way than the classes here -------------


def _judging(name: str, doc: str, accepts: Callable[[object], bool]) -> type:
    """Return a class whose instances are the objects that ``accepts`` accepts."""
    judge = type(f"_{name}Type", (type,), {"__instancecheck__": lambda cls, instance: accepts(instance)})
    judging: type = judge(name, (), {"__doc__": doc})
    return judging


Kernel = _judging("Kernel", "A kernel, also one of an object, or a gradient of one.", lambda x: getattr(type(x), "__sg_is_kernel__", False))
ScalarField = _judging(
    "ScalarField",
    "A field of scalars. Here a field of vectors is a field of scalars, too, but not in the family.",
    lambda x: isinstance(x, scalar_field.ScalarField) and not isinstance(x, MatrixField),
)


# --- vectors -----------------------------------------------------------------------------------------------------------------


def _generate_swizzle_patterns(key_group: str, required_length: int = 4) -> list[str]:
    """Return all words of up to ``required_length`` letters of ``key_group``, the shortest first."""
    return ["".join(word) for n in range(required_length) for word in itertools.product(key_group, repeat=n + 1)]


# --- the library below -------------------------------------------------------------------------------------------------------


def _with(arch: str) -> Callable[[], bool]:
    def supported() -> bool:
        return facade.is_arch_supported(arch)

    supported.__name__ = f"with_{arch}"
    supported.__doc__ = f"Whether this machine has the back end `{arch}`."
    return supported


def _without() -> bool:
    """Return False: there is no such back end."""
    return False


CORE: dict[str, object] = {
    **{f"with_{arch}": _with(arch) for arch in ("vulkan", "cuda", "metal", "amdgpu")},
    **dict.fromkeys(("with_opengl", "with_dx11", "with_dx12"), _without),
    "GGUI_AVAILABLE": True,
    **dict.fromkeys(("DataType", "DataTypeCxx"), DType),
    "SNodeType": SNodeType,
    "SNodeGradType": SNodeGradType,
}
# Operations of the family's compiler that exist here.
_INTERNAL_OPERATIONS: dict[str, Callable[..., object]] = {"do_nothing": lambda: None}


def call_internal(name: str, *args: object, with_runtime_context: bool = True) -> object:
    """Call an operation of the family's compiler by name. Raises SpirogradUnsupportedError for all but ``do_nothing``."""
    if name not in _INTERNAL_OPERATIONS:
        raise SpirogradUnsupportedError(f"the internal operation `{name}` is one of the family's compiler, and not here")
    return _INTERNAL_OPERATIONS[name](*args)
