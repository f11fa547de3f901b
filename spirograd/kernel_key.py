"""The cache key of a kernel. Computing it imports no compiler, so a kernel from the offline cache does not need one."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.python_limits import deep_recursion
from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.ir.nodes import Kernel
from spirograd.ir.text import to_text

# The package of each code generator. The interpreter has none, because its kernels are not cached.
_GENERATORS = {
    Generator.INTERPRETER: "ir",
    Generator.LLVM: "llvmgen",
    Generator.SPIRV: "spirvgen",
    Generator.PTX: "llvmgen",
    Generator.CODE_OBJECT: "llvmgen",
}
_PART = 1 << 16
# Returns cached bytes for a description of what they depend on, or calls the function that computes them.
Memo = Callable[[str, Callable[[], bytes]], bytes]
_known: dict[str, str] = {}  # hash of the source, by generator and packages
# Packages and modules whose functions a trace calls, besides the compiler.
_TRACED = ("lang", "simt", "algorithms", "linalg", "compat", "math.py", "types.py")


def kernel_key(kernel: Kernel, caps: Capabilities, options: CompileOptions, memo: Memo | None = None) -> str:
    """Return the name of the compiled kernel in a cache: a hash of everything that the result depends on, including the compiler's source.

    ``memo``: keeps the hash of the source across processes, by sizes and times of its files.
    """
    # Source lines are part of the artifact if it reports them.
    reports = options.check_bounds or options.check_overflow or any(code.effect in ("check", "print") for code in kernel.codes)
    with deep_recursion():
        text = to_text(kernel, locs=reports)
    parts = (text, _settings(caps, options), _fingerprint(_GENERATORS[caps.target.generator], memo))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def trace_name(text: str, caps: Capabilities, options: CompileOptions, memo: Memo | None = None) -> str:
    """Return the name of a trace in a cache: a hash of ``text``, of device and options, and of the source of compiler and language."""
    parts = (text, _settings(caps, options), _fingerprint(_GENERATORS[caps.target.generator], memo, _TRACED))
    return "trace " + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(64)
def _settings(caps: Capabilities, options: CompileOptions) -> str:
    """Return the properties of device and options that the result depends on, as text; showing and verifying stages does not affect it."""
    return "\0".join((repr(caps), repr(replace(options, keep_stages=False, verify=False))))


def _fingerprint(generator: str, memo: Memo | None, packages: tuple[str, ...] = ()) -> str:
    """Return a hash of the source of the compiler, and of other ``packages`` and modules."""
    name = " ".join((generator, *packages))
    if name not in _known:
        files = _files((generator, *packages))
        if memo is None:
            _known[name] = _hash(files)
        else:
            # Python uses these to decide whether its bytecode of a file is up to date.
            seen = "\n".join(f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in files)
            _known[name] = memo(f"source\0{seen}", lambda: _hash(files).encode()).decode()
    return _known[name]


def _files(packages: tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
    """Return the source files of the compiler. It uses plain system calls, because this is a large part of a start with a warm cache."""
    root = os.path.dirname(__file__)
    modules = ["compiler.py", "kernel_key.py", *(name for name in packages if name.endswith(".py"))]
    files = [(path, os.stat(path)) for path in (os.path.join(root, name) for name in modules)]
    packages = ("base", "ir", "analysis", "transforms", *(name for name in packages if not name.endswith(".py")))
    folders = [os.path.join(root, package) for package in packages]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    files.append((entry.path, entry.stat()))
                elif entry.name != "__pycache__" and entry.is_dir():  # which has many entries, and no sources
                    folders.append(entry.path)
    return sorted(files)


def _hash(files: list[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for path, _ in files:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        while part := os.read(file, _PART):
            digest.update(part)
        os.close(file)
    return digest.hexdigest()
