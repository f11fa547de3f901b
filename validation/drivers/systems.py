"""The systems that drivers come from: this machine, newer releases of Debian, and one for another processor.

A system other than this machine is a folder into which `mmdebstrap` unpacks Debian's packages, once. Nothing of it is installed or needs
the rights of root: Python of this machine is started by the system's dynamic loader (see `spirograd.survey.loading`), or, for another
processor, Python of the system by an emulator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spirograd.survey import loading
from spirograd.survey.drivers import Driver, missing

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "drivers"
MIRROR = os.environ.get("MIRROR", "http://deb.debian.org/debian")
FOLDER = Path(os.environ.get("SYSTEMS", OUT / "systems")).resolve()
_EMULATOR, _VERSION = "qemu-aarch64-static", "3.11"  # the version of Python in Debian's bookworm
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
_READY = "ready"
_HINT = "ci/drivers --prepare"


class Unavailable(Exception):
    """What a system lacks, and how to get it."""


@dataclass(frozen=True, slots=True)
class System:
    """A system. ``name``: a noun for messages, and the name of its folder; ``suite``: Debian's, "" for this machine; ``packages``: what is
    unpacked; ``wheels``: Python packages for the processor of an emulated system, empty for others."""

    name: str
    suite: str = ""
    packages: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The folder that has the system's files."""
        return FOLDER / self.name if self.suite else Path("/")

    def why_not(self, driver: Driver | None) -> str:
        """Return why ``driver`` cannot be loaded from the system now, "" if it can. None: the processor itself, which needs no driver."""
        if self.suite and not (self.root / _READY).exists():
            return f"Debian's {self.suite} is not unpacked: {_HINT}"
        if self.wheels and shutil.which(_EMULATOR) is None:
            return f"there is no program {_EMULATOR}: apt install qemu-user-static"
        return "" if driver is None else missing(driver, self.root)

    def prepare(self) -> None:
        """Unpack the system if that was not done before. Raises Unavailable."""
        if not self.suite or (self.root / _READY).exists():
            return
        if shutil.which("mmdebstrap") is None:
            raise Unavailable("there is no program mmdebstrap: apt install mmdebstrap")
        shutil.rmtree(self.root, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        processor = ("--arch=arm64",) if self.wheels else ()
        # The mirror may be a snapshot, which is older than Debian allows.
        dated = '--aptopt=Acquire::Check-Valid-Until "false"'
        include = f"--include={','.join(self.packages)}"
        _run(["mmdebstrap", "--quiet", "--variant=extract", *processor, dated, include, self.suite, str(self.root), MIRROR])
        if self.wheels:
            options = ["--target", str(self.root / "wheels"), "--python-version", _VERSION, "--only-binary=:all:"]
            options += [f"--platform={name}" for name in _PLATFORMS]
            _run([sys.executable, "-m", "pip", "install", "--quiet", *options, *self.wheels])
        (self.root / _READY).touch()

    def python(self, driver: Driver | None) -> tuple[list[str], dict[str, str]]:
        """Return the command line, up to and with Python, and the environment of processes that load ``driver``."""
        if self.wheels:
            variables = dict(os.environ) | {"PYTHONPATH": f"{self.root / 'wheels'}:{ROOT}", "PYTHONHOME": "/usr"}
            return [_EMULATOR, "-L", str(self.root), str(self.root / f"usr/bin/python{_VERSION}")], variables
        OUT.mkdir(parents=True, exist_ok=True)
        command, variables = loading.python(driver, self.root, OUT)
        # This machine's validation layer may be too old for the driver, and report what it does not know.
        layers = {"VK_LAYER_PATH": str(self.root / "usr/share/vulkan/explicit_layer.d")} if self.suite else {}
        return command, variables | layers | {"PYTHONPATH": str(ROOT)}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"`{' '.join(command)}` ended with status {done.returncode}: {(done.stdout + done.stderr).strip()[-1000:]}")


_MESA = ("mesa-vulkan-drivers", "libvulkan1", "vulkan-validationlayers")
HOST = System("host")
TRIXIE = System("trixie", "trixie", _MESA)
SID = System("sid", "sid", (*_MESA, "mesa-drm-shim"))
AARCH64 = System("aarch64", "bookworm", ("python3", "libstdc++6"), ("numpy", "llvmlite", "msgpack"))
SYSTEMS = (HOST, TRIXIE, SID, AARCH64)
