"""Mathematics on scalars, vectors and matrices: ``from spirograd.math import vec3, normalize``."""

from typing import TYPE_CHECKING

from spirograd.base import later as _later
from spirograd.lang.math import *  # noqa: F403
from spirograd.lang.math import __all__ as __all__

if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.math", __all__, _later.LATER_MATH)
