"""Compare factors and solutions by tiles with the same in CUDA C, which nvcc compiles: registers, spilled bytes, instructions, and time.

    ci/gpu_tiles.py                       needs nvcc and ptxas, and no GPU: it times only where there is one
    ci/gpu_tiles.py --systems 30000 --out out/gpu/tiles.md

Each group of threads factorises a matrix that fills a tile, and solves with the factor, as often as a number in memory says. Instructions
are counted if nvdisasm is on the path. On a GPU, both results are compared with NumPy, and timed in turns; the best of nine rounds counts.
Exits with status 1 if a result is wrong, and with 77 if nvcc or ptxas is missing.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import spirograd as sg
from spirograd.simt import Tile16x16, Tile32x32

_ROUNDS, _LAUNCHES = 9, 20
_NOT_RUN = 77  # the status of a step of `ci/gpu` that this machine cannot run
_CUDA = r"""
typedef TYPE T;
extern "C" __global__ void __launch_bounds__(N) hand(const T* a, T* b, const int* often) {
    const unsigned mask = N == 32 ? 0xffffffffu : (1u << N) - 1;
    const int g = blockIdx.x, at = threadIdx.x;
    T l[N], x[N];
    for (int c = 0; c < often[g]; ++c) {
#pragma unroll
        for (int k = 0; k < N; ++k) l[k] = a[(g * N + at) * N + k], x[k] = b[(g * N + at) * N + k];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            T sum = l[k];
#pragma unroll
            for (int j = 0; j < k; ++j) sum = fma(-l[j], __shfl_sync(mask, l[j], k), sum);
            const T column = at == k ? max(sum, T(1e-6)) : sum;
            const T pivot = __shfl_sync(mask, column, k);
            l[k] = at > k ? column * T(rsqrt(pivot)) : at == k ? sqrt(pivot) : l[k];
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
#pragma unroll
            for (int j = 0; j < k; ++j) x[k] = fma(-x[j], __shfl_sync(mask, l[j], k), x[k]);
            x[k] *= 1 / __shfl_sync(mask, l[k], k);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) b[(g * N + at) * N + k] = x[k];
    }
}
"""


class Code(NamedTuple):
    """What an assembler says of a kernel. ``instructions``: -1 if there is no nvdisasm."""

    registers: int
    spilled: int
    instructions: int

    def __str__(self) -> str:
        count = "?" if self.instructions < 0 else str(self.instructions)
        return f"{self.registers} registers, {self.spilled} bytes spilled, {count} instructions"


def kernel(tile: Any, dtype: Any, systems: int) -> Any:
    n = tile.SIZE

    @sg.kernel
    def factor_and_solve(a: sg.types.NDArray[dtype, 3], b: sg.types.NDArray[dtype, 3], often: sg.types.NDArray[sg.i32, 1]):  # type: ignore[no-untyped-def, valid-type]
        sg.loop_config(block_dim=n)
        for i in range(systems * n):
            g = i // n
            for _ in range(often[g]):
                factor, x = tile.zeros(dtype), tile.zeros(dtype)
                factor[:] = a[g, 0:n, 0:n]
                x[:] = b[g, 0:n, 0:n]
                factor.cholesky_(1e-6)
                factor.solve_triangular_(x)
                b[g, 0:n, 0:n] = x

    return factor_and_solve


def ours(tile: Any, dtype: Any, systems: int, folder: Path, architecture: str) -> Code:
    """Compile our kernel to PTX, which needs no GPU, and assemble it."""
    sg.init(arch=sg.interpreter, offline_cache=False)
    module = sg.aot.Module(sg.cuda, caps={"cpu_name": architecture})
    module.add_kernel(kernel(tile, dtype, systems))
    module.save(folder / "module")
    (path,) = (folder / "module" / "kernels").glob("*.ptx")
    said = _run("ptxas", f"-arch={architecture}", "-v", str(path), "-o", str(folder / "ours.cubin"))
    return _code(said, folder / "ours.cubin")


def by_hand(tile: Any, dtype: Any, folder: Path, architecture: str) -> Code:
    text = _CUDA.replace("TYPE", "float" if dtype is sg.f32 else "double").replace("N", str(tile.SIZE))
    (folder / "hand.cu").write_text(text)
    said = _run("nvcc", f"-arch={architecture}", "-cubin", "-Xptxas", "-v", str(folder / "hand.cu"), "-o", str(folder / "hand.cubin"))
    return _code(said, folder / "hand.cubin")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _code(said: str, cubin: Path) -> Code:
    registers, spilled = (re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    assert registers is not None and spilled is not None, said
    count = -1
    if shutil.which("nvdisasm"):
        count = len(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+\S", _run("nvdisasm", "-c", str(cubin)), re.MULTILINE))
    return Code(int(registers[1]), int(spilled[1]), count)


class Hand:
    """A launch of the kernel of a cubin, by the driver, in the context that spirograd uses."""

    def __init__(self, cubin: bytes, n: int, systems: int, arrays: list[Any]) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self._function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, b"hand")
        self._values = [ctypes.c_uint64(array.__cuda_array_interface__["data"][0]) for array in arrays]
        self._pointers = (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in self._values])
        self._shape = (systems, 1, 1, n, 1, 1)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name} returned {code}")

    def __call__(self) -> None:
        self._call("cuLaunchKernel", self._function, *self._shape, 0, None, self._pointers, None)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")


def measured(tile: Any, dtype: Any, systems: int, cubin: bytes) -> tuple[float, float]:
    """Return the seconds of a launch of ours, and of that by hand. Both results have to be right."""
    n = tile.SIZE
    sg.init(arch=sg.cuda, offline_cache=False)
    rng = np.random.default_rng(0)
    m = rng.uniform(-1, 1, (7, n, n))
    matrices, right = (m @ m.transpose(0, 2, 1) + np.eye(n))[np.arange(systems) % 7], rng.uniform(-1, 1, (systems, n, n))
    a, b, often = sg.ndarray(dtype, (systems, n, n)), sg.ndarray(dtype, (systems, n, n)), sg.ndarray(sg.i32, systems)
    a.from_numpy(matrices.astype(dtype.np))
    often.fill(1)
    run, hand = kernel(tile, dtype, systems), Hand(cubin, n, systems, [a, b, often])
    ways: list[tuple[Callable[[], Any], Callable[[], Any]]] = [(lambda: run(a, b, often), sg.sync), (hand, hand.wait)]
    lower = np.linalg.cholesky(matrices[:7])
    for way, wait in ways:
        b.from_numpy(right.astype(dtype.np))
        sg.sync()
        way()
        wait()
        wanted = np.linalg.solve(lower, right[:7].transpose(0, 2, 1)).transpose(0, 2, 1)
        if not np.allclose(b.to_numpy()[:7], wanted, rtol=1e-3, atol=1e-3):
            raise SystemExit(f"{tile}, {dtype}: a result differs from NumPy's")
    best = [float("inf")] * len(ways)
    for _ in range(_ROUNDS):
        for k, (way, wait) in enumerate(ways):
            b.fill(0)
            sg.sync()
            begin = time.perf_counter()
            for _ in range(_LAUNCHES):
                way()
            wait()
            best[k] = min(best[k], (time.perf_counter() - begin) / _LAUNCHES)
    return best[0], best[1]


def has_gpu() -> bool:
    try:
        sg.init(arch=sg.cuda)
    except sg.SpirogradRuntimeError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=30_000, help="how many are factorised in a launch (default 30000)")
    parser.add_argument("--architecture", default="sm_90", help="for which code is compared and, on a GPU, measured (default sm_90)")
    parser.add_argument("--out", type=Path, help="a file for the table, too")
    options = parser.parse_args()
    if missing := [name for name in ("nvcc", "ptxas") if not shutil.which(name)]:
        print(f"{' and '.join(missing)} not on the path: install CUDA's compiler (the packages nvidia-cuda-nvcc and nvidia-nvvm)")
        sys.exit(_NOT_RUN)
    times = has_gpu()
    lines = ["| tile | ours | CUDA C | ours, by hand |", "|---|---|---|---|"]
    for tile in (Tile16x16, Tile32x32):
        for dtype in (sg.f32, sg.f64):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                mine, hand = (
                    ours(tile, dtype, options.systems, folder, options.architecture),
                    by_hand(tile, dtype, folder, options.architecture),
                )
                cubin = (folder / "hand.cubin").read_bytes()
            taken = "no GPU"
            if times:
                seconds = measured(tile, dtype, options.systems, cubin)
                taken = f"{seconds[0] * 1e3:.4f} ms, {seconds[1] * 1e3:.4f} ms: {seconds[1] / seconds[0]:.2f}"
            lines.append(f"| {tile}, {dtype} | {mine} | {hand} | {taken} |")
            print(lines[-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
