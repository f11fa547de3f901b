"""Life cycle: `init`, `reset`, `sync`. Here language, compiler and runtime meet."""

from __future__ import annotations

import atexit
import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spirograd import kernel_coverage
from spirograd.base import dtypes, knobs, tracebacks
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError, translate_by
from spirograd.base.later import Later
from spirograd.base.near_names import NoAttribute
from spirograd.base.once import one_at_a_time
from spirograd.base.profiles import PROFILES, describes
from spirograd.base.python_limits import gc_paused
from spirograd.base.wording import did_you_mean
from spirograd.config import Config, make_config
from spirograd.lang import context, scalar
from spirograd.lang.data.nodes import SNode
from spirograd.lang.data.tree import root
from spirograd.lang.frontend.deactivation import deactivate_cells
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.hints import extension
from spirograd.runtime import loader
from spirograd.session import Session, running

if TYPE_CHECKING:
    from spirograd.lang.frontend.kernel import Kernel
    from spirograd.lang.frontend.specialization import Specialization
    from spirograd.lang.session_protocol import Session as SessionProtocol

logger = logging.getLogger("spirograd")

cpu = x64 = arm64 = "cpu"
vulkan = "vulkan"
interpreter = "interpreter"
python = "python"
wgpu, metal, cuda, amdgpu = "wgpu", "metal", "cuda", "amdgpu"
# Back ends that `arch=sg.gpu` tries, in this order.
gpu = [cuda, amdgpu, vulkan, wgpu, metal]
ARCHS = (*loader.DEVICES, python)
_LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class _Services(context.Services):
    """Services of the packages above the language, which are imported at first use because the import takes longer than the rest."""

    def gradient_of(self, kernel: Kernel) -> object:
        with gc_paused():
            from spirograd.derivatives.gradient import Gradient

        return Gradient(kernel)

    def replay_gradient(
        self, kernel: Kernel, session: SessionProtocol, specialization: Specialization, args: tuple[object, ...], returned: object
    ) -> None:
        from spirograd.ad.replay import replay_gradient

        replay_gradient(kernel, session, specialization, args, returned)

    def deactivate_cells(self, node: SNode) -> None:
        deactivate_cells(node)


context.install(_Services())


def available_archs() -> list[str]:
    """Return the back ends that work on this machine, best first."""
    return [arch for arch in loader.DEVICES if loader.available(arch) is None]


@one_at_a_time
def init(arch: str | Sequence[str] | None = None, **options: object) -> None:
    """Start a session on a back end, and end the previous session.

    ``arch``: a back end, such as `cpu`, `cuda`, `vulkan` or `interpreter` (`available_archs` returns those that work here), or a list like
    `gpu` (also as ``"gpu"``), of which the first that works is used; by default the CPU. The environment variable ``SG_ARCH`` overrides it.
    The other options are the fields of `spirograd.config.Config`; ``SG_<NAME>`` in the environment overrides each.

    Raises SpirogradRuntimeError if the back end cannot be started (with ``enable_fallback=True`` the CPU is used instead, with a
    warning), and SpirogradOptionError, which is one, for unknown options. The previous session then continues.
    """
    wanted = knobs.get("SG_ARCH") or arch or cpu
    wanted = gpu if wanted == "gpu" else wanted
    names: list[Any] = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    for name in names:
        if type(name) is Later:
            name()  # a back end of the Taichi family: raises an error with the alternative
        if name not in ARCHS:
            hint = did_you_mean(name, ARCHS) if isinstance(name, str) else ""
            raise SpirogradRuntimeError(f"there is no back end {name!r}; there are {', '.join(ARCHS)}{'; ' if hint else ''}{hint}")
    config = make_config(names[0], options)
    if config.profile:
        names = _described_by(config.profile, names)
        config.arch = names[0]
    level = knobs.get("SG_LOG") or config.log_level
    if level not in _LEVELS:
        raise SpirogradRuntimeError(f"there is no log level {level!r}; there are {', '.join(_LEVELS)}")
    session, warning = _open(names, config)  # everything that can fail comes before the end of the running session
    reset()
    if logger.level != _LEVELS[level]:  # Setting it clears what all loggers of the process have cached.
        logger.setLevel(_LEVELS[level])
    tracebacks.show_all(config.print_full_traceback)
    if warning:
        logger.warning(warning)
    context.set_session(session)


def _described_by(profile: str, names: list[str]) -> list[str]:
    """Return the back ends among ``names`` whose devices a profile describes. Raises SpirogradRuntimeError if there is none."""
    if profile not in PROFILES:
        hint = did_you_mean(profile, PROFILES)
        raise SpirogradRuntimeError(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}{'; ' if hint else ''}{hint}")
    found = [name for name in names if describes(profile, name)]
    if not found:
        archs = " or ".join(f"`sg.{arch}`" for arch in ARCHS if describes(profile, arch))
        raise SpirogradRuntimeError(f"the profile `{profile}` describes no devices of {', '.join(names)}: start with the back end {archs}")
    return found


def _open(names: list[str], config: Config) -> tuple[Session, str]:
    """Return a session on the first back end that works here, and a warning if it is none of ``names``."""
    if len(names) == 1:
        try:  # without `loader.available`, which takes as long as opening some devices
            return Session(config), ""
        except SpirogradRuntimeError:
            if loader.available(names[0]) is None:
                raise
    warning = _choose(names, config)
    return Session(config), warning


def _choose(names: list[str], config: Config) -> str:
    """Set ``config.arch`` to the first back end that works here; return a warning if it is none of ``names``."""
    reasons = []
    for name in names:
        reason = loader.available(name)
        if reason is None:
            config.arch = name
            return ""
        reasons.append(f"{name}: {reason}")
    if config.enable_fallback and not config.profile:
        config.arch = cpu
        return f"no back end of {names} works here ({'; '.join(reasons)}); using the CPU"
    raise SpirogradRuntimeError(
        "cannot start " + "; ".join(reasons) + ". `spirograd doctor` shows what is missing; `enable_fallback=True` uses the CPU instead"
    )


@one_at_a_time
def reset() -> None:
    """End the session: its fields, arrays and compiled kernels cannot be used any more."""
    translate_by(None)
    if context.has_session():
        session = running()
        kernel_coverage.end_session(session.probes)
        context.set_session(None)
        session.close()
        root.reset()


def sync() -> None:
    """Wait until all launches are done. Print what kernels printed, and raise SpirogradAssertionError or AdStackOverflow if one failed."""
    context.session().sync()


def wait_for_tuning() -> None:
    """Wait until the code that launches have asked to measure is compiled, which happens in the background: for tests and benchmarks. The
    next launches measure it."""
    tuner = running().tuner
    if tuner is not None:
        tuner.wait()


class _CurrentConfig:
    """The options of the running session."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # no option begins so; tools that inspect objects look up such names without a session
            raise AttributeError(name)
        options = context.session().cfg
        if not hasattr(options, name):
            raise NoAttribute("`init`", name, lambda: vars(options), "option")
        return getattr(options, name)

    def __setattr__(self, name: str, value: object) -> None:
        getattr(self, name)  # raises an error for an unknown option
        raise SpirogradRuntimeError(f"options of a running session do not change: `init({name}={value!r})` starts one that has it")

    def __dir__(self) -> list[str]:
        return dir(context.session().cfg) if context.has_session() else []

    def __repr__(self) -> str:
        return repr(context.session().cfg) if context.has_session() else "<no session>"


def set_logging_level(level: str) -> None:
    """Show log messages of ``level`` and above: "trace", "debug", "info", "warn", "error" or "critical". Raises SpirogradRuntimeError for
    other names."""
    if level not in _LEVELS:
        raise SpirogradRuntimeError(f"there is no log level {level!r}; there are {', '.join(_LEVELS)}")
    logger.setLevel(_LEVELS[level])


def is_logging_effective(level: str) -> bool:
    """Return whether messages of ``level`` are shown."""
    return logger.isEnabledFor(_LEVELS[level])


@functools.cache
def _capabilities(arch: str) -> Capabilities | None:
    """Return the capabilities of the device of ``arch``; None if it cannot be used."""
    if arch not in loader.DEVICES or loader.available(arch) is not None:
        return None
    device = loader.open_device(arch)
    device.close()
    return device.caps


def _has_data64(arch: str) -> bool:
    """Return whether the session, if it runs on ``arch``, else its device, computes with 64-bit integers and floats."""
    in_session = context.has_session() and context.session().arch == arch
    caps = context.session().device.caps if in_session else _capabilities(arch)
    return caps is not None and caps.int64 and caps.float64


def is_extension_supported(arch: str, ext: extension) -> bool:
    """Return whether back end ``arch`` has the ability ``ext``, a member of `extension`. Opens the device if no session has it open."""
    if ext in (extension.assertion, extension.adstack, extension.sparse):
        return arch in loader.DEVICES
    return ext is extension.data64 and _has_data64(arch)


def is_extension_enabled(ext: extension) -> bool:
    """Return whether the back end of the running session has the ability ``ext``."""
    return is_extension_supported(context.session().arch, ext)


cfg: Config = _CurrentConfig()  # type: ignore[assignment]  # to type checkers, the options themselves
dtypes.set_constant_tracer(scalar.trace_literal)
atexit.register(reset)
tracebacks.install()
