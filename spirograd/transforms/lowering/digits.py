"""Recombination of digits of one number: ``(n / 8 % 8) * 8 + n % 8`` is ``n % 64``.

A loop over a field computes indices from its counter, by division, and an access computes an address from the indices. If the loop visits
memory in order, the address is the counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spirograd.ir import ops
from spirograd.ir.nodes import Op


class Digit(NamedTuple):
    """A digit ``(base / div % mod) * scale``; a ``mod`` of 0 means no modulo. Divisions round towards 0, so all rules also hold for
    negative numbers."""

    base: Op
    div: int
    mod: int
    scale: int

    def over(self, n: int) -> Digit | None:
        """Return the digit divided by ``n``, before scaling, or None if the result is not a digit."""
        if self.mod % n:
            return None
        return self._replace(div=self.div * n, mod=self.mod // n)

    def modulo(self, n: int) -> Digit | None:
        """Return the digit modulo ``n``, before scaling, or None if the result is not a digit."""
        if self.mod % n and n % self.mod:
            return None
        return self._replace(mod=min(self.mod, n) or n)


def digit_of(value: Op) -> Digit:
    """Return ``value`` as a digit of the number that it was computed from."""
    if value.code in (ops.idiv, ops.irem) and value.args[1].code is ops.const and int(value.args[1].attr) > 0:
        n = int(value.args[1].attr)
        inner = digit_of(value.args[0])
        digit = inner.over(n) if value.code is ops.idiv else inner.modulo(n)
        if digit is not None:
            return digit
    return Digit(value, 1, 0, 1)


def offset_of(value: Op) -> tuple[Op, int]:
    """Return ``value`` as a sum of a value and a constant."""
    if value.code is ops.add and value.args[1].code is ops.const:
        return value.args[0], int(value.args[1].attr)
    return value, 0


def joined(digits: Sequence[Digit]) -> list[Digit]:
    """Return the fewest digits with the same sum."""
    left = list(digits)
    for low in sorted(digits, key=lambda d: -d.scale):
        if low not in left or low.mod < 2:
            continue
        above = next((d for d in left if (d.base, d.div, d.scale) == (low.base, low.div * low.mod, low.scale * low.mod)), None)
        if above is not None:
            left.remove(above)
            left[left.index(low)] = low._replace(mod=low.mod * above.mod)
    return left
