"""Launches, waits and changes of the context as compiled functions: one call from Python for all tasks of a kernel.

ctypes spends 2 us on the call of the driver that launches a kernel; a compiled function takes 0.1 us more than the driver itself. Only
functions of Python's stable ABI are used, as in `cpu_call`. The driver needs its context to be current in the calling thread. The functions
restore the previous context after the call, so that other users of the driver in the same thread are not affected (see `Driver.switch`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import cast

from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.llvmgen.word_functions import functions_of, translate
from spirograd.runtime import builtins
from spirograd.runtime.devices.gpu import call_code
from spirograd.runtime.devices.gpu.call_code import GROUPS
from spirograd.runtime.devices.gpu.driver import Driver

_EXPORTS = {name: f"sg_gpu_{name}" for name in functions_of(call_code)}
_compile_lock = threading.Lock()

Launch = Callable[[bytes, "tuple[int | None, ...]"], int]


@dataclass(slots=True, eq=False)
class CallCode:
    """The compiled functions for ``driver``, as Python calls them (see `launcher`, `enterer` and `waiter`), and the addresses of those for
    `prepared` launches: with and without events around them, and by their graphs."""

    driver: Driver
    launch: builtins.Method
    enter: builtins.Method
    wait: builtins.Method
    prepared: int
    timed: int
    repeat: int
    library: Library


@functools.cache
def _compiled(driver: Driver) -> CallCode:
    text = translate((call_code, driver.switch), _EXPORTS | {name: name for name in functions_of(driver.switch)})
    # Unoptimized: calls take as long, and LLVM's passes would take 45 ms.
    code = compile_module(text, host_caps(), CompileOptions(opt_level=0), need=0)
    imports = {**builtins.addresses(call_code.python.types), **driver.addresses, "sg_none": id(None)}
    library = link(code.binary, list(_EXPORTS.values()), imports)
    addresses = {name: library.addresses[symbol] for name, symbol in _EXPORTS.items()}
    launch = builtins.Method(b"launch", addresses["launch"], builtins.METH_FASTCALL)
    enter = builtins.Method(b"enter", addresses["enter"], builtins.METH_NOARGS)
    wait = builtins.Method(b"wait", addresses["wait"], builtins.METH_O)
    return CallCode(driver, launch, enter, wait, addresses["prepared"], addresses["timed"], addresses["repeat"], library)


def compiled(driver: Driver) -> CallCode:
    """Return the functions for ``driver``, compiled once. Built-in functions refer to their methods, which live as long as the process."""
    with _compile_lock:
        return _compiled(driver)


@dataclass(slots=True, eq=False)
class LaunchTask:
    """The function of a task and its grid: the size of a workgroup, and the result of `grid_limits`."""

    function: int
    group_size: int
    each: int
    most: int
    unknown: int

    def groups(self, count: int | None) -> int:
        """Return the number of workgroups that run ``count`` iterations (None: only the device knows), as the compiled code of `launcher`
        does."""
        return self.unknown if count is None else min(-(-max(count, 0) // self.each), self.most)


def launcher(code: CallCode, context: int, stream: int, tasks: Sequence[LaunchTask]) -> tuple[Launch, ctypes.Array[ctypes.c_uint64]]:
    """Return a built-in function `(block, counts)` that launches all tasks on the stream whose handle lies at the address ``stream``.

    The function returns the first error code, or 0. It raises TypeError if ``block`` is not bytes, SystemError if ``counts`` is not a
    tuple. The second result is the memory that must live as long as the function.
    """
    words = [context, stream, code.driver.launch_end, len(tasks)]
    for task in tasks:
        words += [task.function, task.group_size, task.most, task.unknown, task.each]
    memory = (ctypes.c_uint64 * len(words))(*words)
    return code.launch.function(ctypes.addressof(memory)), memory


def prepared(code: CallCode, words: ctypes.Array[ctypes.c_uint64], nbytes: int, groups: Sequence[int]) -> ctypes.Structure:
    """Return the context of the functions at `CallCode.prepared` and `CallCode.repeat`, see `call_code` for its words.

    The launches take blocks of ``nbytes`` and run ``groups`` workgroups for each task. ``words``: the memory returned by `launcher`. Both
    must live as long as the context is used.
    """

    class Prepared(ctypes.Structure):
        _fields_ = [("words", ctypes.c_uint64 * (GROUPS // 8)), ("groups", ctypes.c_uint32 * max(len(groups), 1))]

    return Prepared((ctypes.addressof(words), nbytes), tuple(groups))


def enterer(code: CallCode, context: int) -> Callable[[], int]:
    """Return a built-in function that makes ``context`` current in the calling thread.

    The function returns the argument of `Driver.leave` that undoes the change, 0 if there is nothing to undo, or a negated error code.
    """
    return cast("Callable[[], int]", code.enter.function(context))


def waiter(code: CallCode, query: str, context: int, times: int) -> tuple[Callable[[int], int], ctypes.Array[ctypes.c_uint64]]:
    """Return a built-in function `(handle)` that queries a stream or an event until it is complete, and the memory that it uses.

    The function calls the driver's function ``query`` at most ``times`` times, and returns the last code. The memory must live as long as
    the function.
    """
    memory = (ctypes.c_uint64 * 3)(code.driver.addresses[query], context, times)
    return code.wait.function(ctypes.addressof(memory)), memory
