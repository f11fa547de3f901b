"""Functions of JAX on two devices of the host, compared with the same in JAX's own operations: `python jax_devices.py <arch>`."""

import os
import sys

os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spirograd as sg

sg.init(arch=sys.argv[1])
LINE = sg.types.NDArray[sg.f32, 1]


@sg.kernel
def kernel(x: LINE, w: LINE, y: LINE):
    for i in x:
        y[i] = sg.sin(x[i]) * w[i] + x[i] ** 3


def reference(x, w):
    return jnp.sin(x) * w + x**3


function = sg.ad.jax_function(kernel, {"y": "x"})
mesh = Mesh(np.array(jax.devices()), ("d",))
x, w = jnp.linspace(0.1, 0.9, 8), jnp.linspace(1.0, 2.0, 8)
rows, part = jnp.stack([x, x + 1.0]), w[:4]


def halves(f, shared=False, checked=True):
    """On each device a half of the first argument, and of the second one, or all of that."""
    return jax.shard_map(f, mesh=mesh, in_specs=(P("d"), P() if shared else P("d")), out_specs=P("d"), check_vma=checked)


def donated(f):
    step = jax.jit(lambda x: x - 0.1 * jax.grad(lambda x: f(x, w).sum())(x), donate_argnums=0)
    return step(step(x + 0.0))


def on_device(f, k):
    return f(*(jax.device_put(v, jax.devices()[k]) for v in (x, w)))


def sharded(f):
    return jax.jit(f)(*(jax.device_put(v, NamedSharding(mesh, P("d"))) for v in (x, w)))


def explicit(derivative):
    """On arrays whose types say that they are divided among the devices."""
    explicit_mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit_mesh):
        divided, whole = (jax.device_put(v, NamedSharding(explicit_mesh, spec)) for v, spec in ((x, P("d")), (w, P())))
        found = derivative(divided, whole)
        return found, jax.tree.map(lambda v: jnp.array([axis is not None for axis in v.sharding.spec]), found)


CASES = {
    "donated": donated,
    "second device": lambda f: on_device(f, 1),
    "sharded arguments": sharded,
    "grad of divided arrays": lambda f: explicit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1))),
    "hessian of divided arrays": lambda f: explicit(jax.jit(jax.hessian(lambda x, w: f(x, w).sum(), (0, 1)))),
    "pmap": lambda f: jax.pmap(lambda x: f(x, w))(rows),
    "pmap of grad": lambda f: jax.pmap(jax.grad(lambda x: f(x, w).sum()))(rows),
    "shard_map": lambda f: halves(f)(x, w),
    "compiled": lambda f: jax.jit(halves(f))(x, w),
    "grad": lambda f: jax.grad(lambda x: halves(f)(x, w).sum())(x),
    "compiled grad": lambda f: jax.jit(jax.grad(lambda x: jax.jit(halves(f))(x, w).sum()))(x),
    "grad of what all have": lambda f: jax.grad(lambda w: halves(f, True)(x, w).sum())(part),
    "grad of what all have, unchecked": lambda f: jax.grad(lambda w: halves(f, True, False)(x, w).sum())(part),
    "grad inside": lambda f: jax.shard_map(
        lambda x, w: jax.grad(lambda w: f(x, w).sum())(w), mesh=mesh, in_specs=(P("d"), P()), out_specs=P()
    )(x, part),
    "jvp": lambda f: jax.jvp(lambda x: halves(f)(x, w), (x,), (w,)),
    "jacfwd of what all have": lambda f: jax.jacfwd(lambda w: halves(f, True)(x, w))(part),
    "hessian": lambda f: jax.hessian(lambda x: halves(f)(x, w).sum())(x),
    "vmap inside": lambda f: jax.grad(lambda w: halves(jax.vmap(f, (0, None)), True)(rows, w).sum())(w),
    "checkpoint": lambda f: jax.grad(lambda x: halves(jax.checkpoint(lambda x, w: f(f(x, w), w)))(x, w).sum())(x),
}
for name, case in CASES.items():
    for a, b in zip(jax.tree.leaves(case(function)), jax.tree.leaves(case(reference)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5, err_msg=name)
        assert a.shape == b.shape
print(len(CASES), "cases on", jax.device_count(), "devices")
