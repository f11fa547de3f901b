"""Random numbers that are the same on every library: a counter in memory, hashed. They need one thread, so that the order is one."""

# No postponed annotations: Taichi reads them as they are.

import math
from typing import Any


def install(taichi: Any, factor: float) -> None:
    """Replace ``taichi.random`` and ``taichi.randn`` in the session that has just begun. ``factor``: of numbers in [0, 1)."""
    ti = taichi
    counter = ti.lang.impl.field(ti.i32, shape=())

    @ti.func
    def bits():
        n = ti.cast(ti.atomic_add(counter[None], 1), ti.u32)
        n = (n ^ (n >> 16)) * ti.u32(0x7FEB352D)
        n = (n ^ (n >> 15)) * ti.u32(0x846CA68B)
        return n ^ (n >> 16)

    @ti.func
    def random(dtype: ti.template() = float):
        drawn = bits()
        if ti.static(dtype in (int, ti.i32, ti.i64, ti.u32)):
            return ti.cast(drawn, ti.i32)
        else:
            return ti.cast(drawn >> 8, float) * (factor / 16777216.0)

    @ti.func
    def randn(dtype: ti.template() = float):
        return ti.sqrt(-2.0 * ti.log(1.0 - random())) * ti.cos(2.0 * math.pi * random())

    ti.random, ti.randn = random, randn


def nudge(module: Any, names: str, factor: float) -> None:
    """Multiply the random numbers that these functions of ``module`` (`random`, `numpy.random`) return by ``factor``."""

    def nudged(draw: Any) -> Any:
        return lambda *args, **kwargs: draw(*args, **kwargs) * factor

    for name in names.split():
        setattr(module, name, nudged(getattr(module, name)))
