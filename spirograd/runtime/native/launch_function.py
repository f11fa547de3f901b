"""Built-in functions that launch kernels by records of prepared launches. Their code is linked once in a process, at the first need."""

from __future__ import annotations

import logging
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base import validity
from spirograd.base.device import CodeCache
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.runtime import builtins
from spirograd.runtime.generations import tick
from spirograd.runtime.native.code import FUNCTION, OBJECTS, PYTHON_API, module
from spirograd.runtime.native.launch_preparation import Prepared
from spirograd.runtime.native.step_code import STEPS

# A function of the arguments of a call, as a tuple: launches and returns the result, or does nothing and returns NotImplemented.
Launch = Callable[[tuple[Any, ...]], Any]

_END = bytes(8)  # a record of no bytes
_lock = threading.Lock()
_code: list[Code | None] = []

logger = logging.getLogger("spirograd")


@dataclass(slots=True, eq=False)
class Code:
    """The linked code. ``steps``: addresses, by name."""

    steps: dict[str, int]
    method: builtins.Method
    library: Library

    def function(self, records: Sequence[Prepared], kept: Any = None) -> Launch:
        """The function that launches by these records: by the first one that fits. It keeps alive ``kept``, too."""
        owner = (b"".join([prepared.record for prepared in records]) + _END, *[prepared.objects for prepared in records], kept)
        launch: Launch = self.method.function(owner)
        return launch


def code(cache: CodeCache | None) -> Code | None:
    """The code, from ``cache`` if it is there; None if this interpreter or system cannot use it. Takes no lock once it is linked: the
    garbage collector may call this."""
    if not _code:
        with _lock:
            if not _code:
                _code.append(_build(cache) if _is_possible() else None)
    return _code[0]


def _is_possible() -> bool:
    """Whether this interpreter is one that the code is written for: objects stay where they are, and one thread runs at a time."""
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return platform.python_implementation() == "CPython" and has_lock()


def _build(cache: CodeCache | None) -> Code | None:
    # As it is written: optimised it takes as long to launch, and ten times as long to compile.
    text, caps, options = module(), host_caps(), CompileOptions(opt_level=0)

    def compiled() -> bytes:
        return compile_module(text, caps, options, need=0).binary

    binary = compiled() if cache is None else cache.code("\0".join((text, repr(caps), repr(options))), compiled)
    functions = builtins.addresses(PYTHON_API)
    objects = {f"py_{name}": id(value) for name, value in OBJECTS.items()}
    others = {"sg_next": id(tick), "sg_validity": validity.ADDRESS}
    try:
        library = link(binary, [FUNCTION, *(f"sg_{name}" for name in STEPS)], functions | objects | others)
    except SpirogradRuntimeError as error:
        logger.warning(f"all launches go through Python, which takes some microseconds more: {error}")
        return None
    method = builtins.Method(b"launch", library.addresses[FUNCTION], builtins.METH_O)
    return Code({name: library.addresses[f"sg_{name}"] for name in STEPS}, method, library)
