"""The files of a module: one zip archive, or a folder. The same contents are the same bytes.

Reading checks, in this order: names and sizes of files, format and version, each value of the manifest against its type, and the digest of
everything. The digest detects accidents, but does not authenticate the author: see docs/security.md.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from spirograd.aot import metal
from spirograd.aot.manifest import FORMAT, MANIFEST, RECORDS, Manifest
from spirograd.aot.manifest_checks import CHECKS
from spirograd.base.errors import SpirogradDamagedError, SpirogradRuntimeError, SpirogradValueError
from spirograd.base.targets import Generator
from spirograd.base.version import __version__
from spirograd.runtime.encoding import encoded
from spirograd.runtime.typed_decoding import Damage, Reader, loads

# Suffixes of files of binaries, by the code generator.
_SUFFIXES = {Generator.LLVM: "o", Generator.SPIRV: "spv", Generator.PTX: "ptx", Generator.CODE_OBJECT: "hsaco"}
_ALL_SUFFIXES = {f".{suffix}" for suffix in (*_SUFFIXES.values(), "metal")}
_KERNELS = "kernels"  # the folder of these files
# The first date that a zip archive can have.
_DATE = (1980, 1, 1, 0, 0, 0)
_MOST_FILES = 1 << 16
_MOST_BYTES = {MANIFEST: 1 << 28}
_MOST_OF_BINARIES = 4 << 30
# Exceptions of `zipfile` for damaged archives.
_OF_ARCHIVES = (zipfile.BadZipFile, zlib.error, struct.error, OSError, NotImplementedError, EOFError, ValueError, OverflowError, IndexError)


def write(manifest: Manifest, path: Path, packed: bool, msl: bool = False) -> None:
    """Write the files of a module to a zip archive (``packed``) or to a folder, which is created. ``msl``: with source text for Metal.
    Files of kernels of an earlier module in the folder are deleted."""
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
    """Read the module in a zip archive or a folder. Raises SpirogradRuntimeError if there is none, or if it has another format or version,
    SpirogradDamagedError if it is damaged."""
    try:
        with _opened(path) as file:
            contents = _contents(path, file(MANIFEST))
            names = _names(contents)
            blobs = [file(name) for name in names]
        return _manifest(contents, blobs)
    except OSError as error:
        raise SpirogradRuntimeError(f"{path} is no module of compiled kernels: {error}") from None
    except Damage as damage:
        raise SpirogradDamagedError(str(path), damage.problem, damage.field) from None
    except RecursionError:
        raise SpirogradDamagedError(str(path), "is nested too deeply", MANIFEST) from None


def _contents(path: Path, data: bytes) -> dict[str, object]:
    """Return the contents of `MANIFEST`, which must have this format and version."""
    try:
        plain = loads(data)
    except Damage as damage:
        damage.path.append(MANIFEST)
        raise
    manifest = plain.get("manifest") if isinstance(plain, dict) else None
    form, version = [manifest.get(name) if isinstance(manifest, dict) else None for name in ("format", "version")]
    if form != FORMAT or type(form) is not int:
        problem = f"has format {form!r:.40}, and this version of spirograd reads {FORMAT}"
        raise SpirogradRuntimeError(f"{path} {problem}: build the module again")
    if version != __version__:
        raise SpirogradRuntimeError(f"{path} was built by spirograd {version!s:.40}, and this is {__version__}: build the module again")
    if unknown := sorted(plain.keys() - {"manifest", "files", "metal", "digest"}):
        raise Damage("is not a field of it", unknown[0])
    return plain  # type: ignore[no-any-return]


def _names(contents: Mapping[str, object]) -> list[str]:
    """Return the names of the files of binaries."""
    names = contents.get("files")
    if not isinstance(names, list) or len(names) > _MOST_FILES:
        raise Damage("is no list of names", "files")
    for k, name in enumerate(names):
        if not isinstance(name, str):
            raise Damage("is no name", k, "files")
        try:
            _check_name(name)
        except Damage as damage:
            damage.path += [k, "files"]
            raise
    if len(set(names)) < len(names):
        raise Damage("has a name twice", "files")
    return names


def _manifest(contents: Mapping[str, object], blobs: Sequence[bytes]) -> Manifest:
    """Return the manifest, whose byte strings are ``blobs``. Errors about a value come before the error that something was changed."""
    try:
        manifest: Manifest = _reader().read(Manifest, contents["manifest"], blobs)
    except Damage as damage:
        damage.path.append("manifest")
        raise
    if contents.get("digest") != _digest(contents, blobs):
        raise Damage("is that of other contents: the manifest or a file was changed", "digest")
    return manifest


@functools.cache
def _reader() -> Reader:
    return Reader(RECORDS, CHECKS)


def _digest(contents: Mapping[str, object], blobs: Sequence[bytes]) -> str:
    """Return the SHA-256 of the manifest, independent of the layout of its text, and of the files of binaries."""
    plain = {name: value for name, value in contents.items() if name != "digest"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    for blob in blobs:
        digest.update(hashlib.sha256(blob).digest())
    return digest.hexdigest()


# --- writing -------------------------------------------------------------------------------------------------------------


def _files(manifest: Manifest, msl: bool) -> Mapping[str, bytes]:
    """Iterate over names and contents of the files, `MANIFEST` first, then in the order of names."""
    blobs: list[bytes] = []
    plain = encoded(manifest, blobs, RECORDS)
    names, bindings = [], []
    for name, compiled in [entry for kernel in manifest.kernels for entry in kernel.all_compiled()]:  # the order in which `encoded` goes
        suffix = _SUFFIXES[compiled.target.generator]
        names += [f"{_KERNELS}/{name}.{k}.{suffix}" for k in range(len(compiled.binaries))]
        counts = {task.binary: len(task.bindings) for task in compiled.tasks}
        bindings += [counts.get(k, 0) for k in range(len(compiled.binaries))]
    if len(names) != len(blobs):
        raise SpirogradValueError(f"a module has {len(blobs)} binaries, and {len(names)} are those of its kernels")
    contents, texts = {"manifest": plain, "files": names}, {}
    if msl:
        metal.check_command()
        translations = {name: metal.translated(name, blob, count) for name, blob, count in zip(names, blobs, bindings)}
        texts = {_metal_name(name): code.text for name, code in translations.items()}
        contents["metal"] = [_metal_entry(name, code) for name, code in translations.items()]
    contents["digest"] = _digest(contents, blobs)
    text = json.dumps(contents, indent=1, allow_nan=False) + "\n"
    return {MANIFEST: text.encode(), **dict(sorted([*zip(names, blobs), *texts.items()]))}


def _metal_name(name: str) -> str:
    return f"{name.rpartition('.')[0]}.metal"


def _metal_entry(name: str, code: metal.MetalCode) -> Mapping[str, object]:
    return {"file": _metal_name(name), "entry": code.entry, "arguments": code.arguments, "bindings": list(code.bindings)}


# --- files ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Provide the function that reads the file of a name."""
    if path.is_dir():
        yield functools.partial(_in_folder, path)
        return
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise SpirogradRuntimeError(f"{path} is no module of compiled kernels: it is no zip archive")
    try:
        with zipfile.ZipFile(path) as archive:
            files = {entry.filename: archive.read(entry) for entry in _entries(archive, path.stat().st_size)}
    except _OF_ARCHIVES as error:
        raise Damage(f"it is no module of compiled kernels: {error}") from None
    yield functools.partial(_in_archive, files)


def _in_folder(folder: Path, name: str) -> bytes:
    file = folder / name
    if not file.is_file():
        raise Damage("is missing", name)
    if file.stat().st_size > _MOST_BYTES.get(name, _MOST_OF_BINARIES):
        raise Damage("is too long", name)
    return file.read_bytes()


def _in_archive(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise Damage("is missing", name)
    return files[name]


def _entries(archive: zipfile.ZipFile, size: int) -> Iterator[zipfile.ZipInfo]:
    """Return the entries of an archive of ``size`` bytes. They are not compressed and do not overlap, so they are no longer than the
    archive."""
    seen: set[str] = set()
    total = 0
    for entry in archive.infolist():
        name = entry.orig_filename
        _check_name(name)
        total += entry.file_size
        if name in seen or name != entry.filename:
            raise Damage("is in the archive twice", name[:80])
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
            raise Damage("is compressed or encrypted", name[:80])
        if total > size or entry.file_size > _MOST_BYTES.get(name, size) or len(seen) > _MOST_FILES:
            raise Damage("is too long", name[:80])
        seen.add(name)
        yield entry


def _check_name(name: str) -> None:
    """Raise Damage for names that could lead out of the folder of the module."""
    if not name.isprintable() or any(mark in name for mark in "\\:") or {"", ".", ".."} & set(name.split("/")):
        raise Damage(f"the name {name[:80]!r} is none of a file of a module")
