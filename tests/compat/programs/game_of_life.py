"""Conway's game of life on a torus: struct-for over a field, integer fields, a function with loops inside a kernel."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
N = 32
alive = ti.field(int, shape=(N, N))
neighbours = ti.field(int, shape=(N, N))


@ti.func
def count(i, j):
    total = 0
    for di in range(-1, 2):
        for dj in range(-1, 2):
            if di != 0 or dj != 0:
                total += alive[(i + di) % N, (j + dj) % N]
    return total


@ti.func
def rule(a, c):
    if a == 1:
        if c < 2 or c > 3:
            a = 0
    elif c == 3:
        a = 1
    return a


@ti.kernel
def step():
    for i, j in alive:
        neighbours[i, j] = count(i, j)
    for i, j in alive:
        alive[i, j] = rule(alive[i, j], neighbours[i, j])


start = (np.random.default_rng(1).random((N, N)) < 0.4).astype(np.int32)
alive.from_numpy(start)
for _ in range(10):
    step()

want = start
for _ in range(10):
    around = sum(np.roll(want, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)) - want
    want = ((around == 3) | ((want == 1) & (around == 2))).astype(np.int32)
RESULT = {"alive": alive.to_numpy()}
EXPECTED = {"alive": want}
