"""A device of target "wgpu" on Dawn, the WebGPU of Chromium, whose compiler Tint reads the modules.

`python -m validation.dawn -m tests.fuzz ...` runs a module whose sessions of `sg.wgpu` have this device. The variable DAWN names what runs
the kernels, a key of `HOSTS`.
"""

from __future__ import annotations

import importlib.util
import shutil

TINT, WGSL, CHROMIUM = "tint", "wgsl", "chromium"
# Dawn's library gets SPIR-V or, from naga, WGSL; Chromium gets WGSL. The modules that open them.
HOSTS = {TINT: "validation.dawn.native", WGSL: "validation.dawn.native", CHROMIUM: "validation.dawn.browser"}
VARIABLE = "DAWN"
# What WebGPU does not take, by parts of its messages, and the names of these limits.
_LIMITS = (
    ("'storageBarrier' must only", "WGSL has no memory barriers, which locks of atomics need"),
    ("must only be called from uniform control flow", "Tint takes loops of groups for not uniform"),
    ("unhandled instruction with opcode 225", "WGSL has no memory barriers, which locks of atomics need"),
    ("binds one array twice", "WebGPU binds an array once"),
    ("maximum parser recursive depth", "naga's WGSL nests expressions deeper than Tint parses"),
)


def limit_of(message: str) -> str:
    """Return the name of the limit of WebGPU that a message of its compiler or of `device` reports, "" if it is another error."""
    return next((name for part, name in _LIMITS if part in message), "")


def missing(host: str) -> str:
    """Return why ``host``, a key of `HOSTS`, cannot be used here, "" if it can."""
    from validation.tools import naga_program

    if host == CHROMIUM and shutil.which("chromium") is None:
        return "there is no program chromium: apt install chromium"
    if host != CHROMIUM and importlib.util.find_spec("pydawn") is None:
        return "there is no library of Dawn: pip install dawn-python"
    if host != TINT and naga_program() is None:
        return "naga-translate is not built: validation/naga/build"
    return ""
