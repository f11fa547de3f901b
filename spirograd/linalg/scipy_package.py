"""SciPy, which the extra `linalg` brings, imported when it is first used."""

from __future__ import annotations

import importlib
from types import ModuleType

from spirograd.base.errors import SpirogradRuntimeError, render


def scipy_module(name: str) -> ModuleType:
    """Import the module ``scipy.name``. Raises SpirogradRuntimeError if SciPy is not installed."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError:
        message = "sparse matrices need the package scipy, which is not installed"
        raise SpirogradRuntimeError(render(message, None, "`pip install 'spirograd[linalg]'` installs it")) from None
