"""spirograd under the names of Taichi: ``import spirograd.compat.taichi as ti``. What differs is in docs/migrating.md."""

from typing import TYPE_CHECKING, Any

from spirograd.compat import factory

if TYPE_CHECKING:
    from spirograd import *  # noqa: F403

    def __getattr__(name: str) -> Any: ...
else:
    globals().update(factory.make(__name__, "Taichi", (1, 7, 4)))
