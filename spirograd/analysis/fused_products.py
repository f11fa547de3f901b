"""Contraction: the products that round together with the sum that uses them, as one fused multiply-add.

A fused product is not rounded, so it does not cancel with an equal product that is. Programs branch on sums that are exactly zero for
equal entries: `a * b - c * d`, the entries of `R^T R` of a rotation R, cross products, determinants, deviators. These must stay zero. So a
product is fused only with a summand that is neither

- a sum that contains products, nor this sum of an earlier iteration, nor memory that the kernel has filled with such sums before, nor the
  result or an argument of a function, which may be such a sum, nor
- a sum that shares a term with a factor of the product, as in `e + f + g - e * 3`, or a term of such a sum: `e - (e + f + g) * (1 / 3)`.

Multiplying by a power of two rounds nothing. Such products do not count, and are fused with anything. Programs may also ask that all
products are (`init(contraction="free")`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Union

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Ref, Region, ref_of

# A term of a sum: a value, or all memory of a reference that is read.
Term = Union[Op, Ref]
_WRITING = frozenset(("write", "atomic"))
_CALLS = frozenset((ops.call, ops.call_memory))
# A sum with more terms is assumed to share terms with any other.
_MOST_PARTS = 64
# The operands of which the result is a linear combination, element by element; the other operands choose among them.
_LINEAR: dict[ops.OpCode, slice] = {
    **dict.fromkeys((ops.add, ops.sub, ops.neg, ops.abs_, ops.min_, ops.max_, ops.cast, ops.opaque, ops.stop_grad, ops.vec), slice(None)),
    **dict.fromkeys((ops.recall, ops.with_partial, ops.div, ops.extract), slice(1)),
    ops.select: slice(1, 3),
    ops.insert: slice(0, 3, 2),
    ops.fma: slice(2, 3),
}


def fused_products(body: Region, free: bool) -> dict[Op, Op]:
    """Return, for each sum or difference in ``body`` (of a kernel or function), the product among its operands to be fused with it. Nothing
    else uses that product. ``free``: whatever the other operand is."""
    uses = Counter(a for op in body.walk() for a in op.args)
    candidates = {op: products for op in body.walk() if (products := [a for a in op.args if _may_fuse(op, a) and uses[a] == 1])}
    if free or not candidates:
        return {op: products[0] for op, products in candidates.items()}
    sums = _Sums(body)
    fused: dict[Op, Op] = {}
    for op, products in candidates.items():
        for product in products:
            (other,) = [a for a in op.args if a is not product]
            if _is_exact(product) or not (other in sums.rounded or sums.share(product, other)):
                fused[op] = product
                break
    return fused


def _may_fuse(op: Op, product: Op) -> bool:
    """Return whether ``op`` is a sum and ``product`` a product, of floats that need not be rounded as written."""
    added = op.code in (ops.add, ops.sub) and op.attr is None and product.code is ops.mul and product.attr is None
    return added and isinstance(op.type, DType) and op.type.is_float


def _is_float(op: Op) -> bool:
    t = getattr(op.type, "elem", op.type)
    return isinstance(t, DType) and t.is_float


def _is_exact(product: Op) -> bool:
    """Return whether one of the factors is a power of two."""
    return any(a.code is ops.const and math.isfinite(a.attr) and abs(math.frexp(a.attr)[0]) == 0.5 for a in product.args)


class _Sums:
    """The linear combinations in a region. ``rounded``: the values that have a product among their terms."""

    def __init__(self, body: Region) -> None:
        self._parts: dict[Op, list[Op]] = defaultdict(list)
        self._memory: dict[Term, list[Term]] = defaultdict(list)  # for elements that are read, and for memory: the sources of values
        self._terms: dict[Op, set[Term] | None] = {}
        self._products: list[Op] = [*body.params]
        self._region(body, set())
        self.rounded = self._reached_from(self._products)

    def _region(self, region: Region, written: set[Ref]) -> None:
        """Collect the sums in ``region``. ``written``: memory that the kernel has written before; writes of the region are added."""
        for op in region.ops:
            if op.regions:
                self._carry(op)
                if op.code is ops.while_ or (op.code is ops.for_ and not op.attr.parallel):
                    written |= {ref for inside in op.regions for x in inside.walk() if x.code.effect in _WRITING and (ref := ref_of(x))}
                for inside in op.regions:
                    self._region(inside, written)
            elif op.code.effect in _WRITING and (ref := ref_of(op)):
                self._memory[ref] += [a for a in op.args if _is_float(a)]
                self._memory[op].append(ref)
                written.add(ref)
            elif op.code.effect == "read":
                self._memory[op] += [ref] if (ref := ref_of(op)) in written else []
            else:
                self._value(op)

    def _value(self, op: Op) -> None:
        if op.code is ops.result and op.args[0].code not in _CALLS:
            self._parts[op] += self._results(op.args[0], op.attr)
        elif not _is_float(op):
            return
        elif op.code is ops.mul:
            if not _is_exact(op):
                self._products.append(op)
            if any(a.code is ops.const for a in op.args):
                self._parts[op] += op.args
        elif op.code in _LINEAR:
            self._parts[op] += op.args[_LINEAR[op.code]]
            self._products += [op] if op.code is ops.fma else []
        elif op.code in _CALLS or op.code is ops.result:
            self._products.append(op)

    def _carry(self, op: Op) -> None:
        """Record the sources of the values that a loop carries."""
        if op.code is ops.for_:
            (body,) = op.regions
            carried, initial, results = [body.params[1:]], op.args[2:], body.results
        elif op.code is ops.while_:
            carried, initial, results = [region.params for region in op.regions], op.args, op.regions[1].results
        else:
            return
        for params in carried:
            for param, first, following in zip(params, initial, results):
                self._parts[param] += (first, following)

    def _results(self, op: Op, k: int) -> list[Op]:
        """Return the values that result ``k`` of a branch or loop may have."""
        if op.code is ops.if_:
            return [region.results[k] for region in op.regions]
        if op.code is ops.for_:
            return [op.args[2 + k], op.regions[0].results[k]]
        return [op.args[k], op.regions[1].results[k]] if op.code is ops.while_ else []

    def _reached_from(self, products: list[Op]) -> set[Term]:
        users: dict[Term, list[Term]] = defaultdict(list)
        for op, parts in self._parts.items():
            for part in parts:
                users[part].append(op)
        for memory, sources in self._memory.items():
            for source in sources:
                users[source].append(memory)
        reached, waiting = set[Term](products), list[Term](products)
        while waiting:
            new = [user for user in users[waiting.pop()] if user not in reached]
            reached.update(new)
            waiting += new
        return reached

    def share(self, product: Op, other: Op) -> bool:
        """Return whether a factor of ``product`` has a term of ``other``, and one of them is a sum. (x and x * y have no sum.)"""
        mine = self._terms_of(other)
        factors = [self._terms_of(factor) for factor in product.args if self._parts.get(factor) or self._parts.get(other)]
        return mine is None or any(terms is None or not terms.isdisjoint(mine) for terms in factors)

    def _terms_of(self, value: Op) -> set[Term] | None:
        """Return the terms of the sum ``value``, or None if there are many."""
        if value not in self._terms:
            seen, waiting, terms = {value}, [value], set[Term]()
            while waiting and len(seen) <= _MOST_PARTS:
                op = waiting.pop()
                parts = self._parts.get(op)
                if parts:
                    waiting += [part for part in parts if part not in seen]
                    seen.update(parts)
                elif op.code is not ops.const:
                    terms.add(ref_of(op) or op)
            self._terms[value] = None if waiting else terms
        return self._terms[value]
