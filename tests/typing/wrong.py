"""What type checkers must complain about: each line marked `# error`, and nothing else."""

import numpy as np

import spirograd as sg
import spirograd.compat.taichi as ti

x = sg.field(sg.f32, shape=4, needs_grad=True)


@sg.kernel
def scale(x: sg.types.NDArray[sg.f32, 1], factor: sg.f32) -> sg.i32:
    for i in range(x.shape[0]):
        x[i] *= factro  # error
    return 1


@sg.kernel
def turn(axis: sg.types.Vector[3, sg.f64]) -> sg.math.vec3:
    return axis.normalised() * 2.0


@sg.data_oriented
class Thing:
    @sg.kernel
    def step(self, n: sg.i32) -> None:
        sg.sync()


array = np.zeros(4, np.float32)
text: str = scale(sg.ndarray(sg.f32, 4), 2.0)  # error
scale(sg.ndarray(sg.f32, 4))  # error
scale(array, "2")  # error
scale(3.0, 2.0)  # error
scale(array, 2.0, 3.0)  # error
scale(array, facter=2.0)  # error
scale.grad(array)  # error
scale.grad(array, 2.0).x  # error
scale.grad.explian()  # error
scale.spirv_assembly()  # error
turn(2.0)  # error
number: float = turn(sg.math.vec3(1, 0, 0))  # error
Thing().step("a")  # error
Thing().step()  # error
sg.feild(sg.f32)  # error
sg.field(sg.f32, shap=4)  # error
sg.field("f32", shape=4)  # error
x.to_nunpy()  # error
x.shpae  # error
sg.Vector.feild(2, sg.f32)  # error
sg.sin(1.0, 2.0)  # error
sg.types.vectr(2, sg.f32)  # error
sg.math.vce3(1, 2, 3)  # error
sg.ad.Taep()  # error
sg.cfg.archh  # error
ti.feild(ti.f32)  # error
ti.types.vectr(2, ti.f32)  # error
