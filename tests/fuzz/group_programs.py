"""Random kernels with barriers, shared memory and subgroups in nested control flow: compiled code against the interpreter."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from . import run

_HEAD = """import spirograd as sg
from spirograd.simt import block, subgroup, warp

@sg.kernel
def work(x: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.i32, 2], flag: sg.i32, m: sg.i32):
    sg.loop_config(block_dim={size})
    for i in range({n}):
        s = block.SharedArray({size}, sg.i32)
        t = block.thread_idx()
        live = min({size}, {n} - (i - t))
        lanes = min(32, live - t // 32 * 32)
        a, b, c = x[i], i, t * 2
"""
_TAIL = """
        y[0, i], y[1, i], y[2, i] = a, b, c
"""


class Program:
    """``subgroups``: whether threads read values of their subgroup, whose size is that of the interpreter then."""

    def __init__(self, seed: int, subgroups: bool) -> None:
        self.r = random.Random(seed)
        self.subgroups = subgroups
        self.n, self.size = self.r.choice([(100, 32), (64, 64), (77, 20), (40, 8), (33, 33)])
        self.loops = 0
        lines: list[str] = []
        self.block(3, "        ", lines)
        self.source = _HEAD.format(n=self.n, size=self.size) + "\n".join(lines) + _TAIL

    def __repr__(self) -> str:
        return self.source

    def block(self, depth: int, pad: str, lines: list[str]) -> None:
        for _ in range(self.r.randint(2, 4)):
            v, w = self.r.choice("abc"), self.r.choice("abc")
            kinds = ["plain", "exchange", "exchange", "some", "inner", *["nested"] * (2 * (depth > 0))]
            kinds += ["subgroup", "own", "lanes"] * self.subgroups
            kind = self.r.choice(kinds)
            if kind == "nested":
                self.nested(depth - 1, pad, lines)
            else:
                lines += [pad + line for line in self.statement(kind, v, w)]

    def statement(self, kind: str, v: str, w: str) -> list[str]:
        r = self.r
        return {
            "plain": [f"{v} = {v} * {r.randint(2, 5)} + {w} - {r.randint(0, 9)}"],
            "exchange": [f"s[t] = {v}", "block.sync()", f"{w} = s[(t * {r.randint(1, 7)} + {r.randint(0, 9)}) % live]", "block.sync()"],
            "some": [f"if {v} % 2 == 0:", f"    {w} = {w} + {v} * 3", "    if t % 3 == 1:", f"        {v} = {w} - 1"],
            "inner": ["for q in range(t % 4):", f"    {v} += q * {w}"],
            "subgroup": [f"{v} = subgroup.inclusive_add({w})"],
            "own": self.of_each_subgroup(v, w),
            "lanes": self.of_lanes(v, w),
        }[kind]

    def of_each_subgroup(self, v: str, w: str) -> list[str]:
        """A branch, and a loop, on which the threads of a subgroup agree."""
        r = self.r
        return [
            f"if (t // 32 + flag) % {r.randint(1, 3)} == 0:",
            f"    for q in range(t // 32 + {r.randint(-1, 2)}):",
            f"        {v} = subgroup.inclusive_add({w}) - q",
            f"        for p in range({r.choice(['2', 'm'])}):",
            f"            {w} = {w} + subgroup.shuffle({v}, p % lanes)",
            "else:",
            f"    {w} = subgroup.shuffle({w}, {r.randint(0, 7)} % lanes)",
        ]

    def of_lanes(self, v: str, w: str) -> list[str]:
        """Loops that lanes leave one by one."""
        r = self.r
        inner = [f"for p in range(t % {r.randint(1, 4)}, 4):", f"    {w} = {w} * 3 + sg.cast(warp.active_mask() >> 3, sg.i32) % 7"]
        return [
            f"q = t % {r.randint(2, 5)}",
            f"while q * q < {r.randint(1, 30)}:",
            f"    {v} += warp.any_nonzero(warp.active_mask(), {w} % {r.randint(2, 9)} == 0) + q",
            *["    " + line for line in inner],
            "    q += 1",
        ]

    def nested(self, depth: int, pad: str, lines: list[str]) -> None:
        number, self.loops = self.loops, self.loops + 1
        kind = self.r.choice(["if", "for", "while"])
        if kind == "if":
            lines.append(f"{pad}if (flag >> {self.r.randint(0, 2)}) % 2 == 1:")
            self.block(depth, pad + "    ", lines)
            lines.append(f"{pad}else:")
        elif kind == "for":
            lines.append(f"{pad}for j{number} in range({self.r.choice(['2', 'm', '3'])}):")
        else:
            lines += [f"{pad}u{number} = m + 1", f"{pad}while u{number} > 0:", f"{pad}    u{number} -= 1"]
        self.block(depth, pad + "    ", lines)


def write(seed: int) -> Program:
    return Program(seed, subgroups=seed % 2 == 0)


def results(program: Program, arch: str) -> list[np.ndarray]:
    with run.session(arch, False):
        work = run.load(program.source, {}, "work")
        x, found = np.arange(program.n, dtype=np.int32) * 7 % 31, []
        for flag, m in ((0, 0), (5, 1), (7, 2)):
            y = np.zeros((3, program.n), np.int32)
            work(x, y, flag, m)
            found.append(y)
        return found


def check(program: Program, archs: Sequence[str]) -> None:
    """On Vulkan subgroups may have another size than on the interpreter."""
    wanted = results(program, "interpreter")
    for arch in archs:
        if not (arch == "vulkan" and program.subgroups):
            for ours, theirs in zip(results(program, arch), wanted):
                if (ours != theirs).any():
                    raise run.Difference(f"{arch}: {np.argwhere(ours != theirs)[0].tolist()} differs\n{program.source}")


def failure(program: Program, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
