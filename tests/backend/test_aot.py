"""Modules of compiled kernels: what is loaded computes what the kernels do, against NumPy."""

from pathlib import Path

import needs
import numpy as np
import pytest
from backend.mixing import mix

import spirograd as sg
from spirograd.derivatives import specialized
from spirograd.lang.frontend import kernel_tracing

torch = needs.package("torch")

pytestmark = pytest.mark.archs("cpu", "vulkan", "wgpu", "cuda", "amdgpu")  # no code of the interpreter's can be stored
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def reload(arch, tmp_path, monkeypatch):
    """A function that saves a module, begins a session in which nothing can be traced, or compiled but fills and copies of memory with
    strides, and loads it there."""
    compile_kernel = sg.session._compile_kernel

    def only_builtin(kernel, *args, **options):
        assert kernel.name in ("fill", "copy")
        return compile_kernel(kernel, *args, **options)

    def run(module, name="m.zip", **options):
        module.save(tmp_path / name)
        sg.init(arch=arch, **options)
        monkeypatch.setattr(kernel_tracing, "_trace", None)
        monkeypatch.setattr(sg.session, "_compile_kernel", only_builtin)
        return sg.aot.load(tmp_path / name)

    return run


@sg.kernel
def largest(a: sg.types.NDArray[sg.f32, 2]) -> sg.types.vector(2, sg.f32):
    most = 0.0
    for i, j in a:
        sg.atomic_max(most, a[i, j])
    return sg.Vector([most, a[0, 0]])


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (0, 3), (130, 257)])
def test_arrays_scalars_vectors_results(session, reload, shape, n):
    module = sg.aot.Module()
    module.add_kernel(mix)
    module.add_kernel(largest, name="most")
    loaded = reload(module)
    rng = np.random.default_rng(1)
    given, by = rng.random(shape, np.float32), rng.integers(0, 9, shape[0], np.int32)
    a, b = sg.ndarray(sg.f32, shape), sg.ndarray(sg.i32, shape[0])
    a.from_numpy(given)
    b.from_numpy(by)
    expected = given
    for turn in range(3):  # with other arguments
        loaded.kernel("mix")(a, b, 0.5 + turn, [1.0, 0.25], n=n)
        for _ in range(n):
            expected = expected * np.float32(0.5 + turn) + np.float32(0.75)
        expected = expected + by[:, None].astype(np.float32)
    np.testing.assert_allclose(a.to_numpy(), expected, rtol=2e-5)
    if given.size:
        found = loaded.kernels["most"](a)
        assert (found[0], found[1]) == (a.to_numpy().max(), a.to_numpy()[0, 0])


def test_arrays_that_overlap(session, reload):
    """Modules for the CPU have fused loops for arrays that do not overlap, and others for those that do; gradients, too."""

    @sg.kernel
    def both(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1], c: sg.types.NDArray[sg.f32, 1]):
        for i in range(9):
            c[i] = a[i] * 2.0
        for i in range(9):
            b[8 - i] *= 3.0

    module = sg.aot.Module()
    module.add_kernel(both, gradients=True)
    loaded = reload(module)
    compiled = loaded.kernel("both").record.compiled
    assert (len(compiled.disjoint) == 3) is (compiled.overlapping is not None) is (session.arch == "cpu")
    x, y, z = (sg.ndarray(sg.f32, 9, needs_grad=True) for _ in range(3))
    for a, b, c in ((x, y, z), (x, x, z), (x, y, y), (x, x, x)):
        values = {id(array): np.arange(9, dtype=np.float32) + k for k, array in enumerate((x, y, z))}
        for array in (x, y, z):
            array.from_numpy(values[id(array)])
        loaded.kernel("both")(a, b, c)
        values[id(c)][:] = values[id(a)] * 2
        values[id(b)] *= 3
        for array in (x, y, z):
            np.testing.assert_array_equal(array.to_numpy(), values[id(array)])
    for array in (x, y, z):
        array.grad.fill(5)
    loaded.kernel("both").grad(x, y, z)
    for array, want in ((x, 15), (y, 15), (z, 0)):
        np.testing.assert_array_equal(array.grad.to_numpy(), np.full(9, want))


def test_arrays_of_other_libraries(session, reload):
    module = sg.aot.Module()
    module.add_kernel(mix, gradients=True)
    loaded = reload(module)
    target, by = np.ones((3, 4), np.float32), np.arange(3, dtype=np.int32)
    loaded.kernel("mix")(target, by, 2.0, np.array([3.0, 1.0], np.float32), 2)
    assert (target == (4 + 2 * 2 + 2) + by[:, None]).all()
    tensor = torch.ones(3, 4, requires_grad=True)
    tensor.grad = torch.ones(3, 4)
    loaded.kernel("mix").grad(tensor, torch.arange(3, dtype=torch.int32), 2.0, [3.0, 1.0], 2)
    assert (tensor.grad == 4).all()


def _layouts():
    """Fields of several kinds, in trees of several forms."""
    plain = sg.field(sg.f32, shape=5, offset=-2, needs_grad=True)
    columns = sg.field(sg.i32, shape=(3, 4), order="ji")
    apart = sg.Vector.field(3, sg.f32, shape=(4, 2), layout=sg.Layout.SOA, needs_grad=True)
    mixed = sg.Struct.field({"a": sg.f32, "m": sg.types.matrix(2, 2, sg.f32)}, shape=6)
    blocks, other = sg.field(sg.f32), sg.field(sg.i32)
    builder = sg.FieldsBuilder()
    cell = builder.dense(sg.ij, (2, 3)).dense(sg.ij, (4, 2))
    cell.place(blocks, other)
    builder.finalize()
    return {"plain": plain, "columns": columns, "apart": apart, "mixed": mixed, "blocks": blocks, "other": other}


def _number(fields):
    plain, columns, apart, mixed, blocks, other = fields.values()

    @sg.kernel
    def number(by: sg.i32):
        for i in plain:
            plain[i] = 10 * i + by
        for i, j in columns:
            columns[i, j] = 10 * i + j + by
        for i, j in apart:
            for c in sg.static(range(3)):
                apart[i, j][c] = 100 * i + 10 * j + c + by
        for i in mixed:
            mixed[i].a = i + by
            for r, c in sg.static(sg.ndrange(2, 2)):
                mixed[i].m[r, c] = 100 * i + 10 * r + c + by
        for i, j in blocks:
            blocks[i, j] = 10 * i + j + by
            other[i, j] += 10 * i + j + by

    return number


def test_layouts_of_fields(session, reload):
    fields = _layouts()
    module = sg.aot.Module()
    for name, field in fields.items():
        module.add_field(name, field)
    module.add_kernel(_number(fields))
    loaded = reload(module)
    run = loaded.kernel("number")
    loaded.field("other").fill(1000)
    run(3)
    run(7)
    i, j = np.meshgrid(np.arange(8), np.arange(6), indexing="ij")
    assert (loaded.field("plain").to_numpy() == 10 * np.arange(-2, 3) + 7).all()
    assert loaded.field("plain")[-2] == -13
    assert (loaded.field("columns").to_numpy() == (10 * np.arange(3)[:, None] + np.arange(4)) + 7).all()
    vectors = 100 * np.arange(4)[:, None, None] + 10 * np.arange(2)[:, None] + np.arange(3) + 7
    assert (loaded.field("apart").to_numpy() == vectors).all() and loaded.field("apart").has_grad()
    assert (loaded.field("mixed.a").to_numpy() == np.arange(6) + 7).all()
    entries = 100 * np.arange(6)[:, None, None] + 10 * np.arange(2)[:, None] + np.arange(2) + 7
    assert (loaded.field("mixed.m").to_numpy() == entries).all()
    assert (loaded.field("blocks").to_numpy() == 10 * i + j + 7).all()
    assert (loaded.field("other").to_numpy() == 1000 + 2 * (10 * i + j) + 10).all()


def _sparse_program():
    """Kernels that activate, deactivate, append to lists and loop over what is active, in a module and as they are."""
    x, out, lists = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32, shape=3, needs_grad=True), sg.field(sg.i32)
    builder = sg.FieldsBuilder()
    blocks = builder.pointer(sg.ij, (4, 4))
    blocks.bitmasked(sg.ij, (2, 4)).place(x, x.grad, offset=(-1, 2))
    builder.dense(sg.i, 3).dynamic(sg.j, 40, chunk_size=8).place(lists)

    @sg.kernel
    def draw(n: sg.i32):
        for k in range(n):
            x[k - 1, 2 + k] = k * 0.5
            lists[k % 3].append(k)

    @sg.kernel
    def squares():
        for i, j in x:
            out[(i + 1) % 3] += x[i, j] * x[i, j]

    @sg.kernel
    def end():
        sg.deactivate(blocks, [0, 0])

    @sg.kernel
    def count() -> sg.i32:
        s = 0
        for i, j in lists:
            s += lists[i, j]
        for i, j in x:
            s += 1000
        return s

    module = sg.aot.Module()
    for name, field in {"x": x, "out": out, "lists": lists}.items():
        module.add_field(name, field)
    for kernel in (draw, end, count):
        module.add_kernel(kernel)
    module.add_kernel(squares, gradients=True)
    return module


@pytest.mark.parametrize("n", [0, 8])
def test_sparse_fields(session, reload, tmp_path, n):
    _sparse_program().save(tmp_path / "first.zip")
    sg.init(arch=session.arch)
    sg.field(sg.f32, shape=3).fill(1)  # other numbers in the process
    loaded = reload(_sparse_program())
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "m.zip").read_bytes()
    x, out, lists = (loaded.field(name) for name in ("x", "out", "lists"))
    for _ in range(2):  # what is active stays so
        loaded.kernel("draw")(n)
    loaded.kernel("squares")()
    out.grad.fill(1.0)
    loaded.kernel("squares").grad()
    expected = np.zeros((8, 16), np.float32)
    expected[np.arange(n), np.arange(n)] = 0.5 * np.arange(n)
    assert (x.to_numpy() == expected).all() and (x.grad.to_numpy() == 2 * expected).all()
    sums = np.zeros(3)
    np.add.at(sums, np.arange(n) % 3, (0.5 * np.arange(n)) ** 2)
    assert (out.to_numpy() == sums).all()
    for k, row in enumerate(lists.to_numpy()):  # appended in any order, and zeros behind
        values = np.repeat(np.arange(k, n, 3), 2)
        assert (np.sort(row) == np.sort(np.pad(values, (0, 40 - len(values))))).all()
    assert loaded.kernel("count")() == n * (n - 1) + 1000 * n
    loaded.kernel("end")()
    expected[:2, :4] = 0
    assert (x.to_numpy() == expected).all() and loaded.kernel("count")() == n * (n - 1) + 1000 * max(n - 2, 0)
    x[5, 9] = 3.0  # Python activates a cell
    assert loaded.kernel("count")() == n * (n - 1) + 1000 * (max(n - 2, 0) + 1) and x[5, 9] == 3.0


def test_sparse_fields_of_modules_grow_and_say_what_is_missing(session, reload):
    x, y = sg.field(sg.i32), sg.field(sg.i32)
    sg.root.pointer(sg.i, 1000).place(x)
    sg.root.pointer(sg.i, 64, cells=3).place(y)

    @sg.kernel
    def draw(n: sg.i32):
        for i in range(n):
            x[7 * i] = i

    @sg.kernel
    def few(n: sg.i32):
        for i in range(n):
            y[i] = i

    module = sg.aot.Module()
    module.add_field("x", x)
    for kernel in (draw, few):
        module.add_kernel(kernel)
    loaded = reload(module)
    for n in (3, 100):
        loaded.kernel("draw")(n)
    assert (loaded.field("x").to_numpy()[::7] == np.pad(np.arange(100), (0, 43))).all()
    loaded.kernel("few")(3)
    with pytest.raises(sg.OutOfDeviceMemory, match=r"needed memory for 4 cells and had it for 3; reserve more of them with `.pointer"):
        loaded.kernel("few")(4)
        sg.sync()


def _long_loop():
    """A loop and a `while` that need tapes, and one that is short: a module of them, with or without nested checkpoints."""
    x, y = (sg.field(sg.f32, shape=3, needs_grad=True) for _ in range(2))

    @sg.kernel
    def iterate(n: sg.i32, a: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            s = x[i]
            for t in range(n):
                s += 0.002 * sg.sin(s + t)
            k = 0
            while k < n + i:
                s += a[0] * sg.sin(2 * s - k)
                k += 1
            for _ in range(5):
                s = sg.sin(s) * 1.2
            y[i] = s

    def module(nested_checkpoints):
        made = sg.aot.Module()
        made.add_field("x", x)
        made.add_field("y", y)
        made.add_kernel(iterate, gradients=True, nested_checkpoints=nested_checkpoints)
        return made

    return module


def _gradients_of_long_loop(n, a):
    value, slope = np.linspace(0.3, 0.9, 3, dtype=np.float32).astype(float), np.ones(3)
    for t in range(n):
        value, slope = value + 0.002 * np.sin(value + t), slope * (1 + 0.002 * np.cos(value + t))
    for k in range(n + 2):
        often = a * (k < n + np.arange(3))
        value, slope = value + often * np.sin(2 * value - k), slope * (1 + 2 * often * np.cos(2 * value - k))
    for _ in range(5):
        value, slope = np.sin(value) * 1.2, slope * np.cos(value) * 1.2
    return slope


def test_nested_checkpoints_in_modules(arch, reload):
    """Launches take the plain gradient where its tapes fit, else one with nested checkpoints; the bits are the same."""
    sg.init(arch=arch, fast_math=False)
    module, found, needed = _long_loop()(nested_checkpoints=True), {}, {}
    for name in ("plain.zip", "nested.zip"):
        memory = min(12_000, needed[2000] / 4) / 2**30 if needed else None
        loaded = reload(module, name, ad_memory_GB=memory, fast_math=False)
        x, y, run = loaded.field("x"), loaded.field("y"), loaded.kernel("iterate")
        a = sg.ndarray(sg.f32, 1, needs_grad=True)
        a.fill(0.003)
        x.from_numpy(np.linspace(0.3, 0.9, 3, dtype=np.float32))
        for n in (0, 3, 2000, 129, 2000):
            x.grad.fill(0)
            y.grad.fill(1)
            run.grad(n, a)
            ways = run.grad.checkpoints
            if n != 129:  # for which either does
                assert (ways.last is ways.plain) == (memory is None or n < 2000), n
            if memory is None:
                needed[n] = ways.plain.plan.adstack_bytes
            found[name, n] = x.grad.to_numpy()
            np.testing.assert_allclose(found[name, n], _gradients_of_long_loop(n, 0.003), rtol=2e-3)
    for n in (0, 3, 129, 2000):
        assert (found["plain.zip", n] == found["nested.zip", n]).all()


def test_loops_of_modules_that_cannot_have_nested_checkpoints(session, reload, monkeypatch):
    """The loop has its tape, and an error says why it has nothing else."""

    def derived(made, nesting):
        if nesting is None:
            return plain(made, nesting)
        raise sg.SpirogradUnsupportedError("the loop has none", made.primal.kernel.loc, "write another one")

    plain = specialized.SpecializedDerivative.derived
    monkeypatch.setattr(specialized.SpecializedDerivative, "derived", derived)
    module = _long_loop()(nested_checkpoints=True)
    loaded = reload(module, ad_memory_GB=4096 / 2**30)
    a = sg.ndarray(sg.f32, 1, needs_grad=True)
    loaded.kernel("iterate").grad(3, a)
    with pytest.raises(sg.OutOfDeviceMemory, match=r"the loop has none\n  at test_aot.py:\d+ in iterate\n[^$]*write another one"):
        loaded.kernel("iterate").grad(20_000, a)


def test_modules_have_nested_checkpoints_if_tapes_have_a_limit(arch, reload):
    for options, asked, there in (({}, None, 0), ({"ad_memory_GB": 1.0}, None, 2), ({"ad_memory_GB": 1.0}, False, 0)):
        sg.init(arch=arch, **options)
        module = _long_loop()(nested_checkpoints=asked)
        assert len(module.manifest().kernels[1].gradient.nested) == there
    loaded = reload(module, ad_memory_GB=4096 / 2**30)
    a = sg.ndarray(sg.f32, 1, needs_grad=True)
    with pytest.raises(sg.OutOfDeviceMemory, match=r"test_aot.py:[^$]*build the module with `add_kernel\(..., nested_checkpoints=True\)`"):
        loaded.kernel("iterate").grad(20_000, a)


def test_gradients_with_tapes_whose_sizes_change(session, reload):
    """Trip counts come from an argument, from memory and from a `while`; memory changes between launches."""
    x = sg.field(sg.f64 if _has_f64() else sg.f32, shape=37, needs_grad=True)
    y = sg.field(x.dtype, shape=37, needs_grad=True)
    often = sg.field(sg.i32, shape=37)

    @sg.kernel
    def iterate(w: sg.types.NDArray[sg.f32, 1], n: sg.i32):
        for i in x:
            s = x[i]
            for _ in range(n):
                s = sg.sin(s) * w[i] + 0.5
            for _ in range(often[i]):
                s = s * s * 0.5
            k = 0
            while k < n and s < 2.0:
                s = s * 1.25
                k += 1
            y[i] = s

    def model(value, weight, n, times):
        """The result and its derivatives by `value` and `weight`."""
        s, ds, dw = float(value), 1.0, 0.0
        for _ in range(n):
            ds, dw, s = np.cos(s) * ds * weight, np.cos(s) * dw * weight + np.sin(s), np.sin(s) * weight + 0.5
        for _ in range(times):
            ds, dw, s = s * ds, s * dw, s * s * 0.5
        k = 0
        while k < n and s < 2.0:
            s, ds, dw, k = s * 1.25, ds * 1.25, dw * 1.25, k + 1
        return s, ds, dw

    module = sg.aot.Module()
    for name, field in {"x": x, "y": y, "often": often}.items():
        module.add_field(name, field)
    module.add_kernel(iterate, gradients=True)
    loaded = reload(module)
    x, y, often = (loaded.field(name) for name in ("x", "y", "often"))
    run, rng = loaded.kernel("iterate"), np.random.default_rng(3)
    weights = sg.ndarray(sg.f32, 37, needs_grad=True)
    for n, most in ((0, 1), (4, 3), (2, 9), (31, 2), (31, 2)):
        values, w, times = rng.random(37), rng.random(37).astype(np.float32), rng.integers(0, most, 37)
        x.from_numpy(values)
        often.from_numpy(times)
        weights.from_numpy(w)
        for memory in (x.grad, weights.grad):
            memory.fill(0)
        run(weights, n)
        y.grad.fill(1)
        run.grad(weights, n)
        expected = np.array([model(*row) for row in zip(x.to_numpy(), w.astype(float), [n] * 37, times)])
        np.testing.assert_allclose(y.to_numpy(), expected[:, 0], rtol=1e-4, err_msg=f"{n}, {most}")
        np.testing.assert_allclose(x.grad.to_numpy(), expected[:, 1], rtol=2e-3, atol=1e-5)
        np.testing.assert_allclose(weights.grad.to_numpy(), expected[:, 2], rtol=2e-3, atol=1e-5)


def _has_f64():
    return sg.lang.context.session().device.caps.float64


def test_adjoints_of_results(session, reload):
    x = sg.field(sg.f32, shape=11, needs_grad=True)

    @sg.kernel
    def squares() -> sg.f32:
        s = 0.0
        for i in x:
            s += x[i] * x[i]
        return s

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(squares, gradients=True)
    loaded = reload(module)
    values = np.linspace(-1, 1, 11, dtype=np.float32)
    loaded.field("x").from_numpy(values)
    run = loaded.kernel("squares")
    assert run() == pytest.approx((values**2).sum(), rel=1e-5)
    run.grad()
    np.testing.assert_allclose(loaded.field("x").grad.to_numpy(), 2 * values)
    run.grad(returned=0.5)
    np.testing.assert_allclose(loaded.field("x").grad.to_numpy(), 3 * values)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="returned="):
        run.grad(returned="one")


def test_random_numbers_of_the_gradient_are_those_of_the_launch(session, reload):
    x, y = (sg.field(sg.f32, shape=9, needs_grad=True) for _ in range(2))

    @sg.kernel
    def scatter():
        for i in x:
            y[i] = x[i] * sg.random()

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_field("y", y)
    module.add_kernel(scatter, gradients=True)
    loaded = reload(module, random_seed=4)
    x, y = loaded.field("x"), loaded.field("y")
    x.fill(2)
    for _ in range(2):
        x.grad.fill(0)
        y.grad.fill(1)
        loaded.kernel("scatter")()
        loaded.kernel("scatter").grad()
        assert (x.grad.to_numpy() * 2 == y.to_numpy()).all() and len({*y.to_numpy()}) > 5


def test_methods_templates_and_versions(session, reload):
    @sg.data_oriented
    class Body:
        def __init__(self, n):
            self.place = sg.field(sg.f32, shape=n)
            self.gravity = 9.5

        @sg.kernel
        def fall(self, dt: sg.f32, times: sg.template()):
            for i in self.place:
                for _ in sg.static(range(times)):
                    self.place[i] -= self.gravity * dt

    body = Body(4)
    module = sg.aot.Module()
    module.add_field("place", body.place)
    module.add_kernel(body.fall, template_args={"times": 3})
    with module.add_kernel_template(body.fall) as template:
        assert template.instantiate(times=1) == "fall.times-1"
    loaded = reload(module)
    loaded.kernel("fall")(0.5)
    loaded.kernel("fall.times-1")(dt=2.0)
    assert (loaded.field("place").to_numpy() == -9.5 * 3.5).all()


def test_fields_and_arrays_as_template_arguments(session, reload):
    @sg.kernel
    def copy(source: sg.template(), target: sg.types.ndarray()):
        for i in source:
            target[i] = 2 * source[i]

    field = sg.field(sg.i32, shape=5)
    module = sg.aot.Module()
    module.add_field("source", field)
    module.add_kernel(copy, {"source": field, "target": sg.ndarray(sg.i32, 2)})
    loaded = reload(module)
    loaded.field("source").fill(21)
    out = np.zeros(5, np.int32)
    loaded.kernel("copy")(out)
    assert (out == 42).all()


def test_modules_take_row_major_arrays(session, reload):
    @sg.kernel
    def clear(a: sg.types.ndarray(sg.i32, 2)):
        for i, j in a:
            a[i, j] = 0

    turned = sg.tensor(sg.i32, (2, 3), layout=(1, 0))
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"row-major arrays, and argument `a` has the layout \(1, 0\)"):
        sg.aot.Module().add_kernel(clear, {"a": turned})
    module = sg.aot.Module()
    module.add_kernel(clear)
    with pytest.raises(TypeError, match=r"row-major arrays, got the layout \(1, 0\)"):
        reload(module).kernel("clear")(turned)


def test_prints_and_failing_checks(arch, reload, capsys):
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def check(limit: sg.i32):
        for i in x:
            if i == 2:
                print("at", i)
            assert x[i] < limit, "too large"

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(check)
    loaded = reload(module)
    loaded.kernel("check")(5)
    sg.sync()
    assert capsys.readouterr().out == "at 2\n"
    with pytest.raises(sg.SpirogradAssertionError, match="too large") as caught:
        loaded.kernel("check")(0)
        sg.sync()
    assert "test_aot.py" in str(caught.value) and str(ROOT) not in str(caught.value)
