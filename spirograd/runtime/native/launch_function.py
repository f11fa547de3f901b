"""Built-in functions that launch kernels by records of prepared launches. Their code is linked once in a process, at the first use."""

from __future__ import annotations

import logging
import platform
import sys
import threading
from collections.abc import Callable, Sequence

from spirograd.base import validity
from spirograd.base.device import CodeCache
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.llvmgen.word_functions import functions_of, source, translate
from spirograd.runtime import builtins
from spirograd.runtime.generations import tick
from spirograd.runtime.native import cursor_code, launch_code, reverse_code, state, step_code
from spirograd.runtime.native.launch_preparation import Prepared

# A function of the arguments of a call, as a tuple: launches and returns the result, or does nothing and returns NotImplemented.
Launch = Callable[[tuple[object, ...]], object]

_MODULES = (state, step_code, cursor_code, launch_code, reverse_code)
_EXPORTS = {name: f"sg_{name}" for name in ("launch", "reverse", *functions_of(step_code), *functions_of(cursor_code))}
_END = bytes(8)  # A record of no bytes.
_lock = threading.Lock()
_code: list[Code | None] = []

logger = logging.getLogger("spirograd")


@dataclass(slots=True, eq=False)
class Code:
    """The linked code. ``steps``: addresses, by name. ``reverse``: see `reverse_code`; returns None or NotImplemented."""

    steps: dict[str, int]
    method: builtins.Method
    reverse: Callable[[int], object]
    library: Library

    def function(self, records: Sequence[Prepared], kept: object = None) -> Launch:
        """Return a function that launches by the first of these records that fits. It also keeps ``kept`` alive."""
        owner = (b"".join([prepared.record for prepared in records]) + _END, *[prepared.objects for prepared in records], kept)
        launch: Launch = self.method.function(owner)
        return launch


def code(cache: CodeCache | None) -> Code | None:
    """Return the code, from ``cache`` if it is there; None if this interpreter or system cannot use it.

    It takes no lock once the code is linked: the garbage collector may call this.
    """
    if not _code:
        with _lock:
            if not _code:
                _code.append(_build(cache) if _is_possible() else None)
    return _code[0]


def _is_possible() -> bool:
    """Return whether the code supports this interpreter: objects do not move, and one thread runs at a time."""
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return platform.python_implementation() == "CPython" and has_lock()


def _build(cache: CodeCache | None) -> Code | None:
    # Unoptimized: optimized code takes as long to launch, and ten times as long to compile.
    caps, options = host_caps(), CompileOptions(opt_level=0)

    def compiled() -> bytes:
        return compile_module(translate(_MODULES, _EXPORTS), caps, options, need=0).binary

    binary = compiled() if cache is None else cache.code("\0".join((source(_MODULES), repr(caps), repr(options))), compiled)
    objects = {name: id(value) for name, value in state.OBJECTS.items()}
    others = {"sg_next": id(tick), "sg_validity": validity.ADDRESS}
    try:
        library = link(binary, list(_EXPORTS.values()), builtins.addresses(state.python.types) | objects | others)
    except SpirogradRuntimeError as error:
        logger.warning(f"all launches go through Python, which takes some microseconds more: {error}")
        return None
    addresses = {name: library.addresses[symbol] for name, symbol in _EXPORTS.items()}
    launch, reverse = (builtins.Method(name.encode(), addresses[name], builtins.METH_O) for name in ("launch", "reverse"))
    return Code(addresses, launch, reverse.function(reverse), library)
