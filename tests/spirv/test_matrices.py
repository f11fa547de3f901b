"""Products of tiles by cooperative matrices: what modules say. What they compute is tested where there is a card,
or lavapipe of Mesa 26."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import vulkan as vk
from unit.tile_programs import multiplied, multiplied_in

import spirograd as sg
from spirograd.base.matrix_shapes import LANES, SHAPES, TOTAL, TRANSPOSED, A, B, held_entries
from spirograd.runtime.devices.vulkan.features import offered_shapes
from spirograd.simt import Tile16x16, Tile32x32
from spirograd.spirvgen.disasm import disassemble
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.validate import validate
from validation.profiles import VULKAN

CARD = replace(VULKAN, subgroup_read=True, subgroup_ballot=True, shared_memory=48 << 10)


def module_of(tile: Any, shapes: tuple[str, ...], transposed: bool = False) -> str:
    """The text of the module of a product of tiles, for a card that offers ``shapes``."""
    caps = replace(CARD, matrix_shapes=shapes, subgroup_size=SHAPES[shapes[0]].lanes)
    (binary,) = multiplied(tile, sg.f16, sg.f32, caps, transposed).binaries
    return text_of(binary)


def text_of(binary: bytes) -> str:
    """The text of a module, which spirv-val finds valid, or does not know."""
    try:
        validate(binary, "vulkan")
    except ModuleError as error:
        assert "install SPIRV-Tools v2023.4 or newer" in str(error)
    return disassemble(binary)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("tile", "shape", "products", "factors"),
    [
        (Tile16x16, "m16n16k16_f16", 1, 2),
        (Tile16x16, "m16n8k16_f16", 2, 3),
        (Tile32x32, "m16n16k16_f16", 8, 8),
        (Tile32x32, "m16n16k8_f16", 16, 16),
        (Tile16x16, "m8n8k8_f16", 2, 4),
        (Tile32x32, "m8n8k8_f16", 16, 16),
    ],
    ids=str,
)
def test_modules_with_cooperative_matrices(tile: Any, shape: str, products: int, factors: int, transposed: bool) -> None:
    text = module_of(tile, (shape,), transposed)
    assert "OpCapability CooperativeMatrixKHR" in text and "OpMemoryModel PhysicalStorageBuffer64 Vulkan" in text
    assert text.count("OpCooperativeMatrixMulAddKHR") == products, "factors are multiplied once"
    assert text.count("OpCooperativeMatrixLoadKHR") == factors, "the total stays where it is from product to product"
    assert text.count("OpCooperativeMatrixStoreKHR") == len(SHAPES[shape].blocks(tile.SIZE, TOTAL))
    assert ("BuiltIn SubgroupId" in text) == (SHAPES[shape].lanes < 32), "small subgroups compute parts of the total"
    body = text[text.index("OpFunction ") :]
    assert all("NonPrivatePointer" in line for line in body.splitlines() if "OpLoad" in line and "Aligned" in line)


@pytest.mark.parametrize("control", ["if", "for", "while"])
def test_products_where_only_the_memory_says_that_threads_agree(control: str) -> None:
    (binary,) = multiplied_in(control, replace(CARD, matrix_shapes=("m16n16k16_f16",))).binaries
    assert text_of(binary).count("OpCooperativeMatrixMulAddKHR") == 1


@pytest.mark.parametrize("n", [16, 32])
@pytest.mark.parametrize("name", SHAPES)
def test_subgroups_compute_a_total_together(name: str, n: int) -> None:
    """Their parts of the total are all of it, and they hold the rows and the columns of the factors that their parts need."""
    shape = SHAPES[name]
    assert shape.divisions**2 * shape.lanes == LANES
    part = n // shape.divisions
    parts = [(row * part, column * part) for row in range(shape.divisions) for column in range(shape.divisions)]
    blocks = [(first + row, second + column) for first, second in parts for row, column in shape.blocks(n, TOTAL)]
    assert sorted(blocks) == [(row, column) for row in range(0, n, shape.rows) for column in range(0, n, shape.columns)]
    assert shape.held_of_tile(n, TOTAL) == held_entries(n)
    for row, column in shape.blocks(n, TOTAL):
        for k in range(0, n, shape.depth):
            assert (row, k) in shape.blocks(n, A)
            assert (k, column) in shape.blocks(n, B) and (k, column) in shape.blocks(n, TRANSPOSED)


def properties(m: int, n: int, k: int, *types: int, scope: int = vk.VK_SCOPE_SUBGROUP_KHR, saturates: int = 0) -> Any:
    a, b, c, result = types
    return SimpleNamespace(
        MSize=m, NSize=n, KSize=k, AType=a, BType=b, CType=c, ResultType=result, scope=scope, saturatingAccumulation=saturates
    )


def test_offered_products() -> None:
    """Those that tiles have, better ones first; not those of other types, scopes or sizes."""
    half, single, double, byte, word = 0, 1, 2, vk.VK_COMPONENT_TYPE_SINT8_KHR, vk.VK_COMPONENT_TYPE_SINT32_KHR
    offered = [
        properties(16, 16, 16, half, half, half, half),
        properties(16, 16, 16, half, half, single, single),
        properties(16, 8, 16, half, half, single, single),
        properties(16, 8, 8, half, half, single, single, scope=2),
        properties(16, 16, 32, byte, byte, word, word),
        properties(8, 8, 4, double, double, double, double),
    ]
    assert offered_shapes(offered, 32) == ("m16n8k16_f16", "m8n8k4_f64", "m16n16k16_f16")
    assert offered_shapes(offered[:1], 32) == offered_shapes(offered, 8) == ()
    assert offered_shapes([properties(8, 8, 8, half, half, single, single)], 8) == ("m8n8k8_f16",)
