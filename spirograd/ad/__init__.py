"""What users see as ``sg.ad``: automatic differentiation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from spirograd.ad.forward_mode import FwdMode
from spirograd.ad.second_order import hvp
from spirograd.base import later

F = TypeVar("F")


def no_grad(function: F) -> F:
    """Leave a function out of differentiation: without derivatives, the function itself."""
    return function


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        found = later.later(name, later.LATER_AD, "ad.")
        if found is None:
            raise AttributeError(f"`ad` has no attribute {name!r}")
        return found


__all__ = ["FwdMode", "hvp", "no_grad"]
