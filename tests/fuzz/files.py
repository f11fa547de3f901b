"""Loads damaged files: an error of spirograd's, or the right result; never another exception, another result, or a crash.

A module that is damaged and then given the digest of what it is now is another module: its code would be trusted, so it is loaded and
prepared, and launched only if nothing in it has changed. The same is true of records of the cache that are sealed with the user's key.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import io
import json
import random
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.aot import archive
from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradError
from spirograd.config import make_config
from spirograd.lang import context
from spirograd.lang.data.tree import root
from spirograd.runtime import offline_cache, sealing
from spirograd.runtime.encoding import encoded
from spirograd.runtime.freshness import Freshness
from spirograd.runtime.packing import build_counter, build_packer
from spirograd.runtime.space_checks import space_check
from spirograd.session import Session

from . import file_programs
from .file_programs import Damaged, write
from .run import Difference, first_line_of

__all__ = ["check", "failure", "write"]
# What the code in `file_programs.CODE` would set.
HIT = "spirograd_fuzz_hit"
_ADDRESSES = dict.fromkeys(("temps", "fault", "print", "locks"), 0)


@dataclass(frozen=True)
class _Files:
    """What is damaged. ``contents``: of the manifest; ``files``: of the archive; ``kernels``: records of the cache."""

    contents: Any
    files: dict[str, bytes]
    packed: bytes
    kernels: list[CompiledKernel]
    result: list[Any]


_folder = tempfile.TemporaryDirectory(prefix="spirograd-fuzz-")
atexit.register(_folder.cleanup)


@functools.cache
def _session_of(arch: str) -> Session:
    # Damaged extents must not take the memory of the machine.
    return Session(make_config(arch, {"offline_cache": False, "device_memory_GB": 0.25}))


@contextmanager
def _session(arch: str) -> Iterator[None]:
    before = context.session() if context.has_session() else None
    context.set_session(_session_of(arch))
    try:
        yield
    finally:
        context.set_session(before)
        root.reset()


@functools.cache
def _files(arch: str) -> _Files:
    """A module with all kinds of records: tapes, counting kernels, prints, checks, sparse fields, vectors, results."""
    x = sg.field(sg.f32, shape=5, needs_grad=True)
    y = sg.Vector.field(2, sg.f32, shape=5, needs_grad=True)
    cells = sg.field(sg.i32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 4).place(cells)

    @sg.kernel
    def swing(weight: sg.types.NDArray[sg.f32, 1], turn: sg.types.vector(2, sg.f32), times: sg.i32):  # type: ignore[valid-type]
        for i in range(weight.shape[0]):
            s = x[i]
            for _ in range(times):
                s = weight[i] * sg.sin(s)
            y[i] += s * turn

    @sg.kernel
    def total(n: sg.i32, m: sg.i32) -> sg.f32:
        s = 0.0
        for i, j in sg.ndrange(n, m):
            s += x[i % 5] * sg.cast(j, sg.f32)
        return s

    @sg.kernel
    def fill(at: sg.i32):
        assert at >= 0, f"at is {at}"
        cells[at] = at
        if at > 100:
            print("at", at, f"{x[0]:.3f}")

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_field("y", y)
    module.add_field("cells", cells)
    module.add_kernel(swing, gradients=True, nested_checkpoints=True)
    module.add_kernel(total)
    module.add_kernel(fill)
    path = Path(_folder.name) / f"{arch}.zip"
    module.save(path)
    with zipfile.ZipFile(path) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    kernels = [compiled for record in module.manifest().kernels for _, compiled in record.all_compiled()]
    return _Files(json.loads(files["manifest.json"]), files, path.read_bytes(), kernels, _result(sg.aot.load(path)))


def _result(module: Any) -> list[Any]:
    """What the kernels of a module compute."""
    x, y = module.field("x"), module.field("y")
    x.from_numpy(np.linspace(0.1, 0.5, 5, dtype=np.float32))
    y.fill(0)
    weight = sg.ndarray(sg.f32, 5, needs_grad=True)
    weight.fill(0.5)
    module.kernel("swing")(weight, sg.Vector([1.0, 2.0]), 3)
    y.grad.fill(1.0)
    module.kernel("swing").grad(weight, sg.Vector([1.0, 2.0]), 3)
    module.kernel("fill")(6)
    found = [a.to_numpy().tolist() for a in (y, x.grad, weight.grad, module.field("cells"))]
    return [*found, module.kernel("total")(5, 2)]


def check(program: Damaged, archs: Sequence[str]) -> None:
    """Raises `Difference`, or what is not an error of spirograd's."""
    for arch in archs:
        with _session(arch):
            _CHECKS[program.kind](_files(arch), random.Random(program.seed), program, arch)
        if hasattr(builtins, HIT):
            delattr(builtins, HIT)
            raise Difference(f"{arch}: text of a file was executed\n{program!r}")


def failure(program: Damaged, archs: Sequence[str]) -> str:
    """What is wrong, in one line."""
    return first_line_of(check, program, archs)


def _load(data: bytes, arch: str) -> Any:
    """The module in the bytes of an archive; None if that raises an error of spirograd's."""
    path = Path(_folder.name) / f"damaged-{arch}.zip"
    path.write_bytes(data)
    try:
        return sg.aot.load(path)
    except SpirogradError:
        return None


def _same(module: Any, files: _Files, program: Damaged, arch: str) -> None:
    if _result(module) != files.result:
        raise Difference(f"{arch}: another result\n{program!r}")


def _manifest(files: _Files, r: random.Random, program: Damaged, arch: str, sealed: bool = False) -> None:
    contents = file_programs.changed(files.contents, r, program.kind == "tuned")
    names = contents.get("files") if isinstance(contents, dict) else None
    if sealed and isinstance(contents, dict):
        known = names if isinstance(names, list) and all(isinstance(name, str) and name in files.files for name in names) else []
        try:
            contents["digest"] = archive._digest(contents, [files.files[name] for name in known])
        except (RecursionError, TypeError):
            contents["digest"] = ""
    data = file_programs.text(contents, r)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        for name, blob in files.files.items():
            made.writestr(name, data if name == "manifest.json" else blob)
    module = _load(packed.getvalue(), arch)
    if module is not None and (not sealed or contents == files.contents):
        _same(module, files, program, arch)
    elif module is not None:
        _prepare(module)


def _prepare(module: Any) -> None:
    """Load the code of all kernels, and make what launches them."""
    for kernel in module.kernels.values():
        try:
            kernel.plan  # noqa: B018
            if kernel.gradient is not None:
                kernel.grad.checkpoints  # noqa: B018
        except SpirogradError:
            pass


def _sealed(files: _Files, r: random.Random, program: Damaged, arch: str) -> None:
    _manifest(files, r, program, arch, sealed=True)


def _bytes(files: _Files, r: random.Random, program: Damaged, arch: str) -> None:
    module = _load(file_programs.changed_bytes(files.packed, r), arch)
    if module is not None:
        _same(module, files, program, arch)


def _record(files: _Files, r: random.Random, program: Damaged, arch: str, forged: bool = False) -> None:
    blobs: list[bytes] = []
    plain = file_programs.changed(encoded(r.choice(files.kernels), blobs), r, program.kind == "tuned record")
    header = file_programs.text(plain, r)
    body = struct.pack("<Q", len(header)) + header + struct.pack(f"<I{len(blobs)}Q", len(blobs), *map(len, blobs)) + b"".join(blobs)
    if r.random() < 0.1:
        body = file_programs.changed_bytes(body, r)
    if forged:
        with patch.dict("os.environ", {"SG_CACHE_KEY": "the key of somebody else"}):
            data = sealing.sealed(body, "kernel")
    else:
        data = sealing.sealed(body, "kernel")
    found = offline_cache.decode(data)
    if found is None:
        return
    if forged:
        raise Difference(f"{arch}: a record with another seal was read\n{program!r}")
    build_packer(found, _ADDRESSES, None)
    build_counter(found)
    space_check(found)
    Freshness([found], ())


def _forged(files: _Files, r: random.Random, program: Damaged, arch: str) -> None:
    _record(files, r, program, arch, forged=True)


_CHECKS = {
    "sealed": _sealed,
    "tuned": _sealed,
    "manifest": _manifest,
    "bytes": _bytes,
    "record": _record,
    "tuned record": _record,
    "forged": _forged,
}
