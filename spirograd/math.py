"""Mathematics on scalars, vectors and matrices: ``from spirograd.math import vec3, normalize``."""

from spirograd.lang.math import *  # noqa: F403
from spirograd.lang.math import __all__ as __all__
