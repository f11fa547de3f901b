"""Shaders that RADV compiled: reading the driver's listings, the registers at the start, and whole sessions on the emulator."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.lang import context
from spirograd.simt import Tile16x16
from validation import rdna3
from validation.case import load
from validation.collecting import kernels_of
from validation.profiles import VULKAN
from validation.rdna3 import aco
from validation.rdna3.aco import Inputs, Layout
from validation.rdna3.execute import EmulatorError
from validation.rdna3.waves import Waves

CASES = {case.name: case for case in load()}
# Arguments beyond the registers, a large block of arguments, exchanges in subgroups, slots of tapes, atomics, floats of 16 and 64 bits.
NAMES = (
    "saxpy", "scalar_arguments", "many_buffers_40", "sums_f32", "gradient_guard_threshold", "atomic_add_f32", "field_of_f16",
    "float_division_f64", "bits_u8", "tickets_f32",
)  # fmt: skip
NIR = "api_subgroup_size: 32\nmax_subgroup_size: 32\n"


def _listings(assembly: str = "", start: str = "", nir: str = NIR) -> dict[str, str]:
    return {"NIR Shader(s)": nir, "ACO IR": f"BB0\n\t {start} = p_startpgm\n", "Assembly": assembly}


def test_words_of_a_listing() -> None:
    text = """BB0:
\tv_add_nc_u32_e32 v8, 0x100, v2                              ; 4a1004ff 00000100
\ts_nop 0                                                     ; bf800000
\t(then repeated 2 times)
BB1:
\ts_endpgm                                                    ; bfb00000

"""
    words = np.frombuffer(aco.machine_code(_listings(text)), "<u4").tolist()
    assert words == [0x4A1004FF, 0x100, 0xBF800000, 0xBF800000, 0xBF800000, 0xBFB00000]


def test_listings_that_the_emulator_cannot_run() -> None:
    with pytest.raises(EmulatorError, match="without encoded words: 's_endpgm'"):
        aco.machine_code(_listings("BB0:\n\ts_endpgm\n"))
    for nir in ("max_subgroup_size: 64\n", ""):
        with pytest.raises(EmulatorError, match="waves of 32 lanes"):
            aco.machine_code(_listings(nir=nir))


def test_layouts() -> None:
    """The number of registers tells whether push constants lie in registers, and how many numbers of the workgroup there are."""
    few = Inputs((0, 1, 4), frozenset({24, 28}))
    assert aco.layout(
        few, _listings(start="s1: %1:s[0],  s1: %2:s[1], s1: (kill)%3:s[2], s3: %4:s[3-5], s1: %5:s[6], v1: %6:v[0]")
    ) == Layout(False, (0, 1, 4), True, 1, False)
    many, start = Inputs(tuple(range(20)), frozenset({24, 28, 40})), ", ".join(f"s1: %{k}:s[{k}]" for k in range(14))
    assert aco.layout(many, _listings(start=start)) == Layout(True, tuple(range(8)), True, 1, True)
    with pytest.raises(EmulatorError, match="14 scalar registers, which do not fit 3 words"):
        aco.layout(few, _listings(start=start))


def test_registers_at_the_start() -> None:
    waves = Waves.start(1, np.arange(4), np.arange(4) // 2, 0)
    constants = np.arange(10, 20, dtype="<u4").tobytes()
    write = Layout(True, (0, 3), True, 2, True).registers(constants, 0xFFFF_8000_0000_0100, groups=7, waves_per_group=2)
    write(waves, np.array([5, 5, 6, 6]), np.array([0, 1, 0, 1]))
    assert waves.s[:6].T.tolist() == [[0x100, 10, 13, 7, 1, 1]] * 4
    assert waves.s[6:9].T.tolist() == [[5, 0, 2], [5, 0, 2 | 1 << 20], [6, 0, 2], [6, 0, 2 | 1 << 20]]


def test_inputs_of_a_module() -> None:
    """The module of saxpy reads two addresses, a factor and a length, the number of workgroups, and that of the invocation."""
    (source,) = kernels_of(CASES["saxpy"])
    kernel = compile_kernel(source.kernel, VULKAN, CompileOptions())
    assert kernel.args.size == 24
    assert aco.inputs_of(kernel.binaries[0]) == Inputs((0, 1, 2, 3, 4, 5), frozenset({24, 28}))


@pytest.mark.needs("radv-gfx1100")
@pytest.mark.parametrize("name", NAMES)
def test_corpus(name: str) -> None:
    case = CASES[name]
    with rdna3.emulated(rdna3.RADV) as arch:
        try:
            sg.init(arch=arch, **dict(case.options))
            assert "RADV" in context.session().device.info.name
            assert case.wrong(case.run(*case.args)) == ""
            assert context.session().device.instructions > 20  # type: ignore[attr-defined]
        finally:
            sg.reset()


@pytest.mark.needs("radv-gfx1100")
def test_products_of_tiles_by_matrix_instructions() -> None:
    """Every entry in its place: the sums are exact. The driver holds factors twice, which modules must not assume."""
    x, y = (np.random.default_rng(seed).integers(-16, 17, (16, 32)) / 8 for seed in (1, 2))
    with rdna3.emulated(rdna3.RADV) as arch:
        try:
            sg.init(arch=arch)
            assert context.session().device.caps.matrix_shapes == ("m16n16k16_f16",)
            a, b, c, d = sg.field(sg.f16, (16, 32)), sg.field(sg.f16, (16, 32)), sg.field(sg.f32, (16, 16)), sg.field(sg.f32, (16, 16))
            a.from_numpy(x.astype(np.float16))
            b.from_numpy(y.astype(np.float16))

            @sg.kernel
            def run():  # type: ignore[no-untyped-def]
                sg.loop_config(block_dim=32)
                for _ in range(32):
                    t, u = Tile16x16.zeros(sg.f32), Tile16x16.eye(sg.f32)
                    for k in range(2):
                        left, right = Tile16x16.zeros(sg.f16), Tile16x16.zeros(sg.f16)
                        left[:] = a[0:16, k * 16 : k * 16 + 16]
                        right[:] = b[0:16, k * 16 : k * 16 + 16]
                        t.add_product_(left, right, True)
                        u.add_product_(left, right, False)
                    c[0:16, 0:16] = t
                    d[0:16, 0:16] = u

            run()
            assert np.array_equal(c.to_numpy(), x @ y.T)
            assert np.array_equal(d.to_numpy(), np.eye(16) + x[:, :16] @ y[:, :16] + x[:, 16:] @ y[:, 16:])
        finally:
            sg.reset()
