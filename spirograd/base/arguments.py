"""Arguments of launches: the flat arguments of a kernel and the memory of fields; protocols of plans that launch with them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import CallsNatively
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.base.validity import Record

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, Place, Scalar

ROLE_ATTRIBUTES = {"primal": "address", "grad": "grad_address", "dual": "dual_address", "grad_dual": "grad_dual_address"}
# The attributes of a binding with the allocations that an array may lie in, by the role of the array; "" stands for all.
ROLE_ALLOCATIONS = {role: name.replace("address", "allocation") for role, name in ROLE_ATTRIBUTES.items()}
ALLOCATION_NAMES = {"": tuple(ROLE_ALLOCATIONS.values()), **{role: (name,) for role, name in ROLE_ALLOCATIONS.items()}}


class ArrayBinding:
    """An array argument: device addresses, extents, and the allocations whose generations launches increase, None for memory that belongs
    to another library. The creator of the binding sets the allocations of roles other than "primal"."""

    __slots__ = (
        "address", "allocation", "dual_address", "dual_allocation", "grad_address", "grad_allocation", "grad_dual_address",
        "grad_dual_allocation", "shape",
    )  # fmt: skip

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        grad_address: int = 0,
        dual_address: int = 0,
        allocation: Allocation | None = None,
        grad_dual_address: int = 0,
    ) -> None:
        self.address = address
        self.shape = tuple(shape)
        self.grad_address = grad_address
        self.dual_address = dual_address
        self.grad_dual_address = grad_dual_address
        self.allocation = allocation
        self.grad_allocation: Allocation | None = None
        self.dual_allocation: Allocation | None = None
        self.grad_dual_allocation: Allocation | None = None

    def read_into(self, offset: int, out: memoryview) -> None:
        """Copy the bytes from ``offset`` on into ``out``, after earlier launches. Without an allocation the address is one of the host."""
        if self.allocation is not None:
            self.allocation.read_into(offset, out)
        else:
            ctypes.memmove((ctypes.c_char * out.nbytes).from_buffer(out), self.address + offset, out.nbytes)


class Arguments:
    """The arguments of a launch. ``scalars[i]`` and ``arrays[i]`` belong to the kernel's flat argument ``i``; entries of the other kind are
    ignored. ``trees``: the allocation of each field tree that the kernel uses, by its id.

    There is no ``__init__``, whose call takes a tenth of a launch by Python.
    """

    __slots__ = ("arrays", "scalars", "trees")
    scalars: Sequence[Scalar]
    arrays: Sequence[Place | None]
    trees: Mapping[int, Allocation]

    @staticmethod
    def of(scalars: Sequence[Scalar], arrays: Sequence[Place | None], trees: Mapping[int, Allocation]) -> Arguments:
        """Return an object with these attributes."""
        arguments = Arguments()
        arguments.scalars, arguments.arrays, arguments.trees = scalars, arrays, trees
        return arguments

    def array(self, number: int) -> Place:
        """Return the place of flat argument ``number``, which is an array."""
        place = self.arrays[number]
        assert place is not None, number
        return place

    def followed_by(self, *arrays: Place) -> Arguments:
        """Return these arguments, and then ``arrays``."""
        return Arguments.of([*self.scalars, *(0 for _ in arrays)], [*self.arrays, *arrays], self.trees)

    def on(self, trees: Mapping[int, Allocation]) -> Arguments:
        """Return these arguments with other field trees, as those of a derivative."""
        return Arguments.of(self.scalars, self.arrays, trees)


class PreparesLaunches(Protocol):
    """A kernel or derivative whose launches compiled code can do."""

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> PreparedLaunch:
        """Return launches like one with these arguments, for compiled code. Raises NotPrepared for launches that only Python does."""


class Plan(PreparesLaunches, Protocol):
    """A compiled kernel that is ready to launch: `runtime.launcher.LaunchPlan`."""

    compiled: CompiledKernel
    diagnosed: bool  # whether launches may print or fail
    locations: Callable[[], Sequence[Loc | None]] | None  # of each task in the source

    @property
    def last_number(self) -> int | None:
        """The number of the last launch."""

    def launch(self, arguments: Arguments, *, drawn: int | None = None) -> tuple[Scalar, ...] | None:
        """Run the kernel, and return the values that it returns. ``drawn``: the `last_number` of a launch whose random numbers this one
        draws again."""


Write = tuple[dict[str, int], str]  # the generations of an allocation, and the part of it that is written


@dataclass(frozen=True, slots=True)
class FixedLaunch:
    """A launch by an argument block of ``nbytes`` that lasts. ``number``: gives launches their numbers; ``writes``: what it writes."""

    nbytes: int
    number: Callable[[], int]
    writes: Sequence[Write]


class PreparedLaunch(Protocol):
    """Launches that compiled code does: `runtime.native.launch_preparation.Prepared`."""

    @property
    def record(self) -> bytes:
        """The words by which compiled code launches."""

    @property
    def fixed(self) -> FixedLaunch | None:
        """The launch by an argument block that lasts, if it has one."""

    @property
    def number(self) -> int:
        """The epoch in which they are valid."""

    @property
    def about(self) -> object:
        """What is equal for launches of the same calls."""
