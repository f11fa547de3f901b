"""Consistency of a compiled kernel that was read from a file, beyond the types of its fields.

Offsets must lie in the argument block, numbers must refer to existing items, and texts with placeholders must be short when they are filled
in. The checks raise Damage. They do not cover the code itself, nor how it uses its arguments: see docs/security.md.
"""

from __future__ import annotations

import re

from spirograd.base.adstack_layout import word_places
from spirograd.base.artifact import (
    STRUCT_CODES,
    AdstackInfo,
    ArgBlock,
    CompiledKernel,
    Effects,
    FaultSite,
    PrintSite,
    SpaceLimit,
    TaskInfo,
)
from spirograd.base.dtypes import storage
from spirograd.base.sizes.size_nodes import Element, MaxOver, Node, Size, Variable
from spirograd.base.targets import Generator
from spirograd.runtime.typed_decoding import Checks, Damage

_SHADOWS = ("", "grad", "dual", "grad_dual")
_ROLES = (*_SHADOWS, "primal")
# The most digits in a row in a placeholder: with five, texts would be too long.
_MOST_DIGITS = 4
# The deepest nesting of expressions. Python compiles them, and its stack is limited.
_DEEPEST = 128
_MOST_CAPACITIES = 1 << 16


def check_block(block: ArgBlock) -> None:
    """Check that slots do not overlap, and that the format has these slots and nothing else but padding to eight bytes."""
    codes, offset = "<", 0
    for k, slot in enumerate(block.slots):
        if (slot.dtype is None) is not slot.is_buffer:
            raise Damage(f"is {slot.dtype}, for a slot of kind {slot.kind!r}", "dtype", k, "slots")
        if slot.offset != offset:
            raise Damage(f"is {slot.offset}, expected {offset}", "offset", k, "slots")
        code = "Q" if slot.dtype is None else STRUCT_CODES.get(slot.dtype.name)
        if code is None:
            raise Damage(f"is {slot.dtype}, which has no place in a block", "dtype", k, "slots")
        codes += code
        offset += 8 if slot.dtype is None else slot.dtype.size
    if block.format not in (codes, f"{codes}4x"):
        raise Damage(f"is {block.format[:40]!r}, expected {codes!r}", "format")
    if not offset <= block.size <= offset + 8:
        raise Damage(f"is {block.size}, and the slots take {offset} bytes", "size")


def check_size(size: Size | None, memory: bool = False) -> None:
    """Check that the host can compute a size. ``memory``: whether the size may read memory."""
    refused = (MaxOver, Variable) if memory else (MaxOver, Variable, Element)
    level: list[object] = [size]
    for _ in range(_DEEPEST):
        if any(isinstance(part, refused) for part in level):
            raise Damage("reads memory, or goes over a range, which the host cannot do here")
        level = [operand for part in level if isinstance(part, Node) for operand in part.operands]
        if not level:
            return
        if len(level) > 1 << 16:
            raise Damage("is an expression that is too long")
    raise Damage("is nested too deeply")


def check_task(task: TaskInfo) -> None:
    """Check that bounds are expressions over arguments."""
    for field in ("begin", "end"):
        try:
            check_size(getattr(task, field))
        except Damage as damage:
            damage.path.append(field)
            raise


def check_limit(limit: SpaceLimit) -> None:
    """Check that there is one limit for each size, and that limits are expressions over arguments."""
    if len(limit.sizes) != len(limit.largest):
        raise Damage(f"has {len(limit.largest)} entries for {len(limit.sizes)} sizes", "largest")
    for k, size in enumerate(limit.sizes):
        try:
            check_size(size)
        except Damage as damage:
            damage.path += [k, "sizes"]
            raise


def check_fault(site: FaultSite) -> None:
    """Check that the message is short when it is filled in."""
    if ":" in site.message and any(_is_long(placeholder) for placeholder in re.findall(r"\{([^{}]*)\}", site.message)):
        raise Damage("has a placeholder with too many digits", "message")


def check_print(site: PrintSite) -> None:
    """Check that the parts of a print name operands, and that its text is short."""
    for k, part in enumerate(site.parts):
        if not isinstance(part, str):
            number, spec = part
            if number >= len(site.dtypes):
                raise Damage(f"is {number}, and there are {len(site.dtypes)} operands", 0, k, "parts")
            if _is_long(spec):
                raise Damage("has too many digits", 1, k, "parts")


def _is_long(spec: str) -> bool:
    """Return whether a format specification may produce a long text."""
    return len(spec) > _MOST_DIGITS and re.search(rf"\d{{{_MOST_DIGITS + 1}}}", spec) is not None


def check_effects(effects: Effects) -> None:
    """Check that the parts are parts of fields or arrays."""
    for field in ("parts_read", "parts_written"):
        for kind, _, part in getattr(effects, field):
            key, _, role = part.partition(".")
            if not (key.isdecimal() and role in _SHADOWS if kind == "tree" and part else part in _ROLES):
                raise Damage(f"has the part {part[:40]!r} of an {kind}", field)


def check_adstack(adstack: AdstackInfo) -> None:
    """Check that numbers of capacities are small, because memory is kept for all smaller numbers, and that elements are words."""
    for field in ("capacity", "slots"):
        if (getattr(adstack, field) or 0) >= _MOST_CAPACITIES:
            raise Damage(f"is {getattr(adstack, field)}, expected a number of a size", field)
    if adstack.dtype.size < 4:
        raise Damage(f"is {adstack.dtype}, expected a type of 32 or 64 bits", "dtype")
    if adstack.claimed and adstack.slots is None:
        raise Damage("is missing for an adstack with a guard", "slots")


def check_kernel(kernel: CompiledKernel) -> None:
    """Check that tasks have code, that slots and adstacks fit each other, and that results lie in the temporaries."""
    binaries = len(kernel.binaries)
    native = kernel.target.generator is not Generator.SPIRV
    offsets = {slot.offset for slot in kernel.args.slots if slot.is_buffer}
    for k, task in enumerate(kernel.tasks):
        if task.binary >= (max(binaries, 1) if native else binaries):
            raise Damage(f"is {task.binary}, and there are {binaries} binaries", "binary", k, "tasks")
        if any(offset not in offsets for binding in task.bindings for offset in binding):
            raise Damage("has an offset at which there is no address", "bindings", k, "tasks")
    words = word_places(kernel)
    for k, slot in enumerate(kernel.args.slots):
        if slot.kind.startswith("adstack") and (slot.kind, slot.index) not in words:
            raise Damage(f"is {slot.index}, and there are fewer of {slot.kind!r}", "index", k, "slots", "args")
    tasks = {task.name for task in kernel.tasks}
    for k, adstack in enumerate(kernel.adstacks):
        if adstack.task is not None and adstack.task not in tasks:
            raise Damage(f"is {adstack.task[:40]!r}, and there is no such task", "task", k, "adstacks")
    for k, (dtype, offset) in enumerate(kernel.returns):
        if offset % dtype.size or offset + max(storage(dtype).size, 4) > -(-kernel.temps_size // 8) * 8:
            raise Damage(f"is {offset}, in {kernel.temps_size} bytes", 1, k, "returns")


CHECKS: Checks = {
    ArgBlock: check_block,
    TaskInfo: check_task,
    SpaceLimit: check_limit,
    FaultSite: check_fault,
    PrintSite: check_print,
    Effects: check_effects,
    AdstackInfo: check_adstack,
    CompiledKernel: check_kernel,
}
