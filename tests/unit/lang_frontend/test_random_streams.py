"""The number of draws is a loop-carried value of the loops that draw, and of no others; a kernel that draws is traced once."""

from __future__ import annotations

import pytest

import spirograd as sg
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.text import parse
from spirograd.lang.frontend.kernel import Kernel


@pytest.fixture(autouse=True)
def _session() -> None:
    sg.init(arch="interpreter")


def test_loops_that_draw_carry_the_number(traces: list[str]) -> None:
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def run() -> None:
        for i in x:
            for k in range(3):  # draws nothing
                x[i] += k
            for _ in range(3):
                for _ in range(2):
                    x[i] += sg.random()
                while sg.random() < 0.5:
                    x[i] += 1
                if x[i] > 3:
                    x[i] += sg.random()

    assert [types_of(op) for op in loops(run)] == [(), (), ("u32",), ("u32",), ("u1", "u32")]
    assert traces == ["run"]


def test_a_kernel_that_draws_only_in_a_loop_has_no_seed_outside() -> None:
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def run() -> None:
        for i in x:
            x[i] = sg.random()

    seeds = [line for line in ir_of(run).splitlines() if "seed" in line]
    assert [line.startswith("    ") for line in seeds] == [True]


def test_a_condition_that_draws_leaves_no_trace_of_the_first_attempt() -> None:
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def run() -> None:
        n = 0
        while sg.random() < 0.5:
            n += 1
        x[0] = n

    assert ir_of(run).count("1664525") == 1


def ir_of(kernel: Kernel) -> str:
    kernel()
    return kernel.ir("kernel")


def loops(kernel: Kernel) -> list[Op]:
    return [op for op in parse(ir_of(kernel)).walk() if op.code in (ops.for_, ops.while_)]


def types_of(op: Op) -> tuple[str, ...]:
    assert isinstance(op.type, tuple)
    return tuple([str(t) for t in op.type])
