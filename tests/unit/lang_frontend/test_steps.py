"""Steps of launches: each list gives the same flat arguments to Python, to compiled code and to tapes."""

import dataclasses
import weakref

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import f32, i32
from spirograd.base.validity import NotPrepared
from spirograd.lang import context
from spirograd.lang.frontend.guards import Path
from spirograd.lang.frontend.parameters import key_function, make_parameter
from spirograd.lang.frontend.steps import Captured, Packer, objects_of, packing_function

A1 = sg.types.ndarray(sg.f32, 1)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: A1
    n: sg.i32


@dataclasses.dataclass
class Open:
    a: A1
    n: sg.i32


@pytest.fixture(autouse=True)
def session():
    sg.init(arch=sg.cpu)
    yield context.session()
    sg.reset()


def steps_of(annotations, values):
    parameters = [make_parameter(f"p{k}", annotation, context.session().language, "k") for k, annotation in enumerate(annotations)]
    return [step for k, (parameter, value) in enumerate(zip(parameters, values)) for step in parameter.steps(value, Path(k))]


def packed(steps, values):
    packer = Packer.on_trees(context.session(), {})
    return packing_function(steps)(values, context.session(), packer)


class Calls:
    """A `StepRecorder` that stores its calls."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *args, **named: self.told.append((name, *args, *named))


def recorded(steps, values):
    calls = Calls()
    for step in steps:
        step.record(values, calls)
    return calls.told


def test_numbers_and_arrays(session):
    a, f = sg.ndarray(sg.f32, 4), sg.field(sg.f32, 3)
    values = (a, 3, 2.5, f, True)
    steps = steps_of((A1, sg.i32, sg.f32, sg.template(), sg.i32), values)
    scalars, arrays = packed(steps, values)
    assert scalars == (0, 3, 2.5, 1) and type(scalars[3]) is int
    assert arrays == (session.bind(a), None, None, None)
    assert objects_of(steps, values) == [a, None, None, None]
    assert recorded(steps, values) == [
        ("argument", 0), ("array", a), ("argument", 1), ("scalar", i32, 3), ("argument", 2), ("scalar", f32, 2.5), ("argument", 3),
        ("same", f, "mortal"), ("argument", 4), ("scalar", i32, True),
    ]  # fmt: skip


def test_views_pass_numbers_of_their_own(session):
    a = sg.ndarray(sg.f32, 10)
    values = (a[2:8], 7)
    steps = steps_of((A1, sg.i32), values)
    scalars, arrays = packed(steps, values)
    assert scalars == (0, *values[0]._sg_numbers, 7) and len(scalars) > 2
    assert arrays == (session.bind(a),) + (None,) * (len(scalars) - 1)
    assert objects_of(steps, values) == [a] + [None] * (len(scalars) - 1)
    with pytest.raises(NotPrepared):
        recorded(steps, values)


def test_vectors():
    values = ([1, 2.5, 3], 4)
    steps = steps_of((sg.types.vector(3, sg.f32), sg.i32), values)
    assert packed(steps, values) == ((1.0, 2.5, 3.0, 4), (None,) * 4)
    with pytest.raises(NotPrepared):
        recorded(steps, values)


@pytest.mark.parametrize("cls", [Frozen, Open])
def test_dataclasses(session, cls):
    """Flat arguments of an instance that cannot change are found once."""
    a, b = sg.ndarray(sg.f32, 4), sg.ndarray(sg.f32, 5)
    values = (cls(a, 3), b)
    steps = steps_of((cls, A1), values)
    for _ in range(2):
        assert packed(steps, values) == ((0, 3, 0), (session.bind(a), None, session.bind(b)))
        assert objects_of(steps, values) == [a, None, b]
    if cls is Frozen:
        assert recorded(steps, values) == [("argument", 0), ("same", values[0], "mortal"), ("unchanged", 2), ("argument", 1), ("array", b)]


def test_arrays_of_other_libraries():
    """The parameter says what their elements are, and each is bound as the flat argument that it is."""
    values = (1.0, np.zeros((4, 2), np.float32))
    steps = steps_of((sg.f32, sg.types.ndarray(sg.types.vector(2, sg.f32), 1)), values)
    packer = Packer.on_trees(context.session(), {})
    _, arrays = packing_function(steps)(values, context.session(), packer)
    assert arrays[1].shape == (4,) and packer.transfers is not None
    assert objects_of(steps, values)[1] is values[1]
    assert [step.externals() for step in steps][1][0].label.endswith("argument `p1`")


def test_arrays_that_the_kernel_names(session):
    a = sg.ndarray(sg.f32, 4)
    steps = [Captured(a), Captured(a[1:3])]
    scalars, arrays = packed(steps, ())
    assert scalars == (0, 0, *a[1:3]._sg_numbers) and arrays[:2] == (session.bind(a),) * 2
    assert recorded(steps, ()) == [("unchanged", 1), ("unchanged", len(scalars) - 1)]


def test_keys():
    """Keys of ndarrays are found without a call once they are known; numbers have none."""
    parameters = [make_parameter(f"p{k}", annotation, context.session().language, "k") for k, annotation in enumerate((A1, sg.i32))]
    key = key_function(parameters)
    a = sg.ndarray(sg.f32, 4)
    assert key((a, 1)) == key((a, 2)) == (parameters[0].key(a),) == key((np.zeros(3, np.float32), 1))
    assert key((a[1:3], 1)) != key((a, 1)) != key((sg.ndarray(sg.f32, 4, needs_grad=True), 1))
    assert key_function(parameters[1:]) is None


def test_keys_of_template_arguments():
    """Values that are told apart by identity have a weak reference for a key, once their type is known without a call of `fingerprint`."""
    parameter = make_parameter("p", sg.template(), context.session().language, "k")
    key = key_function([parameter])
    f, g, a = sg.field(sg.f32, 3), sg.field(sg.f32, 3), sg.ndarray(sg.f32, 4)
    for _ in range(2):
        assert key((f,)) == (weakref.ref(f),) != key((g,)) == (weakref.ref(g),)
        assert key((a,)) == (parameter.key(a),) and key((2,)) == (parameter.key(2),)
    assert parameter.types_by_identity == {type(f)}


def test_arrays_alike_have_one_signature():
    a, b = sg.ndarray(sg.f32, 4), sg.ndarray(sg.f32, (7,))
    parameter = make_parameter("p", A1, context.session().language, "k")
    assert parameter.key(a) is parameter.key(b) is parameter.key(np.zeros(3, np.float32))


def test_launches_without_flat_arguments_share_theirs():
    @sg.kernel
    def fill(f: sg.template(), x: sg.template()):
        for i in f:
            f[i] = x

    @sg.kernel
    def fill_with(f: sg.template(), x: sg.f32):
        for i in f:
            f[i] = x

    f = sg.field(sg.f32, 3)
    for kernel in fill, fill_with:
        for _ in range(2):
            kernel(f, 2.0)
        assert f.to_numpy().tolist() == [2.0] * 3
    assert fill._last.unpacked.scalars == () and fill_with._last.unpacked is None
