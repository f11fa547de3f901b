"""Fields in every placement, arrays of every shape."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case, type_needs

INTS_AND_FLOATS = (sg.i8, sg.u8, sg.i16, sg.u16, sg.i32, sg.u32, sg.i64, sg.u64, sg.f16, sg.f32, sg.f64)


@case([*INTS_AND_FLOATS, sg.u1], needs=type_needs)
def field_of(t) -> Results:
    """Every type in a field, odd in number; neighbours in one word are written by different iterations."""
    x = sg.field(t, shape=37)

    @sg.kernel
    def run():
        for i in x:
            x[i] = sg.cast(i % 3 if sg.static(t is sg.u1) else i * 3 + 1, t)

    run()
    k = np.arange(37)
    return {"x": (x.to_numpy(), (k % 3 != 0) if t is sg.u1 else (k * 3 + 1).astype(t.np))}


@case(INTS_AND_FLOATS, needs=type_needs)
def ndarray_of(t) -> Results:
    x, y = sg.ndarray(t, shape=(5, 7)), np.arange(35).reshape(5, 7).astype(t.np)
    x.from_numpy(y)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 2)):
        for i, j in x:
            x[i, j] = x[i, j] + sg.cast(j, t)

    run(x)
    return {"x": (x.to_numpy(), y + np.arange(7).astype(t.np))}


@case()
def scalar_field() -> Results:
    x, n = sg.field(sg.f32, shape=()), sg.field(sg.i32, shape=())

    @sg.kernel
    def run():
        x[None] = 2.5
        n[None] = 4
        for _ in range(10):
            n[None] += 1

    run()
    return {"x": (x[None], 2.5), "n": (n[None], 14)}


@case()
def struct_of_arrays() -> Results:
    a, b = sg.field(sg.f32), sg.field(sg.i32)
    sg.root.dense(sg.i, 20).place(a)
    sg.root.dense(sg.i, 20).place(b)

    @sg.kernel
    def run():
        for i in a:
            a[i] = 0.5 * i
            b[i] = i * i

    run()
    return {"a": (a.to_numpy(), np.arange(20) * 0.5), "b": (b.to_numpy(), np.arange(20) ** 2)}


@case()
def array_of_structs() -> Results:
    """Members of several types and widths in one level."""
    a, b, c = sg.field(sg.i8), sg.field(sg.f32), sg.field(sg.u16)
    sg.root.dense(sg.ij, (3, 5)).place(a, b, c)

    @sg.kernel
    def run():
        for i, j in a:
            a[i, j] = sg.i8(i - j)
            b[i, j] = i + 0.25 * j
            c[i, j] = sg.u16(1000 * i + j)

    run()
    i, j = np.indices((3, 5))
    return {"a": (a.to_numpy(), (i - j).astype(np.int8)), "b": (b.to_numpy(), i + 0.25 * j), "c": (c.to_numpy(), 1000 * i + j)}


@case()
def blocks() -> Results:
    x = sg.field(sg.i32)
    sg.root.dense(sg.ij, (3, 2)).dense(sg.ij, (4, 8)).place(x)

    @sg.kernel
    def run():
        for i, j in x:
            x[i, j] = 100 * i + j

    run()
    i, j = np.indices((12, 16))
    return {"x": (x.to_numpy(), 100 * i + j)}


@case(("ij", "ji"))
def orders(order) -> Results:
    x = sg.field(sg.f32, shape=(4, 6), order=order)

    @sg.kernel
    def run():
        for i, j in x:
            x[i, j] = 10 * i + j

    run()
    i, j = np.indices((4, 6))
    return {"x": (x.to_numpy(), 10 * i + j)}


@case()
def offset_field() -> Results:
    x = sg.field(sg.i32, shape=(5, 4), offset=(-2, 3))

    @sg.kernel
    def run():
        for i, j in x:
            x[i, j] = 10 * i + j

    run()
    i, j = np.indices((5, 4))
    return {"x": (x.to_numpy(), 10 * (i - 2) + j + 3)}


@case()
def vector_fields() -> Results:
    v, m = sg.Vector.field(3, sg.f32, shape=9), sg.Matrix.field(2, 2, sg.f32, shape=4)

    @sg.kernel
    def run():
        for i in v:
            v[i] = [i, 2 * i, -i]
            v[i].y += 0.5
        for i in m:
            m[i] = sg.Matrix([[i, 1.0], [0.0, i + 1]])

    run()
    k = np.arange(9)
    want = np.zeros((4, 2, 2), np.float32)
    for i in range(4):
        want[i] = [[i, 1], [0, i + 1]]
    return {"v": (v.to_numpy(), np.stack([k, 2 * k + 0.5, -k], 1)), "m": (m.to_numpy(), want)}


@case()
def vector_ndarrays() -> Results:
    v = sg.Vector.ndarray(2, sg.f32, shape=11)

    @sg.kernel
    def run(v: sg.types.ndarray(sg.types.vector(2, sg.f32), 1)):
        for i in v:
            v[i] = sg.Vector([i * 1.0, i * i])

    run(v)
    k = np.arange(11)
    return {"v": (v.to_numpy(), np.stack([k, k * k], 1))}


@case((0, 1, 2, 3))
def ranks(rank) -> Results:
    """Arrays of any number of axes, with extents that are no multiple of anything."""
    shape = (3, 5, 7)[:rank]
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    before = x.copy()

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, rank)):
        for p in sg.grouped(x):
            x[p] = x[p] * 2.0 + p.sum()

    @sg.kernel
    def run_scalar(x: sg.types.ndarray(sg.f32, 0)):
        x[None] = x[None] * 2.0

    (run if rank else run_scalar)(x)
    return {"x": (x, before * 2 + (sum(np.indices(shape)) if rank else 0))}


@case()
def changing_shapes() -> Results:
    """Compiled once for the number of axes, run with any extents."""
    results = {}

    @sg.kernel
    def run(x: sg.types.ndarray(sg.i32, 2)):
        for i, j in x:
            x[i, j] = i * x.shape[1] + j

    for shape in ((1, 1), (3, 4), (17, 5)):
        x = np.zeros(shape, np.int32)
        run(x)
        results[str(shape)] = (x, np.arange(x.size).reshape(shape))
    return results


@case((5, 31, 40))
def many_buffers(count) -> Results:
    """More arrays than some devices can bind one by one."""
    arrays = [sg.ndarray(sg.f32, 13) for _ in range(count)]
    for k, x in enumerate(arrays):
        x.from_numpy(np.arange(13, dtype=np.float32) * (k + 1))
    names = ", ".join(f"a{k}: sg.types.ndarray(sg.f32, 1)" for k in range(count))
    total = " + ".join(f"a{k}[i]" for k in range(count - 1))
    return {"sum": (_compiled(names, total, count)(arrays), np.arange(13) * (count * (count - 1) / 2))}


def _compiled(parameters, total, count):
    """A kernel over ``count`` arrays, the last of which takes the sum of the others. Its text is made here, for there may be 40."""
    import linecache

    text = f"def run({parameters}):\n    for i in a0:\n        a{count - 1}[i] = {total}\n"
    name = f"<many_buffers {count}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"sg": sg}
    exec(compile(text, name, "exec"), space)
    kernel = sg.kernel(space["run"])

    def call(arrays):
        kernel(*arrays)
        return arrays[-1].to_numpy()

    return call


@case()
def aliased_arguments() -> Results:
    """One array as two arguments."""
    x = sg.ndarray(sg.i32, 8)

    @sg.kernel
    def run(a: sg.types.ndarray(sg.i32, 1), b: sg.types.ndarray(sg.i32, 1)):
        for i in range(4):
            a[i] = b[i + 4] + i

    x.from_numpy(np.arange(8, dtype=np.int32))
    run(x, x)
    return {"x": (x.to_numpy(), [4, 6, 8, 10, 4, 5, 6, 7])}


@case(large=True)
def a_large_array() -> Results:
    """Four million elements: many workgroups, grid strides."""
    x = sg.ndarray(sg.f32, 1 << 22)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            x[i] = sg.f32(i % 1000)

    run(x)
    return {"x": (x.to_numpy(), (np.arange(1 << 22) % 1000).astype(np.float32))}


@case()
def scalar_arguments() -> Results:
    """Numbers of several types, vectors and matrices by value, in a block larger than what can be pushed."""
    out = np.zeros(8, np.float32)

    @sg.kernel
    def run(
        out: sg.types.ndarray(sg.f32, 1), a: sg.i8, b: sg.u16, c: sg.f32, d: bool,
        v: sg.types.vector(3, sg.f32), m: sg.types.matrix(4, 4, sg.f32), w: sg.types.vector(20, sg.f32),
    ):  # fmt: skip
        for i in out:
            out[i] = a + b * 2 + c + d + v[i % 3] + m[i % 4, 1] + w[i + 2]

    v, m, w = np.array([1, 2, 3]), np.arange(16).reshape(4, 4), np.arange(20) * 0.5
    run(out, -3, 500, 0.25, True, v, m, w)
    k = np.arange(8)
    return {"out": (out, -3 + 1000 + 0.25 + 1 + v[k % 3] + m[k % 4, 1] + w[k + 2])}


@case((5, 24))
def functions_that_access_memory(calls) -> Results:
    """Functions that load, store and update fields and arrays: called where there are more calls of them than 8, else inlined."""
    grid, count = sg.field(sg.f32, shape=64), sg.field(sg.i32, shape=4)

    @sg.real_func
    def between(i: sg.i32, w: sg.f32) -> sg.f32:
        return grid[i % 64] * (1.0 - w) + grid[(i + 1) % 64] * w

    @sg.real_func
    def visit(a: sg.template(), i: sg.i32, k: sg.i32) -> sg.f32:
        value = 0.0
        for n in sg.static(range(6)):
            value += between(i + k + 5 * n, 0.25 * n - 0.5)
        if value > 40.0:
            value -= 2.0 * sg.floor(0.25 * value)
            a[i] = a[i] + k
        count[(i + k) % 4] += 1
        return value

    @sg.kernel
    def run(a: sg.types.ndarray(sg.i32, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in out:
            total = 0.0
            for k in sg.static(range(calls)):
                total += visit(a, i, k)
            out[i] = total

    g = (np.arange(64) * 7 % 32).astype(np.float32)
    grid.from_numpy(g)
    a, out = np.zeros(50, np.int32), np.zeros(50, np.float32)
    run(a, out)
    i, totals, sums, counts = np.arange(50), np.zeros(50), np.zeros(50, np.int64), np.zeros(4, np.int64)
    for k in range(calls):
        value = np.zeros(50)
        for n in range(6):
            at, w = (i + k + 5 * n) % 64, 0.25 * n - 0.5
            value += g[at] * (1 - w) + g[(at + 1) % 64] * w
        sums += np.where(value > 40, k, 0)
        totals += np.where(value > 40, value - 2 * np.floor(value / 4), value)
        np.add.at(counts, (i + k) % 4, 1)
    return {"out": (out, totals), "a": (a, sums), "count": (count.to_numpy(), counts)}
