"""What temporaries are for."""

from __future__ import annotations

from enum import Enum

from spirograd.base.adstack_layout import AdstackWord


class TempKind(Enum):
    """The purposes of temporaries. ``number`` of a `TempRef` distinguishes temporaries of one purpose."""

    VALUE = "value"  # A value of the program: a variable, a value that tasks share, a return value.
    ADJOINT = "adjoint"  # The adjoint of another temporary.
    CAPACITY = "capacity"  # The number of entries that the adstacks with capacity ``number`` must hold.
    GUARD_COUNT = "guard_count"  # The number of iterations that pass the guard with size ``number``.
    CLAIMS = "claims"  # The number of thread slots claimed so far, of the guard with size ``number``.
    OLD_VALUE = "old_value"  # A placeholder for the old value of atomic ``number``, which is overwritten.
    CHANGED = "changed"  # A placeholder for a value of memory that has changed since.
    LIMBS = "limbs"  # Superaccumulators, see `transforms.tasks.superaccumulators`: zero between launches.
    LIMB_RANGE = "limb_range"  # The limbs with terms, likewise.
    # Results of the task that places adstacks, for adstack, capacity, guard or task ``number``.
    ADSTACK_BASE = AdstackWord.BASE.value
    ADSTACK_PITCH = AdstackWord.PITCH.value
    ADSTACK_CAPACITY = AdstackWord.CAPACITY.value
    ADSTACK_CLAIMS = AdstackWord.CLAIMS.value
    ADSTACK_SLOTS = AdstackWord.SLOTS.value
