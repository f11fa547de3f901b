"""What a test may need that a machine may lack: back ends, programs, Python packages.

A missing thing is a skip whose reason begins with "missing <name>": the summary at the end of pytest counts and names them. What
the environment variable SG_TEST_REQUIRE lists ("cpu,vulkan,torch") is a failure instead. `pytest --missed torch,jax` runs the tests
that the last run skipped because one of these was missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.lang import context
from spirograd.runtime import loader
from spirograd.survey.drivers import DRIVERS
from validation import rdna3
from validation.tools import llvm_program, naga_program

# Tests of `amdgpu` then run on the emulator of validation/rdna3.
EMULATOR = "SG_TEST_EMULATOR"
if os.environ.get(EMULATOR):
    loader.DEVICES["amdgpu"] = "validation.rdna3.device"
# Tests run on these where there is a device, and are not even counted elsewhere: thousands would be skipped for what few machines have.
RARE = ("cuda", "amdgpu")
_FOUND = [name for name in RARE if loader.available(name) is None or name in os.environ.get("SG_TEST_REQUIRE", "")]
ARCHS = ("interpreter", "cpu", "vulkan", "wgpu", *_FOUND)
PREFIX = "missing "
_PROGRAMS = ("spirv-val", "spirv-as", "spirv-dis", "spirv-cross", "chromium", "g++", "cc", "Xvfb", "mpirun", "ptxas")
_PACKAGES = (
    "tinygrad",
    "torch",
    "jax",
    "cupy",
    "dask",
    "ray",
    "matplotlib",
    "rich",
    "pyright",
    "PIL.Image",
    "imageio_ffmpeg",
    "scipy",
    "mpi4py",
    "coverage",
    "compushady",
)


def _validation_layer() -> str | None:
    reason = loader.available("vulkan")
    if reason is not None:
        return reason
    from spirograd.runtime.devices.vulkan.instance import take_instance

    try:
        take_instance(validation=True).close()
    except Exception as error:
        return str(error)
    return None


def _program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"no program {name} on the path"


def _program_of_llvm(name: str) -> Callable[[], str | None]:
    return lambda: None if llvm_program(name) else f"no {name} of LLVM 19 or newer on the path"


def _package(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else f"no Python package {name}"


def python_of_quadrants() -> str | None:
    """The Python of an environment that has quadrants: that of SG_TEST_QUADRANTS, or this one."""
    here = sys.executable if importlib.util.find_spec("quadrants") else None
    return os.environ.get("SG_TEST_QUADRANTS") or here


def _driver(name: str) -> Callable[[], str | None]:
    """A driver of `spirograd.survey.drivers` that can be loaded here, with a device that spirograd can use."""

    def reason() -> str | None:
        from spirograd.survey.vulkan import VulkanCompiler

        try:
            with VulkanCompiler(DRIVERS[name]):
                return None
        except SpirogradRuntimeError as error:
            return str(error)

    return reason


def _gpus() -> str | None:
    """Several GPUs, between which torch sends messages."""
    if (reason := _package("torch")()) is not None:
        return reason
    import torch

    count = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
    return None if count > 1 else f"{count} GPUs that torch can use"


def _back_end(name: str) -> Callable[[], str | None]:
    return lambda: loader.available(name)


CHECKS: dict[str, Callable[[], str | None]] = {
    **{name: _back_end(name) for name in ARCHS},
    **{name: _program(name) for name in _PROGRAMS},
    **{name: _package(name) for name in _PACKAGES},
    "validation": _validation_layer,
    "gpus": _gpus,
    **{name: _driver(name) for name in ("swiftshader", "radv-gfx1030")},
    "radv-gfx1100": lambda: rdna3.missing(rdna3.RADV),
    "naga-translate": lambda: None if naga_program() else "not built: validation/naga/build",
    "quadrants": lambda: None if python_of_quadrants() else "SG_TEST_QUADRANTS names no Python that has it",
    **{name: _program_of_llvm(name) for name in ("ld.lld", "llvm-mc", "llvm-objdump")},
}


@cache
def missing(name: str) -> str | None:
    """None if this machine has ``name`` (a key of `CHECKS`), else why not."""
    return CHECKS[name]()


def required() -> set[str]:
    """The names in SG_TEST_REQUIRE; ValueError for one that nothing is called by."""
    names = {name.strip() for name in os.environ.get("SG_TEST_REQUIRE", "").split(",") if name.strip()}
    if names - set(CHECKS):
        raise ValueError(f"SG_TEST_REQUIRE names {', '.join(sorted(names - set(CHECKS)))}; there are {', '.join(CHECKS)}")
    return names


def need(name: str) -> None:
    """Skip the running test, or fail it if SG_TEST_REQUIRE asks for it, where ``name`` is missing."""
    reason = missing(name)
    if reason is None:
        return
    if name in required():
        pytest.fail(f"{PREFIX}{name}, which SG_TEST_REQUIRE demands: {reason}", pytrace=False)
    pytest.skip(f"{PREFIX}{name}: {reason}")


class _Missing:
    """Stands for a Python package that is missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # pytest looks at the names of a module
            raise AttributeError(attribute)
        return need(self._name)


def package(name: str) -> Any:
    """The Python package ``name``. Where it is missing, a stand-in: a test that uses it is skipped, and the other tests of the file run."""
    return importlib.import_module(name) if missing(name) is None else _Missing(name)


def of_type(t: Any) -> None:
    """Skip the running test where the session's device cannot compute with ``t``."""
    caps = context.session().device.caps
    there = {"f64": caps.float64, "i64": caps.int64, "u64": caps.int64}
    if not there.get(str(t), True):
        pytest.skip(f"{PREFIX}{t}: {caps.target_name} on this machine lacks it")


def strict_floats() -> None:
    """Skip the running test where the session's device leaves infinities, NaN and the last bits of f32 to its driver: graphics cards
    through wgpu, whose modules cannot ask for anything else."""
    device = context.session().device
    if not device.caps.exact_specials and dict(device.info.detail).get("kind", "cpu") != "cpu":
        pytest.skip(f"{PREFIX}float controls: {device.info.arch} on {device.info.name} has none")
