"""Internal objects of the Taichi family that programs use: the run-time object, its program, capabilities of devices."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd import api
from spirograd.base import later
from spirograd.base.dtypes import DType, u32, u64
from spirograd.base.errors import render
from spirograd.config import Config
from spirograd.lang import context

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from spirograd.base.arrays import Array

_INTERNAL = "an internal object of the family without a counterpart here"


class DeviceCapability(enum.Enum):
    """Abilities of a device; the value is the field of `Capabilities` with the answer."""

    spirv_has_int8 = "int8"
    spirv_has_int16 = "int16"
    spirv_has_int64 = "int64"
    spirv_has_float16 = "float16"
    spirv_has_float64 = "float64"
    spirv_has_atomic_int64 = "atomic_int64"
    spirv_has_atomic_float_add = "atomic_f32_add"
    spirv_has_atomic_float_minmax = "atomic_f32_minmax"
    spirv_has_atomic_float64_add = "atomic_f64_add"
    spirv_has_subgroup_arithmetic = "subgroup_arithmetic"
    spirv_has_physical_storage_buffer = "buffer_address"


class CPUWorkScheduling(enum.Enum):
    """How Quadrants divides a loop among the threads of the CPU; accepted by `init`, without effect."""

    PER_WORKER = 0
    FIXED_SIZE = 1


class DeviceCapabilities:
    """The abilities of the running session's device."""

    def get(self, capability: DeviceCapability) -> int:
        """Return 1 if the device has the ability, else 0."""
        return int(bool(getattr(context.session().device.caps, capability.value)))


class Program:
    """The running session as the family's program object: its options and its device."""

    def config(self) -> Config:
        return api.cfg

    def get_device_caps(self) -> DeviceCapabilities:
        return DeviceCapabilities()

    def synchronize(self) -> None:
        api.sync()

    def __getattr__(self, name: str) -> later.Later:
        return _missing("get_runtime().prog", name)


PROGRAM = Program()


class _RuntimeType(type):
    """The type of the class `Runtime`, whose ``materialize`` programs replace."""

    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "materialize":
            context.services().after_allocation = lambda: RUNTIME.materialize()


class Runtime(metaclass=_RuntimeType):
    """The running session as the family's run-time object.

    Programs may replace ``materialize``, which runs each time that fields get their memory, before anything uses them, and ``clear``, which
    runs when a session ends.
    """

    __sg_gives_session__ = True  # its attributes follow the session: a kernel that reads them may be kept in the offline cache

    @property
    def prog(self) -> Program | None:
        """The running session, or None before `init`: programs test this to learn whether they must call it."""
        return PROGRAM if context.has_session() else None

    _prog = prog  # as Quadrants calls it

    @property
    def default_fp(self) -> DType:
        return context.language_options().default_fp

    @default_fp.setter
    def default_fp(self, dtype: object) -> None:
        context.session().set_default_type("default_fp", dtype)

    @property
    def default_ip(self) -> DType:
        return context.language_options().default_ip

    @default_ip.setter
    def default_ip(self, dtype: object) -> None:
        context.session().set_default_type("default_ip", dtype)

    @property
    def default_up(self) -> DType:
        """The unsigned type of the width of `default_ip`."""
        return u64 if self.default_ip.bits == 64 else u32

    def set_default_fp(self, dtype: object) -> None:
        self.default_fp = dtype

    def set_default_ip(self, dtype: object) -> None:
        self.default_ip = dtype

    def get_num_compiled_functions(self) -> int:
        """Return the number of kernels and gradients that this session has compiled, or loaded from the offline cache."""
        return int(context.session().prepared)

    def sync(self) -> None:
        api.sync()

    def materialize(self) -> None:
        """Do nothing: fields get their memory at first use."""

    def clear(self) -> None:
        """Do nothing when a session ends."""

    def __getattr__(self, name: str) -> later.Later:
        return _missing("get_runtime()", name)


def _missing(owner: str, name: str) -> later.Later:
    if name.startswith("__"):
        raise AttributeError(name)
    return later.Later(f"{owner}.{name}", _INTERNAL)


RUNTIME = Runtime()


def get_runtime() -> Runtime:
    """Return the run-time object."""
    return RUNTIME


get_runtime.__sg_gives_session__ = True  # type: ignore[attr-defined]


def reset() -> None:
    """End the session."""
    api.reset()
    RUNTIME.clear()


def sync() -> None:
    """Wait for all launches. In a kernel this is no barrier: the family waits while it compiles the kernel, so a warning says so."""
    trace = context.current_trace()
    if trace is None:
        api.sync()
        return
    problem = "`sync` in a kernel is no barrier: it ran while the kernel was compiled, and other iterations have not finished here"
    trace.warn(("sync", str(trace.b.loc)), render(problem, trace.b.loc, "end the loop here, and begin another loop or kernel"))


def get_max_shared_memory_bytes(*, is_lowerbound_ok: bool) -> int:
    """Return the bytes of shared memory of a workgroup. ``is_lowerbound_ok`` has no effect, because devices report the exact size."""
    return int(context.session().device.caps.shared_memory)


def dump_compile_config() -> None:
    """Print the options in force."""
    for name, value in sorted(vars(context.session().cfg).items()):
        print(f"{name}: {value}")


def current_cfg() -> Config:
    """Return the options in force."""
    return api.cfg


def inside_kernel() -> bool:
    """Return whether a kernel is being traced."""
    return context.current_trace() is not None


def is_arch_supported(arch: str) -> bool:
    """Return whether this machine has the back end."""
    return arch in api.available_archs()


def adaptive_arch_select(arch: str | Sequence[str] | None, enable_fallback: bool = True) -> str:
    """Return the first back end of ``arch`` that works here, else the CPU."""
    wanted = [arch] if isinstance(arch, str) else list(arch or ())
    return next((name for name in wanted if is_arch_supported(name)), api.cpu)


def check_ggui_availability() -> None:
    """Do nothing: windows and scenes work everywhere."""


def rgb_to_hex(color: Iterable[ArrayLike]) -> Array | np.int32:
    """Return the colour (red, green, blue), each a number in [0, 1] or an array of these, as 0xRRGGBB."""
    red, green, blue = (np.clip(np.asarray(c) * 255, 0, 255).astype(np.int32) for c in color)
    packed: Array | np.int32 = (red << 16) + (green << 8) + blue
    return packed


def hex_to_rgb(color: int) -> tuple[float, float, float]:
    """Return the colour 0xRRGGBB as (red, green, blue), each in [0, 1]."""
    return ((color >> 16 & 255) / 255, (color >> 8 & 255) / 255, (color & 255) / 255)
