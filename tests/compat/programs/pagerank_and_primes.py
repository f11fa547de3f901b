"""Programs of integers and graphs: sieve, collatz with `while True`, Floyd-Warshall over a serial outer loop, power iteration."""

import numpy as np

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
N = 200


@ti.func
def is_prime(n: int):
    result = True
    for k in range(2, int(n**0.5) + 1):
        if n % k == 0:
            result = False
            break
    return result


@ti.kernel
def count_primes(n: int) -> int:
    count = 0
    for i in range(2, n):
        if is_prime(i):
            count += 1
    return count


steps = ti.field(int, N)


@ti.kernel
def collatz():
    for i in range(1, N):
        x = i
        while True:
            if x == 1:
                break
            if x % 2 == 0:
                x //= 2
                steps[i] += 1
                continue
            x = 3 * x + 1
            steps[i] += 1


M = 12
dist = ti.field(ti.f32, shape=(M, M))


@ti.kernel
def relax(k: ti.i32):
    for i, j in dist:
        dist[i, j] = min(dist[i, j], dist[i, k] + dist[k, j])


@ti.kernel
def power(a: ti.types.ndarray(), x: ti.types.ndarray(), y: ti.types.ndarray()) -> float:
    for i in range(a.shape[0]):
        y[i] = 0.0
        for j in range(a.shape[1]):
            y[i] += a[i, j] * x[j]
    norm = 0.0
    for i in range(a.shape[0]):
        norm += y[i] ** 2
    for i in range(a.shape[0]):
        x[i] = y[i]
    return ti.sqrt(norm)


collatz()
rng = np.random.default_rng(10)
w = rng.random((M, M)).astype("f4")
np.fill_diagonal(w, 0)
dist.from_numpy(w)
for k in range(M):
    relax(k)
a = rng.random((9, 9)).astype("f4") / 9
x, y = np.ones(9, "f4"), np.zeros(9, "f4")
norms = [power(a, x, y) for _ in range(4)]

RESULT = {"primes": count_primes(1000), "steps": steps.to_numpy(), "dist": dist.to_numpy(), "norms": np.array(norms)}


def length(i):
    n = 0
    while i > 1:
        i = i // 2 if i % 2 == 0 else 3 * i + 1
        n += 1
    return n


for k in range(M):
    w = np.minimum(w, w[:, k : k + 1] + w[k])
z = np.ones(9)
want = []
for _ in range(4):
    z = a @ z
    want.append(np.linalg.norm(z))
EXPECTED = {"primes": 168, "steps": [length(i) for i in range(N)], "dist": w, "norms": want}
