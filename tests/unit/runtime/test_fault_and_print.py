import struct
from pathlib import Path

import numpy as np
import pytest
from unit.runtime.fake_device import FakeDevice, kernel, slot

from spirograd.base.arguments import Arguments
from spirograd.base.artifact import PRINT_DATA, PRINT_WORDS, FaultSite, PrintSite
from spirograd.base.dtypes import f16, f32, f64, i8, i32, i64, u1, u8, u64
from spirograd.base.errors import AdStackOverflow, SpirogradAssertionError, SpirogradRuntimeError
from spirograd.base.loc import Loc
from spirograd.runtime.allocations import Memory
from spirograd.runtime.faults_and_prints import decode_value, format_value
from spirograd.runtime.launcher import Launcher


def pair(value, dtype):
    raw = np.array([value]).astype(dtype.np).tobytes().ljust(8, b"\0")
    return list(struct.unpack("<II", raw))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(-5, i8), (200, u8), (-7, i32), (-(1 << 40), i64), ((1 << 64) - 3, u64), (1.5, f16), (-0.25, f32), (1e300, f64), (True, u1)],
)
def test_decode(value, dtype):
    low, high = pair(value, dtype)
    assert decode_value(low, high, dtype) == value
    if dtype is i8:
        assert decode_value(0xFFFFFFFB, 0xFFFFFFFF, dtype) == -5  # sign-extended words mean the same


def test_formatting_is_that_of_python():
    assert format_value(float(np.float32(0.1)), f32, "") == "0.1"
    assert format_value(1e-5, f64, "") == "1e-05"
    assert format_value(2.0, f32, "") == "2.0"
    assert format_value(float("nan"), f32, "") == "nan"
    assert format_value(float("-inf"), f32, "") == "-inf"
    assert format_value(3.14159, f32, ".2f") == "3.14"
    assert format_value(255, i32, "#06x") == "0x00ff"
    with pytest.raises(SpirogradRuntimeError, match="'d' does not fit"):
        format_value(1.5, f32, "d")


def make(run, **fields):
    device = FakeDevice(mappable=False)
    out = []
    launcher = Launcher(device, Memory(device), on_print=out.append)
    slots = [slot("fault"), slot("print"), slot("launch")]
    return launcher, launcher.prepare(kernel(slots, "<QQI4x", run=run, **fields)), out


def append(words, *record):
    """What a kernel does: claim room, write only if all of it fits."""
    at = words[0]
    words[0] += len(record)
    if at + len(record) <= words[1]:
        for i, word in enumerate(record):
            words[PRINT_DATA + at + i] = word & 0xFFFFFFFF


SITES = (
    PrintSite(("x = ", (0, ""), " and ", (1, ".3f"), "\n"), (i32, f32), None),
    PrintSite(("done\n",), (), None),
)


def test_prints_come_in_launch_order():
    held = []

    def run(block, device):
        _, ring, number = struct.unpack("<QQI4x", block)
        held.append(number)
        if len(held) == 2:  # records of later launches may lie before those of earlier ones
            words = device.words(ring)
            append(words, 1, held[1])
            append(words, 0, held[0], *pair(-3, i32), *pair(0.5, f32))

    launcher, plan, out = make(run, prints=SITES)
    plan.launch(Arguments.of([], [], {}))
    plan.launch(Arguments.of([], [], {}))
    launcher.synchronize()
    assert "".join(out) == "x = -3 and 0.500\ndone\n"
    out.clear()
    launcher.synchronize()
    assert not out


def test_lost_records_are_announced_and_the_ring_recovers():
    def run(block, device):
        _, ring, number = struct.unpack("<QQI4x", block)
        words = device.words(ring)
        for i in range(count[0]):
            append(words, 0, number, *pair(i, i32), *pair(i, f32))

    capacity = PRINT_WORDS - PRINT_DATA
    count = [capacity // 6 + 3]
    launcher, plan, out = make(run, prints=SITES)
    for _ in range(2):
        out.clear()
        plan.launch(Arguments.of([], [], {}))
        launcher.synchronize()
        assert len(out) == capacity // 6 + 1
        assert out[0] == "x = 0 and 0.000\n"
        lost = 4 * (6 * count[0] - capacity // 6 * 6)
        assert out[-1] == f"[spirograd: the print buffer was full; {lost} bytes of kernel output were lost]\n"
    count[0] = 1
    out.clear()
    plan.launch(Arguments.of([], [], {}))
    launcher.synchronize()
    assert out == ["x = 0 and 0.000\n"]


KINDS = [("assert", SpirogradAssertionError), ("bounds", SpirogradAssertionError), ("adstack", AdStackOverflow)]


@pytest.mark.parametrize(("code", "kind"), KINDS)
def test_fault_is_raised_once_with_line_and_operands(code, kind):
    def run(block, device):
        fault, _, number = struct.unpack("<QQI4x", block)
        words = device.words(fault)
        if not words[0]:
            record = [1, 1, number, 4, *pair(12, i32), *pair(1.5, f32)]
            words[: len(record)] = memoryview(struct.pack(f"<{len(record)}I", *record)).cast("I")

    line = Path(__file__).read_text().splitlines().index("SITES = (") + 1
    site = FaultSite(code, "index {0} is bad, {1:.2f}; {{set}} stays", (i32, f32), Loc(__file__, line, 0, line, 5, "body"))
    launcher, plan, _ = make(run, faults=(FaultSite("assert", "other", (), None), site))
    plan.launch(Arguments.of([], [], {}))
    plan.launch(Arguments.of([], [], {}))
    with pytest.raises(kind) as error:
        launcher.synchronize()
    text = str(error.value)
    assert "index 12 is bad, 1.50; {set} stays" in text
    assert f"{line} | SITES = (" in text and "^^^^^" in text
    launcher.synchronize()
    plan.launch(Arguments.of([], [], {}))
    with pytest.raises(kind):
        launcher.synchronize()


def test_launches_without_a_sync_keep_bounded_records():
    launcher, plan, _ = make(None, prints=SITES)
    other = launcher.prepare(kernel([slot("print")], "<Q", prints=SITES, name="other"))
    for _ in range(20000):
        plan.launch(Arguments.of([], [], {}))
        other.launch(Arguments.of([], [], {}))
    assert len(launcher.diagnostics._numbers) <= 1 << 14
