"""Contraction: the products that round together with the sum that uses them, as one fused multiply-add, on CPUs that have it.

LLVM fuses some of them too, but of two products in one sum it takes any. The better choice is the product that depends on more operations
of the previous iteration: the other product does not wait for that iteration, so it is computed meanwhile.
"""

from __future__ import annotations

from collections import Counter

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region


def fused_products(body: Region) -> dict[Op, Op]:
    """By sum or difference in ``body``, the product among its operands to be fused with it: one that nothing else uses."""
    found: dict[Op, Op] = {}
    uses = Counter(a for op in body.walk() for a in op.args)
    _fuse(body, uses, found)
    return found


def _fuse(region: Region, uses: Counter[Op], found: dict[Op, Op]) -> None:
    waits = dict.fromkeys(region.params[1:], 0)  # value -> how many operations lie between what the iteration before carried and it
    products: set[Op] = set()
    for op in region.ops[:-1]:
        for inner in op.regions:
            _fuse(inner, uses, found)
        waited = [waits[a] for a in op.args if a in waits]
        if waited:
            waits[op] = max(waited) + 1
        if not isinstance(op.type, DType) or not op.type.is_float or op.attr == "exact":
            continue
        if op.code is ops.mul and uses[op] == 1:
            products.add(op)
        elif op.code is ops.add or op.code is ops.sub:
            choices = [a for a in op.args if a in products]
            if choices:
                found[op] = max(choices, key=lambda a: waits.get(a, 0))
