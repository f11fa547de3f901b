"""Prints, for each kernel of some cases of the corpus and each of some profiles, a digest of its IR, its key and all that it compiles to.

Operations hash by their addresses, which are much alike from process to process; here by these times a random number, which the hash seed
decides, so that sets of operations have another order.
"""

from __future__ import annotations

import hashlib
import sys

from spirograd.ir.nodes import Op, Region

FACTOR = hash("factor") | 1
Op.__hash__ = Region.__hash__ = lambda self: id(self) // 16 * FACTOR >> 7 & sys.maxsize  # type: ignore[assignment,method-assign]

from spirograd.compiler import compile_kernel  # noqa: E402
from spirograd.ir.text import to_text  # noqa: E402
from spirograd.kernel_key import kernel_key  # noqa: E402
from spirograd.llvmgen import toolchain, translate  # noqa: E402
from spirograd.runtime.encoding import encoded  # noqa: E402
from validation.case import load  # noqa: E402
from validation.collecting import kernels_of  # noqa: E402
from validation.profiles import PROFILES  # noqa: E402

CASES = {c.name: c for c in load()}


def main(names: list[str]) -> None:
    sources = [(name, source) for name in names for source in kernels_of(CASES[name])]
    # LLVM would get the same texts.
    toolchain.compile_modules = lambda texts, *rest: tuple(text.encode() for text in texts)  # type: ignore[assignment]
    translate.translate = lambda text, *rest: toolchain.MachineCode(text.encode())
    profiles = {"cpu": toolchain.host_caps(), **{name: PROFILES[name] for name in ("vulkan", "cuda-sm_90")}}
    for profile, caps in profiles.items():
        for number, (name, source) in enumerate(sources):
            for kernel in source.kernels(caps):
                blobs: list[bytes] = []
                compiled = encoded(compile_kernel(kernel, caps, source.options), blobs)
                parts = (to_text(kernel), kernel_key(kernel, caps, source.options), compiled, blobs)
                print(profile, name, number, kernel.name, *[hashlib.sha256(repr(part).encode()).hexdigest()[:16] for part in parts])


main(sys.argv[1:])
