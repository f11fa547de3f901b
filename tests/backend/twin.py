"""The reference for control flow is Python itself: a kernel's function, run as it stands on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import spirograd as sg


def run_both(kernel: Any, *args: Any, rtol: float = 1e-6, atol: float = 0.0) -> Any:
    """Run ``kernel`` and the Python function it was made of on copies of ``args``; arrays and results must agree. Returns the result."""
    ours = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    theirs = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    got = kernel(*ours)
    with np.errstate(all="ignore"):
        want = kernel.function(*theirs)
    for k, (a, b) in enumerate(zip(ours, theirs)):
        if isinstance(a, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"argument {k} of {kernel} for {args}")
    if want is not None:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=f"result of {kernel} for {args}")
    else:
        assert got is None
    return got


def exact_division() -> bool:
    """Whether float division is correctly rounded in the running session: Vulkan lets graphics cards be off by 2.5 ulp."""
    session = sg.lang.context.session()
    return session.arch != "vulkan" or dict(session.device.info.detail).get("kind") == "cpu"
