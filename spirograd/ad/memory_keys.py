"""How recorders name memory: fields and ndarrays, and the keys by which they tell these apart."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Union

from spirograd.base.protocols import Scalar
from spirograd.base.recorder import Recorder
from spirograd.ir.nodes import ArrayRef, FieldRef
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.scalar_cells import Cell
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer
from spirograd.lang.traced_numbers import TracedNumber

FieldOrArray = Union[ScalarField, Ndarray]
MemoryRef = Union[FieldRef, ArrayRef]  # how kernels name it
Key = Hashable
Returned = Union[tuple[Scalar, ...], None]  # what a launch returns
ProgramRecorder = Recorder[Kernel, Specialization, Packer, FieldOrArray, Cell, TracedNumber]
Part = tuple[int, int]  # a slice of memory: an axis, and the index along it, counted from 0
Generation = tuple[int, int, int]  # the number of the allocation, and the ticks of the last writes to all of it and to its part


def numbers_of(memory: FieldOrArray) -> int:
    """Return how many numbers memory holds; of a field of a batch, for one environment."""
    shape = memory.shape_in_kernels if isinstance(memory, ScalarField) else memory.shape
    return math.prod((*shape, *memory.element_shape))
