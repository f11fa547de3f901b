"""Files of the offline cache are loaded only if they were sealed with the user's key."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spirograd as sg
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.runtime import offline_cache, sealing
from spirograd.runtime.offline_cache import Cache, decode, encode

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes of files are POSIX's")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user without a key, whose settings lie in this folder."""
    monkeypatch.delenv("SG_CACHE_KEY", raising=False)
    for name in ("XDG_CONFIG_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "settings"))
    sealing._key.cache_clear()
    yield tmp_path / "settings"
    sealing._key.cache_clear()


def kernel(key: str = "k") -> CompiledKernel:
    return CompiledKernel("step", "cpu", key, ArgBlock((), "<", 0), (TaskInfo("t", "serial", "t", 0),), binaries=(b"code",))


def forget() -> None:
    """As a new process."""
    sealing._key.cache_clear()


def test_what_was_altered_and_sealed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    cache.put("k", kernel())
    file = cache._file("k")
    data = file.read_bytes()
    body = bytearray(data[sealing._HEADER.size :])
    body[body.index(b"code")] ^= 1
    altered = bytes(body)
    checksum = struct.pack("<4s32sQ", b"SGK2", hashlib.sha256(altered).digest(), len(altered)) + altered
    new_checksum = struct.pack("<4s32sQ", b"SGS1", hashlib.sha256(altered).digest(), len(altered)) + altered
    monkeypatch.setenv("SG_CACHE_KEY", "the key of another user")
    others = sealing.sealed(altered, "kernel")
    monkeypatch.delenv("SG_CACHE_KEY")
    for forged in (checksum, new_checksum, others, data[: sealing._HEADER.size] + altered):
        file.write_bytes(forged)
        assert decode(forged) is None and cache.get("k") is None and not file.exists()
    file.write_bytes(data)
    assert cache.get("k") is not None


def test_no_file_takes_the_place_of_another(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.code("a", lambda: b"first") == b"first"
    assert cache.code("b", lambda: b"second") == b"second"
    one, other = cache._file("a", ".sgc"), cache._file("b", ".sgc")
    one.write_bytes(other.read_bytes())
    assert cache.code("a", lambda: b"made anew") == b"made anew"
    cache.put("k", kernel())
    one.write_bytes(cache._file("k").read_bytes())
    assert cache.code("a", lambda: b"made anew") == b"made anew"
    assert sealing.unsealed(sealing.sealed(b"x", "one"), "other") is None


def test_the_key_is_made_once(settings: Path) -> None:
    data = encode(kernel())
    file = sealing.key_file()
    assert settings in file.parents and file.stat().st_size == 32
    forget()
    assert decode(data) is not None
    file.unlink()
    forget()
    assert decode(data) is None  # sealed with a key that is gone
    assert file.exists()


@posix
def test_only_the_user_may_read_the_key() -> None:
    data = encode(kernel())
    file = sealing.key_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_uid == os.geteuid()
    first = file.read_bytes()
    for mode in (0o640, 0o604, 0o620, 0o666):
        file.chmod(mode)  # others may know it, or may have written it
        forget()
        assert decode(data) is None
        assert file.read_bytes() != first and stat.S_IMODE(file.stat().st_mode) == 0o600
    for content in (b"", b"short", bytes(33)):
        file.write_bytes(content)
        forget()
        assert decode(encode(kernel())) is not None
        assert file.stat().st_size == 32


@posix
def test_links_and_pipes_are_no_keys(tmp_path: Path) -> None:
    file = sealing.key_file()
    file.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(bytes(32))
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    with pytest.warns(RuntimeWarning, match="key of the offline cache cannot be kept"):
        assert decode(encode(kernel())) is not None
    file.unlink()
    os.mkfifo(file)
    forget()
    assert decode(encode(kernel())) is not None
    assert stat.S_ISREG(file.stat().st_mode)


def test_many_processes_make_one_key(tmp_path: Path) -> None:
    program = "from spirograd.runtime import sealing; print(sealing.sealed_name('x'))"
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({process.communicate(timeout=120)[0] for process in running}) == 1
    sealing.key_file().unlink()
    found = []
    threads = [threading.Thread(target=lambda: found.append(sealing._make_key(sealing.key_file()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*found}) == 1
    assert [path.name for path in sealing.key_file().parent.iterdir()] == ["cache.key"]


def test_a_key_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that have it share a cache; no file is made."""
    monkeypatch.setenv("SG_CACHE_KEY", "a secret of 26 characters.")
    cache = Cache(tmp_path / "cache")
    cache.put("k", kernel())
    assert cache.get("k") is not None and not sealing.key_file().exists()
    monkeypatch.setenv("SG_CACHE_KEY", "another secret of a machine")
    assert cache.get("k") is None  # and it removes nothing of those who have the first one
    monkeypatch.setenv("SG_CACHE_KEY", "a secret of 26 characters.")
    assert cache.get("k") is not None
    monkeypatch.setenv("SG_CACHE_KEY", "short")
    with pytest.raises(sg.SpirogradValueError, match="SG_CACHE_KEY has 5 characters; a key has at least 16"):
        cache.get("k")


def test_without_a_place_for_a_key(tmp_path: Path, settings: Path) -> None:
    """Nothing is written that no process could read, and the warning says what to do."""
    settings.write_text("a file, where a folder should be")
    cache = Cache(tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match=r"cannot be kept: .*set SG_CACHE_KEY to keep them"):
        assert not cache.put("k", kernel())
    assert cache.code("a", lambda: b"made") == b"made" and not (tmp_path / "cache").exists()


@posix
def test_temporary_files_follow_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In folders that others may write, names that could be foreseen would let them choose what is overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("of the user")
    file = tmp_path / "entry.sgk"
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))
    (tmp_path / f"entry.{bytes(8).hex()}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        sealing.write_new(file, b"data")
    assert victim.read_text() == "of the user"


@posix
def test_pipes_in_the_cache_are_no_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    file = cache._file("k")
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert cache.get("k") is None  # and does not wait for somebody to write to it
    assert sealing.read_regular(tmp_path) is None if sys.platform != "win32" else True
    (tmp_path / "long").write_bytes(bytes(100))
    assert sealing.read_regular(tmp_path / "long", most=99) is None


def test_records_that_do_not_fit(tmp_path: Path) -> None:
    """Sealed with the right key, as an earlier version could have left them: a miss."""
    good = encode(kernel())
    body = good[sealing._HEADER.size :]
    for old, new in (
        (b'"temps_size":0', b'"temps_size":"0"'),
        (b'"recursive":false', b'"recursive":0'),
        (b'"recursive":false', b'"recursed":false'),
        (b'"format":"<"', b'"format":"<Q"'),
        (b'"class":"CompiledKernel"', b'"class":"Slot"'),
        (b'"group_size":1', b'"group_size":-1'),
    ):
        assert old in body
        (size,) = struct.unpack_from("<Q", body)
        header = body[8 : 8 + size].replace(old, new)
        assert decode(sealing.sealed(struct.pack("<Q", len(header)) + header + body[8 + size :], offline_cache._PURPOSE)) is None
    for end in range(0, len(body), 7):
        assert decode(sealing.sealed(body[:end], offline_cache._PURPOSE)) is None
    assert decode(good) is not None
