"""Sizes of workgroups of long bodies. Cases of short ones are in tests/text."""

from __future__ import annotations

import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import i32
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, TaskAttr
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.offload import offload
from spirograd.transforms.tasks.size_groups import size_groups
from validation.profiles import PTX

CAPS = PTX["cuda-sm_90"]
X = ArrayRef("x", 0, i32, 1)


def sized(length: int, caps: Capabilities = CAPS, loop_size: int = 0, **options: int) -> TaskAttr:
    """The task of a loop whose body has some ``length`` operations, after the pass."""
    b = Builder()
    b.begin()
    first, end = b.const(0), b.const(100_000)
    (i,) = b.begin(i32)
    value = i
    for _ in range(length):
        value = b.emit(ops.mul, value, i)
    b.store(X, i, value)
    b.for_(first, end, [], b.end(), LoopAttr(parallel=True, group_size=loop_size))
    kernel = Kernel("k", (ArrayArg("x", i32, 1),), b.end(), ())
    context = PassContext(caps, CompileOptions(**options))
    return size_groups(offload(kernel, context), context).body.ops[0].attr


def test_long_bodies_run_in_small_workgroups() -> None:
    assert sized(10).group_size == 0
    assert sized(2000).group_size == 64
    assert "groups of 256" in sized(2000).alternatives and "groups of 64" not in sized(2000).alternatives


@pytest.mark.parametrize("length", [10, 2000])
def test_sizes_of_programs_and_sessions_stay(length: int) -> None:
    assert sized(length, loop_size=512).group_size == 512
    assert sized(length, group_size=128).group_size == 0  # the session's


def test_drivers_for_cpus_keep_their_workgroups() -> None:
    assert sized(2000, replace(CAPS, cpu_driver=True)).group_size == 0
