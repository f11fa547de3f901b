"""What calls of kernels pack, by Python and by compiled code: the same launches and errors."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang.frontend.parameters import ScalarParameter
from spirograd.runtime.launcher import LaunchPlan

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu", "vulkan")]


def make():
    @sg.kernel
    def add(a: sg.types.ndarray(sg.f32, 1), k: sg.i32, s: sg.f32, on: sg.u1, small: sg.u8):
        for i in a:
            if on:
                a[i] += s * k + small

    return add


def test_numbers(way):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    add(a, 1, 1.0, True, 1)
    expected = 2.0
    for k, s, on, small in ((2, 3.0, True, 0), (True, 2, 1, np.uint8(7)), (np.int64(-4), np.float32(0.5), False, 255), (3, True, 5, False)):
        add(a, k, s, on, small)
        expected += (float(s) * int(k) + int(small)) * bool(on)
        assert a.to_numpy().tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((2**31, 1.0, True, 1), "argument `k`: 2147483648 does not fit i32"),
        ((1.5, 1.0, True, 1), r"argument `k` takes an integer \(i32\), got"),
        ((1, "x", True, 1), r"argument `s` takes a number \(f32\), got"),
        ((1, 1.0, True, -1), "argument `small`: -1 does not fit u8"),
        ((1, 1.0, True), "missing"),
    ],
)
def test_numbers_that_do_not_fit(way, args, message):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    add(a, 1, 1.0, True, 1)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match=message):
        add(a, *args)
    add(a, k=1, s=1.0, on=True, small=1)
    assert a.to_numpy().tolist() == [4.0] * 3


def test_arrays_of_all_kinds(way):
    add = make()
    for a in (sg.ndarray(sg.f32, shape=3), np.zeros(3, np.float32), sg.ndarray(sg.f32, shape=0), sg.ndarray(sg.f32, shape=5)):
        add(a, 1, 2.0, True, 1)
        add(a, 1, 2.0, True, 1)
        assert np.asarray(a).tolist() == [6.0] * a.shape[0]
    with pytest.raises(sg.SpirogradError):
        add(sg.ndarray(sg.i32, shape=3), 1, 2.0, True, 1)
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        add("no array", 1, 2.0, True, 1)


def test_arrays_of_an_earlier_session(way):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    add(a, 1, 1.0, True, 1)
    add(a, 1, 1.0, True, 1)
    sg.init(arch=sg.cfg.arch)
    b = sg.ndarray(sg.f32, shape=3)
    add(b, 1, 1.0, True, 1)
    with pytest.raises(sg.SpirogradRuntimeError, match="earlier session"):
        add(a, 1, 1.0, True, 1)


def test_templates_and_what_they_read(way):
    x, y = sg.field(sg.i32, shape=3), sg.field(sg.i32, shape=3)

    @sg.data_oriented
    class Program:
        def __init__(self):
            self.by = 1
            self.x = x

        @sg.kernel
        def step(self, f: sg.template(), n: sg.i32):
            for i in self.x:
                self.x[i] += self.by * n
                f[i] += 1

    program = Program()
    for _ in range(2):
        program.step(y, 1)
    program.by = 10
    program.step(y, 2)
    program.x = y
    program.step(x, 1)
    assert x.to_numpy().tolist() == [23] * 3 and y.to_numpy().tolist() == [13] * 3
    a = sg.ndarray(sg.i32, shape=3)

    @sg.kernel
    def fill(t: sg.template(), n: sg.i32):
        for i in range(3):
            t[i] = n

    for k, target in enumerate((a, x, a, x)):
        fill(target, k)
    assert a.to_numpy().tolist() == [2] * 3 and x.to_numpy().tolist() == [3] * 3


def test_gradients_and_tapes(way):
    @sg.kernel
    def square(a: sg.types.ndarray(sg.f32, 1), loss: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            loss[0] += a[i] ** 2

    a, loss = sg.ndarray(sg.f32, shape=3, needs_grad=True), sg.ndarray(sg.f32, shape=1, needs_grad=True)
    a.fill(3.0)
    square(a, loss)
    with sg.ad.Tape(loss):
        square(a, loss)
    assert a.grad.to_numpy().tolist() == [6.0] * 3
    other = sg.ndarray(sg.f32, shape=3)
    a.grad = other  # bindings that name the gradient before are forgotten
    loss.grad.fill(1.0)
    square(a, loss)
    square.grad(a, loss)
    assert other.to_numpy().tolist() == [6.0] * 3


def test_results_and_faults(way):
    @sg.kernel
    def most(a: sg.types.ndarray(sg.i32, 1), n: sg.i32) -> sg.i32:
        assert n < 3
        return a[n]

    sg.init(arch=sg.cfg.arch, debug=True)
    a = sg.ndarray(sg.i32, shape=4)
    a.from_numpy(np.arange(4, dtype=np.int32) * 10)
    assert [most(a, n) for n in (0, 1, 2)] == [0, 10, 20]
    with pytest.raises(sg.SpirogradAssertionError):
        most(a, 3)
        sg.sync()


def test_numbers_of_the_plain_type_are_packed_as_they_are(monkeypatch):
    """Others are converted, which takes a call for each."""
    launched, converted = [], []
    launch, convert = LaunchPlan.launch, ScalarParameter.convert
    monkeypatch.setattr(LaunchPlan, "launch", lambda *args: launched.append(args) or launch(*args))
    monkeypatch.setattr(ScalarParameter, "convert", lambda self, value: converted.append(self.name) or convert(self, value))
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    for _ in range(5):
        add(a, 1, 1.0, True, 1)
    assert not converted
    add(a, True, 1, 1, 1)
    assert converted == ["k", "s", "on"]
    assert [tuple(args[1].scalars) for args in launched] == [(0, 1, 1.0, True, 1)] * 6


def test_arguments_by_name_only(way):
    """They are not taken by position, whatever number of arguments a call has."""

    @sg.kernel
    def add(a: sg.types.ndarray(sg.f32, 1), *, k: sg.i32 = 3):
        for i in a:
            a[i] += k

    a = sg.ndarray(sg.f32, shape=3)
    add(a)
    add(a, k=4)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="it takes 1 argument, got 2"):
        add(a, 5)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="no argument `n`"):
        add(a, n=5)
    assert a.to_numpy().tolist() == [7.0] * 3


def test_numbers_of_vectors_at_their_limits(way):
    """What a vector or a struct has is packed as a number alone is."""
    pair = sg.types.struct(n=sg.u32, v=sg.types.vector(2, sg.i32))

    @sg.kernel
    def first(v: sg.types.vector(2, sg.i32), p: pair) -> sg.types.vector(4, sg.i64):
        return sg.Vector([sg.i64(v[0]), sg.i64(v[1]), sg.i64(p.n), sg.i64(p.v[1])])

    limits = [-(2**31), 2**31 - 1]
    for v in (limits, tuple(limits), np.array(limits), sg.Vector(limits)):
        assert list(first(v, {"n": 2**32 - 1, "v": v})) == [*limits, 2**32 - 1, limits[1]]
    for v in ([0, 2**31], np.array([0, 2**31]), sg.Vector([0, 2**31])):
        for args in ((v, {"n": 0, "v": [0, 0]}), ([0, 0], {"n": 0, "v": v})):
            with pytest.raises(sg.SpirogradRuntimeTypeError, match="2147483648 does not fit i32"):
                first(*args)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="argument `p`: -1 does not fit u32"):
        first([0, 0], {"n": -1, "v": [0, 0]})
