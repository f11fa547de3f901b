"""Functions that pack the argument block of a launch, made for each compiled kernel."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from spirograd.base.artifact import CompiledKernel, Slot, TaskInfo
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError
from spirograd.base.sizes.evaluate import TEXT_NAMES, python_text
from spirograd.base.tape_layout import word_places

Scalar = Union[int, float, bool]
ROLE_ATTRIBUTES = {"primal": "address", "grad": "grad_address", "dual": "dual_address", "grad_dual": "grad_dual_address"}
# Weyl sequence with the golden ratio: seeds of successive launches differ in many bits, and never repeat within 2^32 launches.
_SEED_STEP = 0x9E3779B9


def _missing(index: int, role: str) -> int:
    raise SpirogradRuntimeTypeError(f"array argument {index} has no {role} array, but the kernel uses it; create it with needs_{role}=True")


def build_packer(
    compiled: CompiledKernel, addresses: Mapping[str, int], launcher: Any
) -> Callable[..., tuple[bytes, tuple[int | None, ...]]]:
    """A function (scalars, arrays, trees, number of the launch, number for seeds, `TapeWords.flat`) -> (argument block, counts).

    Built as one Python expression: a launch then runs a single frame without loops, which is 3 times as fast as a loop over
    slots. The text is made of this module's own templates and of integers only.
    """
    block = compiled.args
    packer = struct.Struct(block.format)
    if packer.size > block.size:
        raise SpirogradRuntimeError(f"kernel {compiled.name}: format {block.format!r} does not fit a block of {block.size} bytes")
    if packer.size < block.size:
        packer = struct.Struct(f"{block.format}{block.size - packer.size}x")
    tapes = {word: f"tapes[{place}]" for word, place in word_places(compiled).items()}
    values = ", ".join(tapes.get((slot.kind, slot.index)) or _slot_text(slot, addresses) for slot in block.slots)
    counts = "".join(_count_text(task) + ", " for task in compiled.tasks)
    text = f"lambda s, a, t, number, drawn, tapes: (pack({values}), ({counts}))"
    names = {**TEXT_NAMES, "pack": packer.pack, "missing": _missing, "launcher": launcher}
    packed: Callable[..., tuple[bytes, tuple[int | None, ...]]] = eval(text, {"__builtins__": {}, **names})
    return packed


def build_counter(compiled: CompiledKernel) -> Callable[..., tuple[int | None, ...]]:
    """A function (scalars, arrays) -> counts, as of `build_packer`."""
    counts = "".join(_count_text(task) + ", " for task in compiled.tasks)
    counter: Callable[..., tuple[int | None, ...]] = eval(f"lambda s, a: ({counts})", {"__builtins__": {}, **TEXT_NAMES})
    return counter


def _slot_text(slot: Slot, addresses: Mapping[str, int]) -> str:
    index = int(slot.index)
    if slot.kind == "tree":
        return f"t[{index}].address"
    if slot.kind == "array":
        text = f"a[{index}].{ROLE_ATTRIBUTES[slot.role]}"
        return text if slot.role == "primal" else f"({text} or missing({index}, {slot.role!r}))"
    if slot.kind in addresses:
        return str(addresses[slot.kind])
    if slot.kind == "scalar":
        return f"s[{index}]"
    if slot.kind == "shape":
        return f"a[{index}].shape[{int(slot.axis)}]"
    return {"seed": f"launcher.seed + drawn * {_SEED_STEP} & 0xFFFFFFFF", "launch": "number & 0xFFFFFFFF"}[slot.kind]


def _count_text(task: TaskInfo) -> str:
    if task.begin is None or task.end is None:
        return "None"
    if isinstance(task.begin, int) and isinstance(task.end, int):
        return str(max(0, task.end - task.begin))
    end = python_text(task.end)
    return f"max(0, {end})" if task.begin == 0 else f"max(0, {end} - {python_text(task.begin)})"


def fit_scalars(compiled: CompiledKernel, scalars: Sequence[Scalar]) -> list[Scalar]:
    """Scalars as their types hold them: floats too large become infinite, as in a cast; other misfits raise, by name."""
    fitted = list(scalars)
    for slot in compiled.args.slots:
        dtype = slot.dtype
        if slot.kind != "scalar" or dtype is None:
            continue
        value = fitted[slot.index]
        if dtype.is_float:
            try:
                fitted[slot.index] = dtype(float(value))
            except (TypeError, ValueError) as error:
                raise SpirogradRuntimeTypeError(f"argument {slot.index} of {compiled.name} is {dtype}, not {value!r}") from error
            continue
        if not hasattr(value, "__index__"):
            raise SpirogradRuntimeTypeError(f"argument {slot.index} of {compiled.name} is {dtype}, not {type(value).__name__} ({value!r})")
        if not dtype.min <= value <= dtype.max:
            raise SpirogradRuntimeTypeError(
                f"argument {slot.index} of {compiled.name} is {dtype}, which holds {dtype.min} to {dtype.max}, not {value!r}"
            )
    return fitted
