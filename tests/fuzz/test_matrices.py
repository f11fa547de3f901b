"""Random programs with sparse matrices and with tiles."""

from __future__ import annotations

import needs
import pytest
from cases import by_day, seeds

from . import matrix_programs, tile_programs

scipy = needs.package("scipy")


@pytest.mark.archs("cpu", "vulkan", "cuda")
@pytest.mark.parametrize("seed", seeds(4, 100))
def test_sparse_matrices(seed: int, arch: str) -> None:
    matrix_programs.check_matrices(seed, (arch,))


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")
# By day, two programs with all steps that there are, and one product each: drivers compile a product for seconds.
@pytest.mark.parametrize("seed", by_day(range(60), lambda seed: seed in (13, 16)))
def test_tiles(seed: int, arch: str) -> None:
    matrix_programs.check_tiles(matrix_programs.tiles(seed), (arch,))


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")
@pytest.mark.parametrize("seed", seeds(2, 100))
def test_products_of_tiles(seed: int, arch: str) -> None:
    tile_programs.check(tile_programs.Products(seed, depth=1 if arch == "vulkan" else 2), (arch,))
