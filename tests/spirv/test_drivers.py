"""Forms of modules that get around defects of drivers, and which drivers get them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import vulkan as vk

from spirograd.base.dtypes import DType, f16, f32, i32, i64, u64
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.runtime.devices.vulkan.features import driver_facts
from spirograd.spirvgen.disasm import disassemble

from . import kit


def version(major: int, minor: int) -> int:
    return major << 22 | minor << 12


def properties(driver: int, **more: object) -> SimpleNamespace:
    """What a driver says of itself that keeps everything special of 16, 32 and 64 bits."""
    modes = {f"shader{mode}PreserveFloat{bits}": True for mode in ("SignedZeroInfNan", "Denorm") for bits in (16, 32, 64)}
    return SimpleNamespace(driverID=driver, denormBehaviorIndependence=0, **modes, **more)


@pytest.mark.parametrize(
    ("major", "minor", "unmasked"), [(22, 3, False), (25, 0, False), (25, 1, True), (26, 2, True)], ids=lambda value: str(value)
)
def test_llvmpipe_loads_of_uniform_addresses(major: int, minor: int, unmasked: bool) -> None:
    facts = driver_facts(properties(vk.VK_DRIVER_ID_MESA_LLVMPIPE), version(major, minor))
    assert facts.get("unmasked_uniform_loads", False) is unmasked
    assert facts["exact_specials"] == facts["exact_subnormals"] == (16, 32, 64)


def test_swiftshader_is_not_asked_for_special_floats() -> None:
    facts = driver_facts(properties(vk.VK_DRIVER_ID_GOOGLE_SWIFTSHADER), version(5, 0))
    assert facts == {"coarse_sines": True}


def test_moltenvk_adds_zeros_to_products() -> None:
    facts = driver_facts(properties(vk.VK_DRIVER_ID_MOLTENVK), version(0, 2))
    assert facts["positive_zero_products"]


@pytest.mark.needs("spirv-cross")
@pytest.mark.parametrize("t", [f16, f32], ids=str)
def test_products_keep_negative_zeros(t: DType, tmp_path: Path) -> None:
    """SPIRV-Cross, which MoltenVK uses, writes a product with NoContraction as fma(a, b, 0), which is 0.0 for -0.0."""
    args = kit.Args([t, t])

    def build(b: Builder) -> None:
        at = b.const(0, i32)
        x = b.load(args.refs[0], at)
        b.store(args.refs[1], at, b.emit(ops.mul, x, x))

    kernel = kit.serial(build)
    modules = [kit.compile_task(kernel, args, caps=replace(kit.FULL, positive_zero_products=fused)) for fused in (False, True)]
    texts = []
    for number, module in enumerate(modules):
        path = tmp_path / f"{number}.spv"
        path.write_bytes(module)
        command = ["spirv-cross", path, "--msl", "--msl-version", "30000"]
        texts.append(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    plain, fused = texts
    assert re.search(r"return fma\(l, r, T\(0\)\);", plain) and "spvFMul" not in fused
    assert re.search(r" = fma\(.*, (half\()?-0\.0", fused)


def test_other_drivers_have_no_defects() -> None:
    facts = driver_facts(properties(vk.VK_DRIVER_ID_MESA_RADV), version(26, 2))
    assert facts == {"exact_specials": (16, 32, 64), "exact_subnormals": (16, 32, 64)}


@pytest.mark.parametrize("index", [i32, i64], ids=str)
def test_indices_of_loads_differ_between_lanes(index: DType) -> None:
    """Each index of a load is the sum with a zero that depends on the lane; indices of stores are as they were."""
    args = kit.Args([f32, f32])

    def build(b: Builder) -> None:
        at = b.const(3, index)
        b.store(args.refs[1], at, b.load(args.refs[0], at))

    kernel = kit.serial(build)
    plain, masked = (
        disassemble(kit.compile_task(kernel, args, caps=replace(kit.FULL, unmasked_uniform_loads=unmasked))) for unmasked in (False, True)
    )
    assert "SubgroupLocalInvocationId" not in plain
    assert "SubgroupLocalInvocationId" in masked
    loads = re.findall(r"OpAccessChain %_ptr_PhysicalStorageBuffer_float %buffer0 %uint_0 (%\S+)", masked)
    stores = re.findall(r"OpAccessChain %_ptr_PhysicalStorageBuffer_float %buffer1 %uint_0 (%\S+)", masked)
    assert len(loads) == len(stores) == 1 and loads != stores
    assert re.search(rf"{loads[0]} = OpIAdd %\w+ {stores[0]} ", masked)


@pytest.mark.parametrize(("t", "first"), [(u64, int(u64.max)), (i64, -1), (u64, 1)], ids=str)
def test_loops_do_not_begin_with_64_ones(t: DType, first: int) -> None:
    """RADV of Mesa 26.2 does not end if it knows that a 64-bit integer of a loop is all ones and then 0."""
    args = kit.Args([t])

    def build(b: Builder) -> None:
        b.begin(i32, t)
        body = b.end([b.const(0, t)])
        (last,) = b.for_(b.const(0), b.const(9), [b.const(first, t)], body)
        b.store(args.refs[0], b.const(0), last)

    text = disassemble(kit.compile_task(kit.serial(build), args))
    stored = re.findall(r"OpStore \S+ %u?long_(n?\d+)", text)
    assert stored == (["1", "0"] if first == 1 else ["0"])
    assert ("OpNot %ulong" in text) == (first != 1)
