"""Seals on the files that spirograd writes for itself and loads as code: the offline cache, and pipeline data of drivers.

A seal is a keyed hash (BLAKE2b, RFC 7693), so only a holder of the key can make a file that is loaded. The key belongs to the user: 32
random bytes in a file that no other user may read, created on demand. `SG_CACHE_KEY` replaces it where several users or machines share a
cache. Without a place to store a key, each process has its own, and loads only files that it wrote.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import stat
import struct
import sys
import warnings
from pathlib import Path

from spirograd.base import knobs
from spirograd.base.errors import SpirogradValueError
from spirograd.base.records import dataclass

_MAGIC = b"SGS1"
_HEADER = struct.Struct("<4s32sQ")
_KEY_BYTES = 32
_SHORTEST = 16  # Characters of SG_CACHE_KEY.
# The largest file that is read, in bytes: larger files are not spirograd's.
_MOST_BYTES = 4 << 30
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a pipe would wait for a writer.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


def sealed(body: bytes, purpose: str) -> bytes:
    """Return ``body`` after a header that proves that the writer had the key.

    ``purpose``: the kind of the file and its source, so that no file can replace another.
    """
    return _HEADER.pack(_MAGIC, _seal(body, purpose), len(body)) + body


def unsealed(data: bytes, purpose: str) -> bytes | None:
    """Return the body that `sealed` got for this ``purpose``; None if the data is damaged, or was sealed with another key."""
    if len(data) < _HEADER.size:
        return None
    magic, seal, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    return body if magic == _MAGIC and length == len(body) and hmac.compare_digest(seal, _seal(body, purpose)) else None


def sealed_name(text: str) -> str:
    """Return a name for the file about ``text``, which is arbitrary: users with different keys have different files in one folder."""
    return hashlib.blake2b(text.encode(), digest_size=32, key=_key(knobs.get("SG_CACHE_KEY")).secret).hexdigest()


def is_kept() -> bool:
    """Return whether a later process can read files that this process seals."""
    return _key(knobs.get("SG_CACHE_KEY")).kept


def _seal(body: bytes, purpose: str) -> bytes:
    named = purpose.encode()
    digest = hashlib.blake2b(struct.pack("<Q", len(named)) + named, digest_size=32, key=_key(knobs.get("SG_CACHE_KEY")).secret)
    digest.update(body)
    return digest.digest()


# --- the key -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of seals. ``kept``: whether other processes have it, too."""

    secret: bytes
    kept: bool = True


@functools.lru_cache(8)
def _key(given: str) -> _Key:
    """Return the key; ``given``: SG_CACHE_KEY."""
    if given:
        if len(given) < _SHORTEST:
            raise SpirogradValueError(
                f"SG_CACHE_KEY has {len(given)} characters; a key has at least {_SHORTEST}: `python -c 'import secrets; "
                "print(secrets.token_hex())'` makes one"
            )
        return _Key(hashlib.blake2b(given.encode(), digest_size=_KEY_BYTES, person=b"SG_CACHE_KEY").digest())
    try:
        file = key_file()
        kept = _read_key(file) or _make_key(file)
        problem = "other users may read or replace it"
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home.
        kept, problem = None, str(error)
    if kept is None:
        warnings.warn(
            f"the key of the offline cache cannot be kept: {problem}. Kernels are compiled in every run; set SG_CACHE_KEY to keep them",
            RuntimeWarning,
            stacklevel=2,
        )
        return _Key(os.urandom(_KEY_BYTES), kept=False)
    return _Key(kept)


def key_file() -> Path:
    """Return the path of the user's key: ``spirograd/cache.key`` in the user's settings folder of the operating system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "spirograd" / "cache.key"


def _read_key(file: Path) -> bytes | None:
    """Return the key in a file; None if there is none, or if another user may know it or may have written it."""
    try:
        opened = os.open(file, os.O_RDONLY | _NO_LINK | _AT_ONCE)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_size != _KEY_BYTES:
            return None
        if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
            return None
        return os.read(opened, _KEY_BYTES)
    finally:
        os.close(opened)


def _make_key(file: Path) -> bytes | None:
    """Write a key to a file, replacing one that cannot be trusted. Processes that do so at the same time all use the key that one wrote."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = write_new(file, os.urandom(_KEY_BYTES))
    try:
        os.link(part, file)
    except FileExistsError:
        if _read_key(file) is None:
            os.replace(part, file)
    except OSError:  # A file system without links.
        os.replace(part, file)
    with contextlib.suppress(OSError):
        part.unlink()
    return _read_key(file)


# --- files ---------------------------------------------------------------------------------------------------------------


def write_new(file: Path, data: bytes) -> Path:
    """Write a temporary file next to ``file``, for the user alone, to be renamed.

    Its name is unpredictable, and no link is followed, because other users may be able to write to the folder.
    """
    part = file.with_name(f"{file.stem}.{os.urandom(8).hex()}.tmp")
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
    try:
        with os.fdopen(opened, "wb") as out:
            out.write(data)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return part


def read_regular(file: Path, most: int = _MOST_BYTES) -> bytes | None:
    """Return the contents of a file, or None if it is not a regular file, or longer than ``most`` bytes. Raises OSError."""
    opened = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | _AT_ONCE)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        parts = []
        while part := os.read(opened, status.st_size + 1):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(opened)
