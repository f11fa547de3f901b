"""`sg.optim`: L-BFGS against torch and SciPy, Gauss-Newton and Levenberg-Marquardt against SciPy."""

from __future__ import annotations

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.optim.line_search import Point, strong_wolfe

torch = needs.package("torch")
pytestmark = pytest.mark.usefixtures("session")


def real():
    return sg.f64 if sg.lang.context.session().device.caps.float64 else sg.f32


def rosenbrock():
    """Rosenbrock's function of 4 numbers in a field and 2 in an ndarray: the memory, and what computes its gradients and returns it."""
    x, y = sg.field(real(), shape=4, needs_grad=True), sg.Vector.ndarray(2, real(), shape=1, needs_grad=True)
    loss = sg.field(real(), shape=(), needs_grad=True)

    @sg.kernel
    def evaluate(y: sg.Tensor):
        for k in range(3):
            loss[None] += 100 * (x[k + 1] - x[k] ** 2) ** 2 + (1 - x[k]) ** 2
        for k in y:
            loss[None] += 100 * (y[k][1] - y[k][0] ** 2) ** 2 + (1 - y[k][0]) ** 2

    def closure():
        with sg.ad.Tape(loss):
            evaluate(y)
        return loss[None]

    return x, y, closure


def of_numpy(z):
    a, b = z[:4], z[4:]
    return sum(sum(100 * (v[1:] - v[:-1] ** 2) ** 2 + (1 - v[:-1]) ** 2) for v in (a, b))


START = np.array([0.2, 0.8, 0.5, 0.3, -0.2, 0.5])


def begin(x, y):
    x.from_numpy(START[:4].astype(x.dtype.np))
    y.from_numpy(START[4:].reshape(1, 2).astype(y.dtype.np))


def contents(x, y):
    return np.concatenate([x.to_numpy(), y.to_numpy().ravel()])


def test_lbfgs_finds_minima_of_scipy():
    optimize = needs.package("scipy").optimize
    x, y, closure = rosenbrock()
    begin(x, y)
    optimizer = sg.optim.LBFGS({"x": x, "y": y}, max_iter=60, history_size=5)
    assert optimizer.step(closure) == pytest.approx(of_numpy(START), rel=1e-6)
    found = optimize.minimize(of_numpy, START, method="L-BFGS-B").x
    np.testing.assert_allclose(contents(x, y), found, atol=1e-4 if real() is sg.f64 else 3e-3)
    np.testing.assert_allclose(found, 1.0, atol=1e-4)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_as_in_torch(search):
    """The same steps as torch, also after the state was saved and loaded."""
    x, y, closure = rosenbrock()
    begin(x, y)
    tensor = torch.tensor(START, requires_grad=True)
    options = {"lr": 1.0 if search else 0.1, "history_size": 4, "max_iter": 5, "line_search_fn": search}
    ours, theirs = sg.optim.LBFGS([x, y], **options), torch.optim.LBFGS([tensor], **options)

    def of_torch():
        theirs.zero_grad()
        loss = of_numpy(tensor)
        loss.backward()
        return loss

    tolerance = 1e-6 if real() is sg.f64 else 2e-2
    for _ in range(3):
        assert ours.step(closure) == pytest.approx(theirs.step(of_torch).item(), rel=tolerance)
        np.testing.assert_allclose(contents(x, y), tensor.detach().numpy(), atol=tolerance)
        state, ours = ours.state_dict(), sg.optim.LBFGS([x, y])
        ours.load_state_dict(state)


def decay():
    """The residuals of a fit of ``a exp(-b t) + c``, as a program, the parameters, and the residuals in NumPy."""
    t = np.linspace(0, 2, 12)
    data = 2.5 * np.exp(-1.3 * t) + 0.5 + 0.05 * np.sin(9 * t)
    a_b, c = sg.Vector.field(2, real(), shape=(), needs_grad=True), sg.field(real(), shape=1, needs_grad=True)
    r = sg.ndarray(real(), shape=12, needs_grad=True)
    times, values = (sg.field(real(), shape=12) for _ in range(2))
    times.from_numpy(t.astype(times.dtype.np))
    values.from_numpy(data.astype(times.dtype.np))

    @sg.kernel
    def fit(r: sg.Tensor):
        for k in r:
            r[k] = a_b[None][0] * sg.exp(-a_b[None][1] * times[k]) + c[0] - values[k]

    a_b[None] = [1.0, 1.0]
    return sg.ad.program(lambda: fit(r), inputs={"a_b": a_b, "c": c}, outputs=r), a_b, c, lambda p: p[0] * np.exp(-p[1] * t) + p[2] - data


@pytest.mark.parametrize("method", ["LevenbergMarquardt", "GaussNewton"])
def test_least_squares_as_in_scipy(method):
    optimize = needs.package("scipy").optimize
    program, a_b, c, residuals = decay()
    optimizer = getattr(sg.optim, method)(program)
    first = optimizer.step()
    expected = optimize.least_squares(residuals, [1.0, 1.0, 0.0], method="lm", xtol=1e-12)
    precise = real() is sg.f64
    assert first == pytest.approx((residuals([1.0, 1.0, 0.0]) ** 2).sum() / 2, rel=1e-12 if precise else 1e-5)
    assert optimizer.loss == pytest.approx(expected.cost, rel=1e-7 if precise else 1e-4)
    np.testing.assert_allclose([*a_b.to_numpy(), *c.to_numpy()], expected.x, rtol=1e-5 if precise else 2e-3)


def test_least_squares_of_some_parameters():
    """Inputs that are not named stay as they are."""
    optimize = needs.package("scipy").optimize
    program, a_b, c, residuals = decay()
    c.fill(0.25)
    optimizer = sg.optim.LevenbergMarquardt(program, params=a_b)
    optimizer.step()
    expected = optimize.least_squares(lambda p: residuals([*p, 0.25]), [1.0, 1.0], method="lm")
    np.testing.assert_allclose(a_b.to_numpy(), expected.x, rtol=1e-5 if real() is sg.f64 else 2e-3)
    assert c[0] == 0.25
    with pytest.raises(sg.SpirogradValueError, match="is no input of the program"):
        sg.optim.GaussNewton(program, params=sg.field(sg.f32, shape=1, needs_grad=True))


@pytest.mark.archs("interpreter")
@pytest.mark.parametrize("step", [1e-3, 0.3, 1.0, 40.0])
def test_line_search_satisfies_the_wolfe_conditions(step):
    """Loss and slope are checked against the conditions themselves: on the device nothing happens."""
    functions = [
        (lambda t: t**4 - 3 * t**3 + 2 - t, lambda t: 4 * t**3 - 9 * t**2 - 1),
        (lambda t: -t / (t * t + 2), lambda t: (t * t - 2) / (t * t + 2) ** 2),
        (lambda t: np.inf if t > 2 else (t - 1.5) ** 2, lambda t: 2 * (t - 1.5)),
    ]
    for loss, slope in functions:
        start = Point(0.0, loss(0.0), slope(0.0))
        found = strong_wolfe(lambda t, f=loss, g=slope: Point(t, f(t), g(t)), start, step, 25, 1e-12)
        assert found.loss <= start.loss + 1e-4 * found.step * start.slope
        assert abs(found.slope) <= -0.9 * start.slope
