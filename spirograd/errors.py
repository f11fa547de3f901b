"""The exceptions of spirograd."""

from typing import TYPE_CHECKING

from spirograd.base import later as _later
from spirograd.base.errors import (
    AdStackOverflow,
    OutOfDeviceMemory,
    SpirogradArrayError,
    SpirogradAssertionError,
    SpirogradBoundsError,
    SpirogradCallError,
    SpirogradCompilationError,
    SpirogradDamagedError,
    SpirogradError,
    SpirogradIndexError,
    SpirogradNameError,
    SpirogradOptionError,
    SpirogradRuntimeError,
    SpirogradRuntimeTypeError,
    SpirogradSyntaxError,
    SpirogradTypeError,
    SpirogradUnsupportedError,
    SpirogradValueError,
)

__all__ = [
    "AdStackOverflow",
    "OutOfDeviceMemory",
    "SpirogradArrayError",
    "SpirogradAssertionError",
    "SpirogradBoundsError",
    "SpirogradCallError",
    "SpirogradCompilationError",
    "SpirogradDamagedError",
    "SpirogradError",
    "SpirogradIndexError",
    "SpirogradNameError",
    "SpirogradOptionError",
    "SpirogradRuntimeError",
    "SpirogradRuntimeTypeError",
    "SpirogradSyntaxError",
    "SpirogradTypeError",
    "SpirogradUnsupportedError",
    "SpirogradValueError",
]

if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.errors", __all__)
