"""Passes that prepare differentiation keep what random kernels compute, and take accesses out of loops."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from ir_random_memory import memory_arguments, memory_kernel

from spirograd.analysis.trial import run
from spirograd.autodiff.prepare.forward_stores import forward_stores
from spirograd.autodiff.prepare.hoist_temps import hoist_temps
from spirograd.autodiff.prepare.induction import induction
from spirograd.autodiff.prepare.promote import promote
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir.spec import verify
from spirograd.ir.text import to_text
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
PASSES = {f.__name__: f for f in (promote, forward_stores, hoist_temps, induction)}
COUNT = 150


def _outcome(kernel, seed):
    args, tree = memory_arguments(seed)
    done = run(kernel, args, {0: tree})
    return done, [*args, tree]


@functools.cache
def _before(seed, simple):
    """A kernel, which all passes are tested with, and its outcome."""
    kernel = memory_kernel(seed)
    verify(kernel, "kernel")
    if simple:
        kernel = simplify(kernel, CTX)
    return kernel, *_outcome(kernel, seed)


@pytest.mark.parametrize("simple", [False, True], ids=["raw", "simplified"])
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seeds", [range(COUNT), pytest.param(range(COUNT, 5 * COUNT), marks=pytest.mark.long)], ids=["few", "many"])
def test_results_stay(seeds, name, simple):
    changed = compared = 0
    for seed in seeds:
        kernel, done, arrays = _before(seed, simple)
        after = PASSES[name](kernel, CTX)
        verify(after, "kernel")
        changed += after is not kernel
        if done.fault is not None:
            continue  # what is read and written out of range is nothing to go by
        compared += 1
        if after is kernel:
            continue
        now, new = _outcome(after, seed)
        assert now.fault is None, (seed, now.fault)
        np.testing.assert_array_equal(now.returns, done.returns, err_msg=f"seed {seed}")
        for a, b in zip(arrays, new):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}\n{to_text(kernel)}")
    assert changed >= 3 and compared > len(seeds) // 3, (changed, compared)
