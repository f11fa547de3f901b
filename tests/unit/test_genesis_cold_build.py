"""The report about a build without caches: spans belong to kernels, and waits are told from work."""

from __future__ import annotations

import pytest

from spirograd.base.spans import Span
from validation.clients.genesis import cold_build

_SECOND = 1_000_000_000


def _span(name: str, category: str, begin: float, end: float, thread: int = 1, depth: int = 0) -> Span:
    return Span(name, category, int(begin * _SECOND), int(end * _SECOND), thread, depth, {})


# A kernel whose modules two threads compile, then one of spirograd, which is not traced.
SPANS = [
    _span("trace step", "compile", 10, 12),
    _span("describe the trace of step", "cache", 12, 12.5),
    _span("compile step", "compile", 12.5, 20),
    _span("simplify", "pass", 13, 14, depth=1),
    _span("generate code", "compile", 14, 17, depth=1),
    _span("optimise", "llvm", 15, 16, depth=2),
    _span("emit machine code", "llvm", 16, 17, depth=2),
    _span("optimise", "llvm", 15, 15.5, thread=2),
    _span("assemble step", "driver", 17, 19.5, depth=1),
    _span("assemble step", "driver", 17, 18, thread=3),
    _span("load step", "load", 20, 20.5),
    _span("compile fill", "compile", 21, 22),
    _span("optimise", "llvm", 21.5, 22, depth=1),
]


def test_spans_belong_to_kernels() -> None:
    step, fill = cold_build.builds(SPANS[::-1])
    assert (step.name, step.begin, step.end) == ("step", 10, 20.5)
    assert (fill.name, fill.begin, fill.end) == ("fill", 21, 22)
    assert step.total("llvm") == pytest.approx(2.5)
    assert step.longest("llvm") == step.waits("llvm") == 2
    assert (step.total("driver"), step.longest("driver"), step.waits("driver")) == (3.5, 2.5, 2.5)
    assert fill.waits("driver") == 0


def test_the_report() -> None:
    text = cold_build.report(SPANS, 10 * _SECOND, 24 * _SECOND, 1.0)
    lines = text.splitlines()
    assert lines[2] == "| step | 0.00 | 2.00 | 0.50 | 1.00 | 1.00 | 2.50 | 2.00 | 2.00 | 3.50 | 2.50 | 2.50 | 0.50 | 10.50 |"
    assert lines[3].startswith("| fill | 11.00 | 0.00 |")
    assert "The build took 14.0 s: 6.5 s of Python for 2 kernels, 2.5 s of waits for LLVM, 2.5 s of waits for the driver" in "\n".join(
        lines
    )
    assert "the build would take 9.0 s" in text
    assert "| 7.00 | 9.50 | 0 | driver | . assemble step |" in lines
    assert not any("describe" in line for line in lines)  # shorter than what is asked for
