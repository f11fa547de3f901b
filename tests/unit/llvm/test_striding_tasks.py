"""Tasks of CUDA whose few invocations stride over the iterations: see `analysis.workgroups.strides`."""

from __future__ import annotations

import pytest

import spirograd as sg
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.lang import context
from spirograd.llvmgen.ptx import capabilities

LINE, TABLE = sg.types.ndarray(sg.f32, 1), sg.types.ndarray(sg.f32, 2)


@sg.kernel
def copies(x: LINE, y: LINE):
    for i in range(x.shape[0]):
        y[i] = x[i]


@sg.kernel
def copies_some(x: LINE, y: LINE):
    for i in range(x.shape[0]):
        if x[i] > 0:
            y[i] = x[i]


@sg.kernel
def copies_all_and_some(x: LINE, y: LINE):
    for i in range(x.shape[0]):
        y[i] = x[i]
        if x[i] > 0:
            x[i] = 0


@sg.kernel
def copies_a_table(x: TABLE, y: TABLE):
    for i, j in sg.ndrange(x.shape[0], x.shape[1]):
        y[i, j] = x[i, j]


@sg.kernel
def copies_a_small_table(x: TABLE, y: TABLE):
    for i, j in sg.ndrange(64, 32):
        y[i, j] = x[i, j]


@sg.kernel
def sums(x: LINE, y: LINE):
    for i in range(x.shape[0]):
        if x[i] > 0:
            for k in range(i):
                y[i] += x[k]


@sg.kernel
def is_long(x: LINE, y: LINE):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in sg.static(range(200)):
            v = sg.sqrt(v) + x[i + 1] * v
            v = v * v - x[i]
        y[i] = v


@pytest.mark.parametrize(
    ("kernel", "ndim", "expected"),
    [
        (copies, 1, False),
        (copies_some, 1, True),
        (copies_all_and_some, 1, False),
        (copies_a_table, 2, True),
        (copies_a_small_table, 2, False),
        (sums, 1, False),
        (is_long, 1, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_tasks_that_stride(kernel, ndim, expected):
    sg.init(arch=sg.interpreter, offline_cache=False)
    x, y = (sg.ndarray(sg.f32, (8,) * ndim) for _ in range(2))
    _, specialization, _ = kernel.specialized((x, y), {})
    compiled = compile_kernel(specialization.kernel, capabilities("sm_90"), CompileOptions())
    assert [task.strides for task in compiled.tasks] == [expected]
    assert context.session().arch == "interpreter"
