"""Reductions over the waves of AMD's GPUs: the exchanges that are emitted, run by a model of lanes, give what NumPy gives. The emulator
(tests/rdna3) runs the machine code of waves of 32; no emulator has waves of 64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from unit.llvm.gpu_programs import TREES, loop, translated

from spirograd.base.caps import COMBINATIONS
from spirograd.base.dtypes import DType, i32, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op
from spirograd.llvmgen.amdgpu import AMDGPU as DIALECT
from validation.profiles import AMDGPU

Array = np.ndarray[Any, Any]
COMBINE = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


class Lanes:
    """In place of an emitter: runs each instruction in all lanes of a wave. ``active``: the lanes that get there."""

    def __init__(self, x: Array, active: Array) -> None:
        self.wave, self.module, self.values, self.active = len(x), self, {"%x": x}, active

    def declare(self, name: str, result: str, types: str) -> str:
        return f"@{name}"

    def value(self, line: str) -> str:
        call = re.fullmatch(r"call i32 @([\w.]+)\((.*)\)", line)
        name, arguments = (call[1], call[2]) if call else line.split(" i32 ", 1)
        operands = [argument.split()[-1] for argument in arguments.split(", ")]
        found = f"%{len(self.values)}"
        self.values[found] = self._result(name, operands)
        return found

    def _result(self, name: str, operands: list[str]) -> Array:
        lane = np.arange(self.wave)
        if name == "llvm.amdgcn.update.dpp.i32":
            return self.values[operands[1]][_source(int(operands[2]), lane, self.wave)]
        if name == "llvm.amdgcn.set.inactive.i32":
            identity = np.array(int(operands[1]) & 0xFFFFFFFF, np.uint32).astype(self.values["%x"].dtype)
            return np.where(self.active, self.values[operands[0]], identity)
        if name == "llvm.amdgcn.strict.wwm.i32":
            return self.values[operands[0]]
        if name == "llvm.amdgcn.permlanex16.i32":
            assert int(operands[2]) == 0x76543210 and int(operands[3]) & 0xFFFFFFFF == 0xFEDCBA98
            return self.values[operands[1]][lane ^ 16]
        if name == "llvm.amdgcn.readlane.i32":
            return np.full_like(lane, self.values[operands[0]][int(operands[1])], dtype=self.values["%x"].dtype)
        a, b = (self.values[operand] for operand in operands)
        kind = re.sub(r"^llvm\.[su]|\.i32$", "", name)
        if kind in ("min", "max"):
            assert (name[5] == "s") == (a.dtype == np.int32)
        result: Array = COMBINE[kind](a, b)
        return result


def _source(control: int, lane: Array, wave: int) -> Array:
    """The lane that each reads by a control of DPP."""
    if control < 0x100:
        return lane & ~3 | control >> 2 * (lane & 3) & 3
    if control in (0x140, 0x141):
        return lane ^ (15 if control == 0x140 else 7)
    assert wave == 32 and control & ~15 == 0x160, "gfx9 has no exchange of other rows"
    return lane ^ control & 15


@pytest.mark.parametrize("t", [i32, u32], ids=str)
@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("kind", COMBINATIONS)
def test_every_lane_gets_the_reduction(kind: str, wave: int, t: DType) -> None:
    """Of the lanes that are active: all, the first ones, some, one."""
    r, lane = np.random.default_rng(wave), np.arange(wave)
    x = r.integers(t.min, t.max, wave, t.np, endpoint=True)
    for active in (lane >= 0, lane < 8, lane < wave - 1, r.random(wave) < 0.5, lane == wave - 3):
        lanes: Any = Lanes(x, active)
        found = lanes.values[DIALECT.reduce(lanes, kind, t is i32, "%x")]
        assert (found == COMBINE[kind].reduce(x[active], dtype=t.np)).all()


@pytest.mark.parametrize("profile", list(AMDGPU))
@pytest.mark.parametrize("kind", ["add", "min", "xor"])
def test_instructions(profile: str, kind: str) -> None:
    """Operands from other lanes are part of the instructions that combine them, and none goes through the network of shared memory."""
    x, y = (BufferRef(name, slot, i32) for name, slot in zip("xy", TREES))

    def body(b: Builder, i: Op) -> None:
        b.store(y, i, b.emit(ops.subgroup_reduce, b.load(x, i), attr=kind, type=i32))

    text = translated(loop(body), caps=AMDGPU[profile]).assembly
    assert "ds_" not in text
    assert len(re.findall(r"_dpp.* (?:quad_perm|row_)", text)) >= 4
    assert text.count("v_readlane" if AMDGPU[profile].subgroup_size == 64 else "v_permlanex16") in (1, 4)
