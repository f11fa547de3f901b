"""Gradients by central differences, for references in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def differences(f: Callable[[Array], float], x: Array, h: float = 1e-4) -> Array:
    """Exact for quadratic functions, but for rounding."""
    return np.array([(f(x + e) - f(x - e)) / (2 * h) for e in h * np.eye(len(x))])
