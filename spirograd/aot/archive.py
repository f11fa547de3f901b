"""The files of a module: one zip archive, or a folder. The same contents are the same bytes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spirograd.aot import metal
from spirograd.aot.manifest import FORMAT, MANIFEST, RECORDS, Manifest
from spirograd.base.errors import SpirogradRuntimeError, SpirogradValueError
from spirograd.base.targets import Generator
from spirograd.runtime.encoding import decoded, encoded

# What files of binaries are called, by what makes them.
_SUFFIXES = {Generator.LLVM: "o", Generator.SPIRV: "spv", Generator.PTX: "ptx", Generator.CODE_OBJECT: "hsaco"}
_ALL_SUFFIXES = {f".{suffix}" for suffix in (*_SUFFIXES.values(), "metal")}
_KERNELS = "kernels"  # the folder of these files
# The first date that a zip archive can have.
_DATE = (1980, 1, 1, 0, 0, 0)


def write(manifest: Manifest, path: Path, packed: bool, msl: bool = False) -> None:
    """Write the files of a module into a zip archive (``packed``) or a folder, which is made. ``msl``: with source text for Metal. Files of
    kernels of a module that was in the folder before are deleted."""
    files = _files(manifest, msl)
    if not packed:
        for name, data in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        for file in (path / _KERNELS).glob("*"):
            if file.suffix in _ALL_SUFFIXES and f"{_KERNELS}/{file.name}" not in files:
                file.unlink()
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)


def read(path: Path) -> Manifest:
    """The module in a zip archive or a folder. Raises SpirogradRuntimeError if there is none, or if it is damaged or of another format."""
    try:
        files = _read_files(path)
        plain = json.loads(files[MANIFEST])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise SpirogradRuntimeError(f"{path} is no module of compiled kernels: {error}") from None
    found = plain["manifest"].get("format") if isinstance(plain, dict) and isinstance(plain.get("manifest"), dict) else None
    if found != FORMAT:
        raise SpirogradRuntimeError(f"{path} has format {found!r}, and this version of spirograd reads {FORMAT}: build the module again")
    try:
        manifest = decoded(plain["manifest"], [files[name] for name in plain["files"]], RECORDS)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SpirogradRuntimeError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(manifest, Manifest):
        raise SpirogradRuntimeError(f"{path} is damaged: its manifest is a {type(manifest).__name__}")
    return manifest


def _files(manifest: Manifest, msl: bool) -> Mapping[str, bytes]:
    """The contents of each file, in the order of their names, `MANIFEST` first."""
    blobs: list[bytes] = []
    plain = encoded(manifest, blobs, RECORDS)
    names, bindings = [], []
    for name, compiled in [found for kernel in manifest.kernels for found in kernel.all_compiled()]:  # the order in which `encoded` goes
        suffix = _SUFFIXES[compiled.target.generator]
        names += [f"{_KERNELS}/{name}.{k}.{suffix}" for k in range(len(compiled.binaries))]
        counts = {task.binary: len(task.bindings) for task in compiled.tasks}
        bindings += [counts.get(k, 0) for k in range(len(compiled.binaries))]
    if len(names) != len(blobs):
        raise SpirogradValueError(f"a module has {len(blobs)} binaries, and {len(names)} are those of its kernels")
    contents, texts = {"manifest": plain, "files": names}, {}
    if msl:
        metal.check_command()
        made = {name: metal.translated(name, blob, count) for name, blob, count in zip(names, blobs, bindings)}
        texts = {_metal_name(name): code.text for name, code in made.items()}
        contents["metal"] = [_metal_entry(name, code) for name, code in made.items()]
    text = json.dumps(contents, indent=1, allow_nan=False) + "\n"
    return {MANIFEST: text.encode(), **dict(sorted([*zip(names, blobs), *texts.items()]))}


def _metal_name(name: str) -> str:
    return f"{name.rpartition('.')[0]}.metal"


def _metal_entry(name: str, code: metal.MetalCode) -> Mapping[str, Any]:
    return {"file": _metal_name(name), "entry": code.entry, "arguments": code.arguments, "bindings": list(code.bindings)}


def _read_files(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}
