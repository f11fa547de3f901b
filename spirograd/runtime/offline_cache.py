"""The offline cache of compiled kernels: one file per key, safe to share between processes.

A file consists of a seal with the user's key (`sealing`), the length of the header, the header (JSON of the artifact, byte strings replaced
by their place), and byte strings. Loading executes none of it, but a kernel may be launched later, so only files sealed with the key are
loaded. Writers write to a temporary file and rename it, so that readers only see complete files. Invalid files are removed and count as
misses.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from spirograd.base import knobs
from spirograd.base.artifact import CompiledKernel
from spirograd.base.records import dataclass
from spirograd.runtime.artifact_checks import CHECKS
from spirograd.runtime.encoding import CLASSES, encoded
from spirograd.runtime.sealing import is_kept, read_regular, sealed, sealed_name, unsealed, write_new
from spirograd.runtime.typed_decoding import Damage, Reader, loads

_PURPOSE = "kernel"
_SUFFIX = ".sgk"
_CODE_SUFFIX = ".sgc"  # Entries that belong to no kernel.
_TRACE_SUFFIX = ".sgt"
# Leftover temporary files of processes that died are removed once they are this old (seconds).
_STALE_SECONDS = 3600.0
# After a clean-up this fraction of the limit is in use, so that not every store has to clean up again.
_KEEP_PART = 0.9


def default_folder() -> Path:
    """Return the folder of caches: SG_CACHE_DIR, else ``spirograd`` in the user's cache folder of the operating system."""
    chosen = knobs.get("SG_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "spirograd"


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts of this process (``hits`` to ``evicted``), and the contents of the disk (``files``, ``nbytes``)."""

    hits: int
    misses: int
    damaged: int
    stored: int
    evicted: int
    files: int
    nbytes: int


class Cache:
    """A cache of compiled kernels on disk under ``path``, with about ``max_bytes`` at most; the least recently used are evicted first."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = 256 << 20) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "damaged": 0, "stored": 0, "evicted": 0}
        self._known_bytes: int | None = None  # Bytes of the files, as last counted plus the additions of this process.
        self._warned = False

    def get(self, key: str) -> CompiledKernel | None:
        """Return the kernel stored under ``key``, or None. A damaged file is removed and counts as a miss."""
        file = self._file(key)
        try:
            data = read_regular(file)
        except OSError:
            self._count("misses")
            return None
        kernel = None if data is None else decode(data)
        if kernel is None or kernel.key != key:
            self._count("misses")
            self._count("damaged")
            _remove(file)
            return None
        with contextlib.suppress(OSError):  # A read-only cache can still be read.
            os.utime(file)  # The order of use decides which files are evicted.
        self._count("hits")
        return kernel

    def put(self, key: str, compiled: CompiledKernel) -> bool:
        """Store ``compiled`` under ``key`` (its own key). Return whether it was stored.

        Kernels that contain Python code (the interpreter's) or exceed the cache are not stored, nor is any kernel without a place for the
        user's key. If the disk refuses, a warning is logged once.
        """
        if compiled.key != key:
            raise ValueError(f"kernel {compiled.name} has key {compiled.key!r}, it cannot be stored under {key!r}")
        if compiled.run is not None or not is_kept():
            return False
        data = encode(compiled)
        if len(data) > self.max_bytes:
            return False
        try:
            self._write(self._file(key), data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"the offline cache in {self.path} cannot be written: {error}", RuntimeWarning, stacklevel=2)
            return False
        self._count("stored")
        self._limit(len(data))
        return True

    def code(self, source: str, make: Callable[[], bytes]) -> bytes:
        """Return the bytes that ``make`` makes of ``source``, such as machine code; they come from the disk if they are there.

        ``source`` must contain everything that the bytes depend on.
        """
        code = self._read(source, _CODE_SUFFIX)
        if code is None:
            code = make()
            self._keep(source, _CODE_SUFFIX, code)
        return code

    def trace(self, name: str) -> bytes | None:
        """Return what is kept of a trace under ``name``; None if there is nothing."""
        data = self._read(name, _TRACE_SUFFIX)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._file(name, _TRACE_SUFFIX))
        return data

    def keep_trace(self, name: str, data: bytes) -> None:
        """Keep ``data`` of a trace under ``name``, in place of what was there."""
        self._keep(name, _TRACE_SUFFIX, data)

    def _read(self, source: str, suffix: str) -> bytes | None:
        file = self._file(source, suffix)
        with contextlib.suppress(OSError):
            data = read_regular(file)
            return None if data is None else unsealed(data, f"code {file.stem}")
        return None

    def _keep(self, source: str, suffix: str, data: bytes) -> None:
        if is_kept():
            file = self._file(source, suffix)
            with contextlib.suppress(OSError):  # `put` warns of disk errors.
                self._write(file, sealed(data, f"code {file.stem}"))

    def note(self, name: str) -> bytes | None:
        """Return the bytes that `keep_note` stored under ``name``, or None."""
        file = self._file(name, _CODE_SUFFIX)
        try:
            data = read_regular(file)
        except OSError:
            return None
        return None if data is None else unsealed(data, f"note {file.stem}")

    def keep_note(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``, in place of what was there, unless there is no place for the user's key."""
        file = self._file(name, _CODE_SUFFIX)
        if is_kept():
            with contextlib.suppress(OSError):  # `put` warns of disk errors.
                self._write(file, sealed(data, f"note {file.stem}"))

    def stats(self) -> CacheStats:
        """Return the counts of this process, and the number and size of the files of kernels now."""
        sizes = [size for file, size, _ in self._entries() if file.suffix == _SUFFIX]
        with self._lock:
            return CacheStats(**self._counts, files=len(sizes), nbytes=sum(sizes))

    def clear(self) -> None:
        """Remove every entry."""
        for file, _, _ in self._entries():
            _remove(file)
        with self._lock:
            self._known_bytes = None

    def _file(self, key: str, suffix: str = _SUFFIX) -> Path:
        name = sealed_name(key)
        return self.path / name[:2] / (name + suffix)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _write(self, file: Path, data: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = write_new(file, data)
        try:
            os.replace(part, file)
        except BaseException:
            _remove(part)
            raise

    def _limit(self, added: int) -> None:
        with self._lock:
            if self._known_bytes is not None:
                self._known_bytes += added
                if self._known_bytes <= self.max_bytes:
                    return
            entries = sorted(self._entries(), key=lambda entry: entry[2])
            total = sum(size for _, size, _ in entries)
            if total > self.max_bytes:
                for file, size, _ in entries:
                    if total <= self.max_bytes * _KEEP_PART:
                        break
                    if _remove(file):
                        self._counts["evicted"] += 1
                    total -= size
            self._known_bytes = total

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        """Return (file, bytes, time of last use) of each entry. Files may vanish at any time: another process evicts too."""
        try:
            folders = sorted(self.path.iterdir())
        except OSError:
            return
        newest = 0.0
        stale: list[tuple[Path, float]] = []
        for folder in folders:
            try:
                with os.scandir(folder) as listing:
                    files = [(Path(entry.path), entry.stat()) for entry in listing if entry.is_file()]
            except OSError:
                continue
            for file, status in files:
                newest = max(newest, status.st_mtime)
                if file.suffix in (_SUFFIX, _CODE_SUFFIX, _TRACE_SUFFIX):
                    yield file, status.st_size, status.st_mtime
                elif file.suffix == ".tmp":
                    stale.append((file, status.st_mtime))
        for file, used in stale:
            if newest - used > _STALE_SECONDS:
                _remove(file)


def _remove(file: Path) -> bool:
    try:
        file.unlink()
    except OSError:
        return False  # Already removed, or open elsewhere on Windows: the next clean-up removes it.
    return True


def encode(kernel: CompiledKernel) -> bytes:
    """Return the bytes of ``kernel`` as the cache stores it, without its ``run``."""
    blobs: list[bytes] = []
    header = json.dumps(encoded(kernel, blobs), separators=(",", ":"), allow_nan=False).encode()
    body = struct.pack("<Q", len(header)) + header
    body += struct.pack(f"<I{len(blobs)}Q", len(blobs), *map(len, blobs)) + b"".join(blobs)
    return sealed(body, _PURPOSE)


def decode(data: bytes) -> CompiledKernel | None:
    """Return the kernel in ``data``; None if the bytes are damaged, of another version, or sealed with another key."""
    body = unsealed(data, _PURPOSE)
    if body is None:
        return None
    try:
        (header_size,) = struct.unpack_from("<Q", body)
        at = 8 + header_size
        (count,) = struct.unpack_from("<I", body, at)
        sizes = struct.unpack_from(f"<{count}Q", body, at + 4)
        at += 4 + 8 * count
        blobs: list[bytes] = []
        for size in sizes:
            blobs.append(body[at : at + size])
            at += size
        if at != len(body):
            return None
        kernel: CompiledKernel = _reader().read(CompiledKernel, loads(body[8 : 8 + header_size]), blobs)
    except (struct.error, Damage):
        return None  # The seal is valid, but the layout is another version's: compile again.
    return kernel


@functools.cache
def _reader() -> Reader:
    return Reader(CLASSES, CHECKS)
