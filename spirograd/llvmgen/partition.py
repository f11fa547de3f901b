"""The division of a kernel's tasks among several LLVM modules, which are compiled at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.ir.nodes import Kernel


def partition(kernel: Kernel, least: int, most: int) -> list[Sequence[int]]:
    """Return the numbers of tasks by module: modules of about the same size, the largest task in the first one. ``least``: the operations
    of a module that is worth a thread of its own; ``most``: the number of modules."""
    if len(kernel.body.ops) == 2:
        return [[0]]
    sizes = [sum([1 for region in op.regions for _ in region.walk()]) for op in kernel.body.ops[:-1]]
    count = max(min(sum(sizes) // least, most, len(sizes)), 1)
    groups: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        smallest = filled.index(min(filled))
        groups[smallest].append(number)
        filled[smallest] += sizes[number]
    return [sorted(group) for group in groups]
