"""What an editor knows of each expression, and completes: `reveal_type(...)  # what it is`."""

import numpy as np

import spirograd as sg

x = sg.field(sg.f32, shape=3, needs_grad=True)
v = sg.Vector.field(3, sg.f32, shape=3)
m = sg.field(sg.types.matrix(2, 2, sg.f32))
w = sg.field(sg.math.vec3, shape=3)
a = sg.ndarray(sg.f32, 3)
p = sg.Vector([1.0, 2.0])
six = sg.types.Vector[6, sg.f64]


@sg.dataclass
class Body:
    position: sg.math.vec3
    mass: sg.f32


@sg.kernel
def total(factor: sg.f32, bodies: sg.Template) -> sg.f32:
    return factor


@sg.kernel
def weight(body: Body, force: six) -> sg.types.Matrix[2, 2, sg.f32]:
    reveal_type(body)  # DataClass
    reveal_type(force)  # Matrix
    return sg.Matrix([[body.mass, 0.0], [0.0, body.position.x]]) * force[5]


@sg.func
def shifted(i: sg.i32, f: sg.Tensor) -> sg.f32:
    reveal_type(f.to_numpy())  # ndarray[Any, Any]
    return f[i + 1] + f.grad[i]


@sg.data_oriented
class Solver:
    @sg.kernel
    def step(self, dt: sg.f32) -> sg.i32:
        return 1


reveal_type(x)  # ScalarField
reveal_type(x.shape)  # tuple[int, ...]
reveal_type(x.grad)  # ScalarField | Any
reveal_type(x.dual)  # ScalarField | Any
reveal_type(x.to_numpy())  # ndarray[Any, Any]
reveal_type(v.grad)  # MatrixField | Any
reveal_type(v.n)  # int
reveal_type(m)  # MatrixField
reveal_type(w)  # MatrixField
reveal_type(a.grad)  # Ndarray | Any
reveal_type(sg.tensor(sg.f32, 3).grad)  # Any
reveal_type(sg.tensor(sg.f32, 3))  # Tensor
reveal_type(sg.field(Body, shape=3))  # StructField
reveal_type(Body.field(shape=3))  # StructField
reveal_type(Body(mass=2.0))  # DataClass
reveal_type(2.0 * p)  # Matrix
reveal_type(p - 1)  # Matrix
reveal_type([1.0, 2.0] + p)  # Matrix
reveal_type(-p)  # Matrix
reveal_type(sg.math.vec3(1, 2, 3) / 2)  # Matrix
reveal_type(six(0.0).normalized())  # Matrix
reveal_type(p == p)  # Matrix
reveal_type(total(2.0, x))  # float
reveal_type(total.grad.explain())  # str
reveal_type(total.grad.memory_plan(2.0, x).adstacks)  # tuple[AdstackPlan, ...]
reveal_type(total.grad.adstack_bytes)  # int
reveal_type(total.grad.ir())  # str
reveal_type(total.grad(2.0, x, returned=1.0))  # None
reveal_type(total.spirv_asm())  # dict[str, str]
reveal_type(total.llvm())  # str
reveal_type(total.asm())  # str
reveal_type(total.stages())  # dict[str, str | bytes]
reveal_type(total.step(print, 2.0, x))  # float
reveal_type(Solver().step(0.1))  # int
reveal_type(Solver().step.grad.explain())  # str
reveal_type(weight(Body(), sg.Vector(np.zeros(6))))  # Matrix
reveal_type(sg.cfg.arch)  # str
reveal_type(sg.ad.Tape().memory_report())  # MemoryReport

with sg.ad.Tape(x) as tape:
    result = total(1.0, x)
reveal_type(result)  # float
reveal_type(tape)  # Tape
