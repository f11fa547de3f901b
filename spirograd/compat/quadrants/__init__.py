"""spirograd under the names of Quadrants: ``import spirograd.compat.quadrants as qd``. The differences are in docs/how-to/migrate.md."""

from typing import TYPE_CHECKING

from spirograd.compat import factory

if TYPE_CHECKING:
    from spirograd.compat.typed_family import *  # noqa: F403
    from spirograd.compat.typed_family import errors

    QuadrantsAssertionError = errors.SpirogradAssertionError
    QuadrantsCompilationError = errors.SpirogradCompilationError
    QuadrantsIndexError = errors.SpirogradIndexError
    QuadrantsNameError = errors.SpirogradNameError
    QuadrantsRuntimeError = errors.SpirogradRuntimeError
    QuadrantsRuntimeTypeError = errors.SpirogradRuntimeTypeError
    QuadrantsSyntaxError = errors.SpirogradSyntaxError
    QuadrantsTypeError = errors.SpirogradTypeError
else:
    globals().update(factory.make(__name__, "Quadrants", (1, 4, 0)))
