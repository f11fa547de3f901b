"""Exchanges between the lanes of a wave, by the intrinsics of LLVM."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rdna3.machine import element, kernel, run, stored

pytestmark = pytest.mark.needs("tinygrad")
LANE = np.arange(32)
A = (LANE * 10 + 5).astype(np.int32)
DPP = "declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32, i32, i32, i1)\n"


def exchanged(lines: str, more: str, a: np.ndarray = A, active: str = "") -> list[int]:
    """%y of each lane, made of %x, its element of ``a``; of active lanes only, -7 of others."""
    body = element("%x", "%a", "i32")
    if active:
        body += f"\n  {active}\n  br i1 %c, label %then, label %end\nthen:"
    body += f"\n  {lines}" + stored("%y", "%b", "i32")
    if active:
        body += "\n  br label %end\nend:"
    return run(kernel(body, more=more), a, np.full(32, -7, np.int32))[1].tolist()


@pytest.mark.parametrize(
    ("control", "source"),
    [
        (0b00_01_10_11, lambda k: k ^ 3),
        (0x101, lambda k: k + 1 if k % 16 < 15 else None),
        (0x113, lambda k: k - 3 if k % 16 >= 3 else None),
        (0x121, lambda k: k - k % 16 + (k - 1) % 16),
        (0x140, lambda k: k - k % 16 + 15 - k % 16),
        (0x141, lambda k: k - k % 8 + 7 - k % 8),
        (0x152, lambda k: k - k % 16 + 2),
        (0x16B, lambda k: k ^ 11),
    ],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_dpp(control: int, source: object, zeros: bool) -> None:
    """Where there is no lane to read, the old value stays, or 0 comes."""
    line = f"%y = call i32 @llvm.amdgcn.update.dpp.i32(i32 -1, i32 %x, i32 {control}, i32 15, i32 15, i1 {str(zeros).lower()})"
    want = [source(k) for k in range(32)]  # type: ignore[operator]
    assert exchanged(line, DPP) == [(0 if zeros else -1) if k is None else int(A[k]) for k in want]


def test_dpp_of_some_rows_and_banks() -> None:
    line = "%y = call i32 @llvm.amdgcn.update.dpp.i32(i32 -1, i32 %x, i32 0, i32 2, i32 9, i1 false)"
    assert exchanged(line, DPP) == [int(A[k - k % 4]) if k >= 16 and k // 4 % 4 in (0, 3) else -1 for k in range(32)]


def test_inactive_lanes_give_nothing() -> None:
    line = "%y = call i32 @llvm.amdgcn.update.dpp.i32(i32 -1, i32 %x, i32 353, i32 15, i32 15, i1 true)"  # lane ^ 1
    got = exchanged(line, DPP, active="%c = icmp ult i32 %i, 5")
    assert got == [15, 5, 35, 25, 0, *[-7] * 27]


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        ("%k = mul i32 %i, 20\n  %y = call i32 @llvm.amdgcn.ds.bpermute(i32 %k, i32 %x)", lambda k: 5 * k % 32),
        ("%y = call i32 @llvm.amdgcn.ds.swizzle(i32 %x, i32 20511)", lambda k: k ^ 20),
        ("%y = call i32 @llvm.amdgcn.ds.swizzle(i32 %x, i32 32795)", lambda k: k - k % 4 + 3 - k % 4),
        ("%y = call i32 @llvm.amdgcn.permlane16.i32(i32 %x, i32 %x, i32 1985229328, i32 -19088744, i1 false, i1 false)", lambda k: k),
        ("%y = call i32 @llvm.amdgcn.permlanex16.i32(i32 %x, i32 %x, i32 -19088744, i32 1985229328, i1 false, i1 false)", None),
        ("%y = call i32 @llvm.amdgcn.readlane.i32(i32 %x, i32 9)", lambda k: 9),
        ("%k = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %x)\n  %y = add i32 %k, 0", lambda k: 0),
    ],
)
def test_permutations(lines: str, source: object) -> None:
    more = """
    declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)\ndeclare i32 @llvm.amdgcn.ds.swizzle(i32, i32)
    declare i32 @llvm.amdgcn.permlane16.i32(i32, i32, i32, i32, i1, i1)
    declare i32 @llvm.amdgcn.permlanex16.i32(i32, i32, i32, i32, i1, i1)
    declare i32 @llvm.amdgcn.readlane.i32(i32, i32)\ndeclare i32 @llvm.amdgcn.readfirstlane.i32(i32)
    """
    other_row = lambda k: (k ^ 16) - k % 16 + (k + 8) % 16  # noqa: E731
    assert exchanged(lines, more) == [int(A[(source or other_row)(k)]) for k in range(32)]  # type: ignore[operator]


def test_first_active_lane() -> None:
    more = "declare i32 @llvm.amdgcn.readfirstlane.i32(i32)\n"
    got = exchanged("%y = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %x)", more, active="%c = icmp ugt i32 %i, 20")
    assert got == [*[-7] * 21, *[215] * 11]


def test_ballot_and_ranks() -> None:
    more = "declare i32 @llvm.amdgcn.ballot.i32(i1)\ndeclare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)\n"
    lines = "%p = icmp sgt i32 %x, 100\n  %m = call i32 @llvm.amdgcn.ballot.i32(i1 %p)\n"
    lines += "  %y = call i32 @llvm.amdgcn.mbcnt.lo(i32 %m, i32 3)"
    odd = "%low = and i32 %i, 1\n  %c = icmp eq i32 %low, 1"
    mask = [k for k in range(1, 32, 2) if A[k] > 100]
    assert exchanged(lines, more, active=odd) == [3 + sum(other < k for other in mask) if k % 2 else -7 for k in range(32)]
