"""Checks of the sizes of index spaces, hoisted out of loops, and moved from the kernel to the host if it knows the extents before a launch.

Such a check has a `FaultSite` with code "space". The product of its operands must not exceed ``most`` of the site. Operands are extents,
whose bits are read as unsigned numbers, and ``begin < end`` of loops around the check, as 1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from spirograd.analysis.sites import is_space_check
from spirograd.analysis.sizes import size_of
from spirograd.base.artifact import SpaceLimit
from spirograd.base.dtypes import VOID, DType, u32
from spirograd.base.sizes.simplify_sizes import simplify
from spirograd.base.sizes.size_nodes import IfLess, Size
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce

_LEAVES = frozenset((ops.const, ops.arg, ops.shape))


def hoist_space_checks(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Hoist each check of an index space whose extents are computed from arguments out of the `for` loops around it.

    The check then also holds if one of these loops has no iteration, so that the derivative of the kernel can keep it without the loop.
    """
    return _Hoist().kernel(kernel) if ops.check in kernel.codes and any(is_space_check(op) for op in kernel.walk()) else kernel


def take_space_limits(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, tuple[SpaceLimit, ...]]:
    """Remove the checks that the host can evaluate before a launch. Return the kernel and these checks."""
    limits = {op: limit for op in kernel.body.ops if is_space_check(op) and (limit := _limit(op)) is not None}
    if not limits:
        return kernel, ()
    left = tuple([op for op in kernel.body.ops if op not in limits])
    return dce(kernel.with_body(Region(kernel.body.params, left)), ctx), tuple(dict.fromkeys(limits.values()))


class _Hoist(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.for_: self._for, ops.check: self._check}
        self.moved: set[Op] = set()
        self.remade: dict[Op, Op] = {}

    def _for(self, op: Op) -> Op:
        if self.b.depth == 1:
            for check, loops in _movable(op, ()):
                self.moved.add(check)
                self._move(check, loops)
            self.b.loc = op.loc
        return self.copy(op)

    def _check(self, op: Op) -> Op | None:
        return None if op in self.moved else self.copy(op)

    def _move(self, check: Op, loops: tuple[Op, ...]) -> None:
        """Emit ``check``, which is inside of ``loops``, here."""
        b = self.b
        good, *operands = [self._again(a) for a in check.args]
        dtypes = check.attr.dtypes
        b.loc = check.loc
        for loop in loops:
            runs = b.emit(ops.lt, self._again(loop.args[0]), self._again(loop.args[1]))
            good = b.emit(ops.or_, good, b.emit(ops.not_, runs))
            operands.append(b.cast(runs, u32))
            dtypes = (*dtypes, u32)
        site = check.attr.with_operands(dtypes)
        b.emit(ops.check, good, *operands, attr=site, type=VOID)

    def _again(self, value: Op) -> Op:
        """Recompute ``value`` here."""
        if value not in self.remade:
            args = tuple([self._again(a) for a in value.args])
            self.remade[value] = self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc))
        return self.remade[value]


def _movable(loop: Op, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Yield the checks in ``loop`` that can move out of it and of the loops ``around`` it, with the loops that contain them."""
    if not all(_is_known(a) for a in loop.args[:2]):
        return
    around = (*around, loop)
    for op in loop.regions[0].ops:
        if is_space_check(op) and all(_is_known(a) for a in op.args):
            yield op, around
        elif op.code is ops.for_:
            yield from _movable(op, around)


def _is_known(value: Op) -> bool:
    """Return whether ``value`` is computed from constants, arguments and extents of arrays."""
    if value.code in _LEAVES:
        return True
    scalar = value.code.effect == "pure" and bool(value.args) and not value.regions and isinstance(value.type, DType)
    return scalar and all(_is_known(a) for a in value.args)


def _limit(check: Op) -> SpaceLimit | None:
    """Return ``check`` as a limit that the host checks, or None if the host does not know the extents."""
    sizes: list[Size] = []
    largest: list[int] = []
    for operand in check.args[1:]:
        extent = _extent(operand)
        size = _factor(extent)
        if size is None or not isinstance(extent.type, DType):
            return None
        sizes.append(simplify(size))
        largest.append(int(extent.type.max))
    return SpaceLimit(tuple(sizes), tuple(largest), check.attr.most, check.attr)


def _extent(operand: Op) -> Op:
    """Return the extent whose bits are ``operand``."""
    if operand.code is not ops.cast:
        return operand
    source = operand.args[0]
    same_bits = isinstance(source.type, DType) and isinstance(operand.type, DType) and source.type.bits == operand.type.bits
    return source if same_bits and source.type.is_int else operand  # type: ignore[union-attr]


def _factor(extent: Op) -> Size | None:
    if extent.code is ops.cast and extent.args[0].code is ops.lt:
        begin, end = (size_of(a) for a in extent.args[0].args)
        return None if begin is None or end is None else IfLess(begin, end, 1)
    return size_of(extent)
