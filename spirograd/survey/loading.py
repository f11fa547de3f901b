"""Processes that load a driver from another system than that of the machine, without the rights that a chroot takes.

Such a process is Python of this machine, started by the dynamic loader of the other system, which finds all libraries there: the Vulkan
loader, the driver, and what they need. Nothing of the other system need run, so the folder may be what `mmdebstrap --variant=extract`
unpacked. The C library there must be as new as this machine's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.survey.drivers import Driver, environment, files, missing

_MACHINE = Path("/")
_LOADERS = ("usr/lib64/ld-linux-*.so.*", "lib64/ld-linux-*.so.*", "usr/lib/ld-linux-*.so.*", "lib/ld-linux-*.so.*")
_LIBRARIES = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "lib/*-linux-gnu")


def python(driver: Driver | None, root: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line, up to and with Python, and the environment of a process that loads ``driver``, and no other Vulkan driver.

    ``driver`` None: the drivers of this machine, as they are. ``root``: the folder of the other system, or "/". This machine is searched
    for a driver that the other system lacks. ``folder``: for manifests. Raises SpirogradRuntimeError with the file that is missing.
    """
    own = dict(os.environ)
    if driver is None:
        return [sys.executable], own
    if root == _MACHINE or (missing(driver, root) and not missing(driver)):
        return [sys.executable], own | environment(driver, folder)
    file, shim = files(driver, root)
    loader = next((path for pattern in _LOADERS for path in sorted(root.glob(pattern))), None)
    if loader is None:
        raise SpirogradRuntimeError(
            f"there is no dynamic loader (ld-linux-*.so) in {root}: it must contain a system, see docs/how-to/ci.md"
        )
    manifest = str(_manifest(driver, _below(root, file), root, folder))
    command = [str(loader), "--library-path", ":".join(str(path) for pattern in _LIBRARIES for path in sorted(root.glob(pattern)))]
    if shim:  # By an option, not by a variable, because processes that this one starts have other libraries.
        command += ["--preload", str(_below(root, shim))]
    variables = dict(driver.variables if shim or not driver.shim else driver.built_in)
    return [*command, sys.executable], own | variables | {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}


def _manifest(driver: Driver, file: Path, root: Path, folder: Path) -> Path:
    """Write a manifest that names the driver's library by its place in ``root``. ``file``: its own manifest, or the library itself."""
    library, version = file, "1.3.0"
    if not driver.library:
        told = json.loads(file.read_text(encoding="utf-8"))["ICD"]
        library, version = _library(told["library_path"], file, root), told["api_version"]
    path = folder.absolute() / f"{driver.name}.json"
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": version}}))
    return path


def _library(name: str, manifest: Path, root: Path) -> Path:
    """Return the place of the library that a manifest names: by a path, relative to the manifest, or by its name alone."""
    if name.startswith("/"):
        return _below(root, name)
    if "/" in name:
        return manifest.parent / name
    found = next((path for pattern in _LIBRARIES for path in sorted(root.glob(f"{pattern}/{name}"))), None)
    if found is None:
        raise SpirogradRuntimeError(f"{manifest} names {name}, which is not in {root}")
    return found


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
