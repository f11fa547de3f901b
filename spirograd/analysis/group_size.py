"""How many invocations a workgroup of a task has."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir.nodes import Op

# One H100, 1 GiB saxpy: 1,265 GB/s in groups of 64, 2,049 of 128, 2,730 of 256, 2,581 of 1,024 (a copy: 3,000).
_DEFAULT = 256


def group_size(task: Op, caps: Capabilities, options: CompileOptions) -> int:
    """Of a task: what its loop asks for, else what ``options`` say, else the default; at most what the device takes. 1 of serial tasks."""
    if task.attr.kind == "serial":
        return 1
    return max(1, min(task.attr.group_size or options.group_size or _DEFAULT, caps.max_group_size))
