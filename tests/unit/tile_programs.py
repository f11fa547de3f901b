"""A product of tiles, compiled for a device that need not be here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import spirograd as sg
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners
from spirograd.lang.context import options_of_device, session


def multiplied(tile: Any, factors: Any, total: Any, caps: Capabilities, transposed: bool = False, threads: int = 32) -> CompiledKernel:
    """A tile of the product of a row of four tiles and a column of four, by a loop."""
    found: list[Compilation] = []
    n = tile.SIZE
    sg.init(arch=sg.interpreter, offline_cache=False)
    try:
        opened = session()
        opened.language = replace(opened.language, **options_of_device(caps))
        a, b, c = sg.field(factors, (n, 4 * n)), sg.field(factors, (4 * n, n)), sg.field(total, (n, n))

        @sg.kernel
        def multiply():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=threads)
            for _ in range(threads):
                t = tile.zeros(total)
                for k in range(4):
                    left, right = tile.zeros(factors), tile.zeros(factors)
                    left[:] = a[0:n, k * n : k * n + n]
                    right[:] = b[k * n : k * n + n, 0:n]
                    t.add_product_(left, right, transposed)
                c[0:n, 0:n] = t

        listeners.append(found.append)
        try:
            multiply()
        finally:
            listeners.remove(found.append)
    finally:
        sg.reset()
    compilation = next(one for one in found if "multiply" in one.kernel.name)
    return compile_kernel(compilation.kernel, caps, replace(compilation.options, keep_stages=True))
