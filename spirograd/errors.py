"""The exceptions of spirograd."""

from spirograd.base.errors import (
    AdStackOverflow,
    OutOfDeviceMemory,
    SpirogradAssertionError,
    SpirogradCompilationError,
    SpirogradError,
    SpirogradIndexError,
    SpirogradNameError,
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
    "SpirogradAssertionError",
    "SpirogradCompilationError",
    "SpirogradError",
    "SpirogradIndexError",
    "SpirogradNameError",
    "SpirogradRuntimeError",
    "SpirogradRuntimeTypeError",
    "SpirogradSyntaxError",
    "SpirogradTypeError",
    "SpirogradUnsupportedError",
    "SpirogradValueError",
]
