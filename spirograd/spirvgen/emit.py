"""The code generator for SPIR-V: from device IR to one module per task.

docs/spirv.md describes the modules; `op_map` maps operations to instructions.
"""

from __future__ import annotations

from typing import NamedTuple

from spirograd.base import knobs
from spirograd.base.artifact import ArgBlock
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.base.profiles import owner
from spirograd.ir import nodes as ir_nodes
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, TaskAttr, called
from spirograd.ir.slot_names import slot_names
from spirograd.spirvgen.buffer_access import AddressedMemory, BoundMemory
from spirograd.spirvgen.emit_matrices import uses_matrices
from spirograd.spirvgen.emit_vector import VectorStackSlots
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.function import Function
from spirograd.spirvgen.module import Module, enumerant
from spirograd.spirvgen.naga_check import check_for_naga
from spirograd.spirvgen.op_map import OP_MAP
from spirograd.spirvgen.validate import validate

ENTRY_POINT = "main"
_FLOAT_WIDTHS = (16, 32, 64)
# What drivers may do with floats: nothing, or take all for finite, and zeros for zeros of any sign.
_AS_WRITTEN = enumerant("FPFastMathMode", "None")
_FINITE = enumerant("FPFastMathMode", "NotNaN") | enumerant("FPFastMathMode", "NotInf") | enumerant("FPFastMathMode", "NSZ")
# Target -> addressing model.
ADDRESSING = {"vulkan": "PhysicalStorageBuffer64", "wgpu": "Logical"}


class TaskModule(NamedTuple):
    """The SPIR-V of a task, and the sources of its storage buffers (`TaskInfo.bindings`)."""

    binary: bytes
    bindings: tuple[tuple[int, ...], ...]


class _Callees:
    """The functions of a kernel that a task calls."""

    def __init__(self, e: Emitter, kernel: Kernel) -> None:
        self._e = e
        self._functions = {f.name: f for f in kernel.functions}
        self._ids: dict[str, int] = {}

    def id(self, name: str) -> int:
        """Return the id of a function, which is defined at the first call."""
        if name not in self._ids:
            self._ids[name] = self._define(self._functions[name])
        return self._ids[name]

    def _define(self, called: ir_nodes.Function) -> int:
        outer, body = self._e, called.body
        result = outer.returned(called.result)
        function = Function(outer.m, called.name, result, [outer.type(p.type) for p in body.params])
        e = Emitter(outer.m, function, outer.caps, outer.options, OP_MAP)
        e.loc = outer.loc
        e.stack_slots = VectorStackSlots(e, (body,))
        e.slot_names = outer.slot_names
        e.memory = outer.memory.within(e)
        e.callee = self.id
        e.ids.update(zip(body.params, function.params))
        e.run(body)
        values = [e.id(v) for v in body.results]
        several = isinstance(called.result, tuple) and bool(values)
        function.finish(function.value("CompositeConstruct", result, *values) if several else values[0] if values else None)
        return function.id


def emit_task(task: Op, kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions) -> TaskModule:
    """Emit the SPIR-V module of one task (device IR, of kind "invocations"), with the entry point ``main``.

    The module works with any number of workgroups. Raises SpirogradUnsupportedError, with the source location, if the device lacks a
    feature, and with SG_VALIDATE=1 ModuleError if spirv-val rejects the module.
    """
    attr: TaskAttr = task.attr
    if caps.target_name not in ADDRESSING:
        raise SpirogradUnsupportedError(f"no SPIR-V for the target {caps.target_name}", kernel.loc)
    if attr.group_size > caps.max_group_size:
        message = f"a workgroup of {attr.group_size} invocations: {owner(caps, 'max_group_size')} has at most {caps.max_group_size}"
        raise SpirogradUnsupportedError(message, task.loc or kernel.loc)
    regions = (*task.regions, *[f.body for f in called(kernel.functions, task.regions)])
    module = Module((1, 5), ADDRESSING[caps.target_name], "Vulkan" if uses_matrices(regions) else "GLSL450")
    module.embeds_sources = options.keep_stages
    module.continues_sources = not caps.target.naga
    function = Function(module, attr.name if attr.name.startswith(kernel.name) else f"{kernel.name}_{attr.name}".rstrip("_"))
    e = Emitter(module, function, caps, options, OP_MAP)
    e.loc = task.loc or kernel.loc
    e.slot_names = slot_names(kernel, block.slots)
    e.stack_slots = VectorStackSlots(e, task.regions)
    e.memory = AddressedMemory(e, block, regions) if caps.buffer_address else BoundMemory(e, block, regions)
    e.callee = _Callees(e, kernel).id
    e.grouped = attr.grouped
    e.run(task.regions[0])
    module.entry_point(function.id, ENTRY_POINT, attr.group_size)
    if caps.maximal_reconvergence and attr.grouped and any(not ops.MEETING_IN_SUBGROUPS.isdisjoint(r.codes) for r in regions):
        module.reconverges(function.id)
    _forbid_simplification(module, function, caps)
    if not options.fast_math:
        module.float_mode(function.id, "DenormPreserve", caps.exact_subnormals)
    function.finish()
    data = module.to_bytes()
    if caps.target.naga:
        check_for_naga(data)
    if knobs.flag("SG_VALIDATE"):
        validate(data, caps.target_name)
    return TaskModule(data, e.memory.bindings)


def _forbid_simplification(module: Module, function: Function, caps: Capabilities) -> None:
    """Ask drivers to keep infinities, NaN and -0.0, where they can: without this, x / 0.0 was 0 on lavapipe. With float controls 2, also
    to compute all floats as written."""
    if not caps.float_controls2:
        module.float_mode(function.id, "SignedZeroInfNanPreserve", caps.exact_specials)
        return
    for bits in _FLOAT_WIDTHS:
        module.float_default(function.id, bits, _AS_WRITTEN if bits in caps.exact_specials else _FINITE)
