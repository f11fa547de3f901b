"""Calls that compiled code launches without Python, against those that Python launches: the same results, errors and counts."""

import gc
import weakref

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang.frontend import native_calls

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu")]
A1 = sg.types.ndarray(sg.f32, 1)


def make():
    @sg.kernel
    def add(a: A1, k: sg.i32, s: sg.f32, on: sg.u1, small: sg.u8, large: sg.i64, fine: sg.f64):
        for i in a:
            if on:
                a[i] += s * k + small + sg.f32(large) + sg.f32(fine)

    return add


def test_numbers(way, in_python):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    add(a, 1, 1.0, True, 1, 0, 0.0)
    plain = [(2, 3.0, True, 0, 5, 0.25), (-64, 0.0, True, 255, 2**10, -1.0), (-1, -1.0, True, 1, -8, 1), (7, 2, False, 9, 9, 9.0)]
    # Python converts these.
    others = [(np.int64(2), 3, np.bool_(True), True, 0, True), (True, np.array(2.0), 1, np.uint8(3), np.int32(4), np.float64(0.5))]
    expected = 2.0
    for k, s, on, small, large, fine in (*plain, *others):
        add(a, k, s, on, small, large, fine)
        expected += float(on) * (float(s) * k + float(small) + float(large) + float(fine))
        assert a.to_numpy().tolist() == [expected] * 3
    assert len(in_python) == 1 + len(others) + (len(plain) if way == "python" else 0)


def test_a_number_too_large_is_fitted(way):
    """It is when a launch is to be recorded, too."""
    a = sg.ndarray(sg.f32, shape=1)

    @sg.kernel
    def put(a: A1, s: sg.f32):
        a[0] = s

    for value, expected in ((1e300, np.inf), (-1e300, -np.inf), (2.0, 2.0), (1e39, np.inf)):
        put(a, value)
        assert a[0] == expected


def test_the_same_numbers_as_python(monkeypatch):
    """Floats are rounded and too large ones become infinite as in Python; limits of integers are the same."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)

    @sg.kernel
    def store(out: sg.types.ndarray(sg.f64, 1), f: sg.f32, d: sg.f64, h: sg.f16, b: sg.i8, w: sg.u16, u: sg.u32, l: sg.u64, on: sg.u1):
        out[0], out[1], out[2], out[3], out[4] = sg.f64(f), d, sg.f64(h), sg.f64(b), sg.f64(w)
        out[5], out[6], out[7] = sg.f64(u), sg.f64(l), sg.f64(on)

    calls = [
        (0.1, 0.1, 0.1, -128, 65535, 2**32 - 1, 2**63 - 1, True),
        (1e300, -1e308, 70000.0, 127, 0, 0, 0, False),
        (-1e39, float("inf"), 1e-9, 0, 1, 2**31, 2**53, True),
        (float("nan"), float("nan"), float("nan"), 1, 1, 1, 1, True),
        (-0.0, 5e-324, -0.0, 1, 1, 1, 2**64 - 1, True),
        (1e-45, 2**60 + 1, 3, 1, 1, 1, 2**64 - 1, True),
    ]
    out = sg.ndarray(sg.f64, 8)
    found = {}
    for native in (True, False):
        if not native:
            monkeypatch.setattr(native_calls.NativeCalls, "is_due", lambda _: False)
            store._native.forget()
        for numbers in (*calls, *calls):
            store(out, *numbers)
            found.setdefault(native, []).append(out.to_numpy().tobytes())
        assert (store._native.launch is not None) == native
    assert found[True] == found[False]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((2**31, 1.0, True, 1, 0, 0.0), "argument `k`: 2147483648 does not fit i32"),
        ((-(2**31) - 1, 1.0, True, 1, 0, 0.0), "argument `k`: -2147483649 does not fit i32"),
        ((2**200, 1.0, True, 1, 0, 0.0), "does not fit i32"),
        ((1.5, 1.0, True, 1, 0, 0.0), r"argument `k` takes an integer \(i32\), got"),
        ((1, "x", True, 1, 0, 0.0), r"argument `s` takes a number \(f32\), got"),
        ((1, 1.0, True, -1, 0, 0.0), "argument `small`: -1 does not fit u8"),
        ((1, 1.0, True, 1, 2**63, 0.0), "argument `large`"),
        ((1, 10**400, True, 1, 0, 0.0), "argument `s`"),
        ((1, 1.0, True), "missing"),
    ],
)
def test_errors(way, args, message):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    for _ in range(3):
        add(a, 1, 1.0, True, 1, 0, 0.0)
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=message):
            add(a, *args)
    add(a, k=1, s=1.0, on=True, small=1, large=0, fine=0.0)
    assert a.to_numpy().tolist() == [8.0] * 3


def test_arrays(way, in_python):
    """Any array of the same type; others come to Python."""

    @sg.kernel
    def total(a: sg.types.ndarray(), out: A1):
        for i in a:
            out[0] += a[i] * (a.shape[0] + i)

    arrays = []
    for n in (3, 0, 5, 1):
        array = sg.ndarray(sg.f32, n)
        array.from_numpy(np.arange(n, dtype=np.float32) + 1)
        arrays.append(array)
    out, other = sg.ndarray(sg.f32, 1), sg.ndarray(sg.i32, 3)
    other.fill(2)
    expected = 0.0
    for _ in range(2):
        for array in (*arrays, other, np.ones(3, np.float32)):
            total(array, out)
            values = np.asarray(array.to_numpy() if isinstance(array, sg.Ndarray) else array)
            expected += float((values * (len(values) + np.arange(len(values)))).sum())
    assert out.to_numpy()[0] == expected
    assert len(in_python) < 12 if way == "native" else len(in_python) == 12
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        total("no array", out)
    total(arrays[0], out)
    assert out.to_numpy()[0] == expected + 26.0


def test_gradients_of_arrays_that_change(way):
    @sg.kernel
    def copy(a: A1, out: A1):
        for i in a:
            out[i] = a.grad[i]

    a, out = sg.ndarray(sg.f32, 2, needs_grad=True), sg.ndarray(sg.f32, 2)
    for value in (1.0, 2.0):
        a.grad.fill(value)
        copy(a, out)
        assert out.to_numpy().tolist() == [value] * 2
    other = sg.ndarray(sg.f32, 2)
    other.fill(5.0)
    a.grad = other
    for _ in range(3):
        copy(a, out)
        assert out.to_numpy().tolist() == [5.0] * 2


def test_templates_and_attributes(way):
    x, y = sg.field(sg.i32, shape=3), sg.field(sg.i32, shape=3)

    @sg.data_oriented
    class Program:
        def __init__(self):
            self.by, self.x, self.v = 1, x, sg.Vector([1, 2])
            self.a = sg.ndarray(sg.i32, 3)

        @sg.kernel
        def step(self, f: sg.template(), n: sg.i32, extra: sg.template()):
            for i in self.x:
                self.x[i] += self.by * n
                f[i] += 1 + extra
                self.a[i] += 1

    program = Program()
    for _ in range(3):
        program.step(y, 1, 1000)
    program.by = 10
    for _ in range(3):
        program.step(y, 2, int("1000"))
    program.x = y
    program.step(x, 1, 0)
    before, program.a = program.a, sg.ndarray(sg.i32, 3)
    for _ in range(2):
        program.step(x, 1, 0)
    assert x.to_numpy().tolist() == [3 + 60 + 1 + 2] * 3 and y.to_numpy().tolist() == [6006 + 10 + 20] * 3
    assert before.to_numpy().tolist() == [7] * 3 and program.a.to_numpy().tolist() == [2] * 3


def test_constants_of_other_kinds(way, in_python):
    """Vectors, lists and dictionaries may change in place: they are compared by their contents."""

    @sg.data_oriented
    class Program:
        def __init__(self):
            self.v, self.table, self.names = sg.Vector([1, 2]), np.array([1, 2]), {"one": 1}
            self.out = sg.field(sg.i32, ())

        @sg.kernel
        def add(self, numbers: sg.template(), pair: sg.template()):
            self.out[None] += self.v[1] + self.table[0] + self.names["one"] + numbers[0] + pair[1]

    program, numbers = Program(), [1]
    for _ in range(3):
        program.add(numbers, (0, 10))
    assert program.out[None] == 45
    numbers[0], program.v[1] = 3, 4
    program.table[0] += 1
    program.names["one"] += 1
    for _ in range(2):
        program.add(numbers, (0, 10))
    assert program.out[None] == 45 + 2 * (4 + 2 + 2 + 3 + 10)
    assert len(in_python) == (2 if way == "native" else 5)


def test_a_template_that_is_gone_is_not_taken_for_another():
    @sg.kernel
    def fill(f: sg.template(), n: sg.i32):
        for i in f:
            f[i] = n

    for k in range(40):
        builder, field = sg.FieldsBuilder(), sg.field(sg.i32)
        builder.dense(sg.i, 2).place(field)
        for _ in range(10):
            fill(field, k)
        assert field.to_numpy().tolist() == [k] * 2
        ref = weakref.ref(field)
        del builder, field
        gc.collect()
        assert ref() is None


def test_destroyed_fields(way):
    builder = sg.FieldsBuilder()
    f = sg.field(sg.f32)
    builder.dense(sg.i, 4).place(f)
    tree = builder.finalize()

    @sg.kernel
    def inc():
        for i in f:
            f[i] += 1

    for _ in range(3):
        inc()
    tree.destroy()
    for _ in range(3):
        with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
            inc()


def test_sessions(way):
    add, a = make(), sg.ndarray(sg.f32, shape=3)
    for _ in range(3):
        add(a, 1, 1.0, True, 1, 0, 0.0)
    sg.init(arch=sg.cfg.arch)
    b = sg.ndarray(sg.f32, shape=3)
    for _ in range(3):
        add(b, 1, 1.0, True, 1, 0, 0.0)
        with pytest.raises(sg.SpirogradRuntimeError, match="earlier session"):
            add(a, 1, 1.0, True, 1, 0, 0.0)
    assert b.to_numpy().tolist() == [6.0] * 3
    sg.reset()
    with pytest.raises(sg.SpirogradRuntimeError, match="not initialised"):
        add(b, 1, 1.0, True, 1, 0, 0.0)
    sg.init(arch=sg.cpu)


def test_host_arrays(way, in_python):
    """NumPy arrays that can be used in place; others come to Python, which copies them or says what is wrong."""

    @sg.kernel
    def add(a: sg.types.ndarray(), n: sg.i32):
        for i in a:
            a[i] += n + a.shape[0]

    def check(array, refused=None):
        """``refused``: whether it is, as one that differs from the first."""
        before, values = len(in_python), array.copy()
        add(array, 2)
        assert (array == values + np.asarray(2 + len(array)).astype(array.dtype)).all()
        if way == "native" and refused is not None:
            assert (len(in_python) > before) == refused

    check(np.zeros(4, np.float32))
    check(np.zeros(4, np.float32), False)
    check(np.arange(7, dtype=np.float32), False)
    check(np.arange(7, dtype=np.float32)[2:], False)
    check(np.arange(8, dtype=np.float32)[::2], True)
    check(np.arange(8, dtype=np.float32)[::-1], True)
    check(np.zeros(0, np.float32), True)
    check(np.frombuffer(bytearray(17), np.float32, 4, 1), True)
    check(np.zeros(4, np.float32).view(type("Own", (np.ndarray,), {})), True)
    check(np.zeros(4, np.float64), True)
    check(np.zeros(4, np.int32), True)
    for kind in ("l", "q", "i", "B", "h", "d", "e"):
        for _ in range(3):
            check(np.zeros(3, kind))
    frozen = np.zeros(4, np.float32)
    add(frozen, 1)
    frozen.flags.writeable = False
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeTypeError, match="read-only"):
            add(frozen, 1)
    with pytest.raises(sg.SpirogradError):
        add(np.zeros((2, 2), np.float32), 1)
    assert frozen.tolist() == [5.0] * 4


def test_host_arrays_of_more_axes(way):
    @sg.kernel
    def index(a: sg.types.ndarray(sg.i32, 2), b: sg.types.ndarray(sg.i32, 2), f: sg.types.ndarray(sg.u1, 1)):
        for i, j in a:
            if f[0]:
                a[i, j] = 10 * i + j + b[j, i]

    for shape in ((2, 3), (2, 3), (4, 1), (3, 3)):
        for on in (True, False, True):
            a, b = np.zeros(shape, np.int32), np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape[::-1])
            index(a, b, np.array([on]))
            i, j = np.indices(shape)
            assert (a == (10 * i + j + b.T) * on).all()
            index(a.T.copy().T, b, np.array([on]))  # in another order


def test_an_attribute_that_fails(way):
    @sg.data_oriented
    class Program:
        failure: BaseException | None = None

        @property
        def by(self):
            if self.failure is not None:
                raise self.failure
            return 2

        @sg.kernel
        def step(self, a: A1):
            for i in a:
                a[i] += self.by

    program, a = Program(), sg.ndarray(sg.f32, 2)
    for _ in range(3):
        program.step(a)
    for failure in (KeyboardInterrupt, ZeroDivisionError):
        program.failure = failure()
        with pytest.raises(failure):
            program.step(a)
    program.failure = None
    program.step(a)
    assert a.to_numpy().tolist() == [8.0] * 2


def test_arguments_by_name(way, in_python):
    @sg.kernel
    def add(a: A1, k: sg.i32, s: sg.f32 = 0.5, on: sg.template() = True):
        for i in a:
            if sg.static(on):
                a[i] += k * s

    a = sg.ndarray(sg.f32, shape=3)
    calls = [
        (lambda: add(a, k=2, s=1.5, on=True), 3.0),
        (lambda: add(a, 2, s=-1.0, on=True), -2.0),
        (lambda: add(on=True, s=0.25, k=4, a=a), 1.0),
        (lambda: add(a, k=3), 1.5),
        (lambda: add(a, on=True, k=1), 0.5),
    ]
    expected = 0.0
    for call, more in calls * 3:
        call()
        expected += more
        assert a.to_numpy().tolist() == [expected] * 3
    assert len(in_python) == (1 if way == "native" else 3 * len(calls))
    add(a, k=2, on=False)
    assert a.to_numpy().tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {"k": 1}, "multiple values for argument 'k'"),
        ((), {"s": 1.0}, "argument `k` is missing"),
        ((1,), {"z": 1.0}, "there is no argument `z`"),
        ((1, 2.0, 3), {}, "it takes 3 arguments, got 4"),
        ((1.5,), {"s": 1.0}, "argument `k` takes an integer"),
    ],
)
def test_arguments_by_name_that_do_not_fit(way, args, kwargs, message):
    @sg.kernel
    def add(a: A1, k: sg.i32, s: sg.f32 = 0.5):
        for i in a:
            a[i] += k * s

    a = sg.ndarray(sg.f32, shape=3)
    for _ in range(3):
        add(a, k=1, s=1.0)
        with pytest.raises(TypeError, match=message):
            add(a, *args, **kwargs)
    assert a.to_numpy().tolist() == [3.0] * 3


def test_gradients_with_arguments_by_name(way):
    @sg.kernel
    def scale(x: A1, y: A1, k: sg.f32):
        for i in x:
            y[i] += k * x[i]

    x, y = (sg.ndarray(sg.f32, shape=3, needs_grad=True) for _ in range(2))
    for n in range(1, 6):
        y.grad.fill(1.0)
        scale.grad(x, k=2.0, y=y)
        assert x.grad.to_numpy().tolist() == [2.0 * n] * 3


def test_nothing_is_prepared_anew_at_the_end_of_the_process(monkeypatch):
    """Arrays that calls were recorded with are collected then, and a function for the others would have to be imported."""

    @sg.kernel
    def put(a: sg.template(), s: sg.f32):
        a[0] = s

    kept, gone = sg.field(sg.f32, 1), sg.field(sg.f32, 1)
    for _ in range(40):
        put(kept, 1.0)
        put(gone, 1.0)
    calls = put._native
    prepared = [record.prepared for record in calls._records]
    forget = native_calls._forgetter(weakref.ref(calls), prepared[0])
    monkeypatch.setattr(native_calls.sys, "is_finalizing", lambda: True)
    forget(None)
    assert [record.prepared for record in calls._records] == prepared
    monkeypatch.undo()
    forget(None)
    assert [record.prepared for record in calls._records] == prepared[1:]
