"""Random kernels with barriers, shared memory and subgroups in nested control flow: compiled code against the interpreter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np

from spirograd.base.records import replace
from spirograd.lang.language_options import options_of_device

from . import run

_HEAD = """import spirograd as sg
from spirograd.simt import block, subgroup, warp

@sg.func
def rotated(s: sg.template(), v, t, live, by):
    s[t] = v
    block.sync()
    found = s[(t + by) % live]
    block.sync()
    return found

@sg.func
def rotated_often(s: sg.template(), v, t, live, often):
    found = v
    for k in range(often):
        found = rotated(s, found + k, t, live, k + 1)
    return found

@sg.kernel
def work(x: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.i32, 2], flag: sg.i32, m: sg.i32):
    sg.loop_config(block_dim={size})
    for i in range({begin}, {end}):
        s = block.SharedArray({size}, sg.i32)
        p = block.SharedArray(({size}, 2), sg.{type})
        counts = block.SharedArray(4, sg.i32)
        t, lanes = block.thread_idx(), subgroup.group_size()
        live = min({size}, {end} - (i - t))
        there = min(lanes, live - t // lanes * lanes)
        a, b, c = x[i - {begin}], i, t * 2
"""
_TAIL = """
        y[0, i - {begin}], y[1, i - {begin}], y[2, i - {begin}] = a, b, c
"""
_KINDS = ("add", "mul", "min", "max", "and", "or", "xor")
_TYPES = ("f16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
# Which threads go the same way where those of subgroups meet: there is no such place; all of a group; all of a subgroup; those with a mask.
NONE, GROUP, SUBGROUP, LANES = range(4)
# What back ends can.
MOST = {"cpu": LANES, "cuda": LANES, "vulkan": SUBGROUP, "wgpu": GROUP}
_SIZES = [(100, 32), (64, 64), (77, 20), (40, 8), (33, 33), (5, 1), (10, 3), (100, 48), (150, 70), (70, 128)]


class Program:
    """``subgroups``: one of the constants above."""

    def __init__(self, seed: int, subgroups: int) -> None:
        self.r = random.Random(seed)
        self.subgroups = subgroups
        self.n, self.size = self.r.choice(_SIZES)
        self.begin = self.r.choice([0, 0, 5])
        self.type = self.r.choice(_TYPES)
        self.loops = 0
        lines: list[str] = []
        self.block(3, "        ", lines)
        head = _HEAD.format(size=self.size, begin=self.begin, end=self.begin + self.n, type=self.type)
        self.source = head + "\n".join(lines) + _TAIL.format(begin=self.begin)

    def __repr__(self) -> str:
        return self.source

    def block(self, depth: int, pad: str, lines: list[str]) -> None:
        for _ in range(self.r.randint(2, 4)):
            v, w = self.r.choice("abc"), self.r.choice("abc")
            kinds = ["plain", "exchange", "typed", "counted", "called", "of_group", "some", "inner", *["nested"] * (3 * (depth > 0))]
            kinds += [*["together"] * 4] * (self.subgroups >= GROUP) + ["own"] * 2 * (self.subgroups >= SUBGROUP)
            kinds += ["lanes"] * 2 * (self.subgroups >= LANES)
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
            "typed": self.typed(v, w),
            "counted": self.counted(v, w),
            "called": [f"{v} = " + r.choice([f"rotated(s, {w}, t, live, {r.randint(0, 9)})", f"rotated_often(s, {w}, t, live, m)"])],
            "of_group": [f"{v} = " + r.choice([f"block.sync_count_nonzero({w} % 3)", f"block.reduce_add({w})", f"block.exclusive_max({w})",
                                               f"block.inclusive_min({w})"])],
            "some": [f"if {v} % 2 == 0:", f"    {w} = {w} + {v} * 3", "    if t % 3 == 1:", f"        {v} = {w} - 1"],
            "inner": ["for q in range(t % 4):", f"    {v} += q * {w}"],
            "together": [f"{v} = {self.together(w)}"],
            "own": self.of_each_subgroup(v, w),
            "lanes": self.of_lanes(v, w),
        }[kind]  # fmt: skip

    def typed(self, v: str, w: str) -> list[str]:
        """Through an array of another type, of numbers that every type has."""
        r, side = self.r, self.r.randrange(2)
        there = f"p[(t + {r.randint(0, 9)}) % live, {side}]"
        return [f"p[t, {side}] = sg.cast({v} & 63, sg.{self.type})", "block.sync()", f"{w} += sg.cast({there}, sg.i32)", "block.sync()"]

    def counted(self, v: str, w: str) -> list[str]:
        """Atomics, of which no result is used."""
        r = self.r
        update = r.choice(
            [f"counts[{v} & 3] += {w}", *[f"sg.atomic_{kind}(counts[{v} & 3], {w})" for kind in ("min", "max", "and", "or", "xor")]]
        )
        set_up = ["for q in range(t, 4, live):", f"    counts[q] = q * {r.randint(0, 9)}"]
        return [*set_up, "block.sync()", update, "block.sync()", f"{w} += counts[{r.randint(0, 3)}]", "block.sync()"]

    def together(self, w: str) -> str:
        """An operation of a subgroup."""
        r, kind = self.r, self.r.choice(_KINDS)
        form, log2 = r.choice(["reduce", "inclusive", "exclusive"]), r.randint(0, 3)
        return r.choice([
            f"subgroup.{form}_{kind}({w})", f"subgroup.{form}_{kind}({w})", f"subgroup.{form}_{kind}_tiled({w}, {log2})",
            f"subgroup.shuffle_{r.choice(['up', 'down', 'xor'])}({w}, {r.randint(1, 6)})",
            f"subgroup.shuffle({w}, {r.randint(0, 9)} % there)", f"sg.cast(subgroup.ballot({w} % 3) & 0xFFFF, sg.i32)",
            f"subgroup.any_true({w} % 5 == 0) + 2 * subgroup.all_true({w} % 5)",
            f"subgroup.all_true_tiled({w} % 3, {log2}) + subgroup.elect()",
            f"sg.cast(subgroup.shuffle(sg.cast({w}, sg.i64), 0) + 1, sg.i32)",
            f"sg.cast(subgroup.reduce_max(sg.cast({w} & 63, sg.f32)), sg.i32) + subgroup.all_equal({w})",
        ])  # fmt: skip

    def of_each_subgroup(self, v: str, w: str) -> list[str]:
        """A branch, and a loop, on which the threads of a subgroup agree."""
        r = self.r
        return [
            f"if (t // lanes + flag) % {r.randint(1, 3)} == 0:",
            f"    for q in range(t // lanes + {r.randint(-1, 2)}):",
            f"        {v} = {self.together(w)} - q",
            f"        for p{self.loops} in range({r.choice(['2', 'm'])}):",
            f"            {w} = {w} + subgroup.shuffle({v}, p{self.loops} % there)",
            "            s[t] = " + w,
            "            subgroup.sync()",
            f"            {v} += s[t // lanes * lanes + (t % lanes + 1) % there]",
            "            subgroup.sync()",
            "else:",
            f"    {w} = {self.together(v)}",
        ]

    def of_lanes(self, v: str, w: str) -> list[str]:
        """Loops that lanes leave one by one."""
        r = self.r
        inner = [f"for k in range(t % {r.randint(1, 4)}, 4):", f"    {w} = {w} * 3 + sg.cast(warp.active_mask() >> 3, sg.i32) % 7"]
        read = r.choice([f"warp.shfl_{r.choice(['up', 'down', 'xor'])}_i32(warp.active_mask(), {w}, {r.randint(1, 5)})",
                         f"sg.cast(warp.match_any(warp.active_mask(), {w} % 3) & 0xFF, sg.i32)",
                         f"warp.match_all(warp.active_mask(), {w} % 2)", f"warp.unique(warp.active_mask(), {w} % 2)"])  # fmt: skip
        return [
            f"q = t % {r.randint(2, 5)}",
            f"while q * q < {r.randint(1, 30)}:",
            f"    {v} += warp.any_nonzero(warp.active_mask(), {w} % {r.randint(2, 9)} == 0) + q",
            f"    if {v} % {r.randint(1, 3)} == {r.randint(0, 1)}:",
            f"        {w} = {read} + 1",
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
    return Program(seed, subgroups=seed % 4)


def results(program: Program, arch: str, lanes: int = 0) -> list[np.ndarray]:
    """``lanes``: how many threads a subgroup has, on the interpreter; 0: as many as it has on the back end."""
    with run.session(arch, False) as opened:
        caps, language = opened.device.caps, opened.language
        if lanes:
            caps = replace(caps, subgroup_size=lanes, subgroup_read=True)
            language = replace(language, **options_of_device(caps))
        with patch.object(opened.device, "caps", caps), patch.object(opened, "language", language):
            work = run.load(program.source, {}, "work")
            x, found = np.arange(program.n, dtype=np.int32) * 7 % 31, []
            for flag, m in ((0, 0), (5, 1), (7, 2)):
                y = np.zeros((3, program.n), np.int32)
                work(x, y, flag, m)
                found.append(y)
            return found


def lanes_of(arch: str) -> int:
    """How many threads a subgroup has on a back end."""
    with run.session(arch, False) as opened:
        lanes: int = opened.device.caps.group_lanes
        return lanes


def check(program: Program, archs: Sequence[str]) -> None:
    for arch in archs:
        if program.subgroups <= MOST[arch]:
            wanted = results(program, "interpreter", lanes_of(arch))
            for ours, theirs in zip(results(program, arch), wanted):
                if (ours != theirs).any():
                    raise run.Difference(f"{arch}: {np.argwhere(ours != theirs)[0].tolist()} differs\n{program.source}")


def failure(program: Program, archs: Sequence[str]) -> str:
    return run.first_line_of(check, program, archs)
