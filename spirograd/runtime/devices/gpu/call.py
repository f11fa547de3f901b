"""Launches, waits and the current context as compiled functions: one call from Python for all tasks of a kernel, whatever their number.

ctypes spends 2 us on the call of the driver that launches a kernel; this takes 0.1 us more than the driver itself. Only functions of
Python's stable ABI are used, as in `cpu_call`. The driver needs its context current in the calling thread: where another one is, that is
so again after the call, so that other users of the driver in the same thread keep theirs (see `Driver.switch`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.llvmgen.word_functions import functions_of, translate
from spirograd.runtime import builtins
from spirograd.runtime.devices.gpu import call_code
from spirograd.runtime.devices.gpu.call_code import FAILED, GROUPS
from spirograd.runtime.devices.gpu.driver import Driver

_EXPORTS = {name: f"sg_gpu_{name}" for name in functions_of(call_code)}
_compile_lock = threading.Lock()

Launch = Callable[[bytes, "tuple[int | None, ...]"], int]


@dataclass(slots=True, eq=False)
class CallCode:
    """The compiled functions for ``driver``, as Python calls them (see `launcher`, `enterer` and `waiter`), and the addresses of those for
    `prepared` launches, and for such between two events."""

    driver: Driver
    launch: builtins.Method
    enter: builtins.Method
    wait: builtins.Method
    prepared: int
    timed: int
    library: Library


@functools.cache
def _compiled(driver: Driver) -> CallCode:
    text = translate((call_code, driver.switch), _EXPORTS | {name: name for name in functions_of(driver.switch)})
    # As it is written: calls take as long, and LLVM's passes would take 45 ms.
    code = compile_module(text, host_caps(), CompileOptions(opt_level=0), need=0)
    imports = {**builtins.addresses(call_code.python.types), **driver.addresses, "sg_none": id(None)}
    library = link(code.binary, list(_EXPORTS.values()), imports)
    addresses = {name: library.addresses[symbol] for name, symbol in _EXPORTS.items()}
    launch = builtins.Method(b"launch", addresses["launch"], builtins.METH_FASTCALL)
    enter = builtins.Method(b"enter", addresses["enter"], builtins.METH_NOARGS)
    wait = builtins.Method(b"wait", addresses["wait"], builtins.METH_O)
    return CallCode(driver, launch, enter, wait, addresses["prepared"], addresses["timed"], library)


def compiled(driver: Driver) -> CallCode:
    """The functions for ``driver``, compiled once: built-in functions refer to their methods, which so must live as long as the process."""
    with _compile_lock:
        return _compiled(driver)


@dataclass(slots=True, eq=False)
class LaunchTask:
    """One task: its function, and its grid: the size of a workgroup, and what `grid_limits` says."""

    function: int
    group_size: int
    each: int
    most: int
    unknown: int

    def groups(self, count: int | None) -> int:
        """How many workgroups run ``count`` iterations (None: only the device knows), as the compiled code of `launcher` finds it."""
        return self.unknown if count is None else min(-(-max(count, 0) // self.each), self.most)


def launcher(code: CallCode, context: int, stream: int, tasks: Sequence[LaunchTask]) -> tuple[Launch, Any]:
    """A built-in function `(block, counts)` that launches all tasks on the stream whose handle lies at the address ``stream``.

    It gives the first error code, or 0, and raises TypeError if ``block`` is not bytes, SystemError if ``counts`` is no tuple. With it
    comes the memory that must live as long as it.
    """
    words = [context, stream, code.driver.launch_end, len(tasks)]
    for task in tasks:
        words += [task.function, task.group_size, task.most, task.unknown, task.each]
    memory = (ctypes.c_uint64 * len(words))(*words)
    return code.launch.function(ctypes.addressof(memory)), memory


def prepared(code: CallCode, words: ctypes.Array[ctypes.c_uint64], nbytes: int, groups: Sequence[int]) -> tuple[Any, int]:
    """What the function at `CallCode.prepared` gets as its context, for launches of blocks of ``nbytes`` with so many ``groups`` for each
    task, and the address where it leaves an error code. ``words``: the memory that came with `launcher`; both must live that long."""

    class Prepared(ctypes.Structure):
        _fields_ = [("words", ctypes.c_uint64 * (GROUPS // 8)), ("groups", ctypes.c_uint32 * max(len(groups), 1))]

    memory = Prepared((ctypes.addressof(words), nbytes, 0), tuple(groups))
    return memory, ctypes.addressof(memory) + FAILED


def enterer(code: CallCode, context: int) -> Callable[[], int]:
    """A built-in function that makes ``context`` current in the calling thread. It gives what `Driver.leave` takes to undo that, 0 if there
    is nothing to undo, or an error code, negated."""
    return cast("Callable[[], int]", code.enter.function(context))


def waiter(code: CallCode, query: str, context: int, times: int) -> tuple[Callable[[int], int], Any]:
    """A built-in function `(handle)` that queries a stream or an event with the driver's function ``query`` until it is done, at most
    ``times`` times, and gives the last code; and the memory that must live as long as it."""
    memory = (ctypes.c_uint64 * 3)(code.driver.addresses[query], context, times)
    return code.wait.function(ctypes.addressof(memory)), memory
