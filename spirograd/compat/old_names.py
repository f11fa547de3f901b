"""Names of the Taichi family that still work, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings

from spirograd.lang.frontend.func import RealFunc, plain_function, remember_outer_names


def experimental_real_func(function: object) -> RealFunc:
    """Decorator: `real_func`, by its name from the time when it was experimental."""
    problem = "experimental.real_func is deprecated because it is no longer experimental. Use real_func instead."
    warnings.warn(problem, DeprecationWarning, stacklevel=2)
    plain = plain_function(function, "real_func")
    remember_outer_names(plain, sys._getframe(1))
    return RealFunc(plain)
