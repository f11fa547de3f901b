"""Small programs of the kind that people write."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case

F1, F2, I1, I2 = (sg.types.ndarray(t, n) for t in (sg.f32, sg.i32) for n in (1, 2))


@case()
def saxpy() -> Results:
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, 1000)).astype(np.float32)
    before = y.copy()

    @sg.kernel
    def run(a: sg.f32, x: F1, y: F1):
        for i in x:
            y[i] += a * x[i]

    run(2.5, x, y)
    return {"y": (y, before + 2.5 * x)}


@case()
def matrix_multiplication() -> Results:
    a, b = (np.random.default_rng(k).uniform(-1, 1, (17, 17)).astype(np.float32) for k in range(2))
    c = np.zeros_like(a)

    @sg.kernel
    def run(a: F2, b: F2, c: F2):
        for i, j in c:
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total

    run(a, b, c)
    return {"c": (c, a @ b)}


@case()
def heat() -> Results:
    """Explicit diffusion, two buffers in turns."""
    a, b = np.zeros((24, 24), np.float32), np.zeros((24, 24), np.float32)
    a[10:14, 8:12] = 1
    want = a.astype(np.float64)

    @sg.kernel
    def step(a: F2, b: F2):
        for i, j in sg.ndrange((1, 23), (1, 23)):
            b[i, j] = a[i, j] + 0.2 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1] - 4 * a[i, j])

    for _ in range(10):
        step(a, b)
        step(b, a)
    for _ in range(20):
        inner = want[1:-1, 1:-1] + 0.2 * (want[:-2, 1:-1] + want[2:, 1:-1] + want[1:-1, :-2] + want[1:-1, 2:] - 4 * want[1:-1, 1:-1])
        want = np.pad(inner, 1)
    return {"a": (a, want)}


@case()
def game_of_life() -> Results:
    cells = sg.field(sg.u1, shape=(16, 16))
    following = sg.field(sg.u1, shape=(16, 16))
    start = np.random.default_rng(3).integers(0, 2, (16, 16)).astype(bool)
    cells.from_numpy(start)

    @sg.kernel
    def step():
        for i, j in cells:
            alive = 0
            for di, dj in sg.static(sg.ndrange((-1, 2), (-1, 2))):
                if sg.static(di != 0 or dj != 0):
                    alive += sg.cast(cells[(i + di) % 16, (j + dj) % 16], sg.i32)
            following[i, j] = alive == 3 or (alive == 2 and cells[i, j])
        for i, j in cells:
            cells[i, j] = following[i, j]

    want = start
    for _ in range(6):
        step()
        count = sum(np.roll(want, (di, dj), (0, 1)).astype(int) for di in (-1, 0, 1) for dj in (-1, 0, 1) if di or dj)
        want = (count == 3) | ((count == 2) & want)
    return {"cells": (cells.to_numpy(), want)}


@case()
def mandelbrot() -> Results:
    """Iterations to escape. Points near the border differ by rounding: compared where two precisions agree, and few may differ still."""
    out = np.zeros((20, 30), np.int32)

    @sg.kernel
    def run(out: I2):
        for i, j in out:
            c = sg.Vector([j * 0.09375 - 2.03125, i * 0.09375 - 0.984375])
            z = sg.Vector([0.0, 0.0])
            n = 0
            while n < 60 and z.norm_sqr() < 4.0:
                z = sg.Vector([z.x * z.x - z.y * z.y, 2.0 * z.x * z.y]) + c
                n += 1
            out[i, j] = n

    def reference(kind):
        c = ((np.arange(30) * 0.09375 - 2.03125)[None, :] + 1j * (np.arange(20) * 0.09375 - 0.984375)[:, None]).astype(kind)
        z, count = np.zeros_like(c), np.zeros(c.shape, np.int32)
        for _ in range(60):
            inside = np.abs(z) ** 2 < 4
            z = np.where(inside, z * z + c, z)
            count += inside
        return count

    run(out)
    certain = reference(np.complex64) == reference(np.complex128)
    equal = (out == reference(np.complex128))[certain]
    return {"equal": (equal.mean() > 0.98, True), "certain": (certain.mean() > 0.95, True)}


@case(rtol=1e-3, atol=1e-3)
def n_body() -> Results:
    place, speed = sg.Vector.field(3, sg.f32, shape=32), sg.Vector.field(3, sg.f32, shape=32)
    start = np.random.default_rng(1).uniform(-1, 1, (32, 3)).astype(np.float32)
    place.from_numpy(start)

    @sg.kernel
    def step(dt: sg.f32):
        for i in place:
            force = sg.Vector([0.0, 0.0, 0.0])
            for j in range(32):
                d = place[j] - place[i]
                force += d / (d.norm_sqr() + 0.1) ** 1.5
            speed[i] += dt * force
        for i in place:
            place[i] += dt * speed[i]

    x, v = start.astype(np.float64), np.zeros((32, 3))
    for _ in range(5):
        step(0.01)
        d = x[None] - x[:, None]
        v += 0.01 * (d / ((d**2).sum(2) + 0.1)[..., None] ** 1.5).sum(1)
        x = x + 0.01 * v
    return {"place": (place.to_numpy(), x), "speed": (speed.to_numpy(), v)}


@case()
def odd_even_sort() -> Results:
    x = np.random.default_rng(2).integers(0, 1000, 50).astype(np.int32)
    want = np.sort(x)

    @sg.kernel
    def pass_over(x: I1, odd: sg.i32):
        for k in range((x.shape[0] - odd) // 2):
            i = 2 * k + odd
            if x[i] > x[i + 1]:
                x[i], x[i + 1] = x[i + 1], x[i]

    for k in range(50):
        pass_over(x, k % 2)
    return {"x": (x, want)}


@case()
def prefix_sum() -> Results:
    """Doubling distances, two buffers."""
    a = np.random.default_rng(4).integers(-9, 9, 100).astype(np.int32)
    b, want = np.zeros_like(a), np.cumsum(a)

    @sg.kernel
    def step(a: I1, b: I1, distance: sg.i32):
        for i in a:
            b[i] = a[i] + (a[i - distance] if i >= distance else 0)

    distance = 1
    while distance < 100:
        step(a, b, distance)
        a, b, distance = b, a, 2 * distance
    return {"sum": (a, want)}


@case(rtol=1e-3, atol=1e-3)
def fourier_transform() -> Results:
    """Radix 2, in place, in one thread."""
    x = np.random.default_rng(5).uniform(-1, 1, (64, 2)).astype(np.float32)
    want = np.fft.fft(x[:, 0] + 1j * x[:, 1])
    pair = sg.types.vector(2, sg.f32)

    @sg.kernel
    def run(x: sg.types.ndarray(pair, 1)):
        for _ in range(1):
            for i in range(64):
                j = 0
                for bit in range(6):
                    j |= (i >> bit & 1) << (5 - bit)
                if j > i:
                    x[i], x[j] = x[j], x[i]
            half = 1
            while half < 64:
                for block in range(32 // half):
                    for k in range(half):
                        angle = -3.14159265 * k / half
                        w = sg.Vector([sg.cos(angle), sg.sin(angle)])
                        a, b = x[2 * half * block + k], x[2 * half * block + k + half]
                        t = sg.Vector([w.x * b.x - w.y * b.y, w.x * b.y + w.y * b.x])
                        x[2 * half * block + k] = a + t
                        x[2 * half * block + k + half] = a - t
                half *= 2

    run(x)
    return {"x": (x, np.stack([want.real, want.imag], 1))}


@case()
def sieve() -> Results:
    prime = np.ones(200, np.int32)

    @sg.kernel
    def run(prime: I1):
        for i in prime:
            if i < 2:
                prime[i] = 0
            k = 2
            while k * k <= i:
                if i % k == 0:
                    prime[i] = 0
                    break
                k += 1

    run(prime)
    return {"prime": (prime, [int(n > 1 and all(n % k for k in range(2, n))) for n in range(200)])}


@case(rtol=1e-3, atol=1e-3)
def conjugate_gradient() -> Results:
    """Poisson in one dimension; scalars stay in fields, so that Python never waits."""
    n = 30
    x, r, p, q = (sg.field(sg.f32, shape=n) for _ in range(4))
    rr, pq, following = (sg.field(sg.f32, shape=()) for _ in range(3))
    b = np.random.default_rng(6).uniform(-1, 1, n).astype(np.float32)
    r.from_numpy(b)
    p.from_numpy(b)

    @sg.kernel
    def start():
        for i in r:
            rr[None] += r[i] * r[i]

    @sg.kernel
    def step():
        pq[None] = 0.0
        following[None] = 0.0
        for i in p:
            left = p[i - 1] if i > 0 else 0.0
            right = p[i + 1] if i < n - 1 else 0.0
            q[i] = 2.0 * p[i] - left - right
            pq[None] += p[i] * q[i]
        for i in x:
            alpha = rr[None] / pq[None] if pq[None] > 0.0 else 0.0
            x[i] += alpha * p[i]
            r[i] -= alpha * q[i]
            following[None] += r[i] * r[i]
        for i in p:
            p[i] = r[i] + (following[None] / rr[None] if rr[None] > 0.0 else 0.0) * p[i]
        rr[None] = following[None]

    start()
    for _ in range(n + 4):
        step()
    matrix = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    return {"x": (x.to_numpy(), np.linalg.solve(matrix, b))}


@case(rtol=2e-3, atol=2e-3)
def material_points() -> Results:
    """MLS-MPM with 64 particles: scatter by atomics, gather, matrices. Against the same in NumPy, double precision."""
    n, cells, dt = 64, 16, 2e-4
    dx = 1 / cells
    volume = (dx * 0.5) ** 2
    x, v = sg.Vector.field(2, sg.f32, shape=n), sg.Vector.field(2, sg.f32, shape=n)
    c, j = sg.Matrix.field(2, 2, sg.f32, shape=n), sg.field(sg.f32, shape=n)
    grid_v, grid_m = sg.Vector.field(2, sg.f32, shape=(cells, cells)), sg.field(sg.f32, shape=(cells, cells))
    start = np.random.default_rng(7).uniform(0.3, 0.6, (n, 2)).astype(np.float32)
    x.from_numpy(start)
    j.fill(1.0)

    @sg.kernel
    def substep():
        for i, k in grid_m:
            grid_v[i, k] = [0, 0]
            grid_m[i, k] = 0
        for p in x:
            place = x[p] / dx
            base = sg.cast(place - 0.5, sg.i32)
            f = place - base
            w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
            stress = -dt * 4 * 400.0 * volume * (j[p] - 1) / dx**2
            affine = sg.Matrix([[stress, 0.0], [0.0, stress]]) + volume * c[p]
            for a, b in sg.static(sg.ndrange(3, 3)):
                offset = sg.Vector([a, b])
                weight = w[a].x * w[b].y
                grid_v[base + offset] += weight * (volume * v[p] + affine @ ((offset - f) * dx))
                grid_m[base + offset] += weight * volume
        for i, k in grid_m:
            if grid_m[i, k] > 0:
                grid_v[i, k] /= grid_m[i, k]
            grid_v[i, k].y -= dt * 9.8
            if i < 3 and grid_v[i, k].x < 0:
                grid_v[i, k].x = 0
            if k < 3 and grid_v[i, k].y < 0:
                grid_v[i, k].y = 0
        for p in x:
            place = x[p] / dx
            base = sg.cast(place - 0.5, sg.i32)
            f = place - base
            w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
            new_v = sg.Vector([0.0, 0.0])
            new_c = sg.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for a, b in sg.static(sg.ndrange(3, 3)):
                offset = sg.Vector([a, b])
                weight = w[a].x * w[b].y
                g = grid_v[base + offset]
                new_v += weight * g
                new_c += 4 * weight * g.outer_product((offset - f) * dx) / dx**2
            v[p] = new_v
            x[p] += dt * new_v
            j[p] *= 1 + dt * new_c.trace()
            c[p] = new_c

    for _ in range(20):
        substep()
    want_x, want_v, want_j = _material_points(start.astype(np.float64), cells, dt, 20)
    return {"x": (x.to_numpy(), want_x), "v": (v.to_numpy(), want_v), "j": (j.to_numpy(), want_j)}


def _material_points(x, cells, dt, steps):
    dx, n = 1 / cells, len(x)
    volume = (dx * 0.5) ** 2
    v, c, j = np.zeros((n, 2)), np.zeros((n, 2, 2)), np.ones(n)
    for _ in range(steps):
        grid_v, grid_m = np.zeros((cells, cells, 2)), np.zeros((cells, cells))
        base = (x / dx - 0.5).astype(int)
        f = x / dx - base
        w = np.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2])
        stress = -dt * 4 * 400 * volume * (j - 1) / dx**2
        affine = stress[:, None, None] * np.eye(2) + volume * c
        around = [(a, b, np.array([a, b])) for a in range(3) for b in range(3)]
        for a, b, offset in around:
            weight = (w[a, :, 0] * w[b, :, 1])[:, None]
            at = tuple((base + offset).T)
            np.add.at(grid_v, at, weight * (volume * v + np.einsum("nij,nj->ni", affine, (offset - f) * dx)))
            np.add.at(grid_m, at, weight[:, 0] * volume)
        grid_v[grid_m > 0] /= grid_m[grid_m > 0][:, None]
        grid_v[..., 1] -= dt * 9.8
        grid_v[:3, :, 0] = np.maximum(grid_v[:3, :, 0], 0)
        grid_v[:, :3, 1] = np.maximum(grid_v[:, :3, 1], 0)
        v, c = np.zeros((n, 2)), np.zeros((n, 2, 2))
        for a, b, offset in around:
            weight = (w[a, :, 0] * w[b, :, 1])[:, None]
            g = grid_v[tuple((base + offset).T)]
            v += weight * g
            c += 4 * weight[:, :, None] * np.einsum("ni,nj->nij", g, (offset - f) * dx) / dx**2
        x = x + dt * v
        j = j * (1 + dt * np.trace(c, axis1=1, axis2=2))
    return x, v, j


@case(rtol=1e-3, atol=1e-3)
def mass_spring() -> Results:
    """A rope that swings: forces from neighbours, then positions."""
    n = 12
    x, v = sg.Vector.field(2, sg.f32, shape=n), sg.Vector.field(2, sg.f32, shape=n)
    start = np.stack([np.arange(n) * 0.1, np.zeros(n)], 1).astype(np.float32)
    x.from_numpy(start)

    @sg.kernel
    def step(dt: sg.f32):
        for i in x:
            force = sg.Vector([0.0, -1.0])
            for d in sg.static((-1, 1)):
                k = i + d
                if 0 <= k < n:
                    link = x[k] - x[i]
                    force += 50.0 * (link.norm() - 0.1) * link.normalized()
            v[i] = (v[i] + dt * force) * 0.99
        for i in range(1, n):
            x[i] += dt * v[i]

    step_of = start.astype(np.float64), np.zeros((n, 2))
    for _ in range(40):
        step(0.01)
        step_of = _rope(*step_of, 0.01)
    return {"x": (x.to_numpy(), step_of[0])}


def _rope(x, v, dt):
    force = np.tile([0.0, -1.0], (len(x), 1))
    link = np.diff(x, axis=0)
    length = np.linalg.norm(link, axis=1, keepdims=True)
    pull = 50 * (length - 0.1) * link / length
    force[:-1] += pull
    force[1:] -= pull
    v = (v + dt * force) * 0.99
    x = x.copy()
    x[1:] += dt * v[1:]
    return x, v


@case()
def neighbour_lists() -> Results:
    """Particles into the lists of their cells by atomic counters; each then counts those near it."""
    n, cells, room = 200, 8, 30
    x = np.random.default_rng(9).uniform(0, 1, (n, 2)).astype(np.float32)
    count, members = sg.field(sg.i32, shape=(cells, cells)), sg.field(sg.i32, shape=(cells, cells, room))
    near = np.zeros(n, np.int32)
    pair = sg.types.vector(2, sg.f32)

    @sg.kernel
    def run(x: sg.types.ndarray(pair, 1), near: I1):
        for i in x:
            cell = sg.cast(x[i] * cells, sg.i32)
            k = sg.atomic_add(count[cell], 1)
            members[cell.x, cell.y, k] = i
        for i in x:
            cell = sg.cast(x[i] * cells, sg.i32)
            total = 0
            for a, b in sg.ndrange((-1, 2), (-1, 2)):
                other = cell + sg.Vector([a, b])
                if 0 <= other.x < cells and 0 <= other.y < cells:
                    for k in range(count[other]):
                        if (x[members[other.x, other.y, k]] - x[i]).norm() < 0.1:
                            total += 1
            near[i] = total

    run(x, near)
    distance = np.linalg.norm(x[None].astype(np.float32) - x[:, None], axis=2)
    return {"near": (near, (distance < np.float32(0.1)).sum(1))}


@case(rtol=1e-3, atol=2e-3)
def ray_march() -> Results:
    """The depth of two spheres, by their distance function; rays that graze the edge are left out."""
    depth = np.zeros((16, 16), np.float32)

    @sg.func
    def scene(p):
        return sg.min((p - sg.Vector([0.0, 0.0, 3.0])).norm() - 1.0, (p - sg.Vector([0.8, 0.5, 2.5])).norm() - 0.4)

    @sg.kernel
    def run(depth: F2):
        for i, j in depth:
            ray = sg.Vector([(j - 7.5) / 10.0, (i - 7.5) / 10.0, 1.0]).normalized()
            t = 0.0
            for _ in range(200):
                d = scene(ray * t)
                if d < 1e-4 or t > 10.0:
                    break
                t += d
            depth[i, j] = t if t < 10.0 else 0.0

    run(depth)
    want, clear = _spheres(16)
    return {"depth": (depth[clear], want[clear])}


def _spheres(n):
    """Depth by the quadratic equation, and where a ray passes no sphere within 0.05 of its edge."""
    j, i = np.meshgrid(np.arange(n), np.arange(n))
    rays = np.stack([(j - 7.5) / 10, (i - 7.5) / 10, np.ones((n, n))], 2)
    rays /= np.linalg.norm(rays, axis=2, keepdims=True)
    best, clear = np.full((n, n), np.inf), np.ones((n, n), bool)
    for centre, radius in (([0, 0, 3], 1.0), ([0.8, 0.5, 2.5], 0.4)):
        along = rays @ np.array(centre)
        miss = np.linalg.norm(np.array(centre) - rays * along[..., None], axis=2)
        clear &= np.abs(miss - radius) > 0.05
        hit = miss < radius
        best = np.where(hit, np.minimum(best, along - np.sqrt(np.maximum(radius**2 - miss**2, 0))), best)
    return np.where(np.isinf(best), 0, best), clear


@case(rtol=1e-3, atol=1e-4)
def advection() -> Results:
    """Semi-Lagrangian: bilinear samples at places that only the device knows."""
    n = 20
    dye, speed = np.random.default_rng(10).uniform(0, 1, (n, n)).astype(np.float32), np.zeros((n, n, 2), np.float32)
    i, j = np.indices((n, n))
    speed[..., 0], speed[..., 1] = j - n / 2, n / 2 - i
    out = np.zeros_like(dye)
    pair = sg.types.vector(2, sg.f32)

    @sg.func
    def sample(f: sg.template(), p):
        q = sg.math.clamp(p, 0.0, n - 1.001)
        k = sg.cast(sg.floor(q), sg.i32)
        t = q - k
        low = sg.math.mix(f[k.x, k.y], f[k.x + 1, k.y], t.x)
        high = sg.math.mix(f[k.x, k.y + 1], f[k.x + 1, k.y + 1], t.x)
        return sg.math.mix(low, high, t.y)

    @sg.kernel
    def run(dye: F2, speed: sg.types.ndarray(pair, 2), out: F2):
        for p in sg.grouped(out):
            out[p] = sample(dye, p - 0.05 * speed[p])

    run(dye, speed, out)
    q = np.clip(np.stack([i, j], 2) - 0.05 * speed.astype(np.float64), 0, n - 1.001)
    k = np.floor(q).astype(int)
    t = q - k
    corner = lambda a, b: dye[k[..., 0] + a, k[..., 1] + b].astype(np.float64)  # noqa: E731
    low = corner(0, 0) * (1 - t[..., 0]) + corner(1, 0) * t[..., 0]
    high = corner(0, 1) * (1 - t[..., 0]) + corner(1, 1) * t[..., 0]
    return {"out": (out, low * (1 - t[..., 1]) + high * t[..., 1])}


@case()
def run_length_decoding() -> Results:
    """Ragged writes: each iteration writes as many elements as its count says, from an offset found before."""
    counts = np.random.default_rng(11).integers(0, 6, 40).astype(np.int32)
    values, total = np.arange(40, dtype=np.int32) * 7, int(counts.sum())
    begins, out = np.zeros(40, np.int32), np.zeros(total, np.int32)

    @sg.kernel
    def run(counts: I1, values: I1, begins: I1, out: I1):
        at = 0
        sg.loop_config(serialize=True)
        for i in range(counts.shape[0]):
            begins[i] = at
            at += counts[i]
        for i in counts:
            for k in range(counts[i]):
                out[begins[i] + k] = values[i]

    run(counts, values, begins, out)
    return {"out": (out, np.repeat(values, counts))}


@case(needs=("f64",), rtol=1e-10, atol=1e-12)
def double_pendulum() -> Results:
    """Runge-Kutta in double precision, with sine and cosine."""
    state = np.array([2.0, 1.0, 0.0, 0.0])
    vector = sg.types.vector(4, sg.f64)

    @sg.func
    def slope(s):
        d = s[0] - s[1]
        den = 3.0 - sg.cos(2.0 * d)
        a = (-29.43 * sg.sin(s[0]) - 9.81 * sg.sin(s[0] - 2.0 * s[1]) - 2.0 * sg.sin(d) * (s[3] ** 2 + s[2] ** 2 * sg.cos(d))) / den
        b = 2.0 * sg.sin(d) * (2.0 * s[2] ** 2 + 19.62 * sg.cos(s[0]) + s[3] ** 2 * sg.cos(d)) / den
        return vector(s[2], s[3], a, b)

    @sg.kernel
    def run(state: sg.types.ndarray(sg.f64, 1)):
        for _ in range(1):
            s = vector(state[0], state[1], state[2], state[3])
            for _step in range(200):
                k1 = slope(s)
                k2 = slope(s + 0.005 * k1)
                k3 = slope(s + 0.005 * k2)
                k4 = slope(s + 0.01 * k3)
                s += 0.01 / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
            for k in sg.static(range(4)):
                state[k] = s[k]

    def reference(s):
        d = s[0] - s[1]
        den = 3 - np.cos(2 * d)
        a = (-29.43 * np.sin(s[0]) - 9.81 * np.sin(s[0] - 2 * s[1]) - 2 * np.sin(d) * (s[3] ** 2 + s[2] ** 2 * np.cos(d))) / den
        b = 2 * np.sin(d) * (2 * s[2] ** 2 + 19.62 * np.cos(s[0]) + s[3] ** 2 * np.cos(d)) / den
        return np.array([s[2], s[3], a, b])

    s = state.copy()
    for _ in range(200):
        k1 = reference(s)
        k2 = reference(s + 0.005 * k1)
        k3 = reference(s + 0.005 * k2)
        k4 = reference(s + 0.01 * k3)
        s = s + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    run(state)
    return {"state": (state, s)}
