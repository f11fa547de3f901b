"""What type checkers must complain about: each line marked `# error`, and nothing else."""

import spirograd as sg


@sg.kernel
def scale(x: sg.types.NDArray[sg.f32, 1], factor: sg.f32) -> sg.i32:
    for i in range(x.shape[0]):
        x[i] *= factor
    return 1


@sg.data_oriented
class Thing:
    @sg.kernel
    def step(self, n: sg.i32) -> None:
        sg.sync()


text: str = scale(sg.ndarray(sg.f32, 4), 2.0)  # error
scale(sg.ndarray(sg.f32, 4))  # error
scale(sg.ndarray(sg.f32, 4), "2")  # error
Thing().step("a")  # error
sg.feild(sg.f32)  # error
