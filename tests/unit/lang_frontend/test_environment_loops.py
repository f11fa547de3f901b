"""Kernels of a batch: their loops are those that are written by hand with one more axis; what crosses from one to another is saved."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import spirograd as sg
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.text import parse, to_text
from spirograd.lang import context
from spirograd.lang.context import Trace
from spirograd.lang.frontend.environment_loops import over_environments
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.language_options import LanguageOptions


@pytest.fixture
def trace() -> Iterator[Trace]:
    trace = Trace(Builder(), LanguageOptions())
    before = context.set_trace(trace)
    yield trace
    context.set_trace(before)


def over(trace: Trace, source: str, count: int) -> str:
    """Return a kernel for ``count`` environments, as text; its first argument stands for the number of the environment."""
    kernel = parse(source)
    environment: Op = kernel.body.ops[0]
    trace.b = Builder()
    return to_text(kernel.with_body(over_environments(kernel.body, trace, environment, count)))


HEAD = """kernel "k"
arg ScalarArg("environment", i32)
arg ScalarArg("m", i32)
ref x = FieldRef("x", 1, 1, i32, (3, 8), (), Layout((Term(1, 1, 0, 12), Term(0, 1, 0, 4))))
ref shared = FieldRef("shared", 2, 2, i32, (), (), Layout(()))
"""


def test_saved_and_computed_again(trace: Trace) -> None:
    source = f"""{HEAD}
{{
  %0 = arg[0]() : i32
  %1 = arg[1]() : i32
  %2 = const[0]() : i32
  %3 = load[x](%0, %2) : i32
  %4 = add(%0, %1) : i32
  %5 = load[shared]() : i32
  for[LoopAttr(parallel=True)](%2, %5) : () {{ (%6: i32)
    %7 = add(%3, %4) : i32
    store[x](%0, %6, %7)
    yield()
  }}
  yield()
}}
"""
    text = over(trace, source, 3)
    first, second = text.split("for[LoopAttr(parallel=True)]")[1:]
    assert 'ref of_environment0 = TempRef("of_environment0", i32, shape=(3,))' in text
    assert "store[of_environment0]" in first
    assert "add" not in first  # `%4` is computed again.
    assert "load[of_environment0]" in second
    assert text.index("load[shared]") < text.index("for[")  # The bound is the same for all.
    assert "irem" in second
    assert "idiv" in second


def test_bounds_that_differ(trace: Trace) -> None:
    source = f"""{HEAD}
{{
  %0 = arg[0]() : i32
  %2 = const[0]() : i32
  %3 = load[x](%0, %2) : i32
  for[LoopAttr(parallel=True)](%2, %3) : () {{ (%6: i32)
    store[x](%0, %6, %6)
    yield()
  }}
  yield()
}}
"""
    text = over(trace, source, 3)
    assert text.count("for[LoopAttr(parallel=True)]") == 1
    assert "for[LoopAttr()]" in text
    assert any("its bounds differ" in warning for warning in trace.warnings.values())


def test_memory_of_the_launch_gets_an_axis(trace: Trace) -> None:
    source = f"""{HEAD}ref t = TempRef("t", i32)
{{
  %0 = arg[0]() : i32
  %1 = arg[1]() : i32
  %2 = const[0]() : i32
  store[t](%2)
  for[LoopAttr(parallel=True)](%2, %1) : () {{ (%6: i32)
    %7 = load[x](%0, %6) : i32
    %8 = atomic[("add", t)](%7) : i32
    yield()
  }}
  %9 = load[t]() : i32
  store[x](%0, %2, %9)
  yield()
}}
"""
    text = over(trace, source, 3)
    assert 'ref t = TempRef("t", i32, shape=(3,))' in text
    assert text.count("for[LoopAttr(parallel=True)]") == 3


def test_loops_are_those_that_are_written_by_hand() -> None:
    sg.init(arch="cpu")
    n, m = 64, 5
    batch = sg.batch(n)
    x, y, a = batch.field(sg.f32, (m, 2)), batch.field(sg.types.vector(2, sg.f32), m), batch.field(sg.f32)
    x_of_hand, a_of_hand = sg.field(sg.f32, (m, 2, n)), sg.field(sg.f32, n)
    y_of_hand = sg.Vector.field(2, sg.f32, (m, n), layout=sg.Layout.SOA)

    @sg.kernel
    def loops() -> None:
        for i, j in x:
            x[i, j] = 2.0 * x[i, j] + a[None]
        for i in y:
            y[i] += [x[i, 0], x[(i + 1) % m, 1]]

    @sg.kernel
    def loops_of_hand() -> None:
        for i, j, e in x_of_hand:
            x_of_hand[i, j, e] = 2.0 * x_of_hand[i, j, e] + a_of_hand[e]
        for i, e in y_of_hand:
            y_of_hand[i, e] += [x_of_hand[i, 0, e], x_of_hand[(i + 1) % m, 1, e]]

    start = np.random.default_rng(0).random((m, 2, n)).astype(np.float32)
    x.from_numpy(start.transpose(2, 0, 1))
    x_of_hand.from_numpy(start)
    loops()
    loops_of_hand()
    assert (y.to_numpy() == y_of_hand.to_numpy().transpose(1, 0, 2)).all()
    assert _operations(loops) == _operations(loops_of_hand)


def _operations(kernel: Kernel) -> list[str]:
    """Return the operations of the device IR, sorted, without constants and sums: the places of fields in their tree need some."""
    found = re.findall(r"^ +(?:%\d+ = )?(\w+)[\[(]", kernel.ir("device"), re.MULTILINE)
    return sorted([code for code in found if code not in ("const", "add")])
