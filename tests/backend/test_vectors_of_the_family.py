"""Types of vectors without sizes, vectors from arrays of other libraries, and shapes that broadcast in Python."""

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import taichi as ti
from spirograd.lang.annotations import MatrixType, VectorType

torch = needs.package("torch")
pytestmark = pytest.mark.usefixtures("session")


def test_the_class_of_vector_types():
    assert ti.lang.matrix.VectorType is VectorType
    assert isinstance(sg.types.vector(3, sg.f32), VectorType) and isinstance(sg.math.vec3, VectorType)
    assert isinstance(sg.types.Vector[3, sg.f32], VectorType)
    assert not isinstance(sg.math.mat3, VectorType) and isinstance(sg.math.mat3, MatrixType)
    built = ti.lang.matrix.VectorType(2, sg.f32)
    assert built == sg.types.vector(2, sg.f32) and built(1, 2).to_list() == [1.0, 2.0]

    @sg.kernel
    def total(v: built) -> sg.f32:
        return v.sum()

    assert total(built(3, 4)) == 7


def test_functions_that_take_and_return_vectors_of_any_size():
    @sg.func
    def doubled(v: sg.types.vector()) -> sg.types.vector():
        return v * 2

    @sg.func
    def turned(m: sg.types.matrix()) -> sg.types.matrix(dtype=sg.f32):
        return m.transpose()

    @sg.kernel
    def all_sizes() -> sg.types.vector(4, sg.f32):
        m = turned(sg.Matrix([[1, 2], [3, 4], [5, 6]]))
        return sg.Vector([doubled(sg.Vector([1, 2])).sum(), doubled(sg.Vector([1.5, 2, 3])).sum(), m[1, 2], m[0, 2]])

    assert all_sizes().to_list() == [6.0, 13.0, 6.0, 5.0]


def test_arrays_of_vectors_of_any_size():
    @sg.kernel
    def scaled(v: sg.types.ndarray(dtype=sg.types.vector(), ndim=1), m: sg.types.ndarray(dtype=sg.types.matrix(), ndim=1)):
        for i in v:
            v[i] = v[i] * 2 + m[i][0, 1]

    for n in (2, 3):
        v, m = sg.Vector.ndarray(n, sg.f32, 4), sg.Matrix.ndarray(2, n, sg.f32, 4)
        v.fill(1.5)
        m.fill(2.0)
        scaled(v, m)
        assert (v.to_numpy() == np.full((4, n), 5.0, np.float32)).all()
    with pytest.raises(TypeError, match="elements"):
        scaled(sg.ndarray(sg.f32, 4), m)


def test_types_without_sizes_where_sizes_are_needed():
    any_vector = sg.types.vector()
    assert (any_vector.n, any_vector.dtype, sg.types.matrix().m) == (None, None, None)
    for use in (lambda: any_vector([1, 2]), lambda: sg.field(any_vector, 3), lambda: sg.types.struct(a=any_vector).field(shape=3)):
        with pytest.raises(TypeError, match=r"no size"):
            use()
    with pytest.raises(TypeError, match="rows and columns"):
        sg.types.matrix(3)

    @sg.kernel
    def result() -> sg.types.vector():
        return sg.Vector([1.0, 2.0])

    with pytest.raises(TypeError, match=r"`vector\(\)` has no size"):
        result()

    @sg.func
    def takes_vectors(v: sg.types.vector()):
        return v.sum()

    @sg.kernel
    def gives_a_number() -> sg.f32:
        return takes_vectors(1.0)

    with pytest.raises(TypeError, match="expected a vector"):
        gives_a_number()


def test_vector_types_without_a_type_of_entries_keep_the_entries():
    assert sg.types.vector(3)(1.5, 2, 3).to_list() == [1.5, 2.0, 3.0]
    assert sg.types.vector(2)(1).to_list() == [1, 1]


ARRAYS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), pytest.param("tracked", marks=pytest.mark.needs("torch"))]


@pytest.mark.parametrize("library", ARRAYS)
def test_vectors_matrices_and_structs_of_arrays(library):
    def made(numbers):
        array = np.array(numbers, np.float32)
        return array if library == "numpy" else torch.tensor(array, requires_grad=library == "tracked")

    vec3, mat2 = sg.math.vec3, sg.math.mat2
    assert vec3(made([1, 2, 3])).to_list() == vec3(made([1, 2]), 3).to_list() == vec3(1, made([2, 3])).to_list() == [1, 2, 3]
    assert vec3(made(2)).to_list() == [2, 2, 2] and sg.Vector([made(1), made(2)]).to_list() == [1, 2]
    assert mat2(made([[1, 2], [3, 4]])).to_list() == sg.Matrix(made([[1, 2], [3, 4]])).to_list() == [[1, 2], [3, 4]]
    assert (sg.Vector([1.0, 2.0]) + made([3, 4])).to_list() == [4, 6]

    pair = sg.types.struct(v=vec3, x=sg.f32)
    pairs = pair.field(shape=3)
    pairs[0] = pair(v=made([1, 2, 3]), x=made(4))
    pairs[1].v, pairs.x[1] = made([5, 6, 7]), made(8)
    pairs.v[2] = made([9, 9, 9])
    assert pairs.v.to_numpy().tolist() == [[1, 2, 3], [5, 6, 7], [9, 9, 9]] and pairs.x.to_numpy().tolist() == [4, 8, 0]

    numbers, vectors, array = sg.field(sg.f32, 2), sg.Vector.field(2, sg.f32, 2), sg.ndarray(sg.f32, 2)
    numbers.fill(made(3))
    vectors.fill(made([1, 2]))
    numbers[1] = array[0] = made(5)
    array[1] = 6
    vectors[1] = made([3, 4])
    assert numbers.to_numpy().tolist() == [3, 5] and array.to_numpy().tolist() == [5, 6]
    assert vectors.to_numpy().tolist() == [[1, 2], [3, 4]]
    for wrong in (lambda: vec3(made([1, 2])), lambda: numbers.__setitem__(0, made([1, 2]))):
        with pytest.raises(TypeError):
            wrong()


OPERATIONS = {
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "truediv": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "less": lambda a, b: a < b,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shapes", [((2,), (2, 2)), ((2, 2), (2,)), ((3,), (2, 3)), ((2, 1), (2,)), ((2, 1), (1, 3))])
def test_shapes_broadcast_in_python(name, shapes):
    a, b = (np.arange(1.0, 1 + np.prod(shape)).reshape(shape) for shape in shapes)
    result = OPERATIONS[name](sg.Matrix(a), sg.Matrix(b))
    np.testing.assert_allclose(result.to_numpy(), OPERATIONS[name](a, b))


def test_shapes_that_do_not_broadcast():
    with pytest.raises(TypeError, match="shapes differ: a vector of 2 with a 3x3 matrix"):
        sg.Vector([1, 2]) * sg.Matrix(np.ones((3, 3)))

    @sg.kernel
    def product():
        print(sg.Vector([1.0, 2.0]) * sg.Matrix([[1.0, 2.0], [3.0, 4.0]]))

    with pytest.raises(TypeError, match="shapes differ: a vector of 2 with a 2x2 matrix"):
        product()


TYPES = [sg.f16, sg.f32, sg.f64, sg.i8, sg.i16, sg.i32, sg.i64, sg.u8, sg.u16, sg.u32, sg.u64, sg.u1]


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_vectors_from_kernels_remember_their_type(way, t):
    needs.of_type(t)

    @sg.kernel
    def vector() -> sg.types.vector(3, t):
        return sg.Vector([1, 0, 1], t)

    @sg.kernel
    def several() -> (sg.types.matrix(2, 2, t), sg.types.struct(v=sg.types.vector(2, t), n=t), t):
        return sg.Matrix([[1, 0], [1, 1]], t), sg.types.struct(v=sg.types.vector(2, t), n=t)(v=[1, 0], n=1), sg.cast(1, t)

    for _ in range(3):
        v, (m, s, number) = vector(), several()
        assert v.to_numpy().dtype == np.asarray(v).dtype == m.to_numpy().dtype == s.v.to_numpy().dtype == t.np
        assert (v.to_list(), m.to_list(), s.v.to_list()) == ([1, 0, 1], [[1, 0], [1, 1]], [1, 0])
        assert all(type(x) in (bool, int, float) for x in (number, s.n, v.to_list()[0]))
    if t.is_float:
        assert (v + v * 0.5).to_numpy().dtype == (m @ m).to_numpy().dtype == t.np
