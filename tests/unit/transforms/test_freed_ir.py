"""The IR of a compilation is freed when it ends, without the cycle collector, which would visit all of it."""

from __future__ import annotations

import gc

import pytest
from unit.transforms.test_conditional import DEVICES

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.compiler import compile_kernel
from spirograd.ir.rewrite import Rewriter
from validation.case import load
from validation.collecting import kernels_of

CASES = {case.name: case for case in load()[::120]}


@pytest.mark.parametrize("device", DEVICES)
def test_no_rewriter_is_part_of_a_cycle(device: str) -> None:
    caps = DEVICES[device]
    sources = [source for case in CASES.values() for source in kernels_of(case)]
    kernels = [(kernel, source.options) for source in sources for kernel in source.kernels(caps)]
    gc.collect()
    gc.disable()
    try:
        for kernel, options in kernels:
            try:
                compile_kernel(kernel, caps, options, "", generate=False)
            except SpirogradUnsupportedError:
                continue
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = {type(value).__name__ for value in gc.garbage if isinstance(value, Rewriter)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found
