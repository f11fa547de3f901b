"""`sg.optim`: optimisers by the last gradient against torch.optim, clipping, groups, schedules and state."""

from __future__ import annotations

import warnings

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")

CASES = [
    ("SGD", {"lr": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.8, "dampening": 0.2, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "betas": (0.8, 0.99), "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-6}),
    ("RMSprop", {"lr": 0.001}),
    ("RMSprop", {"lr": 0.001, "centered": True, "momentum": 0.5, "weight_decay": 0.1, "alpha": 0.9}),
]


def parameters(wide=None):
    """A field, a vector ndarray, a field with an offset, a field of structs and a number, as a tree; ``wide``: the type of some."""
    wide = wide or (sg.f64 if sg.lang.context.session().device.caps.float64 else sg.f32)
    body = sg.Struct.field({"mass": sg.f32, "spin": sg.types.vector(3, sg.f32)}, shape=2, needs_grad=True)
    return {
        "stiffness": sg.field(sg.f32, shape=(2, 3), needs_grad=True),
        "points": [sg.Vector.ndarray(2, wide, shape=4, needs_grad=True), body],
        "grid": sg.field(wide, shape=(3, 2), offset=(-1, 4), needs_grad=True),
        "scale": sg.field(sg.f32, shape=(), needs_grad=True),
    }


def leaves(tree):
    first, body = tree["points"]
    return [tree["stiffness"], first, body.mass, body.spin, tree["grid"], tree["scale"]]


class Twins:
    """Parameters here and the same ones in torch, with the same gradients."""

    def __init__(self, ours, seed=0):
        self.random = np.random.default_rng(seed)
        self.ours = ours
        self.theirs = [torch.tensor(self.random.random((*p.shape, *p.element_shape)).astype(p.dtype.np)) for p in self.ours]
        for p, t in zip(self.ours, self.theirs):
            p.from_numpy(t.numpy())

    def set_gradients(self):
        for p, t in zip(self.ours, self.theirs):
            t.grad = torch.tensor(self.random.normal(size=t.shape).astype(p.dtype.np))
            p.grad.from_numpy(t.grad.numpy())

    def run(self, ours, theirs, steps):
        for _ in range(steps):
            self.set_gradients()
            ours.step()
            theirs.step()

    def check(self, tolerance=1e-6):
        for p, t in zip(self.ours, self.theirs):
            np.testing.assert_allclose(p.to_numpy(), t.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("name", "options"), CASES)
def test_as_in_torch(session, name, options):
    tree = parameters()
    some = [tree["points"][0], tree["scale"]]
    twins = Twins(some)
    ours, theirs = getattr(sg.optim, name)(some, **options), getattr(torch.optim, name)(twins.theirs, **options)
    twins.run(ours, theirs, 100)
    twins.check()


@pytest.mark.needs("torch")
def test_groups_schedules_and_state_of_torch(session, tmp_path):
    """Groups with arguments of their own, a warm-up, then a cosine; state saved and loaded, and loaded from torch."""
    tree = parameters(sg.f32)
    twins = Twins(leaves(tree))
    own, common = {"stiffness": tree["stiffness"]}, {name: tree[name] for name in ("points", "grid", "scale")}

    def ours():
        return sg.optim.Adam([{"params": own, "lr": 0.1, "betas": (0.5, 0.9)}, {"params": common}], lr=0.01)

    theirs = torch.optim.Adam([{"params": twins.theirs[:1], "lr": 0.1, "betas": (0.5, 0.9)}, {"params": twins.theirs[1:]}], lr=0.01)
    first = ours()
    schedules = []
    for package, optimizer in ((sg.optim, first), (torch.optim, theirs)):
        s = package.lr_scheduler
        parts = [s.LinearLR(optimizer, 0.1, total_iters=3), s.CosineAnnealingLR(optimizer, 10)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedules.append(s.SequentialLR(optimizer, parts, milestones=[3]))
    for _ in range(6):
        twins.run(first, theirs, 1)
        for schedule in schedules:
            schedule.step()
        np.testing.assert_allclose(schedules[0].get_last_lr(), schedules[1].get_last_lr(), rtol=1e-12)
    first.save(tmp_path / "state.npz")
    second = ours()
    second.load(tmp_path / "state.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(sg.SpirogradValueError, match="no file of an optimiser"):
        second.load(tmp_path / "other.npz")
    assert [g["lr"] for g in second.param_groups] == [g["lr"] for g in first.param_groups]
    twins.run(second, theirs, 3)
    third = ours()
    third.load_state_dict(theirs.state_dict())
    twins.run(third, theirs, 3)
    twins.check()


@pytest.mark.needs("torch")
def test_clipping(session):
    tree = parameters()
    twins = Twins(leaves(tree))
    for kind in (2.0, float("inf")):
        for limit in (0.5, 100.0):
            twins.set_gradients()
            norm = sg.optim.clip_grad_norm_(tree, limit, norm_type=kind)
            theirs = torch.nn.utils.clip_grad_norm_(twins.theirs, limit, norm_type=kind)
            np.testing.assert_allclose(norm[None], float(theirs), rtol=1e-6)
            for p, t in zip(twins.ours, twins.theirs):
                np.testing.assert_allclose(p.grad.to_numpy(), t.grad.numpy(), rtol=2e-6)
    twins.set_gradients()
    sg.optim.clip_grad_value_(tree, 0.25)
    torch.nn.utils.clip_grad_value_(twins.theirs, 0.25)
    for p, t in zip(twins.ours, twins.theirs):
        np.testing.assert_array_equal(p.grad.to_numpy(), t.grad.numpy())


@pytest.mark.needs("torch")
@pytest.mark.archs("interpreter")
def test_schedules(session):
    """All schedules against torch's, as factors of a rate: what they compute needs no device."""
    x = sg.field(sg.f32, shape=2, needs_grad=True)
    table = [
        ("LambdaLR", {"lr_lambda": lambda step: 0.5 ** (step // 2)}),
        ("ConstantLR", {"factor": 0.25, "total_iters": 4}),
        ("StepLR", {"step_size": 3, "gamma": 0.5}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("CosineAnnealingLR", {"T_max": 8, "eta_min": 0.01}),
        ("LinearLR", {"start_factor": 0.2, "end_factor": 0.7, "total_iters": 6}),
    ]
    for name, options in table:
        ours = sg.optim.SGD([x], lr=0.1)
        theirs = torch.optim.SGD([torch.zeros(2)], lr=0.1)
        one = getattr(sg.optim.lr_scheduler, name)(ours, **options)
        other = getattr(torch.optim.lr_scheduler, name)(theirs, **options)
        for step in range(12):
            assert one.get_last_lr() == pytest.approx(other.get_last_lr(), rel=1e-9), (name, step)
            theirs.step()
            one.step()
            other.step()
        copy = getattr(sg.optim.lr_scheduler, name)(sg.optim.SGD([x], lr=1.0), **options)
        copy.load_state_dict(one.state_dict())
        assert copy.get_last_lr() == one.get_last_lr()


def test_half_precision(session):
    """Parameters of f16 have state of f32: the mean of squares of gradients of 1e-3 is 0 in f16."""
    x = sg.field(sg.f16, shape=3, needs_grad=True)
    optimizer = sg.optim.Adam([x], lr=0.125)
    for step in (1, 2):
        x.grad.fill(1e-3)
        optimizer.step()
        np.testing.assert_allclose(x.to_numpy().astype(np.float32), -0.125 * step, rtol=2e-3)
    assert optimizer.state[x]["exp_avg_sq"].dtype is sg.f32


def test_zero_grad_closure_and_new_options(session):
    """A weight decay that is switched on later is a new kernel with the same state."""
    x = sg.field(sg.f32, shape=2, needs_grad=True)
    optimizer = sg.optim.SGD(x, lr=0.5, momentum=0.5)
    x.fill(1.0)

    def closure():
        x.grad.fill(1.0)
        return "loss"

    assert optimizer.step(closure) == "loss"
    np.testing.assert_allclose(x.to_numpy(), 0.5)
    optimizer.zero_grad()
    assert (x.grad.to_numpy() == 0).all()
    optimizer.param_groups[0]["weight_decay"] = 1.0
    optimizer.step()
    np.testing.assert_allclose(x.to_numpy(), 0.5 - 0.5 * (0.5 + 0.5))


@pytest.mark.archs("interpreter", "cpu")
def test_refusals(session):
    x = sg.field(sg.f32, shape=2, needs_grad=True)
    n = sg.field(sg.i32, shape=2)
    sparse = sg.field(sg.f32, needs_grad=True)
    node = sg.root.pointer(sg.i, 2)
    node.place(sparse, sparse.grad)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    adam = sg.optim.Adam([x])
    cases = [
        (lambda: sg.optim.SGD([]), "`params` is empty"),
        (lambda: sg.optim.SGD([n]), "has no gradient"),
        (lambda: sg.optim.SGD([x, x]), "twice"),
        (lambda: sg.optim.SGD([np.zeros(2)]), "no field and no ndarray"),
        (lambda: sg.optim.SGD([sparse]), "is sparse"),
        (lambda: sg.optim.SGD([x], lr=-1.0), "`lr` is at least 0"),
        (lambda: sg.optim.SGD([x], nesterov=True), "`nesterov` needs `momentum`"),
        (lambda: sg.optim.Adam([x], betas=(1.0, 0.9)), r"`betas` lie in \[0, 1\)"),
        (lambda: sg.optim.Adam([{"params": x, "speed": 1}]), "has no argument `speed`"),
        (lambda: adam.add_param_group({"params": x}), "twice"),
        (lambda: sg.optim.clip_grad_norm_(x, 1.0, 3.0), "`norm_type` is 2 or infinity"),
        (lambda: sg.optim.LBFGS(x).step(), "takes a function"),
        (lambda: sg.optim.LevenbergMarquardt(adam), "expected a program"),
        (lambda: adam.load_state_dict({"state": {}, "param_groups": []}), "groups of"),
    ]
    for run, text in cases:
        with pytest.raises(sg.SpirogradError, match=text):
            run()
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`Adam.step` cannot run inside of a tape"), sg.ad.Tape(loss):
        adam.step()
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`Adam.step` cannot be recorded in a graph"), sg.Graph():
        adam.step()
