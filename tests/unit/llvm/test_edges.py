"""Which loops are split at their edges: `tests/backend/test_stencil_edges.py` checks what they compute."""

from __future__ import annotations

import pytest

import spirograd as sg

pytestmark = pytest.mark.optimized

N = 100
# What an iteration computes from its column -> whether all but a few iterations at either end do without the condition.
ROWS = {
    "x[i, sg.max(j - 1, 0)]": True,
    "x[i, sg.min(j + 1, n - 1)]": True,
    "x[i, (j + 1) % n]": True,
    "x[i, j] if j > 0 and j < n - 1 else 0.0": True,
    "x[i, j] if i > 0 else 0.0": False,
    "x[i, j] if j < n // 2 else 0.0": False,
    "x[i, j] if j == i else 0.0": False,
    "x[i, j]": False,
}


@pytest.mark.parametrize("text", ROWS)
@pytest.mark.parametrize("memory", ["field", "ndarray"])
def test_rows(text, memory, tmp_path):
    source = f"""
import spirograd as sg
@sg.kernel
def run(x: {"sg.template()" if memory == "field" else "sg.types.NDArray[sg.f32, 2]"}):
    n = x.shape[1]
    for i, j in x:
        x[i, j] = 2.0 * ({text})
"""
    path = tmp_path / "program.py"
    path.write_text(source)
    program: dict[str, object] = {"__file__": str(path)}
    sg.init(arch=sg.cpu)
    exec(compile(source, str(path), "exec"), program)
    run = program["run"]
    run(sg.field(sg.f32, shape=(7, N)) if memory == "field" else sg.ndarray(sg.f32, (7, N)))
    assert ('vectorise="rest"' in run.ir("loops")) == ROWS[text]


def test_not_where_order_or_size_matters():
    """Sums of floats keep their order, inner loops are vectorised by themselves, and large bodies are not emitted twice."""
    sg.init(arch=sg.cpu)
    x = sg.field(sg.f32, shape=N)

    @sg.kernel
    def total() -> sg.f32:
        s = 0.0
        for i in x:
            if i > 0:
                s += x[i]
        return s

    @sg.kernel
    def inner():
        for i in x:
            if i > 0:
                for k in range(7):
                    x[i] += k

    @sg.kernel
    def large():
        for i in x:
            if i > 0:
                for _ in sg.static(range(300)):
                    x[i] = x[i] * 1.5 + 1.0

    for kernel in (total, inner, large):
        kernel()
        assert 'vectorise="rest"' not in kernel.ir("loops"), kernel
