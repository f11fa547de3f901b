"""Fields, ndarrays and tensors: element access, transfers, fills, copies, against NumPy."""

import copy
import pickle

import needs
import numpy as np
import pytest
from unit.lang_data.host_session import HostSession

from spirograd.base.dtypes import ALL, f32, f64, i8, i32, u1, u8
from spirograd.base.errors import SpirogradIndexError, SpirogradRuntimeError, SpirogradTypeError
from spirograd.lang import context
from spirograd.lang.annotations import vector
from spirograd.lang.data.enums import Backend, Layout
from spirograd.lang.data.field import field
from spirograd.lang.data.ndarray import ndarray
from spirograd.lang.data.tensor import Tensor, VectorTensor, tensor
from spirograd.lang.data.tree import root
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.struct import struct

MAKERS = {
    "scalar": lambda t: field(t, (3, 4)),
    "0-d": lambda t: field(t, ()),
    "ordered": lambda t: field(t, (3, 4), order="ji"),
    "offset": lambda t: field(t, (3, 4), offset=(-2, 5)),
    "vector": lambda t: Vector.field(3, t, shape=5),
    "vector soa": lambda t: Vector.field(3, t, shape=5, layout=Layout.SOA),
    "matrix": lambda t: Matrix.field(2, 3, t, shape=(4, 2)),
    "matrix soa": lambda t: Matrix.field(2, 3, t, shape=(4, 2), layout=Layout.SOA),
    "ndarray": lambda t: ndarray(t, (3, 4)),
    "vector ndarray": lambda t: Vector.ndarray(3, t, (2, 2)),
    "matrix ndarray": lambda t: Matrix.ndarray(2, 2, t, 3),
    "tensor": lambda t: tensor(t, (3, 4), layout=(1, 0)),
    "field tensor": lambda t: tensor(t, (3, 4), layout=(1, 0), backend=Backend.FIELD),
    "vector tensor": lambda t: Vector.tensor(3, t, (2,), backend=Backend.FIELD),
}


@pytest.mark.parametrize("addressable", [True, False])
@pytest.mark.parametrize("t", ALL)
@pytest.mark.parametrize("maker", MAKERS)
def test_contents(maker, t, addressable):
    context.set_session(HostSession(addressable))
    x, neighbour = MAKERS[maker](t), MAKERS[maker](t)
    neighbour.fill(1)
    full = x.shape + x.element_shape
    assert x.to_numpy().shape == full and x.to_numpy().dtype == t.np and not x.to_numpy().any()
    data = (np.arange(np.prod(full)) % 2).reshape(full).astype(t.np)
    x.from_numpy(data)
    np.testing.assert_array_equal(x.to_numpy(), data)
    assert x.to_numpy(dtype=np.float64).dtype == np.float64
    origin = getattr(x, "origin", ()) or (0,) * len(x.shape)
    for index in np.ndindex(*x.shape):
        at = tuple(i + o for i, o in zip(index, origin)) or None
        got = x[at]
        np.testing.assert_array_equal(got.to_numpy() if x.element_shape else got, data[index])
    y = MAKERS[maker](t)
    y.copy_from(x)
    np.testing.assert_array_equal(y.to_numpy(), data)
    y.fill(1)
    np.testing.assert_array_equal(y.to_numpy(), np.ones_like(data))
    x.copy_from(x)
    np.testing.assert_array_equal(x.to_numpy(), data)
    np.testing.assert_array_equal(neighbour.to_numpy(), np.ones_like(data))
    np.testing.assert_array_equal(np.from_dlpack(x) if t is not u1 else x.to_numpy(), data)


def test_transfers_take_one_copy():
    x = field(f32, (64, 64))
    allocation = x.tree.allocation
    before = allocation.transfers
    x.to_numpy()
    x.from_numpy(np.ones((64, 64)))
    assert allocation.transfers == before + 2


def test_element_writes_reach_memory():
    v = Vector.field(3, f32, shape=4)
    v[1] = [1, 2, 3]
    v[1][0] = 7
    v[1].yz = [8, 9]
    v[2] = 5
    assert v.to_numpy().tolist() == [[0, 0, 0], [7, 8, 9], [5, 5, 5], [0, 0, 0]]
    local = v[1].copy()
    local[0] = 100
    assert v[1][0] == 7
    a = Vector.ndarray(2, i32, 3)
    a[1] = Vector([1, 2])
    a[1].y = 9
    assert a.to_numpy().tolist() == [[0, 0], [1, 9], [0, 0]]
    component = v.get_scalar_field(1)
    component.fill(4)
    assert v.to_numpy()[:, 1].tolist() == [4] * 4 and v[1][0] == 7 and component.shape == (4,)
    v.fill(Vector([1, 2, 3]))
    assert v.to_numpy().tolist() == [[1, 2, 3]] * 4


def test_struct_fields():
    body = struct(mass=f64, at=vector(2, f32), flags=struct(on=u8))
    for layout in Layout:
        s = body.field(shape=3, layout=layout)
        s[1] = {"mass": 2, "at": [3, 4], "flags": {"on": 1}}
        s[1].mass = 5
        s[1].at[1] = 6
        s[1].flags.on = 7
        assert s[1].to_dict() == {"mass": 5.0, "at": [3.0, 6.0], "flags": {"on": 7}}
        assert s.at.to_numpy().tolist() == [[0, 0], [3, 6], [0, 0]] and s.keys == ["mass", "at", "flags"]
        other = body.field(shape=3)
        other.copy_from(s)
        assert other.to_numpy()["mass"].tolist() == [0, 5, 0]
        s.from_numpy({"mass": np.array([1, 2, 3])})
        assert s.mass.to_numpy().tolist() == [1, 2, 3]
        s.fill(1)
        assert s.flags.on.to_numpy().tolist() == [1, 1, 1]
    graded = struct(a=f32, n=i32).field(shape=2, needs_grad=False)
    assert not graded.has_grad()
    aos, soa = body.field(shape=8), body.field(shape=8, layout=Layout.SOA)
    assert aos.mass.refs().layout.terms[0].stride == 24 and soa.mass.refs().layout.terms[0].stride == 8


def test_gradients():
    x = field(f32, 3, needs_grad=True, needs_dual=True)
    assert x.has_grad() and x.has_dual() and x.grad.shape == (3,) and x.refs("grad") != x.refs()
    x.grad.fill(2)
    assert x.to_numpy().tolist() == [0, 0, 0] and x.grad.to_numpy().tolist() == [2, 2, 2]
    assert not field(f32, 3).has_grad() and field(i32, 3).grad is None
    v = Vector.field(2, f32, shape=3, needs_grad=True, layout=Layout.SOA)
    assert v.grad.to_numpy().shape == (3, 2) and v.get_scalar_field(0).grad.shape == (3,)
    a = ndarray(f32, 3, needs_grad=True)
    assert a.grad.shape == (3,) and ndarray(f32, 3).grad is None
    t = tensor(f32, 3, needs_grad=True, backend=Backend.FIELD)
    assert isinstance(t.grad, Tensor)
    for make in (field, ndarray):
        with pytest.raises(SpirogradRuntimeError, match="floats"):
            make(i32, 3, needs_grad=True)
    with pytest.raises(SpirogradRuntimeError, match="needs_grad"):
        field(f32, 3).refs("grad")


def test_components_placed_apart():
    v = vector(2, f32).unplaced_field("v", False, False, Layout.AOS)
    root.dense(0, 4).place(v.get_scalar_field(0))
    root.dense(0, 4).place(v.get_scalar_field(1))
    v[3] = [1, 2]
    assert v.to_numpy()[3].tolist() == [1, 2] and v.shape == (4,)
    w = vector(2, f32).unplaced_field("w", False, False, Layout.AOS)
    root.dense(0, 4).place(w.get_scalar_field(0))
    with pytest.raises(SpirogradRuntimeError, match="components"):
        w.get_scalar_field(0).fill(1)


def test_index_errors():
    f, o, z, v = field(f32, (3, 4)), field(f32, 3, offset=-2), field(f32, ()), Vector.field(2, f32, shape=3)
    o[-2] = 1
    o[0] = 2
    assert o.to_numpy().tolist() == [1, 0, 2]
    for x, index in [(f, (3, 0)), (f, (0, -1)), (f, 1), (f, (0, 0, 0)), (o, 1), (o, -3), (z, 0), (v, 3), (ndarray(f32, 2), 2)]:
        with pytest.raises(SpirogradIndexError):
            x[index]
    with pytest.raises(SpirogradTypeError, match="sliced"):
        f[0, :]
    with pytest.raises(SpirogradTypeError, match="integer"):
        f[0, 1.5]
    z[None] = 4
    assert z[None] == 4.0 and f[Vector([1, 2])] == 0


def test_misuse():
    f, v = field(f32, (3, 4)), Vector.field(3, f32, shape=2)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        f.from_numpy(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="shape"):
        f.copy_from(field(f32, 3))
    with pytest.raises(SpirogradTypeError, match="number"):
        f.fill([1, 2])
    with pytest.raises(SpirogradTypeError, match=r"shape \(3,\)"):
        v[0] = [1, 2]
    with pytest.raises(SpirogradTypeError, match="is a f32"):
        f[0, 0] = [1]
    with pytest.raises(SpirogradRuntimeError, match="positive"):
        field(f32, (3, 0))
    with pytest.raises(SpirogradRuntimeError, match="permutation"):
        field(f32, (3, 4), order="jk")
    with pytest.raises(SpirogradRuntimeError, match="need a `shape`"):
        field(f32, offset=3)
    with pytest.raises(ValueError, match="permutation"):
        tensor(f32, (2, 3), layout=(0, 0))
    with pytest.raises(SpirogradTypeError, match="inside kernels"):
        list(f)


def test_sessions_end():
    f, a = field(f32, 3), ndarray(f32, 3)
    f.fill(1)
    context.set_session(HostSession())
    for x in (f, a):
        with pytest.raises(SpirogradRuntimeError, match="earlier session"):
            x.fill(1)


def test_arrays_copy_and_pickle():
    a = Vector.ndarray(3, f32, 4, needs_grad=True)
    a.from_numpy(np.arange(12).reshape(4, 3))
    a.grad.fill(2)
    for b in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        a[0][0] = 50
        assert b.to_numpy().tolist() == np.arange(12).reshape(4, 3).tolist() and b.grad.to_numpy().tolist() == [[2] * 3] * 4
        assert type(b) is type(a) and b[1].to_list() == [3.0, 4.0, 5.0]
        a[0][0] = 0
    assert ndarray(i8, (0, 3)).to_numpy().shape == (0, 3)
    assert a.to_numpy(copy=False).base is not None
    a.to_numpy(copy=False)[2, 1] = 77
    assert a[2][1] == 77


def test_torch():
    torch = needs.package("torch")
    for x in (field(f32, (2, 3)), ndarray(f32, (2, 3)), Vector.field(3, f32, shape=2)):
        x.from_torch(torch.arange(6.0).reshape(2, 3).requires_grad_())
        assert x.to_torch().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert torch.utils.dlpack.from_dlpack(x.to_dlpack()).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_tensors_know_what_they_are():
    for backend in Backend:
        t, v = tensor(f32, (2, 3), layout=(1, 0), backend=backend), Vector.tensor(3, f32, 2, backend=backend)
        assert isinstance(t, Tensor) and isinstance(v, VectorTensor) and t.backend is backend
        assert t.layout == (1, 0) and t.shape == (2, 3) and v.layout is None and tensor(f32, (2, 3), layout=(0, 1)).layout is None
    assert tensor(f32, (2, 3), layout=(1, 0), backend=Backend.FIELD).refs().layout.terms[0].axis == 1
    assert tensor(vector(3, f32), 2).element_shape == (3,)
