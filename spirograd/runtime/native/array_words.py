"""The words of ndarrays, which code that launches without Python reads."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spirograd.base.arguments import ArrayBinding

# The attribute under which an ndarray tells what launches need of it: see `packed`.
PACKED = "_sg_packed"
ROLES = ("primal", "grad", "dual", "grad_dual")
kind_numbers = itertools.count(1).__next__


def packed(kind: int, binding: ArrayBinding) -> tuple[object, ...]:
    """Return what launches need of an ndarray: its words (``kind``, which stands for session and type; the number of elements; addresses
    by role, 0 where there is none; extents), and the generations of the memory of each role."""
    addresses = (binding.address, binding.grad_address, binding.dual_address, binding.grad_dual_address)
    words = struct.pack(f"<2q{len(ROLES)}Q{len(binding.shape)}q", kind, math.prod(binding.shape), *addresses, *binding.shape)
    owners = (binding.allocation, binding.grad_allocation, binding.dual_allocation, binding.grad_dual_allocation)
    return words, *({} if owner is None else owner.generations for owner in owners)
