"""Residues of integers modulo powers of two, which follow from the operations that compute them: the alignment of addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_BITS = 32  # Of constants, and the most that is known: wide integers are computed modulo a multiple of this power of two.
_DEPTH = 200


class Residue(NamedTuple):
    """A value that equals ``residue`` modulo 2 to the power ``bits``. Sums that wrap around keep it."""

    residue: int
    bits: int

    @property
    def zeros(self) -> int:
        """Return how many low bits are known to be zero."""
        if not self.residue:
            return self.bits
        return min(self.bits, (self.residue & -self.residue).bit_length() - 1)


UNKNOWN = Residue(0, 0)


class Residues:
    """The residues of the values of a kernel, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Op, Residue] = {}

    def of(self, value: Op, depth: int = _DEPTH) -> Residue:
        """Return the residue of an integer."""
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._compute(value, depth) if depth else UNKNOWN
        return found

    def _compute(self, op: Op, depth: int) -> Residue:
        if not isinstance(op.type, DType) or not op.type.is_int or op.type.bits < _BITS:
            return UNKNOWN
        if op.code is ops.const:
            return _residue(int(op.attr), _BITS)
        if any(not isinstance(a.type, DType) or not a.type.is_int or a.type.bits < _BITS for a in op.args):
            return UNKNOWN
        if op.code in _SAME:
            return self.of(op.args[0], depth - 1)
        compute = _OPERATIONS.get(op.code)
        return UNKNOWN if compute is None else compute(self.of(op.args[0], depth - 1), self.of(op.args[1], depth - 1))


def _residue(value: int, bits: int) -> Residue:
    bits = min(max(bits, 0), _BITS)
    return Residue(value % (1 << bits), bits)


def _add(x: Residue, y: Residue) -> Residue:
    return _residue(x.residue + y.residue, min(x.bits, y.bits))


def _sub(x: Residue, y: Residue) -> Residue:
    return _residue(x.residue - y.residue, min(x.bits, y.bits))


def _mul(x: Residue, y: Residue) -> Residue:
    """(r + 2^m a) (s + 2^n b) = r s + 2^m s a + 2^n r b + ..., whose terms are multiples of powers of two."""
    return _residue(x.residue * y.residue, min(x.bits + y.zeros, y.bits + x.zeros))


def _shl(x: Residue, y: Residue) -> Residue:
    return _residue(x.residue << y.residue, x.bits + y.residue) if y.bits == _BITS and y.residue < _BITS else UNKNOWN


def _and(x: Residue, y: Residue) -> Residue:
    """Bits are known if they are known of both, or are zero in one of them: here only low ones are considered."""
    both = min(x.bits, y.bits)
    if x.residue & y.residue & ((1 << both) - 1):
        return _residue(x.residue & y.residue, both)
    return _residue(0, max(both, x.zeros, y.zeros))


def _or(x: Residue, y: Residue) -> Residue:
    return _residue(x.residue | y.residue, min(x.bits, y.bits))


_SAME = frozenset((ops.bitcast, ops.cast))  # Of wide integers: the low bits stay.
_OPERATIONS: dict[OpCode, Callable[[Residue, Residue], Residue]] = {
    ops.add: _add, ops.sub: _sub, ops.mul: _mul, ops.shl: _shl, ops.and_: _and, ops.or_: _or,
}  # fmt: skip
