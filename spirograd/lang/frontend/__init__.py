"""From Python source to kernel IR: the syntax tree is walked once, and SSA is emitted on the way.

`tracer.py` has the state, `handlers.py` the tables from types of syntax nodes to the functions that trace them, `kernel_tracing.py` the
way from a kernel to its IR. `kernel.py` and `specialization.py` compile kernels for the arguments of a call, and launch them.
"""
