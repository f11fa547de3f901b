"""Every way to change memory changes the keys of what was found out from it (`runtime.freshness`), and of nothing else."""

import copy
import ctypes

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.sizes.size_nodes import Element
from spirograd.lang import context
from spirograd.runtime.freshness import Freshness

torch = needs.package("torch")
# Of one tree, as all fields are by default: `p` and `q` even share cells.
FIELDS = ("n", "x", "v", "soa", "p", "q", "s.a", "s.b", "loss", "count")
SHADOWS = ("x.grad", "v.grad", "loss.grad", "x.dual")
ARRAYS = ("a", "b", "w", "a.grad")


class World:
    """Memory of every kind, kernels that write it, and keys of what is read from it."""

    def __init__(self):
        self.n = sg.field(sg.i32, shape=4)
        self.x = sg.field(sg.f32, shape=4, needs_grad=True, needs_dual=True)
        self.v = sg.Vector.field(3, sg.f32, shape=4, needs_grad=True)
        self.soa = sg.Matrix.field(2, 2, sg.i32, shape=4, layout=sg.Layout.SOA)
        self.p, self.q = sg.field(sg.i32), sg.field(sg.i32)
        sg.root.dense(sg.i, 4).place(self.p, self.q)
        self.s, self.t = (sg.Struct.field({"a": sg.f32, "b": sg.types.vector(2, sg.f32)}, shape=4) for _ in range(2))
        self.loss = sg.field(sg.f32, shape=(), needs_grad=True)
        self.count = sg.field(sg.i32, shape=())
        self.a = sg.ndarray(sg.f32, 4, needs_grad=True)
        self.b = sg.ndarray(sg.i32, 4)
        self.w = sg.Vector.ndarray(3, sg.f32, 4)
        self.other = sg.ndarray(sg.f32, 4)
        self.outer = sg.field(sg.f32)  # in a tree of its own
        builder = sg.FieldsBuilder()
        builder.dense(sg.i, 4).place(self.outer)
        self.tree = builder.finalize()
        self.memory = {name: self.find(name) for name in (*FIELDS, *SHADOWS, *ARRAYS, "outer")}
        assert len({memory.tree.id for name, memory in self.memory.items() if name in FIELDS + SHADOWS}) == 1
        self.session = context.session()
        self.watches = {name: self.watch(memory) for name, memory in self.memory.items()}

    def find(self, name):
        found = self
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def watch(self, memory):
        """A function that gives the key of a kernel which reads ``memory``."""
        zero = [0] * (len(memory.shape) + len(memory.element_shape))

        @sg.kernel
        def read_field(f: sg.template()) -> sg.f32:
            return sg.cast(
                f[zero[0]] if len(zero) == 1 else f[None] if len(zero) == 0 else f[0][0] if len(zero) == 2 else f[0][0, 0], sg.f32
            )

        @sg.kernel
        def read_array(f: sg.types.ndarray()) -> sg.f32:
            return sg.cast(f[0] if len(zero) == 1 else f[0][0], sg.f32)

        is_array = isinstance(memory, sg.Ndarray)
        session, specialization, _ = (read_array if is_array else read_field).specialized((memory,), {})
        fresh = Freshness([specialization.plan.compiled], [])
        return lambda: fresh.key(Arguments.of([0], [session.bind(memory) if is_array else None], specialization.trees))

    def keys(self):
        return {name: key() for name, key in self.watches.items()}

    def changed_by(self, change):
        before = self.keys()
        assert None not in before.values()
        change(self)
        after = self.keys()
        assert None not in after.values()
        return {name for name in before if before[name] != after[name]}


@pytest.fixture
def world(session):
    return World()


def _assign(path, key, value):
    def change(w):
        w.find(path)[key] = value

    return change


def _kernel(body):
    """A change by launching the kernel that ``body(world)`` makes."""

    def change(w):
        body(w)()
        sg.sync()

    return change


def _store(w):
    @sg.kernel
    def store():
        w.n[1] = 5

    return store


def _accumulate(w):
    @sg.kernel
    def accumulate():
        for i in w.q:
            w.q[i] += 2

    return accumulate


def _two(w):
    @sg.kernel
    def two():
        for i in w.v:
            w.v[i][1] = w.x[i]
            w.s[i].b = sg.Vector([1.0, 2.0])

    return two


def _never(w):
    @sg.kernel
    def never():
        for i in w.soa:
            if w.n[i] > 100:
                w.soa[i][0, 1] = 1

    return never


def _branch_in_function(w):
    @sg.func
    def add(f: sg.template(), i):
        sg.atomic_max(f[i], 7)

    @sg.kernel
    def through(f: sg.template()):
        add(f, 2)

    return lambda: through(w.p)


def _gradient_field(w):
    @sg.kernel
    def seed():
        w.x.grad[1] = 1.0

    return seed


def _argument(w):
    @sg.kernel
    def fill(t: sg.types.ndarray(), u: sg.types.ndarray()):
        for i in t:
            t[i] = u[i]

    return lambda: fill(w.b, w.a)


def _vectors(w):
    @sg.kernel
    def fill(t: sg.types.ndarray()):
        t[1][2] = 4.0

    return lambda: fill(w.w)


def _captured(w):
    a = w.a

    @sg.kernel
    def fill():
        a[1] = 2.0

    return fill


def _shadow_of_argument(w):
    @sg.kernel
    def fill(t: sg.types.ndarray()):
        t[1] = 2.0

    return lambda: fill(w.a.grad)


def _derivative(w):
    @sg.kernel
    def square():
        for i in w.x:
            w.loss[None] += w.x[i] * w.x[i]

    return square.grad


def _derivative_of_array(w):
    @sg.kernel
    def square(t: sg.types.ndarray()):
        for i in range(4):
            w.loss[None] += t[i] * t[i]

    return lambda: square.grad(w.a)


def _forward(w):
    @sg.kernel
    def copy_over():
        for i in w.x:
            w.x[i] = 2.0 * w.x[i]

    def run():
        with sg.ad.FwdMode(loss=w.x, param=w.x, seed=[1.0] * 4):
            copy_over()

    return run


def _tape(w):
    """The second kernel overwrites what the gradient of the first needs: it is saved, and put back for the reverse."""

    @sg.kernel
    def square():
        for i in w.x:
            w.loss[None] += w.x[i] * w.x[i]

    @sg.kernel
    def overwrite():
        for i in w.x:
            w.x[i] = 3.0

    def run():
        with sg.ad.Tape(loss=w.loss):
            square()
            overwrite()

    return run


GRADIENTS = {"x.grad", "v.grad", "loss.grad", "a.grad"}
# What changes memory -> what of it.
CHANGES = {
    "element": (_assign("n", 2, 3), {"n"}),
    "element with a neighbour": (_assign("p", 2, 3), {"p"}),
    "element of 0-d": (_assign("count", None, 3), {"count"}),
    "element of a gradient": (_assign("x.grad", 2, 3.0), {"x.grad"}),
    "element of a tangent": (_assign("x.dual", 2, 3.0), {"x.dual"}),
    "vector": (_assign("v", 2, [1, 2, 3]), {"v"}),
    "component of a vector": (lambda w: w.v[1].__setitem__(2, 5.0), {"v"}),
    "named component": (lambda w: setattr(w.v[1], "y", 5.0), {"v"}),
    "matrix, apart": (_assign("soa", 2, [[1, 2], [3, 4]]), {"soa"}),
    "component field": (lambda w: w.v.get_scalar_field(1).__setitem__(0, 2.0), {"v"}),
    "component field, filled": (lambda w: w.soa.get_scalar_field(1, 0).fill(4), {"soa"}),
    "component of a gradient, filled": (lambda w: w.v.get_scalar_field(1).grad.fill(4.0), {"v.grad"}),
    "struct": (lambda w: w.s.__setitem__(1, {"a": 1.0, "b": [1, 2]}), {"s.a", "s.b"}),
    "member": (lambda w: setattr(w.s[1], "a", 3.0), {"s.a"}),
    "member field": (_assign("s.b", 1, [1, 2]), {"s.b"}),
    "fill": (lambda w: w.n.fill(7), {"n"}),
    "fill by bytes": (lambda w: w.p.fill(7), {"p"}),
    "fill vectors": (lambda w: w.v.fill(7.0), {"v"}),
    "fill structs": (lambda w: w.s.fill(7.0), {"s.a", "s.b"}),
    "fill gradients": (lambda w: w.v.grad.fill(7.0), {"v.grad"}),
    "copy_from on the device": (lambda w: w.x.copy_from(w.outer), {"x"}),
    "copy_from a neighbour": (lambda w: w.p.copy_from(w.q), {"p"}),
    "copy_from an array": (lambda w: w.x.copy_from(w.a), {"x"}),
    "copy_from a field": (lambda w: w.a.copy_from(w.x), {"a"}),
    "copy_from structs": (lambda w: w.s.copy_from(w.t), {"s.a", "s.b"}),
    "copy_from itself": (lambda w: w.s.copy_from(w.s), set()),
    "from_numpy": (lambda w: w.n.from_numpy(np.arange(4)), {"n"}),
    "from_numpy of components": (lambda w: w.soa.from_numpy(np.ones((4, 2, 2))), {"soa"}),
    "from_numpy of structs": (lambda w: w.s.from_numpy({"a": np.ones(4), "b": np.ones((4, 2))}), {"s.a", "s.b"}),
    "array: element": (_assign("b", 2, 3), {"b"}),
    "array: gradient": (_assign("a.grad", 2, 3.0), {"a.grad"}),
    "array: vector": (_assign("w", 2, [1, 2, 3]), {"w"}),
    "array: component": (lambda w: w.w[1].__setitem__(2, 5.0), {"w"}),
    "array: fill": (lambda w: w.a.fill(7.0), {"a"}),
    "array: fill vectors": (lambda w: w.w.fill([1, 2, 3]), {"w"}),
    "array: copy_from": (lambda w: w.a.copy_from(w.other), {"a"}),
    "array: from_numpy": (lambda w: w.b.from_numpy(np.arange(4)), {"b"}),
    "all gradients": (lambda w: sg.ad.clear_all_gradients(), GRADIENTS),
    "kernel: store": (_kernel(_store), {"n"}),
    "kernel: atomic": (_kernel(_accumulate), {"q"}),
    "kernel: component and member": (_kernel(_two), {"v", "s.b"}),
    "kernel: a store that is not reached": (_kernel(_never), {"soa"}),
    "kernel: field of a template, in a function": (_kernel(_branch_in_function), {"p"}),
    "kernel: gradient of a field": (_kernel(_gradient_field), {"x.grad"}),
    "kernel: array": (_kernel(_argument), {"b"}),
    "kernel: array of vectors": (_kernel(_vectors), {"w"}),
    "kernel: array that it captured": (_kernel(_captured), {"a"}),
    "kernel: gradient of an array": (_kernel(_shadow_of_argument), {"a.grad"}),
    "derivative": (_kernel(_derivative), {"x.grad"}),
    "derivative by an array": (_kernel(_derivative_of_array), {"a.grad"}),
    "forward mode": (_kernel(_forward), {"x", "x.dual"}),
    "tape": (_kernel(_tape), {"x", "loss", *GRADIENTS}),
    "destroyed tree": (lambda w: w.tree.destroy(), {"outer"}),
}


def test_changes(world):
    found = {name: world.changed_by(change) for name, (change, _) in CHANGES.items()}
    assert found == {name: wanted for name, (_, wanted) in CHANGES.items()}


def test_changes_by_torch(world):
    assert world.changed_by(lambda w: w.x.from_torch(torch.ones(4))) == {"x"}
    assert world.changed_by(lambda w: w.a.from_torch(torch.ones(4))) == {"a"}


# What changes nothing, or nothing that has a key here.
READS = {
    "nothing": lambda w: None,
    "element": lambda w: (w.n[0], w.v[1][2], w.s[1].a, w.soa[0], w.b[1], w.w[2]),
    "to_numpy": lambda w: [memory.to_numpy() for memory in w.memory.values()],
    "np.asarray": lambda w: np.asarray(w.x),
    "printing": lambda w: (str(w.x), repr(w.b)),
    "copy": lambda w: copy.deepcopy(w.a),
    "source": lambda w: w.other.copy_from(w.a),
    "new field": lambda w: sg.field(sg.i32, shape=3).fill(1),
    "kernel that reads": lambda w: _reader(w)(),
    "kernel that writes a NumPy array": lambda w: _writer()(np.zeros(4, np.float32)),
    "sync": lambda w: sg.sync(),
}


def _reader(w):
    @sg.kernel
    def read() -> sg.f32:
        total = 0.0
        for i in w.x:
            total += w.x[i] + w.n[i] + w.s[i].a + w.a[i]
        return total

    return read


def _writer():
    @sg.kernel
    def write(t: sg.types.ndarray()):
        t[1] = 2.0

    return write


def test_reads_change_no_key(world):
    assert {name: world.changed_by(read) for name, read in READS.items()} == {name: set() for name in READS}


def test_a_tape_that_puts_memory_back(world):
    @sg.kernel
    def square():
        for i in world.x:
            world.loss[None] += world.x[i] * world.x[i]

    world.x.fill(1.0)
    tape = sg.ad.Tape(clear_gradients=False)
    with tape:
        square()
        world.x.fill(5.0)
    world.loss.grad.fill(1.0)
    assert world.changed_by(lambda w: tape.grad()) == {"x", "x.grad"}
    assert world.x.to_numpy().tolist() == [5.0] * 4 and world.x.grad.to_numpy().tolist() == [2.0] * 4


def _exports():
    """Ways to get hold of memory itself, of what has them: (name, function, whether memory of GPUs can be had so)."""
    yield "to_numpy", lambda memory: memory.to_numpy(copy=False), False
    yield "NumPy by DLPack", np.from_dlpack, False
    yield "a capsule", lambda memory: memory.to_dlpack(), True
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        yield "np.asarray", lambda memory: np.asarray(memory, copy=False), False


def _exports_to_torch():
    yield "torch by DLPack", torch.from_dlpack, True
    yield "to_torch", lambda memory: memory.to_torch(copy=False), True


@pytest.mark.parametrize("exports", [_exports, _exports_to_torch])
def test_memory_that_was_handed_out_has_no_key(arch, exports):
    for how, export, of_gpus in exports():
        sg.init(arch=arch)
        world = World()
        before = world.keys()
        unseen = set()
        for name in ("n", "x.grad", "v", "a", "a.grad", "w"):
            memory = world.memory[name]
            allocation = memory.tree.allocation
            in_place = world.session.device.host_view(allocation.buffer) is not None
            try:
                view = export(memory)
            except (ValueError, BufferError, RuntimeError):
                assert not in_place, how
                # What NumPy refuses, it has seen.
                unseen |= {name} if allocation.shared else set()
                continue
            in_place = in_place or (of_gpus and memory.__dlpack_device__()[0] != 1)
            unseen |= {name} if in_place else set()
            assert world.keys() == {k: None if k in unseen else key for k, key in before.items()}, (how, name)
            del view  # its consumer may have kept the address
        world.x.grad.fill(1)
        assert {k for k, key in world.keys().items() if key is None} == unseen, how


def test_memory_that_lies_between_others(world):
    """Who holds the memory of `p` can reach that of `q`, which lies in between."""
    try:
        world.p.to_numpy(copy=False)
    except ValueError:
        assert None not in world.keys().values()
        return
    keys = world.keys()
    assert {name for name in keys if keys[name] is None} == {*FIELDS, *SHADOWS}


def test_an_address_of_the_host(world):
    allocation = world.a.allocation
    address = allocation.host_address
    assert (world.keys()["a"] is None) == (address is not None)
    if address is not None:
        ctypes.c_float.from_address(address).value = 3.0
        assert world.a[0] == 3.0


def _key_of_external(kernel, *args):
    """A function that gives the key of a launch of ``kernel``, as far as it reads."""
    session, specialization, args = kernel.specialized(args, {})
    fresh = Freshness([specialization.plan.compiled], [])

    def key():
        packer = kernel.pack(session, specialization, args)
        return fresh.key(Arguments.of(packer.scalars, packer.arrays, specialization.trees))

    return key


def _total():
    @sg.kernel
    def total(t: sg.types.ndarray()) -> sg.f32:
        out = 0.0
        for i in range(t.shape[0]):
            out += t[i]
        return out

    return total


def test_arrays_of_numpy_are_never_taken_for_unchanged(session):
    array = np.ones(4, np.float32)
    key = _key_of_external(_total(), array)
    keys = [key()]
    array[1] = 2.0
    keys += [key(), key()]
    assert all(k is None for k in keys) or len(set(keys)) == 3


def test_tensors_are_never_taken_for_unchanged(session):
    tensor = torch.ones(4)
    key = _key_of_external(_total(), tensor)
    ways = {
        "add_": lambda: tensor.add_(1),
        "element": lambda: tensor.__setitem__(1, 5.0),
        "a view": lambda: tensor[1:3].zero_(),
        "data": lambda: tensor.data.fill_(4.0),  # torch's own `_version` does not see this one
        "NumPy": lambda: tensor.numpy().fill(3.0),  # nor this one
        "nothing": lambda: None,
    }
    for name, change in ways.items():
        before = key()
        change()
        after = key()
        assert before is None or before != after, name


def test_only_the_shape_of_an_external_array(session):
    @sg.kernel
    def extent(t: sg.types.ndarray()) -> sg.i32:
        return t.shape[0]

    keys = [_key_of_external(extent, np.ones(n, np.float32))() for n in (4, 4, 5)]
    assert keys[0] is not None and keys[0] == keys[1] != keys[2]


def test_trees_and_arrays_made_anew(session, arch):
    """They may lie where others lay; a kernel is compiled anew for other fields, not for other arrays."""
    total = _total()
    keys, addresses = [], set()
    for _ in range(6):
        array = sg.ndarray(sg.f32, 1000)
        addresses.add(array.allocation.address)
        keys.append(_key_of_external(total, array)())
        del array
    assert None not in keys and len(set(keys)) == len(keys)
    assert len(addresses) < len(keys) or arch != "cpu"  # elsewhere they are numbers that do not come again, or memory that is still in use

    keys = []
    for value in (1, 2, 3):
        field, builder = sg.field(sg.i32), sg.FieldsBuilder()
        builder.dense(sg.i, 4).place(field)
        tree = builder.finalize()
        field.fill(value)
        size = Element("tree", 1, 0, field.dtype, field.key, (0,))
        keys.append(Freshness([], [size]).key(Arguments.of([], [], {1: tree.allocation})))
        tree.destroy()
    assert None not in keys and len(set(keys)) == 3


def test_size_expressions_see_the_same_parts(world):
    n = world.n
    fresh = Freshness([], [Element("tree", n.tree.id, 0, n.dtype, n.key, (0,))])

    def key():
        return fresh.key(Arguments.of([], [], {n.tree.id: n.tree.allocation}))

    seen = [key()]
    world.x.fill(1.0)
    _store(world)()
    assert key() != seen[0]
    seen.append(key())
    _accumulate(world)()
    world.v[0] = [1, 2, 3]
    assert key() == seen[1]
    n[3] = 4
    assert key() not in seen


@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_parts_come_back_from_the_offline_cache(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("SG_OFFLINE_CACHE", "1")
    sg.init(arch=arch, offline_cache=True, offline_cache_file_path=str(tmp_path))
    world = World()
    _two(world)()
    specialization = _two(world).specialized((), {})[1]
    effects = specialization.plan.compiled.effects
    assert context.session().cache.stats().hits >= 1
    tree = world.v.tree.id
    assert effects.parts_written == {("tree", tree, str(world.v.key)), ("tree", tree, str(world.s.b.key))}
    assert effects.parts_read == {("tree", tree, str(world.x.key))}
