"""Targets: what the compiler generates code for, and what sets them apart wherever that is no capability of the single device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Generator(Enum):
    """What makes code from device IR."""

    INTERPRETER = "runs kernel IR as it is"
    LLVM = "llvmgen"
    SPIRV = "spirvgen"


@dataclass(frozen=True, slots=True)
class Target:
    """One row of `TARGETS`. Passes ask for these facts, never for the name."""

    name: str
    title: str  # for messages
    generator: Generator
    # Launches run while Python goes on: the host reads the memory of kernels only by waiting for them. So what it would have to know
    # before a launch, such as the lengths of tapes, is found and used on the device.
    asynchronous: bool = False
    # Rows of tapes belong to threads, of which each has a row for every lane, side by side. Elsewhere invocations claim or own rows.
    rows_by_thread: bool = False
    # The remainder of negative numbers is that of the instruction.
    native_remainder: bool = False
    # Elementary functions of f64 are those of a library.
    native_f64_math: bool = False
    # Threads of the host add in f64 without loss of speed.
    wide_sums: bool = False
    # Operations of floats may take what no instruction defines: casts that overflow, quotients and extrema of NaN, subnormals.
    defined_floats: bool = False


TARGETS = {
    target.name: target
    for target in (
        Target("interpreter", "the interpreter", Generator.INTERPRETER),
        Target(
            "cpu", "the CPU", Generator.LLVM,
            rows_by_thread=True, native_remainder=True, native_f64_math=True, wide_sums=True, defined_floats=True,
        ),
        Target("vulkan", "Vulkan", Generator.SPIRV, asynchronous=True),
        Target("wgpu", "wgpu", Generator.SPIRV, asynchronous=True),
    )
}  # fmt: skip
