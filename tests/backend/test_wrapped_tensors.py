"""Tensors as programs of the family make them: of fields and arrays, with options that do not fit, copied."""

import copy
import pickle

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")
PAIRS = sg.types.struct(a=sg.i32, b=sg.f32)


def test_wrapped(arch: str) -> None:
    """What a program of the family writes where a tensor holds a field or an array."""
    made = [sg.field(sg.f32, 3, needs_grad=True), sg.ndarray(sg.f32, 3), sg.Vector.field(2, sg.f32, 3), sg.Matrix.ndarray(2, 2, sg.f32, 3)]
    kinds = [sg.Tensor, sg.Tensor, sg.VectorTensor, sg.MatrixTensor]

    @sg.kernel
    def count(a: sg.Tensor):
        for i in a:
            a[i] += i + 1

    for x, kind in zip(made, kinds):
        count(x)
        t = sg.Tensor(x)
        assert isinstance(t, kind) and t._unwrap() is x and sg.wrap(t) is t
        count(t)
        assert (t.to_numpy().reshape(3, -1) == [[2], [4], [6]]).all()
    assert isinstance(made[0].grad, sg.Tensor)
    assert [t.backend for t in made] == [sg.Backend.FIELD, sg.Backend.NDARRAY] * 2
    for other in (np.ones(3), 3, PAIRS.field(shape=2)):
        with pytest.raises(TypeError, match="made of a field or an array"):
            sg.wrap(other)


def test_options(arch: str) -> None:
    assert [int(b) for b in sg.Backend] == [0, 1]
    assert [sg.tensor(sg.f32, 3, backend=b).backend for b in (0, 1)] == [sg.Backend.FIELD, sg.Backend.NDARRAY]
    for backend in (2, "FIELD", True, None):
        with pytest.raises(ValueError, match=r"is Backend\.FIELD or Backend\.NDARRAY"):
            sg.tensor(sg.f32, 3, backend=backend)
    with pytest.raises(TypeError, match=r"`order` is an option of fields\n.*`layout=\(1, 0\)`"):
        sg.tensor(sg.f32, (2, 3), order="ji")


@pytest.mark.parametrize("backend", list(sg.Backend))
def test_copied(arch: str, backend: sg.Backend) -> None:
    t = sg.tensor(sg.i32, (2, 3), backend=backend, layout=(1, 0))
    t.from_numpy(np.arange(6).reshape(2, 3))
    for twin in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert (type(twin), twin.layout) == (type(t), (1, 0))
        assert (twin.to_numpy() == t.to_numpy()).all()
