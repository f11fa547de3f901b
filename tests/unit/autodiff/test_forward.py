"""Forward mode by itself: kernels of the front end, run on the interpreter with tangents, against central differences in f64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import by_day
from ir_random import random_arguments, random_kernel
from ir_random_memory import memory_arguments, memory_kernel

import spirograd as sg
from spirograd.analysis import trial
from spirograd.autodiff.forward import forward
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, TempRef, ref_of
from spirograd.ir.spec import verify
from spirograd.lang import context
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

ARRAY = sg.types.ndarray()
CAPS = Capabilities("vulkan")
CTX = PassContext(CAPS, CompileOptions())


@pytest.fixture
def f64():
    sg.init(arch=sg.interpreter, default_fp=sg.f64)
    yield
    sg.reset()


def traced(kernel, arrays, scalars=()):
    session = context.session()
    given = [sg.ndarray(sg.f64 if a.dtype == np.float64 else sg.i32, a.shape) for a in arrays]
    kernel._start(session)
    return kernel.trace(session, kernel._bind((*given, *scalars), {}))[0]


def derived(ir, without=()):
    found = forward(
        simplify(ir, CTX), lambda ref: replace(ref, role="dual") if isinstance(ref, ArrayRef) and ref.name not in without else None, CTX
    )
    verify(found.kernel, "kernel")
    return found


def compare(kernel, arrays, scalars=(), step=1e-6, tolerance=1e-6):
    """The derivative along random tangents against central differences, in every float array; the primal's results stay."""
    ir = traced(kernel, arrays, scalars)
    found = derived(ir)
    rng = np.random.default_rng(1)
    tangents = [rng.normal(size=a.shape) for a in arrays]

    def run(h):
        moved = [a + h * t if a.dtype == np.float64 else a.copy() for a, t in zip(arrays, tangents)]
        trial.run(ir, [*moved, *scalars])
        return moved

    plain, up, down = run(0.0), run(step), run(-step)
    now, duals = [a.copy() for a in arrays], [t.copy() for t in tangents]
    trial.run(found.kernel, [*now, *scalars], grads={(k, "dual"): t for k, t in enumerate(duals)})
    for k, a in enumerate(arrays):
        np.testing.assert_array_equal(now[k], plain[k])
        if a.dtype == np.float64:
            np.testing.assert_allclose(duals[k], (up[k] - down[k]) / (2 * step), rtol=tolerance, atol=tolerance, err_msg=f"argument {k}")
    return found


def data(n=6, seed=0):
    return np.random.default_rng(seed).uniform(0.3, 1.7, n)


def test_arithmetic(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in x:
            y[i] = sg.sin(x[i]) * sg.exp(x[i]) / (x[i] + 2.0) - sg.sqrt(x[i]) ** x[i] + sg.atan2(x[i], y[i]) + sg.log(x[i]) * sg.tanh(y[i])

    compare(f, [data(), data(seed=1)])


def test_overwriting_clears_the_tangent(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY, n: sg.i32):
        y[0] = 3.0
        y[1] = float(n)
        y[2] = y[0] * y[2]
        x[0] = x[1] * x[1]
        x[1] = x[0] * x[1]

    compare(f, [data(), data(seed=1)], [4])


def test_loops_and_branches(f64):
    @sg.kernel
    def f(x: ARRAY, k: ARRAY, y: ARRAY, n: sg.i32):
        for i in x:
            v, w = x[i], 0.0
            for j in range(k[i]):
                if v > 1.0:
                    v, w = v * x[i], v
                elif j % 2 == 0:
                    w += v
                else:
                    continue
                v = sg.sin(v) + 0.5
            steps = 0
            while v < 5.0:
                v = v * 1.5 + w * 0.1
                steps += 1
                if steps > n:
                    break
            y[i] = v * w

    compare(
        f,
        [
            data(),
            np.arange(6, dtype=np.int32),
            data(seed=1),
        ],
        [3],
    )


def test_a_value_carried_only_out_of_a_loop(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in range(2):
            last = 1.0
            for j in range(x.shape[0]):
                last = x[j]
            y[i] = last * 2.0

    compare(f, [data(), data(seed=1)])


def test_a_value_that_only_the_inside_of_a_loop_uses(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in range(2):
            v = x[i]
            for j in range(3):
                y[3 * i + j] = v * x[j]
                v = v * 1.5 + x[i]

    compare(f, [data(), data(seed=1)])


def test_of_equal_values_the_first_wins(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        sg.loop_config(serialize=True)
        for i in range(x.shape[0]):
            sg.atomic_max(y[0], x[i])
            sg.atomic_min(y[1], x[i])

    x, y, tangent, dual = np.ones(3), np.array([0.0, 1.0]), np.array([5.0, 6.0, 7.0]), np.array([8.0, 9.0])
    trial.run(derived(traced(f, [x, y])).kernel, [x, y], grads={(0, "dual"): tangent, (1, "dual"): dual})
    np.testing.assert_array_equal(dual, [5.0, 9.0])


def test_vectors_and_matrices(f64):
    @sg.kernel
    def f(x: ARRAY, k: ARRAY, y: ARRAY):
        for i in x:
            v = sg.Vector([x[i], 2.0, x[i] * x[i]])
            for j in range(3):
                v[(j + k[i]) % 3] = v[j] * v[k[i] % 3] + 1.0
            m = sg.Matrix([[x[i], 1.0], [2.0, x[0]]])
            for _ in range(3):
                m = m @ m * 0.3
            y[i] = v.dot(v) + m[1, 0] * m.determinant() + (v[1] if x[i] > 1.0 else v[2])

    compare(f, [data(), np.arange(6, dtype=np.int32), data(seed=1)])


def test_atomics_of_serial_code(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        sg.loop_config(serialize=True)
        for i in range(x.shape[0]):
            sg.atomic_max(y[0], x[i] * x[i])
            sg.atomic_min(y[1], sg.cos(x[i]))
            sg.atomic_mul(y[2], x[i])
            old = sg.atomic_add(y[3], x[i] * y[2])
            y[4] += old * x[i]
            sg.atomic_sub(y[5], old)

    compare(f, [data(), data(seed=1)])


def test_sums_of_parallel_loops(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        s = 0.0
        for i in x:
            s += sg.sin(x[i])
            y[i % 2] += x[i] * x[i]
        y[3] = s * s

    compare(f, [data(), data(seed=1)])


@pytest.mark.parametrize("first", [-10.0, 10.0], ids=["an element wins", "what was there wins"])
def test_maxima_of_parallel_loops(f64, first):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY, z: ARRAY):
        m = -100.0
        for i in x:
            a = x[i] * sg.sin(3.0 * x[i])
            for j in range(2):
                sg.atomic_max(y[j], a * z[j + 1])
            if x[i] > 0.5:
                sg.atomic_max(m, a)
        z[0] = m

    y = data(seed=1)
    y[:2] = first
    compare(f, [data(), y, data(seed=2)])


def test_a_constant_that_wins(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        y[0] = x[0]
        for i in x:
            sg.atomic_max(y[0], 7.0)

    compare(f, [data(), data(seed=1)])


def test_a_constant_factor_in_parallel(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in x:
            sg.atomic_mul(y[i % 2], 1.5)

    compare(f, [data(), data(seed=1)])


def test_stop_grad_ends_tangents(f64):
    x, y = data(), np.zeros(6)

    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in x:
            y[i] = x[i] * x[i]

    ir = traced(f, [x, y])
    (product,) = [op for op in ir.walk() if op.code is ops.mul]
    product.args = (ops_before(ir, product, product.args[0]), product.args[1])
    tangent, dual = np.ones(6), np.zeros(6)
    trial.run(derived(ir).kernel, [x, y], grads={(0, "dual"): tangent, (1, "dual"): dual})
    np.testing.assert_allclose(dual, x)


def ops_before(kernel, op, value):
    """Put a `stop_grad` of ``value`` right before ``op``."""
    stopped = Op(ops.stop_grad, value.type, (value,))
    for outer in kernel.walk():
        for region in outer.regions:
            if op in region.ops:
                at = region.ops.index(op)
                region.ops = (*region.ops[:at], stopped, *region.ops[at:])
    return stopped


REFUSED = {}


def refused(pattern):
    def note(f):
        REFUSED[f.__name__] = (f, pattern)
        return f

    return note


@refused("atomic multiplication in a parallel loop")
def multiplication(x: ARRAY, y: ARRAY):
    for i in x:
        sg.atomic_mul(y[0], x[i])


@refused("returns has no tangent")
def old_value(x: ARRAY, y: ARRAY):
    for i in x:
        y[i] = sg.atomic_add(x[0], 1.0)


@refused("the loop changes it")
def changed_in_the_loop(x: ARRAY, y: ARRAY):
    for i in x:
        x[i] = x[i] * 2.0
        sg.atomic_max(y[0], x[i])


@refused("also takes a minimum or maximum")
def two_kinds(x: ARRAY, y: ARRAY):
    for i in x:
        sg.atomic_max(y[0], x[i])
        y[0] += x[i]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(f64, name):
    function, pattern = REFUSED[name]
    with pytest.raises(SpirogradUnsupportedError, match=pattern) as error:
        derived(traced(sg.kernel(function), [data(), data()]))
    assert error.value.loc is not None and error.value.hint
    function_lines = range(function.__code__.co_firstlineno, function.__code__.co_firstlineno + 8)
    assert error.value.loc.line in function_lines


def test_what_lies_without_a_dual_is_noted(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY, z: ARRAY):
        for i in x:
            y[i] = x[i]
            z[i] = y[5 - i] * 2.0 + x[i]

    found = derived(traced(f, [data(), data(), data()]), without=("y",))
    assert [p.ref.name for p in found.inactive_writes] == ["y"] == [p.ref.name for p in found.inactive_reads]
    assert [p.ref.name for p in found.active_inputs] == ["x"] and [p.ref.name for p in found.active_outputs] == ["z"]


def test_a_returned_value_loses_its_tangent_loudly(f64):
    @sg.kernel
    def f(x: ARRAY) -> sg.f64:
        return x[0] * 2.0

    assert "returns a value" in derived(traced(f, [data()])).warnings[0]


def test_nothing_is_emitted_for_constants(f64):
    @sg.kernel
    def f(x: ARRAY, y: ARRAY):
        for i in range(x.shape[0]):
            a = 3.0 * float(i)
            for j in range(4):
                a = a * 1.5 + float(j)
            y[i] = a * x[i]

    found = derived(traced(f, [data(), data()]))
    loops = [op for op in found.kernel.walk() if op.code is ops.for_ and not op.attr.parallel]
    assert [len(op.type) for op in loops] == [1], "the tangent of `a` is zero: the loop carries it alone"
    assert sum(op.code is ops.mul and op.type is sg.f64 for op in found.kernel.walk()) == 4


@pytest.mark.parametrize("count", by_day([8, 200], lambda count: count == 8))
@pytest.mark.parametrize("make", ["values", "memory"])
def test_random_kernels_do_what_they_did(make, count):
    """Legal IR comes out of legal IR, and effects on primal memory stay."""
    with_tangents = 0
    for seed in range(count):
        kernel = random_kernel(seed, CAPS) if make == "values" else memory_kernel(seed)
        args, tree = random_arguments(seed, 7) if make == "values" else memory_arguments(seed)
        again, tree_again = random_arguments(seed, 7) if make == "values" else memory_arguments(seed)

        def shadow(ref):
            return replace(ref, role="dual", tree=99) if isinstance(ref, FieldRef) else replace(ref, role="dual")

        try:
            found = forward(kernel, shadow, CTX)
        except SpirogradUnsupportedError:
            continue
        verify(found.kernel, "kernel")
        duals = {(k, "dual"): np.ones_like(a) for k, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
        with_tangents += any(getattr(ref_of(op), "role", "") == "dual" for op in found.kernel.walk())
        assert not any(isinstance(ref_of(op), TempRef) and ref_of(op).name.startswith("%") for op in found.kernel.walk())
        before = trial.run(kernel, args, {0: tree})
        if before.fault is not None:
            continue
        after = trial.run(found.kernel, again, {0: tree_again, 99: np.ones(1 << 16, np.uint8)}, grads=duals)
        np.testing.assert_array_equal(after.returns, before.returns)
        for a, b in zip([*args, tree], [*again, tree_again]):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
    assert with_tangents > count // 3
