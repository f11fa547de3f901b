"""spirograd under the names of Quadrants: ``import spirograd.compat.quadrants as qd``. What differs is in docs/migrating.md."""

from typing import TYPE_CHECKING, Any

from spirograd.compat import factory

if TYPE_CHECKING:
    from spirograd import *  # noqa: F403

    def __getattr__(name: str) -> Any: ...
else:
    globals().update(factory.make(__name__, "Quadrants", (1, 3, 3)))
