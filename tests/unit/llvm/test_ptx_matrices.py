"""Products of tiles in PTX: which instructions, and how often. What they compute is tested where there is a GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
from unit.tile_programs import compiled, multiplied, multiplied_in

import spirograd as sg
from spirograd.base.artifact import CompiledKernel
from spirograd.llvmgen import ptx
from spirograd.simt import Tile16x16, Tile32x32, block, subgroup
from validation.profiles import PTX
from validation.tools import FAILED, assembled

HALF, DOUBLE = (sg.f16, sg.f32), (sg.f64, sg.f64)
PRODUCTS = {
    "m16n8k16_f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "m16n8k8_f16": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    "m16n8k16_f64": "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64",
    "m8n8k4_f64": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
}
CAPS = {**PTX, "cuda-sm_75": ptx.capabilities("sm_75")}


def text_of(tile: Any, types: Any, architecture: str, transposed: bool = False, threads: int = 32) -> str:
    return assembled_text(multiplied(tile, *types, CAPS[f"cuda-{architecture}"], transposed, threads))


def assembled_text(compiled: CompiledKernel) -> str:
    text: str = compiled.stages["kernel.ptx"]
    verdict = assembled(text.encode())
    assert verdict.status != FAILED, verdict.text
    return text


@pytest.mark.parametrize(("architecture", "types", "product", "count"), [
    ("sm_75", HALF, "m16n8k8_f16", 4), ("sm_80", HALF, "m16n8k16_f16", 2), ("sm_90", HALF, "m16n8k16_f16", 2),
    ("sm_120", HALF, "m16n8k16_f16", 2), ("sm_80", DOUBLE, "m8n8k4_f64", 16), ("sm_90", DOUBLE, "m16n8k16_f64", 2),
    ("sm_70", HALF, "", 0), ("sm_75", DOUBLE, "", 0), ("sm_90", (sg.f32, sg.f32), "", 0),
])  # fmt: skip
def test_products_by_architecture(architecture: str, types: Any, product: str, count: int) -> None:
    """Products of f32 are by lanes: instructions would drop 13 of their 23 bits."""
    text = text_of(Tile16x16, types, architecture)
    assert text.count("mma.sync") == count
    assert not product or text.count(PRODUCTS[product]) == count


@pytest.mark.parametrize("transposed", [False, True])
def test_totals_stay_in_registers(transposed: bool) -> None:
    """In the loop over products each factor goes through shared memory once, by wide accesses; the total does after the loop only."""
    text = text_of(Tile32x32, HALF, "sm_90", transposed)
    (loop,) = [block for block in re.split(r"\n(?=\$L)", text) if "mma.sync" in block]
    inside, after = loop[: loop.rindex("mma.sync")], loop[loop.rindex("mma.sync") :]
    assert inside.count("mma.sync") == 15 and inside.count("ldmatrix.sync.aligned.m8n8.x4") == 8
    assert inside.count("x4.trans") == (0 if transposed else 4)
    assert inside.count("st.shared") == inside.count("st.shared.v4") == 8 and "ld.shared" not in inside
    assert "st.shared.v2" in after


def test_groups_that_no_instruction_takes() -> None:
    assert "mma" not in text_of(Tile16x16, HALF, "sm_90", threads=16)


@pytest.mark.parametrize("control", ["if", "for", "while"])
def test_products_where_only_the_memory_says_that_threads_agree(control: str) -> None:
    text = assembled_text(multiplied_in(control, CAPS["cuda-sm_90"]))
    assert "mma.sync" in text and "ldmatrix" in text


@pytest.mark.parametrize(("often", "copies"), [(0, 1), (3, 3), (64, 8), (100, 20)])
def test_loops_in_which_lanes_meet(often: int, copies: int, capfd: Any) -> None:
    """They are repeated as far as no iterations are left over (``often``: 0 if that is not known), and LLVM warns of nothing."""

    def make() -> Any:
        y = sg.field(sg.i32, 65)

        @sg.kernel
        def work():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=32)
            for i in range(64):
                value = i
                for k in range(sg.static(often) if sg.static(often) else y[64]):
                    value = subgroup.shuffle(value + k, 3)
                block.sync()  # or groups would share a workgroup, and LLVM would copy the loop over them
                y[i] = value

        return work

    text = assembled_text(compiled(make, CAPS["cuda-sm_90"]))
    assert text.count("shfl.sync") == copies
    assert "warning" not in capfd.readouterr().err
