"""How many kernels and tasks of the gradients of the corpus size their tapes."""

from __future__ import annotations

from spirograd.transforms.tasks.place_adstacks import PLACING
from validation.compiling import Compiled

# Kernels that count, and tasks that place tapes, of the gradient or of such kernels.
EXPECTED = {
    "gradient_constant_bound": (0, 0),
    "gradient_bound_of_arguments": (0, 0),
    "gradient_bound_of_a_field": (1, 1),
    "gradient_ragged": (1, 1),
    "gradient_nested_reads": (1, 1),
    "gradient_while_of_floats": (1, 1),
    "gradient_carried_bounds": (3, 3),
    "gradient_serial": (1, 1),
    "gradient_several_tasks": (1, 1),
    "gradient_guard_compound": (1, 1),
    "gradient_guard_before_a_known_bound": (1, 1),
    "gradient_guard_of_floats_f32": (2, 2),
    "gradient_of_overwritten_memory": (1, 1),
    "gradient_in_a_direction": (1, 1),
}


def sizing(compiled: Compiled) -> tuple[int, int]:
    """How many kernels count, and how many tasks place tapes."""
    kernels, tasks = zip(*[task.split("/") for task in compiled.tasks])
    counting = sum(kernel.endswith("_sizes") and task == f"{kernel}_0" for kernel, task in zip(kernels, tasks))
    return counting, tasks.count(PLACING)
