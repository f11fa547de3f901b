"""The driver of differentiation: from kernel IR to its derivative, with everything that a launch of the derivative needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from spirograd.autodiff.activity import ShadowOf
from spirograd.autodiff.derivative import Derivative, Residual, Saving
from spirograd.autodiff.findings import recomputed, records, refuse_lost, refuse_nesting, saving_of
from spirograd.autodiff.inactive_memory import inactive_memory
from spirograd.autodiff.int_casts import cast_warning, int_casts, stops
from spirograd.autodiff.memory_states import late_temps, memory_accesses, memory_residuals, old_values, unserved, without_states
from spirograd.autodiff.nested_loops import nested_loops
from spirograd.autodiff.prepare.serial_products import serial_products, serial_shared_products
from spirograd.autodiff.prepare.stored_results import load_stored_results, refuse_saving
from spirograd.autodiff.prepare_order import prepared
from spirograd.autodiff.residuals import Conflict
from spirograd.autodiff.reverse import Reversed, reverse
from spirograd.autodiff.saved_values import save_loads
from spirograd.autodiff.segments import segments_for
from spirograd.autodiff.sizing import sizing
from spirograd.autodiff.sweep import counter_for
from spirograd.autodiff.unread_adstacks import clean
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.nesting import Nesting
from spirograd.base.options import CompileOptions
from spirograd.base.python_limits import deep_recursion, gc_paused
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, Kernel, Ref, callee_of
from spirograd.transforms.conditional import hoist_space_checks
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.inline_calls import inline_calls
from spirograd.transforms.simplification.simplify import simplify


def differentiate(
    kernel: Kernel, mode: str, shadow: ShadowOf, caps: Capabilities, options: CompileOptions, nesting: Nesting | None = None
) -> Derivative:
    """Return the derivative of ``kernel`` (kernel IR, before `offload`) as a kernel, to be compiled like any other.

    ``mode``: "reverse", "forward", or "constant" (forward mode with all tangents zero). ``shadow``: returns the gradient (the dual) of
    outer memory, or None if it has none. ``nesting``: nested checkpoints for loops, in reverse mode. Raises SpirogradUnsupportedError, with
    the line, for operations without a derivative, and for loops that cannot have nested checkpoints.
    """
    _refuse(kernel)
    ctx = PassContext(caps, replace(options, optimize=True))
    with gc_paused(), deep_recursion():
        repeated = mode != "reverse"
        source = inline_calls(kernel if repeated else load_stored_results(kernel), ctx)
        primal = simplify(hoist_space_checks(source, ctx), ctx)
        if mode == "constant":
            return _forward(primal, shadow, ctx, True)
        primal, warnings = serial_shared_products(primal, shadow)
        if mode == "forward":
            tangents = _forward(serial_products(primal, ctx), shadow, ctx, False)
            return replace(tangents, warnings=(*warnings, *tangents.warnings))
        primal = prepared(primal, ctx)
        unclean, gradient, residuals, lost = _reversed(primal, shadow, ctx)
        saving, ends = None, shadow
        if lost:
            refuse_lost(lost)
            refuse_saving(kernel, lost[0].load)
            saving, primal, ends, shadow, (unclean, gradient, residuals) = _saving(primal, lost, shadow, ctx)
        if nesting is not None:
            unclean, gradient, residuals = _nested(primal, shadow, ctx, nesting, residuals)
        recorded = records(gradient, unclean)
        main, counting, capacities = sizing(gradient, ctx, {record.adstack.capacity: record.every for record in recorded})
        _verify(options, main, *[each.kernel for each in counting])
        reads, writes = memory_accesses(inline_calls(kernel, ctx))
        inactive = inactive_memory(primal, unclean.activity, ends)
        casts = int_casts(primal, unclean.activity, shadow)
        return Derivative(
            main,
            counting,
            capacities,
            saving=saving,
            residuals=residuals,
            reads=reads,
            writes=writes,
            records=recorded,
            active_outputs=tuple(unclean.active_outputs),
            active_inputs=tuple(unclean.active_inputs),
            inactive_writes=inactive.writes,
            inactive_reads=inactive.reads,
            relays=inactive.relays,
            broken=inactive.broken,
            warnings=(*warnings, *map(cast_warning, casts)),
            casts=casts,
            stops=stops(primal, unclean.activity),
            recomputed=recomputed(gradient),
            nesting=nesting,
        )


def _saving(
    primal: Kernel, lost: Sequence[Conflict], shadow: ShadowOf, ctx: PassContext
) -> tuple[Saving, Kernel, ShadowOf, ShadowOf, tuple[Reversed, Kernel, tuple[Residual, ...]]]:
    """Return the kernel that saves the values ``lost``, the primal that reads them from buffers, the shadows at which derivatives end, the
    shadows to which they add, and the reverse of that primal, as `_reversed` returns it.

    The reverse may recompute a value from several loads. If one of them reads a buffer, the reverse may need another load, whose value is
    lost as well. Then all lost loads of that memory are saved.
    """
    while True:
        saved = save_loads(primal, [conflict.load for conflict in lost], ctx)
        buffers = {buffer.ref.arg for buffer in saved.buffers}
        # Saved-value buffers have no gradient, but derivatives continue to the memory from which they were filled.
        ends = _with_buffers(shadow, buffers, lambda buffer: buffer)
        inner = _with_buffers(shadow, buffers, lambda buffer: None)
        *reverse, left = _reversed(saved.replaying, inner, ctx)
        if not left:
            return saving_of(saved, lost), saved.replaying, ends, inner, tuple(reverse)  # type: ignore[return-value]
        known = {conflict.load for conflict in lost}
        more = [conflict for conflict in unserved(primal, [conflict.ref for conflict in left]) if conflict.load not in known]
        if not more:
            refuse_lost(left, saved=True)
        lost = (*lost, *more)


def _verify(options: CompileOptions, *kernels: Kernel) -> None:
    """See `spec.verify`. Imported here because programs run without verification."""
    if options.verify:
        from spirograd.ir.spec import verify

        for kernel in kernels:
            verify(kernel, "kernel")


def _forward(primal: Kernel, shadow: ShadowOf, ctx: PassContext, constant: bool) -> Derivative:
    """See `forward.forward`, which gradients do without."""
    from spirograd.autodiff.forward import forward

    derivative = forward(primal, shadow, ctx, constant)
    _verify(ctx.options, derivative.kernel)
    return derivative


def _refuse(kernel: Kernel) -> None:
    recursive = kernel.recursive()
    for op in kernel.walk():
        if callee_of(op) in recursive:
            message = f"`{str(callee_of(op)).partition('.')[0]}` calls itself; recursive functions have no derivative"
            raise SpirogradUnsupportedError(message, op.loc, "use a loop, or give the kernel a gradient with `sg.ad.grad_replaced`")
        if op.code is ops.for_ and op.attr.deactivates:
            message = (
                "a kernel that deactivates cells of sparse nodes has no derivative, because the values and gradients of the cells are lost"
            )
            raise SpirogradUnsupportedError(message, op.loc, "deactivate the cells in a separate kernel, outside of the tape")


def _with_buffers(shadow: ShadowOf, buffers: Set[int], of_buffer: Callable[[Ref], Ref | None]) -> ShadowOf:
    """Return ``shadow`` for all memory except the array arguments ``buffers``, for which ``of_buffer`` decides."""
    return lambda ref: of_buffer(ref) if isinstance(ref, ArrayRef) and ref.arg in buffers else shadow(ref)


def _nested(
    primal: Kernel, shadow: ShadowOf, ctx: PassContext, nesting: Nesting, plain: tuple[Residual, ...]
) -> tuple[Reversed, Kernel, tuple[Residual, ...]]:
    """Return what `_reversed` returns, with nested checkpoints. ``plain``: the residuals without them."""
    unclean, gradient, residuals, lost = _reversed(primal, shadow, ctx, nesting)
    refuse_nesting(residuals, plain, lost)
    return unclean, gradient, residuals


def _reversed(
    primal: Kernel, shadow: ShadowOf, ctx: PassContext, nesting: Nesting | None = None
) -> tuple[Reversed, Kernel, tuple[Residual, ...], tuple[Conflict, ...]]:
    """Return the reverse of a prepared primal, its gradient kernel, its residuals, and the lost values that it needs."""
    loops = nested_loops(primal, nesting)
    _verify(ctx.options, loops.kernel)
    segments, counter = segments_for(ctx.caps), counter_for(ctx.caps)
    checks = "finite" if ctx.options.locate_infinities else "nan" if ctx.options.locate_nan else ""
    unclean = reverse(primal, shadow, checks=checks, segments=segments, counter=counter, nested=loops, lanes=ctx.caps.group_lanes)
    gradient = clean(unclean.kernel, ctx)
    _verify(ctx.options, gradient)
    residuals, conflicts = memory_residuals(primal, gradient)
    lost = (*old_values(primal, gradient), *late_temps(primal, gradient), *conflicts)
    return unclean, without_states(gradient), residuals, lost
