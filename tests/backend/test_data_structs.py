"""Structs in kernels: construction, members, methods, fields of them, arguments and results."""

import numpy as np
import pytest
from backend.batch import check

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

vec3 = sg.types.vector(3, sg.f32)
mat2 = sg.types.matrix(2, 2, sg.f32)
Ray = sg.types.struct(origin=vec3, direction=vec3, t=sg.f32)
Hit = sg.types.struct(ray=Ray, id=sg.i32, frame=mat2, tag=sg.u8)


@sg.dataclass
class Particle:
    pos: vec3
    vel: vec3
    mass: sg.f32

    @sg.func
    def energy(self):
        return 0.5 * self.mass * self.vel.norm_sqr()

    @sg.func
    def step(self, dt: sg.f32):
        self.pos += dt * self.vel
        self.vel.y -= dt * 10

    def kick(self, i, amount):
        self.vel[i] += amount
        return self.vel[i]

    @sg.func
    def two_steps(self, dt):
        self.step(dt)
        self.step(dt)


def test_construction_and_members() -> None:
    check(
        [
            ("h.id", 3),
            ("h.tag", 255, "sg.u8"),
            ("h.ray.origin", [1, 2, 3]),
            ("h.ray.direction.zx", [9, 0]),
            ("h.frame[k - 1, 0]", 30),
            ("g.ray.t", 7.5, "sg.f32"),
            ("g.ray.origin", [0, 5, 0]),
            ("g.id", 2, "sg.i32"),
            ("e.ray.direction", [0, 0, 0]),
            ("free.a", 1, "sg.i32"),
            ("free.b", [1, 2]),
            ("free.inner.c", 2.5),
            ("r.t + r.origin.y", 3.0),
            ("p.mass", 2.0),
            ("p.vel", [0, 0, 0]),
            ("copy.t", 100),
            ("full.origin", [1, 1, 1]),
        ],
        {
            "k": (sg.i32, 2),
            "s": (sg.f32, 2.5),
            "h": (Hit, {"ray": Ray([1, 2, 3], [0, 0, 9], 1), "id": 3, "frame": [[1, 2], [30, 4]], "tag": 255}),
        },
        {"Ray": Ray, "Hit": Hit, "Particle": Particle},
        """
g = Hit(Ray(t=7.5), 2)
g.ray.origin.y = 5
e = Hit()
free = sg.Struct(a=1, b=[1, k], inner=sg.Struct(c=s))
r = Ray(sg.Vector([1, 2, 3]), 0, 1)
p = Particle(mass=k)
copy = r
copy.t = 100
full = Ray(1, 1, 1)
""".strip(),
    )


def test_methods_change_the_object() -> None:
    check(
        [
            ("e", 0.5 * 2 * 14),
            ("p.pos", [0.1, 0.2, 0.3]),
            ("p.vel", [1, 1, 3]),
            ("kicked", 11),
            ("q.pos", [0.4, 0.3, 0.9]),
            ("q.vel", [11, -1, 3]),
        ],
        {"k": (sg.i32, 0)},
        {"Particle": Particle},
        """
p = Particle(vel=[1, 2, 3], mass=2)
e = p.energy()
p.step(0.1)
q = p
q.pos.x = -1.8
kicked = q.kick(k, 10)
q.two_steps(0.1)
""".strip(),
    )


def test_carried_through_control_flow(arch: str) -> None:
    out = sg.field(sg.f32, shape=(6, 7))

    @sg.func
    def bounce(p: sg.template(), floor):
        if p.pos.y < floor:
            p.pos.y = floor
            p.vel = -p.vel

    @sg.kernel
    def work():
        for i in range(6):
            p = Particle(pos=[i, 1, 0], vel=[1, 0, 0], mass=1)
            best = p
            for _ in range(i * 3):
                p.step(0.25)
                bounce(p, -0.5 * i)
                if p.energy() > best.energy():
                    best = p
                if p.pos.x > 7:
                    break
            for c in sg.static(range(3)):
                out[i, c] = p.pos[c]
                out[i, 3 + c] = best.vel[c]
            out[i, 6] = best.mass

    work()
    for i in range(6):
        pos, vel = np.array([i, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])
        best, most = vel.copy(), 0.5
        for _ in range(i * 3):
            pos = pos + 0.25 * vel
            vel[1] -= 2.5
            if pos[1] < -0.5 * i:
                pos[1] = -0.5 * i
                vel = -vel
            if 0.5 * (vel @ vel) > most:
                best, most = vel.copy(), 0.5 * (vel @ vel)
            if pos[0] > 7:
                break
        np.testing.assert_allclose(out.to_numpy()[i], [*pos, *best, 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [sg.Layout.AOS, sg.Layout.SOA], ids=["aos", "soa"])
def test_fields(arch: str, layout: sg.Layout) -> None:
    n = 10
    x = Particle.field(shape=n, layout=layout)
    hits = Hit.field(shape=(2, 3), layout=layout)
    energies = sg.field(sg.f32, shape=n)

    @sg.kernel
    def make():
        for i in x:
            x[i] = Particle([i, 1, 2], [0, i, 0], i + 1)
        for i, j in hits:
            hits[i, j].id = 10 * i + j
            hits[i, j].ray.origin[j] = i + 1
            hits[i, j].ray.t -= 2.5
            hits[i, j].frame[i, i] = 4
            hits[i, j].frame += 1
            hits[i, j].tag = 300 + j

    @sg.kernel
    def work():
        for i in x:
            x[i].step(0.5)
            x[i].pos.xy += sg.Vector([100, 200])
            x[i].mass *= 2
            energies[i] = x[i].energy()
            p = x[i]
            p.pos.z = 77
            x[n - 1 - i].pos.z += 1
            if i == 3:
                x[i].kick(2, 5)

    make()
    work()
    i = np.arange(n)
    got = x.to_numpy()
    np.testing.assert_allclose(got["pos"], np.stack([i + 100.0, 1 + 0.5 * i + 200, 0 * i + 3.0], 1), rtol=1e-6)
    np.testing.assert_allclose(got["vel"], np.stack([0 * i, i - 5.0, 5.0 * (i == 3)], 1), rtol=1e-6)
    np.testing.assert_allclose(got["mass"], 2 * (i + 1))
    np.testing.assert_allclose(energies.to_numpy(), (i + 1) * (i - 5.0) ** 2, rtol=1e-5)
    h = hits.to_numpy()
    np.testing.assert_array_equal(h["id"], [[0, 1, 2], [10, 11, 12]])
    np.testing.assert_array_equal(h["tag"], [[44, 45, 46]] * 2)
    for r, c in np.ndindex(2, 3):
        np.testing.assert_array_equal(h["ray"]["origin"][r, c], (r + 1) * np.eye(3)[c])
        np.testing.assert_array_equal(h["frame"][r, c], 1 + 4 * np.diag([1 - r, r]))
    assert hits[1, 2].ray.t == -2.5 and x[3].mass == 8
    x[3].vel.x = 9
    x[2] = Particle(mass=5)
    assert x.vel[3].x == 9 and x.get_member_field("mass")[2] == 5 and x.pos[2].to_list() == [0, 0, 0]


def test_member_fields_and_loops(arch: str) -> None:
    f = sg.Struct.field({"a": sg.i32, "b": vec3}, shape=(3, 4))
    total = sg.field(sg.i32, shape=())

    @sg.kernel
    def work():
        for i, j in f:
            f.a[i, j] += i * 4 + j
        for I in sg.grouped(f.b):
            f.b[I] = f[I].a
            f.b[I][2] = I.sum()
        for I in sg.grouped(f):
            total[None] += f[I].a

    work()
    np.testing.assert_array_equal(f.a.to_numpy(), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(f.b.to_numpy()[2, 3], [11, 11, 5])
    assert total[None] == 66


def test_copies_between_fields(arch: str) -> None:
    f, g = Hit.field(shape=4), Hit.field(shape=4, layout=sg.Layout.SOA)

    @sg.kernel
    def make():
        for i in f:
            f[i] = Hit(Ray(i, 2 * i, 3 * i), i, [[i, 1], [2, 3]], i)
        for i in f:
            g[3 - i] = f[i]

    make()
    assert g[0].to_dict() == f[3].to_dict() and g[0].ray.direction.to_list() == [6, 6, 6]
    g.fill(0)
    g.copy_from(f)
    assert all(g[i].to_dict() == f[i].to_dict() for i in range(4))
    g.fill(Hit(id=9))
    assert g[2].id == 9 and g[2].tag == 0
    data = f.to_numpy()
    data["id"] = data["id"] * 100
    g.from_numpy(data)
    assert g[3].id == 300 and g[3].frame.to_list() == [[3, 1], [2, 3]]


def test_arguments_and_results(arch: str) -> None:
    @sg.kernel
    def through(h: Hit, t: sg.f32) -> Hit:
        out = h
        out.ray.t = t
        out.frame = h.frame.transpose()
        return out

    @sg.kernel
    def move(p: Particle) -> Particle:
        q = p
        q.step(1)
        return q

    given = Hit(ray=Ray([1, 2, 3], [4, 5, 6], 7), id=-1, frame=[[1, 2], [3, 4]], tag=200)
    got = through(given, 8)
    assert got.to_dict() == {
        "ray": {"origin": [1, 2, 3], "direction": [4, 5, 6], "t": 8},
        "id": -1,
        "frame": [[1, 3], [2, 4]],
        "tag": 200,
    }
    assert through({"ray": {"origin": [0, 0, 0], "direction": [0, 0, 1], "t": 0}, "id": 5, "frame": [[0, 0], [0, 0]], "tag": 0}, 1).id == 5
    moved = move(Particle(vel=[1, 2, 3], mass=1))
    assert moved.pos.to_list() == [1, 2, 3] and moved.vel.to_list() == [1, -8, 3]
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        through(Ray(), 8)
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        through(3, 8)


def test_functions_take_and_return_them(arch: str) -> None:
    @sg.func
    def at(r: Ray, t: sg.f32) -> vec3:
        return r.origin + t * r.direction

    @sg.func
    def reflected(r):
        if r.direction.y < 0:
            return Ray(at(r, r.t), r.direction * sg.Vector([1, -1, 1]), 0)
        return r

    check(
        [("at(r, 2)", [0, -1, 1]), ("q.direction", [0, 1, 0]), ("q.origin", [0, 0, 1]), ("reflected(q).t", 0)],
        {"r": (Ray, {"origin": [0, 1, 1], "direction": [0, -1, 0], "t": 1})},
        {"at": at, "reflected": reflected, "Ray": Ray},
        "q = reflected(r)",
    )


def test_static_and_class_level_functions(arch: str) -> None:
    @sg.dataclass
    class Interval:
        low: sg.f32
        high: sg.f32

        @sg.func
        def overlaps(self, other) -> bool:
            return self.low < other.high and other.low < self.high

        @sg.func
        def merged(self, other):
            return Interval(min(self.low, other.low), max(self.high, other.high))

    check(
        [("a.overlaps(b)", 1), ("a.overlaps(Interval(5, 6))", 0), ("a.merged(b).high", 4), ("(a if a.low > b.low else b).high", 4)],
        {"a": (Interval, {"low": 1, "high": 3}), "b": (Interval, {"low": 2, "high": 4})},
        {"Interval": Interval},
    )


def test_members_by_name() -> None:
    """Strings in subscripts name members, also such as are no identifiers, of variables, of elements of memory and of parts of either."""
    mode = sg.types.struct(**{"21": sg.f32, "3 3": sg.math.vec2})
    wave = sg.types.struct(modes=mode, scale=sg.f32)
    waves = wave.field(shape=2)

    @sg.func
    def doubled(m):
        r = mode()
        for name in sg.static(["21", "3 3"]):
            r[name] = 2 * m[name]
        return r

    @sg.kernel
    def run() -> sg.f32:
        for i in waves:
            waves[i]["modes"]["21"] = i + 1.5
            waves[i].modes["3 3"] = [i, 2]
            waves[i]["modes"]["3 3"][1] += 1
            waves[i].modes = doubled(waves[i].modes)
        w = waves[1]
        w["scale"] = getattr(w, "scale", 5.0) + getattr(w.modes, "21") + getattr(w.modes, "22", 0.25)
        if sg.static(hasattr(w, "modes") and not hasattr(w, "21")):
            w.scale += 1
        return w["scale"]

    assert run() == 6.25
    stored = waves.to_numpy()
    assert stored["modes"]["21"].tolist() == [3, 5]
    assert stored["modes"]["3 3"].tolist() == [[0, 6], [2, 6]]
    assert waves[1].modes["21"] == 5

    @sg.kernel
    def missing():
        w = wave()
        w["scales"] = 1

    with pytest.raises(sg.SpirogradTypeError, match="the struct has no member `scales`"):
        missing()


def test_structs_without_members() -> None:
    @sg.dataclass
    class Rule:
        @sg.func
        def apply(self, x):
            return x + 1

    body = sg.types.struct(rule=Rule, mass=sg.f32)

    @sg.kernel
    def run() -> sg.f32:
        b = body(mass=2)
        return Rule().apply(b.mass) + b.rule.apply(1)

    assert run() == 5
    rules = Rule.field(shape=2)
    with pytest.raises(sg.SpirogradTypeError, match="no memory, because its structs have no members"):
        print(rules.shape)
