"""The device that a module is built for, in the place of that of the session."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError, SpirogradValueError
from spirograd.base.options import CompileOptions
from spirograd.base.profiles import PROFILES
from spirograd.base.records import dataclass, fields, replace
from spirograd.lang.language_options import LanguageOptions, options_of_device
from spirograd.lang.session_protocol import Session
from spirograd.llvmgen import ptx
from spirograd.llvmgen.toolchain import host_caps


def _of_profile(name: str, target: str) -> Capabilities:
    caps = PROFILES[name].on(target)
    assert caps is not None
    return caps


# The least that a device of each back end has: what Vulkan 1.2, wgpu and spirograd ask of each device (of Metal also space for
# arguments, which each has); what each GPU of the oldest supported architecture has. Of amdgpu there is no code that runs on several
# architectures.
_LEAST: dict[str, Callable[[], Capabilities]] = {
    "cpu": host_caps,
    "vulkan": lambda: _of_profile("bare", "vulkan"),
    "cuda": lambda: ptx.capabilities("sm_70"),
    "metal": lambda: replace(_of_profile("browser", "wgpu"), max_push_constants=128),
}


@dataclass(slots=True, eq=False)
class ModuleTarget:
    """What tracing and differentiating need to know of where the kernels of a module will run: a `CompileTarget`."""

    arch: str
    caps: Capabilities
    language: LanguageOptions
    compile_options: CompileOptions
    warned: set[Hashable]
    broken_chains: str
    probes: None = None  # Modules run without Python, which would read them.


def target_of(session: Session, arch: str, caps: Capabilities) -> ModuleTarget:
    """Return the target of a module that ``session`` builds for a device with other capabilities."""
    language = replace(session.language, **options_of_device(caps))
    options = replace(session.compile_options, keep_stages=False, count_on_device=True)
    return ModuleTarget(arch, caps, language, options, session.warned, session.broken_chains)


def capabilities_of(arch: str, session: Session, changes: Mapping[str, Any]) -> Capabilities:
    """What code for ``arch`` may use: see `Module`."""
    if arch == session.arch and arch != "interpreter":
        caps: Capabilities = session.device.caps
    elif arch in _LEAST:
        caps = _LEAST[arch]()
    else:
        names = ", ".join(f"`sg.{name}`" for name in _LEAST)
        raise SpirogradUnsupportedError(
            f"a module cannot be built for {arch!r} in a session on `sg.{session.arch}`",
            None,
            f"build it for {names}, or in a session on a device of that back end; the interpreter runs no compiled code",
        )
    known = [f.name for f in fields(caps) if f.name != "target_name"]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise SpirogradValueError(f"there is no capability {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return replace(caps, **changes)
