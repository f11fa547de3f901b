"""Products of tiles, compiled for a device that need not be here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import spirograd as sg
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners
from spirograd.lang.context import session
from spirograd.lang.language_options import options_of_device
from spirograd.simt import Tile16x16


def compiled(make: Callable[[], Any], caps: Capabilities) -> CompiledKernel:
    """The kernel that ``make`` makes. It runs once on the interpreter."""
    found: list[Compilation] = []
    sg.init(arch=sg.interpreter, offline_cache=False)
    try:
        opened = session()
        opened.language = replace(opened.language, **options_of_device(caps))
        kernel = make()
        listeners.append(found.append)
        try:
            kernel()
        finally:
            listeners.remove(found.append)
    finally:
        sg.reset()
    (compilation,) = found
    return compile_kernel(compilation.kernel, caps, replace(compilation.options, keep_stages=True))


def multiplied(tile: Any, factors: Any, total: Any, caps: Capabilities, transposed: bool = False, threads: int = 32) -> CompiledKernel:
    """A tile of the product of a row of four tiles and a column of four, by a loop."""
    n = tile.SIZE

    def make() -> Any:
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

        return multiply

    return compiled(make, caps)


def multiplied_in(control: str, caps: Capabilities) -> CompiledKernel:
    """Products of f16 in an "if", a "for" or a "while" of which only the memory says that all threads of a group go the same way."""

    def make() -> Any:
        a, c, often = sg.field(sg.f16, (16, 16)), sg.field(sg.f32, (16, 16)), sg.field(sg.i32, 64)

        @sg.kernel
        def multiply():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=32)
            for i in often:
                left, t, left_to_do = Tile16x16.zeros(sg.f16), Tile16x16.eye(sg.f32), often[i]
                left[:] = a[0:16, 0:16]
                if sg.static(control == "if"):
                    if left_to_do > 0:
                        t.add_product_(left, left)
                elif sg.static(control == "for"):
                    for _ in range(left_to_do):
                        t.add_product_(left, left)
                else:
                    while left_to_do > 0:
                        t.add_product_(left, left)
                        left_to_do -= 1
                c[0:16, 0:16] = t

        return multiply

    return compiled(make, caps)


def factorised(tile: Any, dtype: Any, caps: Capabilities) -> CompiledKernel:
    """Factors and solutions of matrices that fill a tile, in a loop and a branch that only the memory says all threads of a group run
    together."""
    n = tile.SIZE

    def make() -> Any:
        a, b, often = sg.field(dtype, (4, n, n)), sg.field(dtype, (4, n, n)), sg.field(sg.i32, 4)

        @sg.kernel
        def solve():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=n)
            for i in range(4 * n):
                g = i // n
                if often[g] > 0:
                    for _ in range(often[g]):
                        factor, x = tile.zeros(dtype), tile.zeros(dtype)
                        factor[:] = a[g, 0:n, 0:n]
                        x[:] = b[g, 0:n, 0:n]
                        factor.cholesky_(1e-6)
                        factor.solve_triangular_(x)
                        b[g, 0:n, 0:n] = x

        return solve

    return compiled(make, caps)
