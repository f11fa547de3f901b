"""Products of tiles by cooperative matrices: what modules say. What they compute is tested where there is a card."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import vulkan as vk
from unit.tile_programs import multiplied, multiplied_in

import spirograd as sg
from spirograd.base.matrix_shapes import SHAPES
from spirograd.runtime.devices.vulkan.features import offered_shapes
from spirograd.simt import Tile16x16, Tile32x32
from spirograd.spirvgen.disasm import disassemble
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.validate import validate
from validation.profiles import VULKAN

CARD = replace(VULKAN, subgroup_read=True, subgroup_ballot=True, shared_memory=48 << 10)


def module_of(tile: Any, shapes: tuple[str, ...], transposed: bool = False) -> str:
    """The text of the module of a product of tiles, for a card that offers ``shapes``."""
    (binary,) = multiplied(tile, sg.f16, sg.f32, replace(CARD, matrix_shapes=shapes), transposed).binaries
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
    ],
    ids=str,
)
def test_modules_with_cooperative_matrices(tile: Any, shape: str, products: int, factors: int, transposed: bool) -> None:
    text = module_of(tile, (shape,), transposed)
    assert "OpCapability CooperativeMatrixKHR" in text and "OpMemoryModel PhysicalStorageBuffer64 Vulkan" in text
    assert text.count("OpCooperativeMatrixMulAddKHR") == products, "factors are multiplied once"
    assert text.count("OpCooperativeMatrixLoadKHR") == factors, "the total stays where it is from product to product"
    extents = SHAPES[shape].rows * SHAPES[shape].columns
    assert text.count("OpCooperativeMatrixStoreKHR") == tile.SIZE**2 // extents
    body = text[text.index("OpFunction ") :]
    assert all("NonPrivatePointer" in line for line in body.splitlines() if "OpLoad" in line and "Aligned" in line)


@pytest.mark.parametrize("control", ["if", "for", "while"])
def test_products_where_only_the_memory_says_that_threads_agree(control: str) -> None:
    (binary,) = multiplied_in(control, replace(CARD, matrix_shapes=("m16n16k16_f16",))).binaries
    assert text_of(binary).count("OpCooperativeMatrixMulAddKHR") == 1


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
    assert offered_shapes(offered) == ("m16n8k16_f16", "m8n8k4_f64", "m16n16k16_f16")
    assert offered_shapes(offered[:1]) == ()
