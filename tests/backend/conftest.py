"""Calls of kernels in both ways: by compiled code, and by Python. Calls of real functions that are never inlined."""

import pytest

from spirograd.lang.frontend import kernel as kernels
from spirograd.lang.frontend import native_calls
from spirograd.transforms.simplification import inline_calls


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    """Both ways of launching; the native one from the second call on."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    if request.param == "python":
        monkeypatch.setattr(native_calls.NativeCalls, "is_due", lambda _: False)
    return request.param


@pytest.fixture
def in_python(monkeypatch):
    """The calls that Python launched, by the names of their kernels."""
    calls = []
    call = kernels.Kernel._call
    monkeypatch.setattr(kernels.Kernel, "_call", lambda kernel, *args: calls.append(kernel.function.__name__) or call(kernel, *args))
    return calls


@pytest.fixture
def calls_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that access memory are called, however few and small they are."""
    monkeypatch.setattr(inline_calls, "_FEW", 0)
    monkeypatch.setattr(inline_calls, "_SMALL", 0)
