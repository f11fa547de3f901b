"""Every pass leaves what a kernel does as it is: random kernels, run by the interpreter before and after."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.transforms.random_kernels import inputs, random_kernel

from spirograd.analysis import trial
from spirograd.analysis.sites import collect_sites
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir.nodes import Kernel
from spirograd.ir.spec import verify
from spirograd.transforms.checks.check_bounds import check_bounds
from spirograd.transforms.checks.check_capabilities import check_capabilities
from spirograd.transforms.lowering.layout import arg_block, layout
from spirograd.transforms.lowering.legalize import legalize
from spirograd.transforms.lowering.lower_atomics import lower_atomics
from spirograd.transforms.lowering.lower_diagnostics import diagnostics
from spirograd.transforms.lowering.native_atomics import unfinished_sites
from spirograd.transforms.lowering.widen_narrow_types import widen_narrow_types
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.cse import cse
from spirograd.transforms.simplification.dce import dce
from spirograd.transforms.simplification.fold import fold
from spirograd.transforms.simplification.licm import licm
from spirograd.transforms.simplification.simplify import simplify
from spirograd.transforms.tasks.demote_atomics import demote_atomics
from spirograd.transforms.tasks.offload import offload
from spirograd.transforms.tasks.reductions import reductions

_ALL = dict.fromkeys(("int8", "int16", "int64", "float16", "float64", "storage8", "storage16", "atomic_int64"), True)
CPU = Capabilities("cpu", **_ALL)
GPU = Capabilities("vulkan", **_ALL)
POOR = Capabilities("vulkan", int64=True, float64=True, atomic_int64=True)
VALUES_ONLY = replace(POOR, int8=True, int16=True)
WORDS = replace(POOR, int16=True, storage16=True)
NO_CAS = replace(POOR, target_name="wgpu", atomic_cas=False)
IMPATIENT = replace(GPU, atomic_cas=False, loop_limit=1000)
_NAMES = ("cpu", "gpu", "poor", "no narrow memory", "no bytes", "no compare-and-swap", "a limit of loops")
SEEDS = range(40)


def context(caps: Capabilities) -> PassContext:
    return PassContext(caps, CompileOptions())


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal, where all NaNs count as one value, and zeros differ by sign."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)])))


def run(kernel: Kernel, seed: int, **options: Any) -> tuple[trial.Outcome, list[np.ndarray[Any, Any]]]:
    args, trees = inputs(seed)
    outcome = trial.run(kernel, args, trees, seed=seed, **options)
    pairs, sums = trees[1], trees[2]
    views = [args[0], args[1], trees[0], pairs[:64].view(np.float32), pairs[64:], sums[:64], sums[64:68].view(np.float32), sums[68:]]
    return outcome, views


@functools.cache
def reference(seed: int) -> tuple[trial.Outcome, list[np.ndarray[Any, Any]]]:
    """What the random kernel does before any pass."""
    return run(random_kernel(seed), seed)


def compare(after: Kernel, seed: int, what: str, **options: Any) -> None:
    """``after`` does what `random_kernel` of the same seed does."""
    expected, memory = reference(seed)
    found, result = run(after, seed, **options)
    assert expected.returns == found.returns, what
    assert repr(expected.prints) == repr(found.prints), what
    assert repr(expected.fault) == repr(found.fault), what
    for k, (a, b) in enumerate(zip(memory, result)):
        assert same(a, b), f"{what}: memory {k}"


PASSES: tuple[Callable[[Kernel, PassContext], Kernel], ...] = (fold, cse, licm, dce, simplify, check_bounds, offload)


@pytest.mark.parametrize("transform", PASSES, ids=lambda f: f.__name__)
def test_single_passes(transform: Callable[[Kernel, PassContext], Kernel]) -> None:
    for seed in SEEDS:
        kernel = random_kernel(seed)
        verify(kernel, "kernel")
        after = transform(kernel, context(GPU))
        verify(after, "kernel")
        compare(after, seed, f"seed {seed}")


@pytest.mark.parametrize("caps", (CPU, GPU, POOR, VALUES_ONLY, WORDS, NO_CAS, IMPATIENT), ids=_NAMES)
def test_the_way_to_device_ir(caps: Capabilities) -> None:
    for seed in SEEDS:
        kernel = random_kernel(seed)
        ctx = context(caps)
        tasks = demote_atomics(reductions(offload(simplify(kernel, ctx), ctx), ctx), ctx)
        verify(tasks, "kernel")
        compare(tasks, seed, f"seed {seed}, tasks")
        tasks = simplify(tasks, ctx)
        sites = collect_sites(tasks)
        block = arg_block(tasks, ctx)
        sites = (tuple(dict.fromkeys((*sites[0], *unfinished_sites(tasks, caps)))), sites[1])
        ctx = replace(ctx, block=block, faults=sites[0], prints=sites[1])
        lowered = lower_atomics(legalize(diagnostics(layout(tasks, ctx), ctx), ctx), ctx)
        verify(lowered, "device")
        compare(lowered, seed, f"seed {seed}, lowered", source=tasks, block=block, sites=sites)
        widened = widen_narrow_types(lowered, ctx)
        verify(widened, "device")
        compare(widened, seed, f"seed {seed}, widened", source=tasks, block=block, sites=sites)
        final = check_capabilities(simplify(widened, ctx), ctx)
        verify(final, "device")
        compare(final, seed, f"seed {seed}, final", source=tasks, block=block, sites=sites)
