"""What messages call fields: the name that the user gave, else that of the variable, attribute or list; gradients say how to have one."""

import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter")]  # no back end has a say in it


@sg.data_oriented
class Model:
    def __init__(self):
        self.weight = sg.field(sg.f32, shape=4, needs_grad=True)
        self.layers = [sg.field(sg.f32, shape=4, needs_grad=True) for _ in range(2)]
        self.by_name = {"bias": sg.Vector.field(2, sg.f32, shape=4, needs_grad=True)}

    @sg.kernel
    def run(self, loss: sg.template()):
        for i in self.weight:
            loss[None] += self.weight[i] * self.layers[1][i] * self.by_name["bias"][i].x


@sg.kernel
def square(x: sg.template(), loss: sg.template()):
    for i in x:
        loss[None] += x[i] ** 2


def test_variables_attributes_and_items():
    bump = sg.field(sg.f32, shape=4, needs_grad=True)
    given = sg.field(sg.f32, shape=4, needs_grad=True, name="as given")
    total = sg.field(sg.f32, shape=(), needs_grad=True)
    bump.fill(1.0)
    assert "`bump`" in square.grad.explain(bump, total) and "`total`" in square.grad.explain(bump, total)
    assert "`as given`" in square.grad.explain(given, total)
    text = Model().run.grad.explain(total)
    assert all(name in text for name in ("`weight`", "`layers[1]`", "`by_name['bias']`", "`total`")) and "`field" not in text
    assert bump.grad.refs().name == "bump.grad"


def test_gradients_without_memory_say_how_to_have_one():
    x, v = sg.field(sg.f32, shape=3), sg.Vector.field(2, sg.f32, shape=3)
    s = sg.types.struct(a=sg.f32).field(shape=2)
    for gradient in (x.grad, v.grad, s.grad, s.a.grad):
        assert "needs_grad=True" in str(gradient)
        for act in (lambda g: g[0], lambda g: g.fill(1), lambda g: g.to_numpy(), lambda g: g.shape):
            with pytest.raises(sg.SpirogradRuntimeError, match="needs_grad=True"):
                act(gradient)
    assert "needs_grad=True" in repr(x.grad) and "needs_dual=True" in str(x.dual)
    y = sg.field(sg.f32)
    sg.root.place(y, y.grad)
    assert str(y.grad) == "0.0" and "needs_grad" not in repr(y.grad)
