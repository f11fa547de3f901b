import multiprocessing
import os
import warnings

import pytest

from spirograd.base.artifact import ArgBlock, CompiledKernel, Effects, FaultSite, PrintSite, Slot, TaskInfo
from spirograd.base.dtypes import f32, i32
from spirograd.base.loc import Loc
from spirograd.base.sizes.size_nodes import Arg, Extent, Mul
from spirograd.runtime.offline_cache import Cache, decode, encode


def kernel(key="k", size=100):
    loc = Loc("a.py", 3, 1, 3, 9, "f", Loc("b.py", 7))
    return CompiledKernel(
        "step",
        "cpu",
        key,
        ArgBlock((Slot("tree", 4), Slot("scalar", 1, dtype=f32, offset=8)), "<Qf4x", 16),
        (
            TaskInfo("t0", "range_for", "main", 0, 0, Mul(Arg(1), Extent(0, 1)), 128),
            TaskInfo("t1", "serial", "x", 1, None, None),
        ),
        binaries=(os.urandom(size), b""),
        temps_size=32,
        returns=((i32, 8),),
        faults=(FaultSite("assert", "no {0} — really", (i32,), loc),),
        prints=(PrintSite(("x", (0, ".2f"), "\n"), (f32,), None),),
        effects=Effects(frozenset({("tree", 1), ("array", 0)}), frozenset({("tree", 1)})),
        stages={"kernel.ir": "text", "t0.spv": b"\x03\x02"},
    )


def same(a, b):
    return all(getattr(a, name) == getattr(b, name) for name in CompiledKernel.__slots__)


def test_round_trip(tmp_path):
    cache = Cache(tmp_path / "new" / "folder")
    k = kernel()
    assert cache.get("k") is None
    assert cache.put("k", k)
    back = cache.get("k")
    assert same(k, back) and back.returns[0][0] is i32
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.stored, stats.files) == (1, 1, 1, 1)
    cache.clear()
    assert cache.get("k") is None and cache.stats().files == 0


def test_damage_is_a_miss_and_is_removed(tmp_path):
    cache = Cache(tmp_path)
    data = encode(kernel())
    file = cache._file("k")
    flipped = data[:200] + bytes([data[200] ^ 1]) + data[201:]
    for i, broken in enumerate([b"", data[:-1], data[:10], flipped, b"XXXX" + data[4:], data + b"\0"]):
        assert decode(broken) is None
        cache.put("k", kernel())
        file.write_bytes(broken)
        assert cache.get("k") is None
        assert not file.exists()
        assert cache.stats().damaged == i + 1
    cache.put("k", kernel())
    cache._file("other").parent.mkdir(exist_ok=True)
    cache._file("other").write_bytes(file.read_bytes())  # an entry under a wrong name
    assert cache.get("other") is None


def test_size_limit_evicts_the_longest_unused(tmp_path):
    cache = Cache(tmp_path, max_bytes=64_000)
    for i in range(5):
        cache.put(str(i), kernel(str(i), 10_000))
        os.utime(cache._file(str(i)), (1000 + i, 1000 + i))
    assert cache.get("0") is not None  # used just now
    cache.put("5", kernel("5", 10_000))
    stats = cache.stats()
    assert stats.nbytes <= 64_000 and stats.evicted >= 1
    assert cache.get("0") is not None and cache.get("5") is not None and cache.get("1") is None
    assert not cache.put("big", kernel("big", 70_000))


def test_what_cannot_be_stored(tmp_path):
    cache = Cache(tmp_path)
    k = kernel()
    k.run = print
    assert not cache.put("k", k)
    with pytest.raises(ValueError, match="cannot be stored under"):
        cache.put("other", kernel())
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert not Cache(blocked).put("k", kernel())


def _hammer(path, seed):
    cache = Cache(path, max_bytes=30_000)
    for i in range(60):
        key = str((i * seed) % 7)
        found = cache.get(key)
        if found is not None and found.key != key:
            os._exit(3)
        cache.put(key, kernel(key, 5_000))
    os._exit(4 if cache.stats().damaged else 0)


def test_concurrent_processes(tmp_path):
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        workers = [context.Process(target=_hammer, args=(tmp_path, s)) for s in (1, 2, 3)]
        for worker in workers:
            worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert not list(tmp_path.rglob("*.tmp"))
