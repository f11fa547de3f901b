"""Waves of 64 lanes, which a process of its own emulates: masks in pairs of registers, exchanges between lanes, shaders of RADV."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from validation import rdna3
from validation.rdna3.waves import LANES

_ROOT = Path(__file__).parents[2]
# Exchanges: the lanes of a wave in which each lane holds its number, after an instruction with these fields.
_PROGRAM = """
import json
import numpy as np
from types import SimpleNamespace
from validation.rdna3 import across
from validation.rdna3.waves import EXEC, VCC, Waves, pack, unpack
from validation.rdna3.operands import lane_mask, write_mask

masks = np.array([0x8000_0001_0000_0003, 2**64 - 1], np.uint64)
waves = Waves.start(3, np.arange(2), np.zeros(2, np.int64), 0)
waves.set_exec(masks)
found = {"packed": pack(unpack(masks)).tolist(), "exec": waves.s[[EXEC, EXEC + 1]].T.tolist()}
write_mask(VCC)(waves, np.ones((2, 64), np.bool_))
found["vcc"] = waves.mask(VCC).tolist()
found["read"] = lane_mask(VCC)(waves).sum(axis=1).tolist()
waves.set_exec(np.full(2, 2**64 - 1, np.uint64))
waves.v[0] = np.arange(64)
waves.v[1] = 4 * (63 - np.arange(64))
fields = dict(src0=256, vdst=2, addr=1, data0=0, offset0=0, offset1=0, opsel=0, src1=129, src2=128)
for name in ("V_PERMLANE64_B32", "DS_BPERMUTE_B32", "DS_PERMUTE_B32", "V_PERMLANEX16_B32"):
    across.STEPS[name](SimpleNamespace(fields=fields, literal=None, name=name))(waves)
    found[name] = waves.v[2][0].tolist()
print(json.dumps(found))
"""


def test_masks_and_exchanges() -> None:
    environment = dict(os.environ) | {"RDNA3_WAVE": "64"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    lane = np.arange(64)
    assert found["packed"] == [0x8000_0001_0000_0003, 2**64 - 1] == found["vcc"]
    assert found["exec"] == [[3, 0x8000_0001], [2**32 - 1] * 2] and found["read"] == [4, 64]
    assert found["V_PERMLANE64_B32"] == (lane ^ 32).tolist()
    reversed_halves = ((31 - lane % 32) + lane // 32 * 32).tolist()
    assert found["DS_BPERMUTE_B32"] == reversed_halves == found["DS_PERMUTE_B32"]
    chosen = np.where(lane % 16 == 0, 1, 0)  # Four bits for each of eight lanes: 1 for the first of a row, 0 for the others.
    assert found["V_PERMLANEX16_B32"] == ((lane & ~15 ^ 16) + chosen).tolist()


def test_a_process_has_waves_of_one_size() -> None:
    assert LANES == 32
    with pytest.raises(RuntimeError, match="emulates waves of 32 lanes"), rdna3.emulated(rdna3.RADV_64):
        pass


@pytest.mark.needs("radv-gfx1100")
def test_corpus() -> None:
    command = [sys.executable, "-m", "validation.worker", rdna3.RADV_64, "saxpy", "sums_f32"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    statuses = [told.get("status") for told in map(json.loads, done.stdout.splitlines()) if "status" in told]
    assert statuses == ["ok", "ok"], done.stdout + done.stderr
