"""An array of another type than the kernel takes: the error says how to convert it, and what it says works."""

from __future__ import annotations

import re
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")
TYPES = [sg.i8, sg.i32, sg.i64, sg.u16, sg.u64, sg.u1, sg.f16, sg.f32, sg.f64]
MAKERS = {
    "numpy": lambda: np.ones(3, np.int16),
    "torch": lambda: torch.ones(3, dtype=torch.int16),
    "ndarray": lambda: sg.ndarray(sg.i16, 3),
}


@pytest.mark.archs("interpreter")
@pytest.mark.parametrize("maker", MAKERS)
def test_conversions(session: Any, maker: str) -> None:
    for t in TYPES:

        @sg.kernel
        def first(a: sg.types.ndarray(t, 1)) -> sg.i32:
            return sg.cast(a[0], sg.i32)

        array = MAKERS[maker]()
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=f"argument `a`: expected an array of {t}, got i16") as error:
            first(array)
        if maker == "ndarray":
            assert f"make the array with `sg.{t}`" in str(error.value)
            continue
        found = re.search(r"convert it with `(\.\w+\((np|torch)\.\w+\))`", str(error.value))
        assert found, error.value
        assert first(eval(f"array{found[1]}", {"array": array, "np": np, "torch": torch})) == 1
