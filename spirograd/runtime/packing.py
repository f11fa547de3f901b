"""Functions that pack the argument block of a launch, generated for each compiled kernel."""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from spirograd.base.adstack_layout import word_places
from spirograd.base.arguments import ROLE_ATTRIBUTES
from spirograd.base.artifact import CompiledKernel, Slot, TaskInfo
from spirograd.base.dtypes import storage
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError
from spirograd.base.sizes import python_expressions as x
from spirograd.base.sizes.python_expressions import Expression, size_expression
from spirograd.base.sizes.size_nodes import Size

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, Place, Scalar

    Counts = tuple[int | None, ...]
    Trees = Mapping[int, Allocation]
    Pack = Callable[[Sequence[Scalar], Sequence[Place | None], Trees, int, int, tuple[int, ...]], tuple[bytes, Counts]]

# Weyl sequence with the golden ratio: seeds of successive launches differ in many bits, and never repeat within 2^32 launches.
_SEED_STEP = 0x9E3779B9


def _missing(index: int, role: str) -> int:
    raise SpirogradRuntimeTypeError(f"array argument {index} has no {role} array, but the kernel uses it; create it with needs_{role}=True")


def build_packer(compiled: CompiledKernel, addresses: Mapping[str, int], launcher: object) -> Pack:
    """Return a function (scalars, arrays, trees, number of the launch, number for seeds, `AdstackWords.flat`) -> (argument block, counts).

    It is built as one Python expression: a launch then runs a single frame without loops, which is 3 times as fast as a loop over slots.
    """
    block = compiled.args
    packer = struct.Struct(block.format)
    if packer.size > block.size:
        raise SpirogradRuntimeError(f"kernel {compiled.name}: format {block.format!r} does not fit a block of {block.size} bytes")
    if packer.size < block.size:
        packer = struct.Struct(f"{block.format}{block.size - packer.size}x")
    words = word_places(compiled)
    values = [_slot_value(slot, words.get((slot.kind, slot.index)), addresses) for slot in block.slots]
    result = x.sequence([x.call("pack", *values), _counts(compiled)])
    names = {"pack": packer.pack, "missing": _missing, "launcher": launcher}
    return x.function(("s", "a", "t", "number", "drawn", "adstacks"), result, names)


def build_counter(compiled: CompiledKernel) -> Callable[[Sequence[Scalar], Sequence[Place | None]], Counts]:
    """Return a function (scalars, arrays) -> counts, as in `build_packer`."""
    return x.function(("s", "a"), _counts(compiled))


def build_size(size: Size) -> Callable[[Sequence[Scalar], Sequence[Place | None]], int]:
    """Return a function (scalars, arrays) -> the value of ``size``, which reads no memory."""
    return x.function(("s", "a"), size_expression(size))


def _slot_value(slot: Slot, word: int | None, addresses: Mapping[str, int]) -> Expression:
    """Return the expression of a slot's value. ``word``: the index of the slot's content among the words about adstacks."""
    if word is not None:
        return x.item(x.name("adstacks"), x.number(word))
    if slot.kind == "tree":
        return x.attribute(x.item(x.name("t"), x.number(slot.index)), "address")
    if slot.kind == "array":
        address = x.attribute(x.item(x.name("a"), x.number(slot.index)), ROLE_ATTRIBUTES[slot.role])
        return address if slot.role == "primal" else x.either(address, x.call("missing", x.number(slot.index), x.text(slot.role)))
    if slot.kind in addresses:
        return x.number(addresses[slot.kind])
    if slot.kind == "scalar":
        return x.argument(slot.index)
    if slot.kind == "shape":
        return x.extent(slot.index, slot.axis)
    return _low_word(_COUNTED[slot.kind])


def _low_word(value: Expression) -> Expression:
    return x.binary(ast.BitAnd(), value, x.number(0xFFFFFFFF))


_STEPPED = x.binary(ast.Mult(), x.name("drawn"), x.number(_SEED_STEP))
_COUNTED = {"seed": x.binary(ast.Add(), x.attribute(x.name("launcher"), "seed"), _STEPPED), "launch": x.name("number")}


def _counts(compiled: CompiledKernel) -> Expression:
    return x.sequence([_count(task) for task in compiled.tasks])


def _count(task: TaskInfo) -> Expression:
    if task.begin is None or task.end is None:
        return x.NONE
    if isinstance(task.begin, int) and isinstance(task.end, int):
        return x.number(max(0, task.end - task.begin))
    count = size_expression(task.end)
    if task.begin != 0:
        count = x.binary(ast.Sub(), count, size_expression(task.begin))
    return x.call("max", x.number(0), count)


def fit_scalars(compiled: CompiledKernel, scalars: Sequence[Scalar]) -> list[Scalar]:
    """Return scalars converted to their types: floats too large become infinite, as in a cast; other misfits raise, by name."""
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


def results_record(compiled: CompiledKernel, start: int) -> np.dtype[np.void]:
    """Return the values that a kernel returns, as they lie in its temporaries from byte ``start`` on."""
    types = [storage(dtype).np for dtype, _ in compiled.returns]
    offsets = [offset - start for _, offset in compiled.returns]
    layout: object = {"names": [f"r{k}" for k in range(len(types))], "formats": types, "offsets": offsets}
    return np.dtype(cast("np.dtype[np.void]", layout))  # versions of NumPy differ in how they type the dictionary
