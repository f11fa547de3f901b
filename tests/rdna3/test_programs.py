"""Programs with known results on the emulator: made by LLVM from IR, so that the machine code is what the compiler meets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.rdna3.machine import element, kernel, run, stored
from validation.rdna3.execute import EmulatorError

pytestmark = pytest.mark.needs("tinygrad")
N = 96
RANDOM = np.random.default_rng(7)
LLVM_TYPES = {"f2": "half", "f4": "float", "f8": "double", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64"}


def values(t: str, n: int = N) -> np.ndarray:
    """Numbers of all sizes, and the corners of the type."""
    if t[0] == "f":
        info = np.finfo(t)
        small = info.smallest_subnormal
        corners = [0.0, -0.0, 1.0, -1.5, info.max, info.tiny, small, -small * 3, np.inf, -np.inf, np.nan]
        spread = RANDOM.normal(size=n) * 2.0 ** RANDOM.integers(-12, 12, n)
    else:
        about = np.iinfo(t)
        corners = [0, 1, -1, about.min, about.max, 2]
        spread = RANDOM.integers(about.min, about.max, n, dtype=t, endpoint=True)
    spread = spread.astype(t)
    spread[: len(corners)] = RANDOM.permutation(np.array(corners, t))
    return spread


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Bit by bit, but that NaN is NaN."""
    assert np.array_equal(got, want, equal_nan=got.dtype.kind == "f"), [(g, w) for g, w in zip(got, want) if g != w and g == g][:5]
    if got.dtype.kind == "f":
        zeros = want == 0
        assert (np.signbit(got[zeros]) == np.signbit(want[zeros])).all()


def elementwise(expression: str, t: str, a: np.ndarray, b: np.ndarray, more: str = "") -> np.ndarray:
    """``expression`` of %x and %y, on the emulator, with an element for each invocation."""
    word = LLVM_TYPES[t]
    body = element("%x", "%a", word) + element("%y", "%b", word) + f"\n  {expression}" + stored("%z", "%a", word)
    return run(kernel(body, more=more), a, b, groups=N // 32)[0]


FLOAT_OPERATIONS: dict[str, Callable[..., Any]] = {
    "%z = fadd T %x, %y": np.add,
    "%z = fsub T %x, %y": np.subtract,
    "%z = fmul T %x, %y": np.multiply,
    "%z = fdiv T %x, %y": np.divide,
    "%z = call T @llvm.sqrt.N(T %x)": lambda x, y: np.sqrt(x),
    "%z = call T @llvm.floor.N(T %x)": lambda x, y: np.floor(x),
    "%z = call T @llvm.rint.N(T %x)": lambda x, y: np.rint(x),
    "%z = call T @llvm.minnum.N(T %x, T %y)": np.fmin,
    "%z = call T @llvm.fabs.N(T %x)": lambda x, y: np.abs(x),
    "%z = call T @llvm.copysign.N(T %x, T %y)": np.copysign,
    "%n = fneg T %x\n  %z = fadd T %n, %y": lambda x, y: y - x,
    "%c = fcmp ult T %x, %y\n  %z = select i1 %c, T %x, T %y": lambda x, y: np.where(~(x >= y), x, y),
}


@pytest.mark.parametrize("t", ["f2", "f4", "f8"])
@pytest.mark.parametrize("operation", list(FLOAT_OPERATIONS))
def test_floats(operation: str, t: str) -> None:
    """Subnormal numbers, infinities and signs of zero included; division and square roots are rounded correctly."""
    name = {"f2": "f16", "f4": "f32", "f8": "f64"}[t]
    text = operation.replace("T", LLVM_TYPES[t]).replace(".N", f".{name}")
    found = {f"declare {LLVM_TYPES[t]} {part.split('(')[0]}" for part in text.split() if part.startswith("@llvm")}
    arity = 2 if any(word in text for word in ("minnum", "copysign")) else 1
    more = "".join(f"{one}({', '.join([LLVM_TYPES[t]] * arity)})\n" for one in found)
    a, b = values(t), values(t)
    with np.errstate(all="ignore"):
        want = FLOAT_OPERATIONS[operation](a, b)
    got = elementwise(text, t, a, b, more)
    if "minnum" in text:  # of zeros with different signs either may be it
        got, want = got + t_zero(t), want + t_zero(t)
    same(got, want)


def t_zero(t: str) -> Any:
    return np.dtype(t).type(0)


def _divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


INTEGER_OPERATIONS: dict[str, Callable[..., Any]] = {
    "%z = add T %x, %y": np.add,
    "%z = sub T %x, %y": np.subtract,
    "%z = mul T %x, %y": np.multiply,
    "%z = xor T %x, %y": np.bitwise_xor,
    "%s = and T %y, 7\n  %z = shl T %x, %s": lambda x, y: x << (y & 7),
    "%s = and T %y, 7\n  %z = ashr T %x, %s": lambda x, y: x >> (y & 7),
    "%z = call T @llvm.smax.N(T %x, T %y)": np.maximum,
    "%z = call T @llvm.umin.N(T %x, T %y)": lambda x, y: np.minimum(unsigned(x), unsigned(y)).view(x.dtype),
    "%z = call T @llvm.ctpop.N(T %x)": lambda x, y: np.array([bin(int(v)).count("1") for v in unsigned(x)], x.dtype),
    "%z = call T @llvm.bitreverse.N(T %x)": lambda x, y: reversed_bits(x),
    "%z = call T @llvm.uadd.sat.N(T %x, T %y)": lambda x, y: saturated(unsigned(x), unsigned(y)).view(x.dtype),
    "%z = call T @llvm.ctlz.N(T %x, i1 false)": lambda x, y: np.array([x.itemsize * 8 - int(v).bit_length() for v in unsigned(x)], x.dtype),
    "%c = icmp eq T %y, 0\n  %d = select i1 %c, T 1, T %y\n  %q = udiv T %x, %d\n  %z = select i1 %c, T 0, T %q": (
        lambda x, y: _divided(unsigned(x), unsigned(y)).astype(unsigned(x).dtype).view(x.dtype)
    ),
}


def unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def reversed_bits(x: np.ndarray) -> np.ndarray:
    width = x.itemsize * 8
    return np.array([int(f"{int(v):0{width}b}"[::-1], 2) for v in unsigned(x)], f"u{x.itemsize}").view(x.dtype)


def saturated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    total = x + y
    return np.where(total < x, np.iinfo(x.dtype).max, total).astype(x.dtype)


@pytest.mark.parametrize("t", ["i2", "i4", "i8"])
@pytest.mark.parametrize("operation", list(INTEGER_OPERATIONS))
def test_integers(operation: str, t: str) -> None:
    word = LLVM_TYPES[t]
    text = operation.replace("T", word).replace(".N", f".{word}")
    more = ""
    for part in text.split():
        if part.startswith("@llvm"):
            name = part.split("(")[0]
            types = [word, "i1"] if "ctlz" in name else [word] * text.split("(")[1].count(word)
            more = f"declare {word} {name}({', '.join(types)})\n"
    a, b = values(t), values(t)
    with np.errstate(all="ignore"):
        want = INTEGER_OPERATIONS[operation](a, b)
    same(elementwise(text, t, a, b, more), want)


def test_conversions() -> None:
    """Of floats to integers and back, and between floats; f64 to f16 goes in one step."""
    body = element("%x", "%a", "double") + (
        "\n  %h = fptrunc double %x to half\n  %f = fptrunc double %x to float\n  %n = fptosi double %x to i32"
        "\n  %hd = fpext half %h to double\n  %fd = fpext float %f to double\n  %nd = sitofp i32 %n to double"
        "\n  %s = fadd double %hd, %fd\n  %r = fadd double %s, %nd"
    )
    a = RANDOM.normal(size=32) * 1000
    (got, _) = run(kernel(body + stored("%r", "%b", "double")), a, np.zeros(32))[::-1]
    want = (a.astype(np.float16).astype(float) + a.astype(np.float32)) + np.trunc(a)
    same(got, want)


# --- control flow ---

COLLATZ = """
  br label %head
head:
  %n = phi i32 [ %x, %entry ], [ %next, %latch ]
  %steps = phi i32 [ 0, %entry ], [ %more, %latch ]
  %done = icmp ule i32 %n, 1
  br i1 %done, label %exit, label %body
body:
  %low = and i32 %n, 1
  %odd = icmp eq i32 %low, 1
  br i1 %odd, label %up, label %down
up:
  %t3 = mul i32 %n, 3
  %u = add i32 %t3, 1
  br label %latch
down:
  %d = lshr i32 %n, 1
  br label %latch
latch:
  %next = phi i32 [ %u, %up ], [ %d, %down ]
  %more = add i32 %steps, 1
  br label %head
exit:
"""


def test_divergent_loops() -> None:
    """Each lane leaves the loop by itself, and each wave when its last lane has."""

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = (3 * n + 1 if n & 1 else n >> 1), count + 1
        return count

    body = "\n  br label %entry\nentry:" + element("%x", "%a", "i32") + COLLATZ + stored("%steps", "%b", "i32")
    a = np.arange(256, dtype=np.int32)
    _, got = run(kernel(body, 64), a, np.zeros_like(a), groups=4, size=64)
    assert got.tolist() == [steps(int(n)) for n in a]


def test_waves_that_are_not_full() -> None:
    """50 invocations are two waves, the second with 18 lanes."""
    a = np.zeros(128, np.int32)
    got, _ = run(kernel("\n  %v = add i32 %i, 1" + stored("%v", "%a", "i32"), 50), a, a, groups=2, size=50)
    assert got.tolist() == [*range(1, 101), *[0] * 28]


SPIN = """
  %c = icmp eq i32 %g, 3
  br i1 %c, label %give, label %wait
give:
  store atomic i32 7, ptr addrspace(1) %a syncscope("agent") release, align 4
  br label %exit
wait:
  %flag = load atomic i32, ptr addrspace(1) %a syncscope("agent") acquire, align 4
  %ready = icmp eq i32 %flag, 7
  br i1 %ready, label %exit, label %wait
exit:
"""


def test_waiting_for_another_wave() -> None:
    """Waves that spin let the others run."""
    a = np.zeros(128, np.int32)
    _, got = run(kernel(SPIN + stored("%i", "%b", "i32")), a, a, groups=4)
    assert got.tolist() == list(range(128))


# --- memory ---

SHARED = "@shared = internal addrspace(3) global [64 x i32] poison\n"
BARRIER = '\n  fence syncscope("workgroup") release\n  call void @llvm.amdgcn.s.barrier()\n  fence syncscope("workgroup") acquire'


def test_shared_memory_and_barriers() -> None:
    """Each of 4 workgroups of two waves turns its 64 elements round."""
    body = (
        element("%x", "%a", "i32")
        + "\n  %p = getelementptr [64 x i32], ptr addrspace(3) @shared, i32 0, i32 %t\n  store i32 %x, ptr addrspace(3) %p"
        + BARRIER
        + "\n  %o = sub i32 63, %t\n  %q = getelementptr [64 x i32], ptr addrspace(3) @shared, i32 0, i32 %o"
        + "\n  %y = load i32, ptr addrspace(3) %q"
        + stored("%y", "%b", "i32")
    )
    a = np.arange(256, dtype=np.int32) * 3
    _, got = run(kernel(body, 64, more=SHARED), a, np.zeros_like(a), groups=4, size=64)
    assert (got == a.reshape(4, 64)[:, ::-1].reshape(-1)).all()


def test_a_barrier_that_some_do_not_reach() -> None:
    """The second wave goes round it."""
    body = f"\n  %c = icmp ult i32 %t, 32\n  br i1 %c, label %w, label %e\nw:{BARRIER}\n  br label %e\ne:" + stored("%t", "%a", "i32")
    a = np.zeros(64, np.int32)
    with pytest.raises(EmulatorError, match="only 1 of 2 waves of workgroup 0 reached the barrier at 0x"):
        run(kernel(body, 64), a, a, size=64)


@pytest.mark.parametrize(
    ("operation", "t"), [*itertools.product(["add", "min", "xor", "xchg"], ["i4", "i8"]), ("add", "f4"), ("min", "f4")]
)
def test_atomics(operation: str, t: str) -> None:
    """Many lanes of many waves, few places; what was there before is what a loop over the lanes finds."""
    word, name = LLVM_TYPES[t], operation if t[0] != "f" else f"f{operation}"
    body = (
        element("%x", "%b", word)
        + f"\n  %k = urem i32 %i, 5\n  %p = getelementptr {word}, ptr addrspace(1) %a, i32 %k"
        + f'\n  %old = atomicrmw {name} ptr addrspace(1) %p, {word} %x syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !1'
        + ", !amdgpu.no.remote.memory !1"
        + stored("%old", "%b", word)
    )
    memory, b = np.full(8, 100).astype(t), (RANDOM.integers(1, 50, 128)).astype(t)
    functions: dict[str, Callable[..., Any]] = {"add": lambda m, x: m + x, "min": min, "xor": lambda m, x: m ^ x, "xchg": lambda m, x: x}
    want, before = memory.copy(), b.copy()
    for i, x in enumerate(b):
        before[i], want[i % 5] = want[i % 5], functions[operation](want[i % 5], x)
    got = run(kernel(body, 64, more="!1 = !{}\n"), memory, b, groups=2, size=64)
    same(got[0], want)
    same(got[1], before)


def test_compare_and_swap_in_lane_order() -> None:
    """Of lanes that expect the same value, the first gets its way."""
    body = (
        "\n  %e = lshr i32 %i, 2\n  %n = add i32 %e, 1"
        + '\n  %r = cmpxchg ptr addrspace(1) %a, i32 %e, i32 %n syncscope("agent") monotonic monotonic'
        + "\n  %old = extractvalue {i32, i1} %r, 0"
        + stored("%old", "%b", "i32")
    )
    a = np.zeros(64, np.int32)
    got = run(kernel(body, 64), a, a, size=64)
    assert got[0][0] == 16
    assert got[1].tolist() == [i // 4 + (i % 4 > 0) for i in range(64)]


def test_scratch_memory() -> None:
    """An array of each lane, indexed by a number that only it knows."""
    body = "\n  %m = alloca [16 x i32], addrspace(5)" + element("%x", "%a", "i32")
    for k in range(16):
        body += f"\n  %p{k} = getelementptr [16 x i32], ptr addrspace(5) %m, i32 0, i32 {k}\n  %v{k} = mul i32 %x, {k + 1}"
        body += f"\n  store volatile i32 %v{k}, ptr addrspace(5) %p{k}"
    body += "\n  %at = and i32 %i, 15\n  %q = getelementptr [16 x i32], ptr addrspace(5) %m, i32 0, i32 %at"
    body += "\n  %y = load volatile i32, ptr addrspace(5) %q" + stored("%y", "%b", "i32")
    a = np.arange(64, dtype=np.int32) * 100
    _, got = run(kernel(body), a, np.zeros_like(a), groups=2)
    assert got.tolist() == [100 * i * (i % 16 + 1) for i in range(64)]


def test_outside_of_all_buffers() -> None:
    """The message names wave, lane, instruction, and the buffer below."""
    a = np.zeros(70, np.int32)  # 280 bytes, which are not rounded up to 16
    with pytest.raises(EmulatorError, match=r"wave 2, lane 6, `global_store_b32 .*at 0x7a.*this is byte 280 from its start"):
        run(kernel(stored("%i", "%a", "i32"), 96), a, a, size=96)


def test_what_the_emulator_lacks_is_named() -> None:
    more = "declare void @llvm.amdgcn.s.sethalt(i32)\n"
    with pytest.raises(EmulatorError, match=r"lacks `s_sethalt.*at 0x7a"):
        run(kernel("\n  call void @llvm.amdgcn.s.sethalt(i32 1)", more=more), np.zeros(1), np.zeros(1))


def test_modes_that_the_emulator_lacks_are_named() -> None:
    with pytest.raises(EmulatorError, match="another mode of rounding or of subnormals"):
        run(kernel("", attributes='"denormal-fp-math"="preserve-sign"'), np.zeros(1), np.zeros(1))


def test_constants() -> None:
    """A table in the code object is found by its distance from the program counter."""
    table = "@table = internal addrspace(4) constant [4 x i32] [i32 5, i32 6, i32 7, i32 8]\n"
    body = "\n  %k = and i32 %i, 3\n  %p = getelementptr [4 x i32], ptr addrspace(4) @table, i32 0, i32 %k"
    body += "\n  %v = load i32, ptr addrspace(4) %p"
    a = np.zeros(32, np.int32)
    got, _ = run(kernel(body + stored("%v", "%a", "i32"), more=table), a, a)
    assert got.tolist() == [5, 6, 7, 8] * 8
