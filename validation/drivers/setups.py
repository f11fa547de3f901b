"""The table of setups: a driver, the system that it comes from, and the back ends that use it."""

from __future__ import annotations

from dataclasses import dataclass

from spirograd.base.caps import Capabilities
from spirograd.survey.devices import SurveyDevice
from spirograd.survey.drivers import DRIVERS, Driver
from spirograd.survey.vulkan import VulkanDevice
from validation import dawn, dxc
from validation.drivers.directx import WORDS, DirectX
from validation.drivers.systems import AARCH64, HOST, SID, TRIXIE, System
from validation.profiles import WGPU


@dataclass(frozen=True, slots=True)
class Setup:
    """A driver in a system.

    ``driver`` None: the processor itself, or, with ``caps``, Microsoft's compiler for DirectX 12, for a device with these. ``archs``: the
    back ends that execute, empty for a driver that only compiles. ``host``: what runs the kernels of `sg.wgpu` if that is Dawn, a key of
    `dawn.HOSTS`. ``patience``: the seconds that one program may take. ``batch``: how many cases one process runs; an emulator keeps the
    code of all.
    """

    label: str
    system: System
    driver: Driver | None
    archs: tuple[str, ...] = ()
    host: str = ""
    patience: float = 120.0
    batch: int = 1000
    caps: Capabilities | None = None

    @property
    def name(self) -> str:
        """The name that selects the setup: driver@system."""
        return f"{self.label}@{self.system.name}"

    def why_not(self) -> str:
        """Return why the setup cannot be used now, "" if it can."""
        if self.caps is not None and dxc.library() is None:
            return "there is no compiler for DirectX 12: pip install compushady-lrtu"
        return (dawn.missing(self.host) if self.host else "") or self.system.why_not(self.driver)

    def device(self) -> SurveyDevice:
        """Return the compiler of a setup that only compiles."""
        if self.caps is not None:
            return DirectX(self.name, self.caps)
        assert self.driver is not None
        return VulkanDevice(self.name, self.driver.device, self.driver, self.system.root)

    def python(self) -> tuple[list[str], dict[str, str]]:
        """Return the command line, up to and with Python, and the environment of processes that run on the driver."""
        command, variables = self.system.python(self.driver)
        if not self.host:
            return command, variables
        return [*command, "-m", "validation.dawn"], variables | {dawn.VARIABLE: self.host}


_GPU = ("vulkan", "wgpu")
_COMPILING = [driver for driver in DRIVERS.values() if not driver.executes]
_TABLE = (
    Setup("swiftshader", HOST, DRIVERS["swiftshader"], _GPU),
    *[Setup("lavapipe", system, DRIVERS["lavapipe"], _GPU) for system in (HOST, TRIXIE, SID)],
    *[
        Setup(label, HOST, DRIVERS["swiftshader"], ("wgpu",), host, patience=300.0, batch=100)
        for label, host in (("dawn", dawn.TINT), ("dawn-wgsl", dawn.WGSL), ("chromium", dawn.CHROMIUM))
    ],
    Setup("cpu-aarch64", AARCH64, None, ("cpu",), patience=900.0, batch=40),
    *[Setup(driver.name, SID, driver) for driver in _COMPILING],
    Setup("radv-gfx1030", HOST, DRIVERS["radv-gfx1030"]),
    Setup("dxc", HOST, None, caps=WGPU),
    Setup("dxc-words", HOST, None, caps=WORDS),
)
SETUPS = {setup.name: setup for setup in _TABLE}
