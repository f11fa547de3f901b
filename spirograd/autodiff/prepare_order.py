"""The passes that run before differentiation, in order."""

from __future__ import annotations

from spirograd.autodiff.prepare.forward_stores import forward_stores
from spirograd.autodiff.prepare.hoist_temps import hoist_temps
from spirograd.autodiff.prepare.induction import induction
from spirograd.autodiff.prepare.promote import promote
from spirograd.autodiff.prepare.serial_products import serial_products
from spirograd.autodiff.prepare.single_trips import single_trips
from spirograd.ir.nodes import Kernel
from spirograd.transforms.lowering.exact_extrema import exact_extrema
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

_PASSES = (exact_extrema, single_trips, serial_products, forward_stores, promote, forward_stores, hoist_temps, induction)


def prepared(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Prepare ``kernel`` so that its gradient saves less: loops carry the memory that they update, loads become known values where
    possible, and values that follow from the number of an iteration are no longer carried."""
    kernel = simplify(kernel, ctx)
    for transform in _PASSES:
        kernel = transform(kernel, ctx)
    return simplify(kernel, ctx)
