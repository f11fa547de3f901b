"""Names of the arguments and fields of a kernel in size expressions."""

from __future__ import annotations

from spirograd.ir.nodes import FieldRef, Kernel, ScalarArg, ref_of


def size_names(*kernels: Kernel) -> dict[tuple[str, int], str]:
    """Return names for `base.sizes.text`, for kernels with the same arguments."""
    names = {}
    for kernel in kernels:
        for k, argument in enumerate(kernel.args):
            names["arg" if isinstance(argument, ScalarArg) else "array", k] = argument.name
        for op in kernel.walk():
            ref = ref_of(op)
            if isinstance(ref, FieldRef) and ref.role == "primal":
                names["field", ref.key] = ref.name
    return names
