"""64-bit integers as pairs of words: random kernels do the same before and after, and no value of 64 bits is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.transforms.random_kernels import TYPES, random_kernel
from unit.transforms.test_passes_keep_meaning import context, run, same

from spirograd.analysis.sites import collect_sites
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import Vec, f64, i32, i64, u64
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel
from spirograd.ir.spec import verify
from spirograd.transforms.checks.check_capabilities import check_capabilities
from spirograd.transforms.lowering.layout import arg_block, layout
from spirograd.transforms.lowering.legalize import legalize
from spirograd.transforms.lowering.lower_atomics import lower_atomics
from spirograd.transforms.lowering.lower_diagnostics import diagnostics
from spirograd.transforms.lowering.lower_remainder import lower_remainder
from spirograd.transforms.lowering.native_atomics import unfinished_sites
from spirograd.transforms.lowering.split_int64 import split_int64
from spirograd.transforms.lowering.widen_narrow_types import widen_narrow_types
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify
from spirograd.transforms.tasks.demote_atomics import demote_atomics
from spirograd.transforms.tasks.offload import offload
from spirograd.transforms.tasks.reductions import reductions

WORDS = Capabilities("vulkan", buffer_address=True)
SEEDS = range(25)
_TYPES = tuple(t for t in TYPES if t is not f64)


def lowered(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Device IR with 64-bit integers."""
    kernel = lower_atomics(lower_remainder(legalize(diagnostics(layout(kernel, ctx), ctx), ctx), ctx), ctx)
    return widen_narrow_types(kernel, ctx)


def tasks_of(kernel: Kernel) -> tuple[Kernel, PassContext]:
    """The tasks of a kernel, and the context of their lowering."""
    ctx = context(WORDS)
    tasks = simplify(demote_atomics(reductions(offload(simplify(kernel, ctx), ctx), ctx), ctx), ctx)
    faults, prints = collect_sites(tasks)
    faults = tuple(dict.fromkeys((*faults, *unfinished_sites(tasks, WORDS))))
    return tasks, replace(ctx, block=arg_block(tasks, ctx), faults=faults, prints=prints)


@pytest.mark.parametrize("simplified", [False, True])
def test_random_kernels(simplified: bool) -> None:
    for seed in SEEDS:
        kernel = random_kernel(seed, _TYPES)
        tasks, ctx = tasks_of(kernel)
        split = split_int64(lowered(tasks, ctx), ctx)
        verify(split, "device")
        split = check_capabilities(simplify(split, ctx) if simplified else split, ctx)
        left = [op for op in split.walk() if (op.type.elem if isinstance(op.type, Vec) else op.type) in (i64, u64)]
        assert not left, f"seed {seed}: {left[0]}"
        expected, memory = run(kernel, seed)
        found, result = run(split, seed, source=tasks, block=ctx.block, sites=(ctx.faults, ctx.prints))
        assert (expected.returns, repr(expected.fault)) == (found.returns, repr(found.fault)), f"seed {seed}"
        assert all(map(same, memory, result)), f"seed {seed}"


def test_loops_over_32_bits_stay_as_they_are() -> None:
    for seed in SEEDS:
        before = lowered(*tasks_of(random_kernel(seed, _TYPES)))
        after = split_int64(before, context(WORDS))
        assert {op.args[0].type for op in before.walk() if op.code is ops.for_} <= {i32}
        whiles = [sum(op.code is ops.while_ for op in kernel.walk()) for kernel in (before, after)]
        assert whiles[0] == whiles[1]


@pytest.mark.parametrize("abilities", [{"int64": True}, {"float64": True}])
def test_devices_that_keep_them(abilities: dict[str, bool]) -> None:
    """With f64 alone, no conversion from and to f64 could be emitted: integers of 64 bits are then refused as before."""
    kernel = random_kernel(0)
    caps = replace(WORDS, **abilities)
    assert split_int64(kernel, context(caps)) is kernel and caps.computes_int64 == caps.int64
