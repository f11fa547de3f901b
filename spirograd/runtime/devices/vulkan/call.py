"""Launches and waits as compiled functions: they record, submit and poll without Python, see `call_code`.

A call of the driver from Python takes 0.3 us more than the driver itself, and a launch with a wait consists of ten. The next command buffer
is begun while the device works.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import threading
from collections.abc import Sequence

from spirograd.base.device import CodeCache
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.llvmgen.word_functions import source, translate
from spirograd.runtime import builtins
from spirograd.runtime.devices import posix_clock, windows_clock
from spirograd.runtime.devices.vulkan import call_code
from spirograd.runtime.devices.vulkan import call_words as layout
from spirograd.runtime.devices.vulkan.dispatch import Executable, workgroups
from spirograd.runtime.devices.vulkan.stream import Stream

_MODULES = (windows_clock if platform.system() == "Windows" else posix_clock, call_code)
_EXPORTS = {"record": "sg_vulkan_record", "record_logged": "sg_vulkan_record_logged", "finish": "sg_vulkan_finish"}
_lock = threading.Lock()
_code: list[CallCode | None] = []

logger = logging.getLogger("spirograd")


@dataclass(slots=True, eq=False)
class CallCode:
    """The linked functions. ``record``: the address of that for prepared launches."""

    record: int
    record_logged: builtins.Method
    finish: builtins.Method
    library: Library


def _compiled(cache: CodeCache | None) -> CallCode | None:
    # Unoptimized: calls take as long.
    caps, options = host_caps(), CompileOptions(opt_level=0)

    def compiled() -> bytes:
        return compile_module(translate(_MODULES, _EXPORTS), caps, options, need=0).binary

    binary = compiled() if cache is None else cache.code("\0".join((source(_MODULES), repr(caps), repr(options))), compiled)
    try:
        library = link(binary, list(_EXPORTS.values()), builtins.addresses(call_code.python.types))
    except SpirogradRuntimeError as error:
        logger.warning(f"all launches go through Python, which takes some microseconds more: {error}")
        return None
    addresses = {name: library.addresses[symbol] for name, symbol in _EXPORTS.items()}
    record_logged, finish = (builtins.Method(name.encode(), addresses[name], builtins.METH_NOARGS) for name in ("record_logged", "finish"))
    return CallCode(addresses["record"], record_logged, finish, library)


def connect(stream: Stream, cache: CodeCache | None) -> CallCode | None:
    """Have ``stream`` wait by compiled code, which is compiled once in a process, or taken from ``cache``. Return the code; None if this
    system cannot use it."""
    if not _code:
        with _lock:
            if not _code:
                _code.append(_compiled(cache))
    code = _code[0]
    return code if code is not None and stream.connect(code.record_logged.function, code.finish.function) else None


class Prepared:
    """A launch for the function at `CallCode.record`. ``words``: they must exist as long as a log of the stream, see `call_code`, may refer
    to them; ``address``: of them, the context of that function; ``refusal``: of the word that is not 0 after the function has left a launch
    to Python."""

    def __init__(self, stream: Stream, executable: Executable, counts: Sequence[int | None]) -> None:
        pairs = [(task[1], workgroups(task, count)) for task, count in zip(executable.tasks, counts)]
        tasks = [word for pair in pairs if pair[1] for word in pair]
        header = [ctypes.addressof(stream.words), 0, executable.text.address, executable.nbytes, 0, len(tasks) // 2]
        self._nbytes = executable.nbytes
        self.words = words = (ctypes.c_uint64 * (len(header) + len(tasks) + -(-self._nbytes // 8)))(*header, *tasks)
        self._stream_words = stream.words  # They outlive the stream: records are compared before they are used.
        self.address = ctypes.addressof(words)
        self._block = words[layout.BLOCK // 8] = self.address + layout.FIRST_TASK + 8 * len(tasks)
        self.refusal = self.address + layout.FAILED

    def refused(self) -> bytes:
        """Return the argument block of the launch that was left to Python."""
        self.words[layout.FAILED // 8] = 0
        return ctypes.string_at(self._block, self._nbytes)
