"""spirograd under the names of Taichi: ``import spirograd.compat.taichi as ti``. The differences are in docs/how-to/migrate.md."""

from typing import TYPE_CHECKING

from spirograd.compat import factory

if TYPE_CHECKING:
    from spirograd.compat.typed_family import *  # noqa: F403
    from spirograd.compat.typed_family import errors

    TaichiAssertionError = errors.SpirogradAssertionError
    TaichiCompilationError = errors.SpirogradCompilationError
    TaichiIndexError = errors.SpirogradIndexError
    TaichiNameError = errors.SpirogradNameError
    TaichiRuntimeError = errors.SpirogradRuntimeError
    TaichiRuntimeTypeError = errors.SpirogradRuntimeTypeError
    TaichiSyntaxError = errors.SpirogradSyntaxError
    TaichiTypeError = errors.SpirogradTypeError
else:
    globals().update(factory.make(__name__, "Taichi", (1, 7, 4)))
