"""Ray marching of signed distances: `ti.math`, functions that call functions, `break`, several return values, swizzles."""

import numpy as np

import spirograd.compat.taichi as ti
import spirograd.compat.taichi.math as tm

ti.init(arch=ti.gpu)
vec3 = tm.vec3
W, H = 48, 32
image = ti.Vector.field(3, dtype=float, shape=(W, H))
depth = ti.field(float, shape=(W, H))


@ti.func
def sphere(p: vec3, centre: vec3, radius: float) -> float:
    return tm.length(p - centre) - radius


@ti.func
def scene(p):
    d = sphere(p, vec3(0, 0, 3), 1.0)
    return ti.min(d, p.y + 1.0)


@ti.func
def normal(p):
    e = vec3(1e-3, 0, 0)
    n = vec3(0)
    n.x = scene(p + e.xyy) - scene(p - e.xyy)
    n.y = scene(p + e.yxy) - scene(p - e.yxy)
    n.z = scene(p + e.yyx) - scene(p - e.yyx)
    return tm.normalize(n)


@ti.func
def march(origin, direction):
    t = 0.0
    hit = False
    for _ in range(128):
        d = scene(origin + t * direction)
        if d < 1e-4:
            hit = True
            break
        t += d
        if t > 20.0:
            break
    return hit, t


@ti.kernel
def render(light: tm.vec3):
    for i, j in image:
        uv = (ti.Vector([i, j]) + 0.5) / H - ti.Vector([W / H, 1.0]) * 0.5
        direction = tm.normalize(vec3(uv, 1.0))
        hit, t = march(vec3(0.0), direction)
        colour = vec3(0.1, 0.2, 0.3)
        if hit:
            n = normal(t * direction)
            colour = vec3(1.0, 0.8, 0.6) * ti.max(0.0, tm.dot(n, light))
            depth[i, j] = t
        image[i, j] = tm.clamp(colour, 0.0, 1.0)


light = np.array([1.0, 1.0, -1.0]) / np.sqrt(3)
render(tm.vec3(light[0], light[1], light[2]))
i, j = np.meshgrid(np.arange(W), np.arange(H), indexing="ij")
d = np.stack([(i + 0.5) / H - W / H / 2, (j + 0.5) / H - 0.5, np.ones(i.shape)], -1)
d /= np.linalg.norm(d, axis=-1, keepdims=True)
b = d[..., 2] * 3
disc = b * b - 8
t_sphere = np.where(disc > 0, b - np.sqrt(np.maximum(disc, 0)), np.inf)
t_plane = np.where(d[..., 1] < 0, -1 / np.minimum(d[..., 1], -1e-9), np.inf)
t = np.minimum(t_sphere, t_plane)
good = (t < 9) & (np.abs(disc) > 0.2)
RESULT = {"depth": depth.to_numpy()[good], "background": image.to_numpy()[t > 21][:5]}
EXPECTED = {"depth": t[good], "background": np.tile([0.1, 0.2, 0.3], (min(5, int((t > 21).sum())), 1))}
TOLERANCE = 5e-3
