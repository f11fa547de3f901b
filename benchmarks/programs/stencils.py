"""Steps of the heat equation, on fields and on arrays whose shape is known at the launch: one, and twenty to and fro; the gradient
of one."""

import spirograd as sg

N = 2048
u, v = sg.field(sg.f32, (N, N)), sg.field(sg.f32, (N, N))
p, q = (sg.field(sg.f32, (N, N), needs_grad=True) for _ in range(2))
a, b = sg.ndarray(sg.f32, (N, N)), sg.ndarray(sg.f32, (N, N))


@sg.kernel
def heat():
    for i, j in u:
        if 0 < i < N - 1 and 0 < j < N - 1:
            v[i, j] = u[i, j] + 0.1 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j])


@sg.kernel
def heat_arrays(old: sg.types.ndarray(sg.f32, 2), new: sg.types.ndarray(sg.f32, 2)):
    for i, j in sg.ndrange((1, old.shape[0] - 1), (1, old.shape[1] - 1)):
        new[i, j] = old[i, j] + 0.1 * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1] - 4 * old[i, j])


@sg.kernel
def heat_with_gradient():
    for i, j in p:
        if 0 < i < N - 1 and 0 < j < N - 1:
            q[i, j] = p[i, j] + 0.1 * (p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1] - 4 * p[i, j])


@sg.kernel
def back():
    for i, j in u:
        if 0 < i < N - 1 and 0 < j < N - 1:
            u[i, j] = v[i, j] + 0.1 * (v[i - 1, j] + v[i + 1, j] + v[i, j - 1] + v[i, j + 1] - 4 * v[i, j])


def twenty():
    for _ in range(10):
        heat()
        back()


def twenty_of_arrays():
    for _ in range(10):
        heat_arrays(a, b)
        heat_arrays(b, a)


CASES = {
    "heat 2048 x 2048": (heat, 1),
    "heat, ndarrays": (lambda: heat_arrays(a, b), 1),
    "heat, gradient": (heat_with_gradient.grad, 1),
    "20 stencils, fields": (twenty, 1),
    "20 stencils, ndarrays": (twenty_of_arrays, 1),
}
