"""What kernels were compiled to for the fields of a tree goes with the tree, be it destroyed or garbage."""

import ctypes
import gc
import sys
import weakref

import pytest

import spirograd as sg
from spirograd.base.options import CompileOptions
from spirograd.derivatives.plan import DerivativePlan
from spirograd.lang.frontend.specialization import Specialization
from spirograd.llvmgen.toolchain import compile_module, host_caps, link
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


def resident():
    """Bytes of memory of this process that are in use, where the system tells."""
    if not sys.platform.startswith("linux"):
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


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


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_does_not_grow(gradient):
    """For one specialization of this kernel there are 120 objects in its syntax tree alone; all that is compiled takes up to 1.9 MiB."""

    def used():
        gc.collect()
        sg.sync()  # kernels are unloaded when the device is idle
        return len(gc.get_objects()), resident()

    tree, x, y = tree_of(4)
    for _ in range(20):  # from some launch on, compiled code does them, which is linked once
        squares(x, y, 1.0)
    tree.destroy()
    for _ in range(8):
        use(5, gradient).destroy()
    objects, nbytes = used()
    for _ in range(24):
        use(5, gradient).destroy()
    more_objects, more_bytes = used()
    assert more_objects - objects < 24
    assert more_bytes - nbytes < 24 * 400_000  # drivers take memory in steps of megabytes


# --- trees that are not destroyed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [False, True])
def test_garbage_goes(gradient):
    def use_one(n):
        tree = use(n, gradient)
        return weakref.ref(tree), weakref.ref(tree.allocation)

    use_one(5)
    before = living()
    found = [ref for k in range(4) for ref in use_one(3 + k % 2)]
    assert living() == before
    assert not any(ref() for ref in found)


@sg.kernel
def count(s: sg.template()):
    for k in range(4):
        s.n[k] += k
        s.v[k] += 1.5


@sg.data_oriented
class Counter:
    def __init__(self):
        self.place()

    def place(self):
        self.x = sg.field(sg.i32)
        builder = sg.FieldsBuilder()
        builder.dense(sg.i, 4).place(self.x)
        self.tree = weakref.ref(builder.finalize())

    @sg.kernel
    def count(self):
        for k in self.x:
            self.x[k] += k


def test_structs_go():
    def use_one():
        s = sg.Struct.field({"n": sg.i32, "v": sg.types.vector(2, sg.f32)})
        builder = sg.FieldsBuilder()
        builder.dense(sg.i, 4).place(s)
        tree = weakref.ref(builder.finalize())
        count(s)
        assert s.n[3] == 3 and s.v[2][1] == 1.5
        return tree

    tree = use_one()
    gc.collect()
    assert tree() is None and not count._specializations


def test_objects_and_what_they_replace_go():
    counter = Counter()
    counter.count()
    first = counter.tree
    counter.place()
    gc.collect()
    assert first() is None
    counter.count()
    counter.count()
    assert counter.x[3] == 6
    second = counter.tree
    del counter
    gc.collect()
    assert second() is None and not Counter.count._specializations


def test_a_kernel_keeps_the_fields_that_it_names():
    def make():
        x = sg.field(sg.i32)
        builder = sg.FieldsBuilder()
        builder.dense(sg.i, 4).place(x)
        return weakref.ref(builder.finalize()), [x]

    tree, fields = make()

    @sg.kernel
    def count_up() -> sg.i32:
        fields[0][1] += 1
        return fields[0][1]

    assert count_up() == 1
    fields[:] = make()[1]  # kernels do not see this: what they name is a constant
    gc.collect()
    assert tree() is not None and count_up() == 2
    del count_up
    gc.collect()
    assert tree() is None


def test_a_tape_keeps_its_fields():
    n = 4
    _, x, y = tree_of(n)
    x.fill(2.0)

    def through_others():
        _, between, total = tree_of(n)
        for k in range(n):
            copy_one(x, between, k)
        squares(between, total, 1.0)
        copy_one(total, y, -1)
        return weakref.ref(between)

    with sg.ad.Tape(y):
        between = through_others()
        gc.collect()
        assert between() is not None
    assert y[None] == 4 * n and list(x.grad.to_numpy()) == [4.0] * n
    gc.collect()
    assert between() is None


@sg.kernel
def copy_one(a: sg.template(), b: sg.template(), k: sg.template()):
    if sg.static(k < 0):
        b[None] = a[None]
    else:
        b[k] = a[k]


# --- LLVM ----------------------------------------------------------------------------------------------------------------

TEXT = "define void @f(ptr %a) {\n  %x = load float, ptr %a\n  store float %x, ptr %a\n  ret void\n}\n"


def growth(function, warm_up, count):
    """Bytes that stay in use for each call of ``function``."""
    for _ in range(warm_up):
        function()
    before = resident()
    for _ in range(count):
        function()
    return (resident() - before) / count


@pytest.mark.archs("cpu")
def test_compiling_leaves_little_memory():
    # 57,000 with all passes left behind. llvmlite never frees the 1,400 of the callbacks of a pass builder.
    assert growth(lambda: compile_module(TEXT, host_caps(), CompileOptions()), 20, 200) < 20_000


@pytest.mark.archs("cpu")
def test_linking_leaves_little_memory():
    code = compile_module(TEXT, host_caps(), CompileOptions()).binary
    assert growth(lambda: link(code, ("f",), {}), 150, 600) < 3_000  # 9,300 with one LLJIT for all


@pytest.mark.archs("cpu")
def test_code_outlives_its_group():
    code = compile_module("define i32 @g(i32 %a) {\n  %b = mul i32 %a, %a\n  ret i32 %b\n}\n", host_caps(), CompileOptions()).binary
    kept = link(code, ("g",), {})
    for _ in range(150):
        link(code, ("g",), {})
    gc.collect()
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(kept.addresses["g"])(7) == 49
