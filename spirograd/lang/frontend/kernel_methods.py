"""Methods of fields and arrays that do in a kernel what they do outside of it: written in the kernel language, and inlined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spirograd.lang.data.field import StructField
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.forms import grouped
from spirograd.lang.frontend.array_proxy import ArrayProxy, Proxy
from spirograd.lang.frontend.func import Func, func


def _fill(memory: Any, value: object) -> None:
    for index in grouped(memory):
        memory[index] = value


def _subview(array: Any, offset: Any, size: Any) -> object:
    return array[offset : offset + size]


def _of_library(function: Callable[..., object]) -> Func:
    function.__sg_library__ = True  # type: ignore[attr-defined]
    return func(function)


_FILLS = (ScalarField.fill, StructField.fill, Proxy.fill)
# What Python calls -> what a kernel that calls it runs.
KERNEL_METHODS: dict[Callable[..., object], Func] = {
    **dict.fromkeys(_FILLS, _of_library(_fill)),
    ArrayProxy.subview: _of_library(_subview),
}
