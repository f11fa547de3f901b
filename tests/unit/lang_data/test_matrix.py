"""Vectors and matrices against NumPy, in Python scope; structure of what they emit in kernels."""

import copy
import operator
import pickle

import numpy as np
import pytest

from spirograd.base.dtypes import f32, f64, i32, u1
from spirograd.base.errors import SpirogradIndexError, SpirogradTypeError
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.scalar import Value

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("op", OPERATORS + COMPARISONS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 4)])
def test_entrywise_like_numpy(op, shape):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 2, shape), rng.uniform(0.5, 2, shape)
    np.testing.assert_allclose(op(Matrix(a), Matrix(b)).to_numpy(), op(a, b))
    np.testing.assert_allclose(op(Matrix(a), 1.5).to_numpy(), op(a, 1.5))
    np.testing.assert_allclose(op(1.5, Matrix(a)).to_numpy(), op(1.5, a))
    np.testing.assert_allclose(op(a, Matrix(b)).to_numpy(), op(a, b))


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_bits_like_numpy(op):
    a, b = np.array([5, 6, 7]), np.array([1, 2, 3])
    assert op(Vector(a), Vector(b)).to_list() == op(a, b).tolist()
    assert op(Vector(a), 2).to_list() == op(a, 2).tolist()
    assert (~Vector(a)).to_list() == (~a).tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_square_matrices(n):
    a = np.random.default_rng(n).normal(size=(n, n))
    m = Matrix(a)
    np.testing.assert_allclose(m.inverse().to_numpy(), np.linalg.inv(a), rtol=1e-9)
    np.testing.assert_allclose(m.determinant(), np.linalg.det(a), rtol=1e-9)
    np.testing.assert_allclose(m.trace(), np.trace(a))
    np.testing.assert_allclose(m.transpose().to_numpy(), a.T)
    np.testing.assert_allclose((m @ m).to_numpy(), a @ a)


def test_products():
    a, b, v = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.array([1.0, 2, 3])
    np.testing.assert_allclose((Matrix(a) @ Matrix(b)).to_numpy(), a @ b)
    np.testing.assert_allclose((Matrix(a) @ Vector(v)).to_numpy(), a @ v)
    np.testing.assert_allclose((Vector(v) @ Matrix(b)).to_numpy(), v @ b)
    assert Vector(v) @ Vector(v) == v @ v
    assert Vector(v).dot([4, 5, 6]) == 32
    np.testing.assert_allclose(Vector(v).cross(Vector([3.0, 1, 2])).to_numpy(), np.cross(v, [3, 1, 2]))
    assert Vector([1, 2]).cross(Vector([3, 5])) == -1
    np.testing.assert_allclose(Vector(v).outer_product(Vector([1, 2])).to_numpy(), np.outer(v, [1, 2]))
    assert Matrix(a).frobenius_inner(Matrix(a)) == (a * a).sum()


def test_reductions_and_norms():
    v = Vector([3.0, -4.0])
    assert (v.norm(), v.norm_sqr(), v.norm_inv(), v.sum(), v.min(), v.max()) == (5.0, 25.0, 0.2, -1.0, -4.0, 3.0)
    assert v.norm(eps=11.0) == 6.0
    np.testing.assert_allclose(v.normalized().to_numpy(), [0.6, -0.8])
    assert (v > 0).any() and not (v > 0).all()


def test_constructors():
    assert Vector.unit(3, 1).to_list() == [0, 1, 0]
    assert Matrix.identity(f32, 2).to_list() == [[1.0, 0.0], [0.0, 1.0]]
    assert Matrix.diag(dim=2, val=3).to_list() == [[3, 0], [0, 3]]
    assert Matrix.zero(f64, 2, 3).shape == (2, 3)
    assert Vector.one(i32, 2).to_list() == [1, 1]
    rows = [Vector([1, 2]), Vector([3, 4])]
    assert Matrix.rows(rows).to_list() == Matrix(rows).to_list() == [[1, 2], [3, 4]]
    assert Matrix.cols(rows).to_list() == [[1, 3], [2, 4]]
    assert Vector([1.7, 2], dt=i32).to_list() == [1, 2]
    assert Vector([1, 2.5]).to_list() == [1.0, 2.5]
    assert Vector([1, 2], dt=f64).dtype is f64
    assert repr(Matrix([[1.0, 2.0], [3, 4]])) == "[[1.0, 2.0], [3.0, 4.0]]"
    with pytest.raises(SpirogradTypeError, match="one length"):
        Matrix([[1, 2], [3]])
    with pytest.raises(SpirogradTypeError, match="at least one"):
        Vector([])
    with pytest.raises(SpirogradTypeError, match="string"):
        Vector(["a"])


def test_indices_slices_swizzles():
    m = Matrix([[1, 2, 3], [4, 5, 6]])
    assert m[1, -1] == 6 and m[0].to_list() == [1, 2, 3] and m[:, 1].to_list() == [2, 5]
    assert m[0:2, 1:].to_list() == [[2, 3], [5, 6]]
    m[0, 1] = 9
    m[1, :] = [7, 8, 9]
    assert m.to_list() == [[1, 9, 3], [7, 8, 9]]
    v = Vector([1, 2, 3, 4])
    assert v.zyx.to_list() == [3, 2, 1] and v.w == 4 and v.rg.to_list() == [1, 2] and v.stpq.to_list() == [1, 2, 3, 4]
    v.xy = [8, 9]
    v.z = 7
    assert v.to_list() == [8, 9, 7, 4] and v[1:3].to_list() == [9, 7]
    assert list(v) == [8, 9, 7, 4] and len(m) == 2
    with pytest.raises(SpirogradIndexError, match="out of range"):
        v[4]
    with pytest.raises(SpirogradIndexError, match="3 indices"):
        m[0, 1, 2]
    with pytest.raises(AttributeError, match="no component `xyz`"):
        _ = Vector([1, 2]).xyz
    with pytest.raises(SpirogradTypeError, match="cannot be assigned"):
        v[0] = [1, 2]


def test_shape_errors_teach():
    with pytest.raises(SpirogradTypeError, match="matrix product is `@`"):
        Vector([1, 2]) + Matrix([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(SpirogradTypeError, match="3 columns, but 2 rows"):
        Matrix([[1, 2, 3]]) @ Vector([1, 2])
    with pytest.raises(SpirogradTypeError, match="outer_product"):
        Vector([1, 2]).transpose()
    with pytest.raises(SpirogradTypeError, match="any"):
        bool(Vector([1, 2]))


def test_copies_and_pickles():
    m = Matrix([[1, 2], [3, 4]])
    for other in (pickle.loads(pickle.dumps(m)), copy.copy(m), copy.deepcopy(m), m.copy()):
        other[0, 0] = 9
        assert type(other) is Matrix and other[0, 0] == 9 and m[0, 0] == 1


def test_functions_of_the_language_work_entry_by_entry():
    v = Vector([1.0, 4.0])
    assert arithmetic.sqrt(v).to_list() == [1.0, 2.0]
    assert arithmetic.max(v, 2.0).to_list() == [2.0, 4.0]
    assert arithmetic.select(v > 2, v, 0.0).to_list() == [0.0, 4.0]
    assert f32(Vector([1, 2])).dtype is f32


def test_in_kernels(tracing):
    i, x = tracing
    v = Vector([i, 1, x])
    assert v.dtype is f32 and all(isinstance(e, Value) for e in v.entries)
    assert (v < 1).dtype is u1
    assert (i * v).dtype is f32 and (v / i).shape == (3,)
    assert Vector([1, 2]).entries == (1, 2)  # literals stay literals until they meet a value
    assert Vector([1, 2], dt=f32).dtype is f32


def test_run_time_indices(tracing):
    i, x = tracing
    m = Matrix([[x, 1.0], [2.0, 3.0]])
    assert m[i, 1].op.code is ir.extract
    assert m[1, 0].op.code is ir.const
    row = m[i, :]
    assert row.shape == (2,) and all(e.op.code is ir.extract for e in row.entries)
    changed = m.with_entry((i, 0), 5)
    assert changed[0, 0].op.args[0].code is ir.insert and changed.dtype is f32
    assert m.with_entry((0, 0), i)[0, 0].dtype is f32
    assert m.with_entry((1, 1), 7)[0, 0].op is m[0, 0].op
    with pytest.raises(SpirogradTypeError, match="integers"):
        m[x, 0]
    with pytest.raises(SpirogradTypeError, match="slice"):
        Vector([x, x])[i:]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
def test_floats_without_a_result_in_python_are_those_of_numpy():
    np.testing.assert_array_equal(Vector([0.0, 0.0]).normalized().to_numpy(), [np.nan, np.nan])
    for op in (operator.truediv, operator.floordiv, operator.mod):
        np.testing.assert_array_equal(op(Vector([1.0, -2.5, 0.0]), 0.0).to_numpy(), op(np.array([1.0, -2.5, 0.0]), 0.0))
    np.testing.assert_array_equal((Vector([1, -1, 0]) / 0).to_numpy(), [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal((Vector([10.0, 0.0]) ** 400).to_numpy(), [np.inf, 0])
    for op in (operator.floordiv, operator.mod):
        with pytest.raises(SpirogradTypeError, match=r"constant expression: integer .* by zero"):
            op(Vector([1, 2]), 0)
