"""Random kernels: nested checkpoints of all loops give the gradients of plain tapes, bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from cases import by_day
from grad.nests import nest

import spirograd as sg

from .gradient_programs import write
from .gradients import SIZE, Loaded

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "10"))
AT_NIGHT = 60
BATCH = 10


@pytest.mark.archs("interpreter", "cpu", "vulkan")  # the programs have f64
@pytest.mark.parametrize("first", by_day(range(0, max(EXAMPLES, AT_NIGHT), BATCH), lambda first: first < EXAMPLES))
def test_gradients_of_random_kernels(arch: str, first: int) -> None:
    compared = 0
    for seed in range(first, first + BATCH // (1 if arch == "interpreter" else 2)):
        sg.init(arch=arch, fast_math=False, default_fp=sg.f64, offline_cache=False)
        rng = np.random.default_rng(seed)
        state, adjoint = rng.uniform(-1.0, 1.0, SIZE), rng.standard_normal(SIZE)
        loaded = Loaded(write(seed))
        taped = seed % 2 == 0
        try:
            wanted = loaded.pull(state, adjoint, taped)
        except sg.SpirogradCompilationError:
            continue  # it has no gradient
        for levels, length in ((2, 2), (3, 4)):
            try:
                compared += bool(nest(loaded.kernel, levels, length))
            except sg.SpirogradUnsupportedError as error:
                assert "cannot have nested checkpoints" in str(error)
                break
            np.testing.assert_array_equal(loaded.pull(state, adjoint, taped), wanted, err_msg=f"seed {seed}, {levels} levels of {length}")
    assert compared > 1
