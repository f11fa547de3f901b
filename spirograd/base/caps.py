"""`Capabilities`: the record of a device that passes and code generators consult."""

from __future__ import annotations

from spirograd.base.constraints import Count
from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.base.targets import TARGETS, Generator, Target, TargetName

# The size of subgroups that the compiler forms, which is that of most GPUs.
_FORMED_SUBGROUP, _LARGEST_GROUP = 32, 1024
# The kinds of reductions and scans: the keys of `ops.COMBINE`.
COMBINATIONS = ("add", "mul", "min", "max", "and", "or", "xor")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device can do. Generators consult only this record; it is part of the cache key.

    ``target_name``: the name of the target, a key of `TARGETS`.
    Sizes are bytes, ``max_groups`` and ``max_group_size`` count per dimension x.
    """

    target_name: TargetName
    int8: bool = False
    int16: bool = False
    int64: bool = False
    float16: bool = False
    float64: bool = False
    storage8: bool = False
    storage16: bool = False
    storage_f16: bool = False  # whether memory holds 16-bit floats, for devices whose memory holds no 16-bit integers
    atomic_narrow: bool = False  # atomics of 8-bit and 16-bit integers
    atomic_int64: bool = False
    atomic_f16_add: bool = False
    atomic_f32_add: bool = False
    atomic_f32_minmax: bool = False
    atomic_f64_add: bool = False
    atomic_f64_minmax: bool = False
    atomic_cas: bool = True
    shared_f32_add: bool = False  # atomic additions of f32 in shared memory
    shared_int64: bool = False  # atomics of 64-bit integers in shared memory
    buffer_address: bool = False
    subgroup_size: Count = 0
    subgroup_arithmetic: bool = False
    subgroup_shuffle: bool = False
    subgroup_read: bool = False  # whether an invocation can read a value of any other invocation of its subgroup
    subgroup_ballot: bool = False  # whether the invocations of a subgroup vote by one instruction
    # Whether modules can ask that the invocations of a subgroup reconverge after branches and in each iteration of a loop.
    maximal_reconvergence: bool = False
    subgroup_reductions: tuple[str, ...] = ()  # the kinds by which programs reduce 32-bit integers over subgroups in one instruction
    subgroup_scans: tuple[str, ...] = ()  # the same for inclusive scans
    matrix_shapes: tuple[str, ...] = ()  # products that subgroups compute together, see `base/matrix_shapes.py`
    shared_memory: Count = 32768
    max_group_size: Count = 256
    max_groups: Count = 65535
    aliased_bindings: bool = True  # whether a task may bind a storage buffer several times, as arrays of different types
    max_buffers: Count = 0  # storage buffers that a task may use, 0: any number (they are reached by address)
    max_push_constants: Count = 128
    max_allocation: Count = 1 << 62
    loop_limit: Count = 0  # iterations after which the driver ends the loops of an invocation; 0: none
    nesting_limit: Count = 0  # levels of `if` and loops beyond which the driver computes wrong numbers; 0: none
    # Whether memory barriers may stand in code that not all invocations of a workgroup run. False: llvmpipe (seen with Mesa 22.3), which
    # treats them as execution barriers, loses invocations there, and needs none, because its atomics are sequentially consistent.
    memory_barriers: bool = True
    # Whether loads from an address that all invocations share are executed even if no invocation is active: llvmpipe since Mesa 25.1.
    unmasked_uniform_loads: bool = False
    coarse_sines: bool = False  # whether the driver's sin, cos and tan of f32 are off by more than some ulp
    # Whether the driver computes a product that it must not contract as the fused a * b + 0.0, which loses -0.0: SPIRV-Cross for MoltenVK.
    positive_zero_products: bool = False
    cpu_driver: bool = False  # whether the driver runs invocations on the CPU: few at a time, from caches
    shader_clock: str = ""  # the scope of the clock that modules can read: "device", "subgroup", or "" for none
    nearest_f16: bool = True  # whether conversions to f16 round to nearest
    special_constants: bool = True  # whether modules can compute infinities and NaN from constants
    exact_specials: tuple[int, ...] = ()  # widths of floats whose infinities, NaN and -0.0 modules can ask to keep
    float_controls2: bool = False  # whether modules can say for all operations what drivers may do with floats
    exact_subnormals: tuple[int, ...] = ()  # widths of floats whose subnormals modules can ask to keep
    cpu_name: str = ""
    cpu_features: str = ""
    vector_library: str = ""
    profile: str = ""  # the key of `PROFILES` to which the session restricts the device
    toolchain: str = ""  # everything that binaries depend on besides their source

    @property
    def group_lanes(self) -> int:
        """The size of the subgroups that programs see: that of the device, or that of the subgroups that the compiler forms."""
        return self.subgroup_size if self.subgroup_read and self.subgroup_size else _FORMED_SUBGROUP

    @property
    def group_limit(self) -> int:
        """The largest number of invocations of a workgroup."""
        return self.max_group_size if self.target.invocations else _LARGEST_GROUP

    @property
    def target(self) -> Target:
        return TARGETS[self.target_name]

    @property
    def computes_int64(self) -> bool:
        """Whether programs can use 64-bit integers: those of the device, or pairs of words, see `transforms/lowering/split_int64.py`."""
        return self.int64 or (self.target.generator is Generator.SPIRV and not self.float64)

    @property
    def locks_int64(self) -> bool:
        """Whether atomics of 64-bit elements run under locks, on the two words of the element: where these have addresses, or where all
        accesses are to words."""
        return self.computes_int64 and (self.buffer_address or not self.int64) and not self.atomic_int64

    @property
    def updates_int64(self) -> bool:
        """Whether there are atomics of 64-bit elements in buffers: of the device, or under locks."""
        return self.atomic_int64 or self.locks_int64

    def stores(self, t: DType) -> bool:
        """Return whether memory can be read and written as elements of ``t``."""
        if t.bits == 8:
            return self.storage8
        return t.bits != 16 or self.storage16 or (t.is_float and self.storage_f16)


# Capabilities that the devices share which LLVM or the interpreter compile for; `target_name` is to be set.
COMMON = Capabilities(
    target_name="",
    int8=True,
    int16=True,
    int64=True,
    float16=True,
    float64=True,
    storage8=True,
    storage16=True,
    atomic_int64=True,
    atomic_f32_add=True,
    atomic_f64_add=True,
    buffer_address=True,
    subgroup_ballot=True,
)
