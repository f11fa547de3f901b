"""Operations of all threads of a launch."""

from __future__ import annotations

from spirograd.base.dtypes import VOID
from spirograd.ir import ops as ir
from spirograd.lang import scalar


def mem_fence() -> None:
    """Order the memory accesses of this thread for all threads of the device: accesses before the fence come before accesses after it."""
    scalar.builder().emit(ir.barrier, type=VOID)


memfence = mem_fence

__all__ = ["mem_fence", "memfence"]
