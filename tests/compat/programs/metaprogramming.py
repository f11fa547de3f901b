"""Programs that are computed while compiling: `ti.static` branches and loops, stencils of any dimension, templates, functions as arguments."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
PERIODIC = True


@ti.kernel
def laplace(src: ti.template(), dst: ti.template()):
    for I in ti.grouped(src):
        total = 0.0
        for d in ti.static(range(len(src.shape))):
            e = ti.Vector.unit(len(src.shape), d, ti.i32)
            lo, hi = I - e, I + e
            if ti.static(PERIODIC):
                n = ti.static(src.shape[d])
                lo[d] = (lo[d] + n) % n
                hi[d] %= n
            total += src[lo] + src[hi] - 2 * src[I]
        dst[I] = total


@ti.func
def square(x):
    return x * x


@ti.func
def cube(x):
    return x * x * x


@ti.kernel
def apply(f: ti.template(), x: ti.template()):
    for i in x:
        x[i] = f(x[i])


@ti.kernel
def polynomial(x: ti.f32, coefficients: ti.template()) -> ti.f32:
    result = 0.0
    for c in ti.static(coefficients):
        result = result * x + c
    return result


@ti.kernel
def swap_all(a: ti.template(), b: ti.template()):
    for I in ti.grouped(ti.ndrange(*a.shape)):
        a[I], b[I] = b[I], a[I]


@ti.kernel
def copy_any(a: ti.template(), b: ti.template(), scale: ti.template()):
    ti.static_assert(a.shape == b.shape, "shapes differ")
    for I in ti.grouped(a):
        if ti.static(scale != 1):
            b[I] = a[I] * scale
        else:
            b[I] = a[I]


def make_adder(k):
    @ti.func
    def adder(x):
        return x + k

    return adder


adders = [make_adder(k) for k in (1, 10, 100)]


@ti.kernel
def chain(x: ti.i32) -> ti.i32:
    y = x
    for k in ti.static(range(3)):
        y = adders[k](y)
    return y


RESULT, EXPECTED = {}, {}
rng = np.random.default_rng(9)
for shape in ((7,), (4, 6), (3, 4, 5)):
    a, b = ti.field(ti.f32, shape), ti.field(ti.f32, shape)
    data = rng.random(shape).astype("f4")
    a.from_numpy(data)
    laplace(a, b)
    RESULT[f"laplace{len(shape)}"] = b.to_numpy()
    EXPECTED[f"laplace{len(shape)}"] = sum(np.roll(data, s, d) - data for d in range(len(shape)) for s in (1, -1))
    swap_all(a, b)
    copy_any(b, a, 3)
    RESULT[f"copied{len(shape)}"] = a.to_numpy()
    EXPECTED[f"copied{len(shape)}"] = 3 * data
x = ti.field(ti.f32, 4)
x.from_numpy(np.array([1, 2, 3, 4], "f4"))
apply(square, x)
apply(cube, x)
RESULT |= {"applied": x.to_numpy(), "polynomial": polynomial(2.0, (1, 2, 3)), "chain": chain(5)}
EXPECTED |= {"applied": np.arange(1, 5) ** 6, "polynomial": 11.0, "chain": 116}
