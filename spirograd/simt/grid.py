"""What concerns all threads of a launch."""

from __future__ import annotations

from spirograd.base.dtypes import VOID
from spirograd.ir import ops as ir
from spirograd.lang import scalar


def mem_fence() -> None:
    """Order the accesses to memory of this thread for all others of the device: those before come before those after."""
    scalar.builder().emit(ir.barrier, type=VOID)


memfence = mem_fence

__all__ = ["mem_fence", "memfence"]
