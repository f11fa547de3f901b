"""A kernel with arguments of each kind and a loop with a tape, for tests of modules."""

import spirograd as sg


@sg.kernel
def mix(target: sg.types.NDArray[sg.f32, 2], by: sg.types.NDArray[sg.i32, 1], scale: sg.f32, v: sg.types.vector(2, sg.f32), n: sg.i32):
    for i, j in target:
        s = target[i, j]
        for _ in range(n):
            s = s * scale + v[0] - v[1]
        target[i, j] = s + by[i]
