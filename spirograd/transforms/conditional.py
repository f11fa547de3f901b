"""The passes that most kernels do without: under which condition each can change a kernel, or refuse it.

The pipeline calls them like other passes. One whose condition fails is not run, and its module is imported with the first kernel that meets
the condition, because the imports are a third of the time of the first kernel of a process. Conditions are cheap and may hold for kernels
that the pass leaves as they are. Never may one fail for a kernel that the pass would change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from spirograd.analysis import loop_costs
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel
from spirograd.ir.ops import OpCode
from spirograd.transforms.pass_context import PassContext

if TYPE_CHECKING:
    from spirograd.base.artifact import FaultSite, SpaceLimit
    from spirograd.transforms.tasks.fuse import Decision

Condition = Callable[[Kernel, PassContext], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Conditional:
    """A pass that has the name of its ``module``, which stands in this package, or its own ``name``."""

    module: str
    condition: Condition
    name: str = ""

    @property
    def __name__(self) -> str:
        return self.name or self.module.rpartition(".")[2]

    def load(self) -> Callable[[Kernel, PassContext], Kernel]:
        """Import the pass."""
        transform: Callable[[Kernel, PassContext], Kernel] = getattr(
            importlib.import_module(f"spirograd.transforms.{self.module}"), self.__name__
        )
        return transform

    def __call__(self, kernel: Kernel, ctx: PassContext) -> Kernel:
        return self.load()(kernel, ctx) if self.condition(kernel, ctx) else kernel


def _having(*codes: OpCode) -> Condition:
    """The kernel or a function has operations with one of these codes."""
    wanted = frozenset(codes)
    return lambda kernel, ctx: not wanted.isdisjoint(kernel.codes)


def _having_functions(kernel: Kernel, ctx: PassContext) -> bool:
    return bool(kernel.functions)


def _having_groups(kernel: Kernel, ctx: PassContext) -> bool:
    return any(op.code is ops.task and op.attr.grouped for op in kernel.body.ops)


def _having_adstacks(kernel: Kernel, ctx: PassContext) -> bool:
    return ops.claim in kernel.codes or any(isinstance(ref, AdstackRef) for _, ref in kernel.accesses)


def _being_large(kernel: Kernel, ctx: PassContext) -> bool:
    """All operations together may be too many for one function."""
    return sum(1 for _ in kernel.walk()) > min(loop_costs.LARGE, loop_costs.LARGE_OPERATION)


def _having_sites(kernel: Kernel, ctx: PassContext) -> bool:
    return bool(ctx.faults or ctx.prints) or not kernel.codes.isdisjoint((ops.check, ops.print_))


def _having_invocations(kernel: Kernel, ctx: PassContext) -> bool:
    """The target runs each task in many invocations."""
    return ctx.caps.target.invocations


def _lacking_narrow_types(kernel: Kernel, ctx: PassContext) -> bool:
    caps = ctx.caps
    return not (caps.int8 and caps.int16 and caps.float16 and caps.storage8 and caps.storage16)


def _lacking_int64(kernel: Kernel, ctx: PassContext) -> bool:
    return ctx.caps.computes_int64 and not ctx.caps.int64


_DIVISIONS = (ops.idiv, ops.irem)

# In the order of the pipeline.
drop_stop_grad = Conditional("simplification.drop_stop_grad", _having(ops.stop_grad, ops.recall, ops.with_partial))
hoist_space_checks = Conditional("checks.space_limits", _having(ops.check), "hoist_space_checks")
check_barriers = Conditional("checks.check_barriers", _having(ops.workgroup_barrier, *ops.TILES))
exact_extrema = Conditional("lowering.exact_extrema", _having(ops.atomic))
inline_some = Conditional("simplification.inline_calls", _having_functions, "inline_some")
check_recursion = Conditional("checks.check_recursion", _having_functions)
check_overflow = Conditional("checks.check_overflow", lambda kernel, ctx: ctx.options.check_overflow)
check_bounds = Conditional("checks.check_bounds", lambda kernel, ctx: ctx.options.check_bounds)
keep_tile_entries = Conditional("tasks.keep_tile_entries", _having(ops.tile_entries))
assume_disjoint = Conditional("tasks.disjoint_arrays", _having(ops.atomic), "assume_disjoint")
gather = Conditional("tasks.gather", _having(ops.atomic))
separate_arrays = Conditional("tasks.separate_arrays", _having_invocations)
demote_atomics = Conditional("tasks.demote_atomics", _having(ops.atomic))
late_stores = Conditional("tasks.late_stores", _having_invocations)
carry_elements = Conditional("tasks.carry_elements", _having(ops.for_, ops.while_))
reductions = Conditional("tasks.reductions", _having(ops.atomic))
exact_sums = Conditional("tasks.exact_sums", lambda kernel, ctx: ctx.options.deterministic and ops.atomic in kernel.codes)
loops_in_order = Conditional("tasks.loops_in_order", _having(ops.atomic, ops.cas, ops.call_memory))
check_order = Conditional("checks.check_order", lambda kernel, ctx: ctx.options.deterministic)
divide_sums = Conditional("simplification.divide_sums", _having(ops.floordiv, ops.floormod, *_DIVISIONS))
reassociate = Conditional("simplification.reassociate", _having(ops.for_))
contract = Conditional("tasks.contract", _having(ops.mul))
check_loops = Conditional("checks.check_loops", lambda kernel, ctx: bool(ctx.caps.loop_limit))
place_adstacks = Conditional("tasks.place_adstacks", _having_adstacks)
private_copies = Conditional("tasks.private_copies", _having_invocations)
block_copies = Conditional("tasks.block_copies", _having(ops.atomic))
size_groups = Conditional("tasks.size_groups", _having_invocations)
fission_groups = Conditional("lowering.group_fission", _having_groups, "fission_groups")
diagnostics = Conditional("lowering.lower_diagnostics", _having_sites, "diagnostics")
expand_math = Conditional("math.expand_math", _having(*ops.ELEMENTARY))
lower_tasks = Conditional("lowering.lower_tasks", _having_invocations)
lower_remainder = Conditional("lowering.lower_remainder", lambda kernel, ctx: ctx.caps.target.shader_arithmetic)
lower_atomics = Conditional("lowering.lower_atomics", _having(ops.atomic, ops.cas))
widen_narrow_types = Conditional("lowering.widen_narrow_types", _lacking_narrow_types)
split_int64 = Conditional("lowering.split_int64", _lacking_int64)
carry_vectors = Conditional("lowering.carry_vectors", _having(ops.vec))
add_uncontended = Conditional("loops.add_uncontended", _having(ops.atomic))
split_rows = Conditional("loops.split_rows", _having(*_DIVISIONS))
divide_by_floats = Conditional("loops.divide_by_floats", _having(*_DIVISIONS))
distribute = Conditional("loops.distribute", _being_large)
outline_parts = Conditional("loops.outline_parts", _being_large)


def fuse_loops(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, tuple[Decision, ...]]:
    """See `fuse.fuse_loops`."""
    if sum(1 for op in kernel.body.ops if op.code is ops.for_) < 2:
        return kernel, ()
    from spirograd.transforms.tasks import fuse

    return fuse.fuse_loops(kernel, ctx)


def take_space_limits(kernel: Kernel, ctx: PassContext) -> tuple[Kernel, tuple[SpaceLimit, ...]]:
    """See `space_limits.take_space_limits`."""
    if ops.check not in kernel.body.codes:
        return kernel, ()
    from spirograd.transforms.checks import space_limits

    return space_limits.take_space_limits(kernel, ctx)


def divergence_sites(kernel: Kernel, ctx: PassContext) -> tuple[FaultSite, ...]:
    """See `group_fission.divergence_sites`."""
    if not (ctx.options.check_bounds and _having_groups(kernel, ctx)):
        return ()
    from spirograd.transforms.lowering import group_fission

    return group_fission.divergence_sites(kernel, ctx)
