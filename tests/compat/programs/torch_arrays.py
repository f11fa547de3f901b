"""Tensors of torch in kernels and fields."""

import torch

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu)
f = ti.Vector.field(2, ti.f32, shape=5)


@ti.kernel
def saxpy(a: float, x: ti.types.ndarray(), y: ti.types.ndarray()):
    for i in x:
        y[i] += a * x[i]


@ti.kernel
def pairs(x: ti.types.ndarray(dtype=ti.types.vector(2, ti.f32), ndim=1)):
    for i in x:
        x[i] = x[i].yx + f[i]


x, y = torch.arange(6, dtype=torch.float32), torch.ones(6)
saxpy(2.0, x, y)
f.from_torch(torch.arange(10, dtype=torch.float32).reshape(5, 2))
p = torch.arange(10, dtype=torch.float32).reshape(5, 2).contiguous()
q = p.clone()
pairs(p)
RESULT = {"y": y.numpy(), "p": p.numpy(), "f": f.to_torch().numpy()}
EXPECTED = {"y": 1 + 2 * x.numpy(), "p": (q.flip(1) + q).numpy(), "f": q.numpy()}
