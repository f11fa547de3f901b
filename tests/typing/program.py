"""A program that type checkers accept as it is: kernels keep their signatures, types of the language are usable in annotations."""

import numpy as np

import spirograd as sg

vec3 = sg.math.vec3
N = 64

x = sg.field(sg.f32, shape=(N, N))
v = sg.Vector.field(3, sg.f32, shape=N)
count = sg.field(dtype=sg.i32, shape=())
sg.root.dense(sg.ij, (4, 4)).place(sg.field(float))


@sg.func
def square(a: sg.f32) -> sg.f32:
    return a * a


@sg.func
def clamp_index(i: sg.i32, n: sg.i32) -> sg.i32:
    return min(max(i, 0), n - 1)


@sg.kernel
def blur(src: sg.types.NDArray[sg.f32, 2], dst: sg.types.NDArray[sg.f32, 2], weight: sg.f32) -> None:
    for i, j in sg.ndrange(*src.shape):
        total = 0.0
        for di, dj in sg.static(sg.ndrange((-1, 2), (-1, 2))):
            total += src[clamp_index(i + di, src.shape[0]), clamp_index(j + dj, src.shape[1])]
        dst[i, j] = square(weight) * total / 9


@sg.kernel
def fill(f: sg.Template, value: sg.f32, flag: sg.u1) -> None:
    for I in sg.grouped(f):
        f[I] = value if flag else sg.select(I[0] > 2, value, 0.0)
        sg.atomic_add(count[None], 1)


@sg.kernel(fastcache=True)
def total(scale: sg.f32) -> sg.f32:
    s = 0.0
    for i, j in x:
        s += x[i, j] * scale
    return s


@sg.kernel
def turn(axis: sg.math.vec3, angle: sg.f64) -> sg.math.vec3:
    r = sg.math.rotation3d(angle, 0.0, 0.0)
    w = vec3(axis.x, axis.y, 0.0)
    return vec3((r @ sg.Vector([w.x, w.y, w.z, 1.0]))[0], axis.norm(), sg.cast(1.5, sg.i32))


@sg.data_oriented
class Particles:
    def __init__(self, n: int) -> None:
        self.n = n
        self.x = sg.Vector.field(2, sg.f32, shape=n)

    @sg.func
    def pull(self, i: sg.i32, strength: sg.f32) -> sg.f32:
        return strength * self.x[i].norm()

    @sg.kernel
    def step(self, dt: sg.f32) -> None:
        for i in self.x:
            self.x[i] += dt * self.pull(i, 2.0)


def main() -> None:
    sg.init(arch=sg.cpu, default_fp=sg.f32)
    a = np.ones((8, 8), np.float32)
    b = sg.ndarray(sg.f32, shape=(8, 8))
    blur(a, b, 2.0)
    fill(x, 1.0, True)
    result: float = total(0.5)
    print(result, b.to_numpy().sum(), turn(vec3(1, 0, 0), 0.5))
    particles = Particles(16)
    particles.step(0.1)
    print(total.ir())


if __name__ == "__main__":
    main()
