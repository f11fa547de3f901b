"""The cache key of a kernel. Computing it imports no compiler, so a kernel from the offline cache does not need one."""

from __future__ import annotations

import functools
import hashlib
import os

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.python_limits import deep_recursion
from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.ir.nodes import Kernel
from spirograd.ir.text import to_text

# The package that makes code for a device; that of the interpreter, which is not kept, is of no concern.
_GENERATORS = {
    Generator.INTERPRETER: "ir",
    Generator.LLVM: "llvmgen",
    Generator.SPIRV: "spirvgen",
    Generator.PTX: "llvmgen",
    Generator.CODE_OBJECT: "llvmgen",
}
_PART = 1 << 16


def kernel_key(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> str:
    """The name of the compiled kernel in a cache: a hash of all that the result depends on, the compiler's own source included."""
    # Source lines are part of the artifact where it reports them.
    reports = options.check_bounds or options.check_overflow or any(code.effect in ("check", "print") for code in kernel.codes)
    with deep_recursion():
        text = to_text(kernel, locs=reports)
    parts = (text, _settings(caps, options), _fingerprint(_GENERATORS[caps.target.generator]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.lru_cache(64)
def _settings(caps: Capabilities, options: CompileOptions) -> str:
    """What of device and options the result depends on, as text: showing and verifying stages changes nothing."""
    return "\0".join((repr(caps), repr(replace(options, keep_stages=False, verify=False))))


@functools.cache
def _fingerprint(generator: str) -> str:
    """A hash of the source of what makes code. Plain calls of the system: this is a good part of a start with a warm cache."""
    root = os.path.dirname(__file__)
    files = [os.path.join(root, name) for name in ("compiler.py", "kernel_key.py")]
    folders = [os.path.join(root, package) for package in ("base", "ir", "analysis", "transforms", generator)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    files.append(entry.path)
                elif entry.is_dir():
                    folders.append(entry.path)
    digest = hashlib.sha256()
    for path in sorted(files):
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        while part := os.read(file, _PART):
            digest.update(part)
        os.close(file)
    return digest.hexdigest()
