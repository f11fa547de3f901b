"""Elements of fields and arrays that Python reads and writes, one by one: all types, layouts and kinds of values."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")
TYPES = ["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "u1"]
VALUES = [
    0,
    1,
    -1,
    7,
    2.5,
    -0.0,
    1e-8,
    1e300,
    -1e300,
    np.inf,
    np.nan,
    2**24 + 1,
    2**53 + 1,
    -(2**63),
    2**64 - 1,
    True,
    np.int8(3),
    np.float32(0.1),
]


def _layouts(t: object) -> dict[str, sg.Field]:
    found = {name: sg.field(t) for name in ("two levels", "beside", "column", "offset")}
    sg.root.dense(sg.i, 3).dense(sg.i, 4).place(found["two levels"])
    sg.root.dense(sg.ij, (3, 5)).place(found["beside"], sg.field(sg.f64), sg.field(sg.i8))
    sg.root.dense(sg.j, 5).dense(sg.i, 3).place(found["column"])
    sg.root.dense(sg.ij, (3, 5)).place(found["offset"], offset=(-1, 2))
    return {**found, "none": sg.field(t, shape=()), "one": sg.field(t, shape=1), "rows": sg.field(t, shape=(4, 1, 3))}


@pytest.mark.parametrize("name", TYPES)
def test_every_element_has_its_own_place(name: str) -> None:
    t = getattr(sg, name)
    for layout, x in _layouts(t).items():
        origin = (-1, 2) if layout == "offset" else (0,) * len(x.shape)
        values = (np.arange(int(np.prod(x.shape))) % 5 + 1).reshape(x.shape).astype(t.np)
        for index in np.ndindex(*x.shape):
            key = tuple(i + o for i, o in zip(index, origin))
            x[key if key else None] = values[index].item()
        assert (x.to_numpy() == values).all(), layout
        for index in np.ndindex(*x.shape):
            key = tuple(np.int64(i + o) for i, o in zip(index, origin))
            read = x[key if key else None]
            assert read == values[index] and type(read) is type(values[index].item()), layout
        with pytest.raises(IndexError):
            x[tuple(e + o for e, o in zip(x.shape, origin)) or 0]


@pytest.mark.parametrize("name", TYPES)
def test_values_are_converted_as_by_from_python_arrays(name: str) -> None:
    """The short way for plain numbers and the general one for NumPy's agree."""
    t = getattr(sg, name)
    short, general, array = sg.field(t, ()), sg.field(t, ()), sg.ndarray(t, 1)
    for value in VALUES:
        outcomes = []
        for x, key, given in ((short, None, value), (array, 0, value), (general, None, np.array([value])[0])):
            try:
                x[key] = given
                outcomes.append(repr(x[key]))
            except sg.SpirogradError as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1], value
        if np.array(value).dtype.kind != "O":
            assert outcomes[0] == outcomes[2], value


def test_elements_that_are_vectors_and_matrices() -> None:
    for arrangement in (sg.Layout.AOS, sg.Layout.SOA):
        v, m = sg.Vector.field(3, sg.f32, (2, 3), layout=arrangement), sg.Matrix.field(2, 2, sg.i32, 4, layout=arrangement)
        w = sg.Vector.ndarray(3, sg.f32, (2, 3))
        for x in (v, w):
            x[1, 2] = [1, 2.5, 3]
            x[0, 1] = sg.Vector([4.0, 5.0, 6.0])
            x[0, 0] = 7
            x[1, 0] = np.array([1.5, 2.5, 3.5])
            x[1, 1] = (8, 9, 10)
            x[1, 1][1] += 0.5
            x[1, 1].z = -1
            assert x.to_numpy().tolist() == [[[7] * 3, [4, 5, 6], [0] * 3], [[1.5, 2.5, 3.5], [8, 9.5, -1], [1, 2.5, 3]]]
            assert list(x[1, 1]) == [8, 9.5, -1]
            for wrong in ([1, 2], [[1, 2, 3]], "abc", None, sg.Matrix([[1.0, 2.0, 3.0]])):
                with pytest.raises(sg.SpirogradTypeError):
                    x[0, 0] = wrong
        m[3] = [[1, 2], [3, 4]]
        m[2] = sg.Matrix([[5, 6], [7, 8]])
        m[3][1, 0] = 9
        assert m.to_numpy()[2:].tolist() == [[[5, 6], [7, 8]], [[1, 2], [9, 4]]] and m[3][1, 0] == 9
        assert m.get_scalar_field(1, 0)[3] == 9
        m.get_scalar_field(1, 0)[2] = 11
        assert m[2][1, 0] == 11


def test_elements_are_read_after_launches_and_kept_by_tapes() -> None:
    x, y = sg.field(sg.f32, 3, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def total():
        for i in x:
            y[None] += x[i] ** 3

    x[0], x[1], x[2] = 1, 2, 3
    for _ in range(3):
        y[None] = 0
        total()
        assert y[None] == 36
    with sg.ad.Tape(y):
        total()
        x[1] = 5.0  # after it was read: the gradient is that of 2
    assert x.grad.to_numpy().tolist() == [3, 12, 27] and x[1] == 5
