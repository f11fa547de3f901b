"""What algorithms have in common: checks of their arguments, scratch memory, the way to divide the work."""

from __future__ import annotations

from typing import Any

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.lang.context import session
from spirograd.lang.data.ndarray import ScalarNdarray, ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.decorators import kernel
from spirograd.types import template

Array = Any  # a ScalarField or a ScalarNdarray
# Elements that a thread of a CPU takes at least.
_SHORTEST = 4096


def checked(x: Any, name: str, length: int | None = None, dtype: DType | None = None) -> int:
    """The length of a one-dimensional field or ndarray of scalars. ``length``, ``dtype``: what it must have."""
    if not isinstance(x, (ScalarField, ScalarNdarray)) or len(x.shape) != 1:
        raise SpirogradTypeError(f"`{name}` is a one-dimensional field or ndarray of scalars, not {x!r}")
    n: int = x.shape[0]
    if length is not None and n < length:
        raise SpirogradValueError(f"`{name}` has {n} elements; {length} are needed")
    if dtype is not None and x.dtype is not dtype:
        raise SpirogradTypeError(f"`{name}` is of {x.dtype}, not of {dtype}")
    return n


_scratch: dict[tuple[str, DType], tuple[Any, Any]] = {}


def scratch(use: str, dtype: DType, length: int) -> Array:
    """Memory of at least ``length`` elements, with undefined contents: that of the last call for the same ``use`` if it is large enough."""
    owner, held = _scratch.get((use, dtype), (None, None))
    if owner is not session() or held.shape[0] < length:
        held = ndarray(dtype, max(length, 1))
        _scratch[use, dtype] = session(), held
    return held


def has_groups() -> bool:
    """Whether the device runs workgroups, rather than a few threads."""
    return bool(session().device.caps.target.invocations)


def reads_subgroups() -> bool:
    """Whether threads read values of each other without shared memory."""
    return bool(session().device.caps.subgroup_read)


def chunks_of(n: int) -> tuple[int, int]:
    """For a few threads: how many consecutive elements each takes, and how many of them there are then."""
    length = max(_SHORTEST, -(-n // 64))
    return length, -(-n // length)


@kernel
def copy(source: template(), target: template(), n: int):  # type: ignore[valid-type, no-untyped-def]
    """The first ``n`` elements."""
    for k in range(n):
        target[k] = source[k]
