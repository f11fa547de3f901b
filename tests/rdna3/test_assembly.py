"""Programs in assembly on the emulator: modifiers, halves of registers, dual issue, packed arithmetic, scalar instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rdna3.machine import assembled, run
from validation.rdna3.execute import EmulatorError

pytestmark = pytest.mark.needs("tinygrad", "llvm-mc")
LANE = np.arange(32, dtype=np.uint32)
# s[2:3]: the address of the words that a program reads; s[4:5]: of those that it writes; v1: its word; v2: the word after the last.
BEGIN = """
  s_load_b128 s[4:7], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_mov_b64 s[2:3], s[4:5]
  s_mov_b64 s[4:5], s[6:7]
  v_lshlrev_b32 v9, 2, v0
  global_load_b32 v1, v9, s[2:3]
  global_load_b32 v2, v9, s[2:3] offset:128
  s_waitcnt vmcnt(0)
"""
END = "\n  global_store_b32 v9, v3, s[4:5]\n  global_store_b32 v9, v4, s[4:5] offset:128\n"


def lanes(body: str, folder: Path, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v3 and v4 after ``body``, for each lane, from v1 = ``a`` and v2 = ``b``; both are 32-bit words of any type."""
    binary = assembled(BEGIN + "  v_mov_b32 v3, 0\n  v_mov_b32 v4, 0\n" + body + END, folder)
    words = np.concatenate([np.broadcast_to(x, 32).view(np.uint32) for x in (np.ascontiguousarray(a), np.ascontiguousarray(b))])
    (_, got) = run(binary, words, np.zeros(64, np.uint32))
    return got[:32], got[32:]


def floats(*numbers: float) -> np.ndarray:
    return np.resize(np.array(numbers, np.float32), 32)


def halves(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Pairs of f16 as words."""
    return low.astype(np.float16).view(np.uint16) | high.astype(np.float16).view(np.uint16).astype(np.uint32) << 16


X, Y = np.linspace(-3, 3, 32, dtype=np.float32), np.linspace(2, -5, 32, dtype=np.float32) ** 3


def test_modifiers(tmp_path: Path) -> None:
    got, other = lanes("v_add_f32 v3, -v1, |v2| mul:4\n v_mul_f32 v4, v1, v2 clamp", tmp_path, X, Y)
    assert (got.view(np.float32) == (-X + abs(Y)) * 4).all()
    assert (other.view(np.float32) == np.clip(X * Y, 0, 1)).all()


def test_sums_that_saturate(tmp_path: Path) -> None:
    a, b = (LANE * np.uint32(0x11111111)), np.full(32, 0x70000000, np.uint32)
    got, other = lanes("v_add_nc_u32 v3, v1, v2 clamp\n v_sub_nc_i32 v4, v1, v2 clamp", tmp_path, a, b)
    assert (got == np.minimum(a.astype(np.uint64) + b, 0xFFFFFFFF)).all()
    wide = a.view(np.int32).astype(np.int64) - b.view(np.int32)
    assert (other.view(np.int32) == np.clip(wide, -(2**31), 2**31 - 1)).all()


def test_halves_of_registers(tmp_path: Path) -> None:
    """Of sources and of the result, whose other half stays; in both encodings."""
    a = halves(X, X * 2)
    got, other = lanes(
        "v_mov_b32 v3, 0x12345678\n v_add_f16 v3.h, v1.l, v1.h\n v_mov_b32 v4, 0x12345678\n"
        "v_fma_f16 v4.l, v1.h, v2.l, v2.h",
        tmp_path, a, halves(X, Y),
    )  # fmt: skip
    low, high = X.astype(np.float16), (X * 2).astype(np.float16)
    assert (got >> 16 == (low + high).view(np.uint16)).all() and (got & 0xFFFF == 0x5678).all()
    exact = high.astype(np.float64) * X.astype(np.float16) + Y.astype(np.float16)
    assert (other & 0xFFFF == exact.astype(np.float16).view(np.uint16)).all() and (other >> 16 == 0x1234).all()


def test_packed_arithmetic(tmp_path: Path) -> None:
    a, b = halves(X, X * 2), halves(Y / 8, Y / 16)
    got, other = lanes(
        "v_pk_add_f16 v3, v1, v2 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1]\n v_pk_mul_f16 v4, v1, 2.0 op_sel_hi:[1,0]", tmp_path, a, b
    )
    p, q = (w.view(np.float16).reshape(32, 2) for w in (a, b))
    assert (got.view(np.float16).reshape(32, 2) == np.stack([p[:, 1] - q[:, 0], p[:, 0] + q[:, 1]], 1)).all()
    assert (other.view(np.float16).reshape(32, 2) == p * np.float16(2)).all()


def test_mixed_precision(tmp_path: Path) -> None:
    a, b = halves(X, X * 2), Y
    body = "v_fma_mix_f32 v3, v1, v2, -v1 op_sel:[1,0,0] op_sel_hi:[1,0,1]\n v_fma_mixhi_f16 v4, v1, v2, v1 op_sel_hi:[1,0,0]"
    got, other = lanes(body, tmp_path, a, b)
    low, high = (w.astype(np.float64) for w in a.view(np.float16).reshape(32, 2).T)
    assert (got.view(np.float32) == (high * Y - low).astype(np.float32)).all()
    with np.errstate(all="ignore"):
        exact = (low * Y + a.view(np.float32)).astype(np.float32).astype(np.float16)
    assert (other >> 16 == exact.view(np.uint16)).all()


def test_both_halves_of_a_dual_instruction_read_first(tmp_path: Path) -> None:
    body = "v_mov_b32 v5, v1\n v_mov_b32 v6, v2\n v_dual_mov_b32 v5, v6 :: v_dual_mov_b32 v6, v5\n v_mov_b32 v3, v5\n v_mov_b32 v4, v6"
    got, other = lanes(body, tmp_path, X, Y)
    assert (got.view(np.float32) == Y).all() and (other.view(np.float32) == X).all()


def test_wide_multiplication(tmp_path: Path) -> None:
    body = "v_mov_b32 v6, 7\n v_mov_b32 v7, -1\n v_mad_u64_u32 v[3:4], s8, v1, v2, v[6:7]\n"
    a, b = LANE * np.uint32(0x0F0F0F0F), ~LANE
    got, other = lanes(body, tmp_path, a, b)
    want = [(int(x) * int(y) + 0xFFFFFFFF00000007) & (1 << 64) - 1 for x, y in zip(a, b)]
    assert [int(h) << 32 | int(l) for l, h in zip(got, other)] == want


def test_bytes_and_bits(tmp_path: Path) -> None:
    """Selectors of every kind: bytes of both operands, signs, 0 and 255."""
    a, b = np.full(32, 0x84030201, np.uint32), np.full(32, 0x08F70605, np.uint32)
    got, other = lanes("v_perm_b32 v3, v1, v2, 0x0c0b0907\n v_bfrev_b32 v4, v1", tmp_path, a, b)
    assert got[0] == 0x00FF0084 | (0xFF << 16 if a[0] >> 31 else 0)
    assert other[0] == int(f"{int(a[0]):032b}"[::-1], 2)


def test_towards_zero_and_saturated_bytes(tmp_path: Path) -> None:
    got, other = lanes("v_cvt_pk_rtz_f16_f32 v3, v1, v2\n v_cvt_i32_f32 v5, v2\n v_sat_pk_u8_i16 v4.l, v5", tmp_path, X, Y * 10)
    for k, value in enumerate((X, Y * 10)):
        found = got.view(np.float16).reshape(32, 2)[:, k].astype(np.float32)
        assert (abs(found) <= abs(value)).all() and np.allclose(found, value, rtol=1e-3)
    whole = np.trunc(Y * 10).astype(np.int32)
    pairs = whole.view(np.int16).reshape(32, 2)
    assert (other == np.clip(pairs[:, 0], 0, 255).astype(np.uint32) | np.clip(pairs[:, 1], 0, 255).astype(np.uint32) << 8).all()


def test_comparisons_with_dpp(tmp_path: Path) -> None:
    body = "v_cmp_lt_f32_dpp vcc_lo, v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf\n v_mov_b32 v3, vcc_lo\n"
    body += "v_cndmask_b32 v4, v1, v2, vcc_lo"
    got, other = lanes(body, tmp_path, X, Y)
    less = X[np.arange(32) ^ 1] < Y
    assert (got == np.packbits(less, bitorder="little").view(np.uint32)[0]).all()
    assert (other.view(np.float32) == np.where(less, Y, X)).all()


def test_registers_by_number(tmp_path: Path) -> None:
    body = "s_mov_b32 m0, 2\n v_mov_b32 v5, 9\n v_mov_b32 v7, v1\n v_movrels_b32 v3, v5\n v_movreld_b32 v6, v2\n v_mov_b32 v4, v8"
    got, other = lanes(body, tmp_path, X, Y)
    assert (got.view(np.float32) == X).all() and (other.view(np.float32) == Y).all()


def test_lanes_by_number(tmp_path: Path) -> None:
    body = "s_mov_b32 s8, 77\n v_mov_b32 v3, v1\n v_writelane_b32 v3, s8, 13\n v_readlane_b32 s9, v1, 30\n v_mov_b32 v4, s9\n"
    body += "v_swap_b32 v3, v4"
    got, other = lanes(body, tmp_path, LANE, LANE)
    assert (got == 30).all()
    assert other.tolist() == [77 if k == 13 else k for k in range(32)]


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("s_add_u32 s8, -1, 2\n s_addc_u32 s9, 5, 0", (1, 6)),
        ("s_sub_u32 s8, 1, 2\n s_subb_u32 s9, 5, 0", (0xFFFFFFFF, 4)),
        ("s_mov_b32 s8, 0x12345678\n s_bfe_u32 s8, s8, 0x80004\n s_mov_b32 s9, 0xf0\n s_bfe_i32 s9, s9, 0x40004", (0x67, 0xFFFFFFFF)),
        ("s_mov_b64 s[10:11], 0xff00\n s_ctz_i32_b64 s8, s[10:11]\n s_bcnt1_i32_b64 s9, s[10:11]", (8, 8)),
        ("s_cmp_gt_i32 -3, -4\n s_cselect_b32 s8, 1, 2\n s_movk_i32 s9, 0x8000\n s_mulk_i32 s9, 2", (1, 0xFFFF0000)),
        ("s_mul_hi_u32 s8, -1, 16\n s_mov_b32 s9, 0x1111aaaa\n s_pack_lh_b32_b16 s9, s9, 0x2222bbbb", (15, 0x2222AAAA)),
        ("s_brev_b32 s8, 3\n s_cls_i32 s9, 0xffffff00", (0xC0000000, 24)),
        ("s_mov_b32 s8, 0\n.Lagain:\n s_addk_i32 s8, 3\n s_cmpk_lt_u32 s8, 20\n s_cbranch_scc1 .Lagain\n s_abs_i32 s9, -9", (21, 9)),
        ("s_and_saveexec_b32 s8, 0xff\n s_mov_b32 s9, exec_lo\n s_mov_b32 exec_lo, s8", (0xFFFFFFFF, 0xFF)),
        ("s_getpc_b64 s[10:11]\n s_getpc_b64 s[12:13]\n s_sub_u32 s8, s12, s10\n s_not_b32 s9, 0", (4, 0xFFFFFFFF)),
    ],
)
def test_scalar_instructions(body: str, want: tuple[int, int], tmp_path: Path) -> None:
    got, other = lanes(body + "\n v_mov_b32 v3, s8\n v_mov_b32 v4, s9", tmp_path, LANE, LANE)
    assert (set(got.tolist()), set(other.tolist())) == ({want[0]}, {want[1]})


def test_two_places_of_shared_memory(tmp_path: Path) -> None:
    body = "ds_store_2addr_b32 v9, v1, v2 offset1:32\n s_barrier\n ds_load_2addr_b32 v[3:4], v9 offset0:32 offset1:0\n"
    body += "s_waitcnt lgkmcnt(0)"
    got, other = lanes(body, tmp_path, X, Y)
    assert (got.view(np.float32) == Y).all() and (other.view(np.float32) == X).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ds_load_b32 v3, v9 offset:1000", r"lane 6.*4 bytes at offset 1024 are outside of 1024 bytes of shared memory"),
        ("s_load_b32 s8, s[0:1], 0x10", r"wave 0, `s_load_b32.*this is byte 16"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 5", "another mode of rounding"),
        ("s_cbranch_cdbgsys .Lend", "lacks `s_cbranch_cdbgsys"),
        ("ds_swizzle_b32 v3, v1 offset:0xe005", "lacks `ds_swizzle_b32.*FFT and rotation swizzles"),
        (".long 0x7e0602ef", "lacks `v_mov_b32.*operand 239"),
        ("s_setpc_b64 s[2:3]", "where no code is"),
    ],
)
def test_mistakes(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match=message):
        lanes(body, tmp_path, X, Y)
