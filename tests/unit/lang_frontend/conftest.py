"""Fixtures of tests of the front end."""

from __future__ import annotations

from typing import Any

import pytest

from spirograd.lang.frontend import kernel_tracing


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are traced, once for each attempt."""
    names: list[str] = []
    inner = kernel_tracing._trace

    def traced(source: Any, *args: Any) -> Any:
        names.append(source.name)
        return inner(source, *args)

    monkeypatch.setattr(kernel_tracing, "_trace", traced)
    return names
