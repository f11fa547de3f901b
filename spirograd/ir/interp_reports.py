"""Reports of kernels in the interpreter: the fault record and the print ring, in the formats of base/artifact.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsInt

import numpy as np

from spirograd.base import artifact
from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.dtypes import DType, u1, unsigned
from spirograd.base.errors import SpirogradAssertionError, render

Words = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]  # a record in memory, as 32-bit words


def bits(t: DType, value: SupportsInt) -> int:
    """Return the bit pattern of a scalar, zero-extended."""
    if t is u1:
        return int(value)
    if t.is_float:
        return int(np.asarray(value, t.np).view(unsigned(t).np)[()])
    return int(value) & ((1 << t.bits) - 1)


def _words(dtypes: Sequence[DType], values: Sequence[SupportsInt]) -> list[int]:
    """Return scalars as pairs of 32-bit words, low before high."""
    patterns = [bits(t, x) for t, x in zip(dtypes, values)]
    return [word for pattern in patterns for word in (pattern & 0xFFFFFFFF, pattern >> 32)]


def record_fault(record: Words | None, launch: int, number: int, site: FaultSite, operands: Sequence[SupportsInt]) -> None:
    """Write the fault record if no fault came before. Raise the error if there is no record."""
    if record is None:
        raise SpirogradAssertionError(render(site.message.format(*operands), site.loc))
    if record[artifact.FAULT_FLAG]:
        return
    words = _words(site.dtypes, operands)[: 2 * artifact.FAULT_MAX_OPERANDS]
    record[artifact.FAULT_FLAG] = 1
    record[artifact.FAULT_SITE] = number
    record[artifact.FAULT_LAUNCH] = launch
    record[artifact.FAULT_OPERANDS - 1] = len(words)
    record[artifact.FAULT_OPERANDS : artifact.FAULT_OPERANDS + len(words)] = words


def record_print(ring: Words | None, launch: int, number: int, site: PrintSite, operands: Sequence[SupportsInt]) -> None:
    """Write a record to the print ring. If the ring lacks capacity, only claim the space."""
    if ring is None:
        raise ValueError("the argument block has no entry for the print ring")
    words = [number, int(launch), *_words(site.dtypes, operands)]
    at = int(ring[artifact.PRINT_CURSOR])
    ring[artifact.PRINT_CURSOR] = at + len(words)
    start = artifact.PRINT_DATA + at
    if at + len(words) <= int(ring[artifact.PRINT_CAPACITY]) and start + len(words) <= len(ring):
        ring[start : start + len(words)] = words
