"""What kernels were compiled to for the fields of a tree goes with the tree."""

import gc
import sys

import pytest

import spirograd as sg
from spirograd.base.options import CompileOptions
from spirograd.derivative_plan import DerivativePlan
from spirograd.lang.frontend.kernel import Specialization
from spirograd.llvmgen.toolchain import compile_module, host_caps
from spirograd.runtime.launcher import LaunchPlan

pytestmark = pytest.mark.usefixtures("session")


@sg.kernel
def squares(x: sg.template(), y: sg.template(), factor: sg.f32):
    for i in x:
        y[None] += x[i] * x[i] * factor


def living():
    gc.collect()
    kinds = (LaunchPlan, DerivativePlan)
    return [sum(isinstance(o, kind) for o in gc.get_objects()) for kind in kinds], sum(map(len, squares._specializations.values()))


def tree_of(n):
    builder = sg.FieldsBuilder()
    x, y = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32, needs_grad=True)
    builder.dense(sg.i, n).place(x)
    builder.place(y)
    builder.lazy_grad()
    return builder.finalize(), x, y


def use(n, gradient):
    tree, x, y = tree_of(n)
    x.fill(2.0)
    if gradient:
        with sg.ad.Tape(y):
            squares(x, y, 3.0)
        assert x.grad[n - 1] == 12
    else:
        squares(x, y, 3.0)
    assert y[None] == 12 * n
    return tree


@pytest.mark.parametrize("gradient", [False, True])
def test_nothing_is_left(gradient):
    use(5, gradient).destroy()
    before = living()
    for k in range(4):
        use(3 + k % 2, gradient).destroy()
    assert living() == before


def test_others_stay():
    first, second = use(4, True), use(6, True)
    assert living()[1] == 2
    second.destroy()
    assert living()[1] == 1
    assert "squares" in squares.grad.explain()  # of what was compiled last
    first.destroy()
    assert living()[1] == 0


def test_fields_of_a_destroyed_tree_are_refused():
    tree, x, y = tree_of(4)
    squares(x, y, 1.0)
    tree.destroy()
    with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
        squares(x, y, 1.0)

    @sg.kernel
    def captured():
        z[0] = 1.0

    tree, z, _ = tree_of(4)
    captured()
    tree.destroy()
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
            captured()


def test_a_tape_says_that_its_fields_are_gone():
    tree, x, y = tree_of(4)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"destroyed|freed"), sg.ad.Tape(y):
        squares(x, y, 1.0)
        tree.destroy()
    assert isinstance(squares._last, Specialization)


@pytest.mark.archs("cpu")  # what LLVM keeps of each module it has compiled
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_compiling_leaves_little_memory():
    text = "define void @f(ptr %a) {\n  %x = load float, ptr %a\n  store float %x, ptr %a\n  ret void\n}\n"

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def compile_some(count):
        for _ in range(count):
            compile_module(text, host_caps(), CompileOptions())

    compile_some(20)
    before = resident()
    compile_some(200)
    assert resident() - before < 200 * 20_000  # 57,000 before
