"""Structs, struct types and the protocol that splits aggregates into scalars."""

import pickle

import numpy as np
import pytest

from spirograd import types
from spirograd.base.dtypes import f32, f64, i32, u8
from spirograd.base.errors import SpirogradTypeError
from spirograd.lang.annotations import NDArray, NdarrayType, is_integral, is_signed, matrix, vector
from spirograd.lang.leaves import build, leaf_dtypes, numbers_of
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.struct import Struct, dataclass, struct, type_of

Particle = struct(mass=f32, at=vector(3, f64), inner=struct(k=u8, m=matrix(2, 2, i32)))


def test_values():
    s = Struct(a=1, b=[1, 2])
    assert s.a == 1 and s["b"].to_list() == [1, 2] and s.keys == ["a", "b"]
    s.a = 5
    s.b[0] = 7
    s["b"].y = 8
    assert s.to_dict() == {"a": 5, "b": [7, 8]} and repr(s) == "{'a': 5, 'b': [7, 8]}"
    assert Struct({"a": 1, "n": {"x": 2}}).n.x == 2
    assert pickle.loads(pickle.dumps(s)) == s
    with pytest.raises(AttributeError, match="no member `z`"):
        _ = s.z
    with pytest.raises(SpirogradTypeError, match="no member `z`"):
        s.z = 1
    with pytest.raises(SpirogradTypeError, match="cannot have a member called"):
        Struct(entries=1)


def test_types_convert_and_fill():
    p = Particle(mass=1, at=[1, 2, 3])
    assert p.to_dict() == {"mass": 1.0, "at": [1.0, 2.0, 3.0], "inner": {"k": 0, "m": [[0, 0], [0, 0]]}}
    assert Particle(2, 3).at.to_list() == [3.0, 3.0, 3.0]
    assert type_of(Particle()) == Particle
    p.mass = 2
    assert type_of(p) == Particle
    with pytest.raises(SpirogradTypeError, match="no member `speed`"):
        Particle(speed=1)
    with pytest.raises(SpirogradTypeError, match="given twice"):
        Particle(1, mass=2)


def test_methods():
    @dataclass
    class Sphere:
        center: vector(3, f32)
        radius: f32

        def diameter(self):
            return self.radius * 2

    s = Sphere(radius=2)
    assert s.diameter() == 4.0 and s.center.to_list() == [0.0, 0.0, 0.0]
    assert set(Sphere.methods) == {"diameter"}
    with pytest.raises(SpirogradTypeError, match="default"):

        @dataclass
        class Bad:
            x: f32 = 1.0


@pytest.mark.parametrize("t", [f32, vector(3, i32), matrix(2, 3, f64), Particle])
def test_leaves_round_trip(t):
    dtypes = leaf_dtypes(t)
    leaves = list(range(1, len(dtypes) + 1))
    value = build(t, leaves)
    found = [d(number) for d, number in zip(dtypes, numbers_of(t, value))]
    assert found == leaves == (found if t is f32 else t.leaves_of(value))
    assert [type(x) for x in found] == [float if d.is_float else int for d in dtypes]


def test_leaves_convert_and_check():
    assert vector(2, i32).leaves_of([1.9, -1.9]) == [1, -1]
    assert vector(2, f32).leaves_of(np.array([1, 2])) == [1.0, 2.0]
    assert Particle.leaves_of({"mass": 1, "at": Vector([1, 2, 3]), "inner": {"k": 1, "m": Matrix([[1, 2], [3, 4]])}})[-1] == 4
    with pytest.raises(SpirogradTypeError, match="vector of 2"):
        numbers_of(vector(2, f32), [1, 2, 3])
    with pytest.raises(SpirogradTypeError, match="number"):
        numbers_of(f32, [1])
    with pytest.raises(SpirogradTypeError, match="expected struct"):
        numbers_of(Particle, Struct(mass=1))


def test_matrix_types():
    vec4 = vector(4, f32)
    assert vec4(1).to_list() == [1.0] * 4
    assert vec4(Vector([1, 2]), 3, [4]).to_list() == [1.0, 2.0, 3.0, 4.0]
    assert matrix(2, 2, i32)(1.5, 2.5, 3, 4).to_list() == [[1, 2], [3, 4]]
    assert matrix(2, 2, f32)([1, 2], [3, 4]).to_list() == matrix(2, 2, f32)([[1, 2], [3, 4]]).to_list()
    assert pickle.loads(pickle.dumps(vec4)) == vec4 and vec4 != vector(4, f64)
    with pytest.raises(SpirogradTypeError, match="has 4 entries, got 3"):
        vec4(1, 2, 3)
    with pytest.raises(SpirogradTypeError, match="needs values"):
        vec4()


def test_subscripted_types_are_those_of_the_calls():
    assert types.Vector[3, f64] == vector(3, f64) and types.Matrix[2, 3, f32] == matrix(2, 3, f32)
    assert types.Vector[2, int] == vector(2, int) and NDArray[types.Vector[3, f32], 2] == NDArray[vector(3, f32), 2]
    assert types.Vector[3, f64](1).to_list() == [1.0, 1.0, 1.0]
    for wrong in (3, f32, (3,), (2, 2, f32)):
        with pytest.raises(SpirogradTypeError, match=r"write `types\.Vector\[3, sg\.f32\]`"):
            types.Vector[wrong]
    for wrong in ((2, f32), (2, 2)):
        with pytest.raises(SpirogradTypeError, match=r"write `types\.Matrix\[2, 3, sg\.f32\]`"):
            types.Matrix[wrong]
    with pytest.raises(SpirogradTypeError, match="positive integers"):
        types.Vector[f32, 3]


def test_array_annotations():
    t = NDArray[vector(3, f32), 2]
    assert (t.dtype, t.ndim, t.element_shape) == (f32, 2, (3,))
    assert t == NdarrayType(vector(3, f32), 2) and NdarrayType().dtype is None
    assert t.mismatch(f32, (1, 2), (3,)) is None
    assert "array of f32, got i32" in t.mismatch(i32, (1, 2), (3,))
    assert "2 axes" in t.mismatch(f32, (1,), (3,))
    assert "shape (3,)" in t.mismatch(f32, (1, 2), ())
    assert NDArray[f32, 1].element_shape == ()
    with pytest.raises(SpirogradTypeError, match="boundary"):
        NdarrayType(f32, 1, boundary="wrap")
    assert is_integral(i32) and is_signed(f32) and not is_signed(u8) and is_integral(vector(2, i32))
