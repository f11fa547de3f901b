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
from spirograd.runtime import builtins
from spirograd.runtime.devices.gpu.driver import NOT_READY, Driver

_LAUNCH, _PREPARED, _ENTER, _WAIT = "sg_gpu_launch", "sg_gpu_prepared", "sg_gpu_enter", "sg_gpu_wait"
_PYTHON_API = (
    "PyBytes_AsString",
    "PyBytes_Size",
    "PyLong_AsVoidPtr",
    "PyLong_AsLongLong",
    "PyLong_FromLong",
    "PyTuple_GetItem",
    "PyErr_Occurred",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
_compile_lock = threading.Lock()

Launch = Callable[[bytes, "tuple[int | None, ...]"], int]

# What a launch reads, in 64-bit words: context, where the handle of the stream is, number of tasks; then for each task its function, its
# grid (see `grid_limits`), and the iterations that a group takes at a time.
_HEADER, _TASK = 3, 5
# What a prepared launch has, in 64-bit words: the address of the words above, the size of the block, and the error code of the last launch
# that failed; then the numbers of groups, of 32 bits each.
_PREPARED_HEADER, FAILED = 3, 2
# The two entries of `extra` of a launch, before `Driver.launch_end`: the argument block and its size.
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2

# self: address of these words; arguments: the block (bytes), the numbers of iterations (a tuple of int and None). Returns the error code.
# An empty block is passed as its terminating zero: code generators make no parameter of no bytes.
_TEXT = f"""declare ptr @PyBytes_AsString(ptr)
declare i64 @PyBytes_Size(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyErr_Occurred()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @launch(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
@sg_none = external global i8

define ptr @{_LAUNCH}(ptr %self, ptr %args, i64 %count) nounwind {{
  %block.object = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %counts = load ptr, ptr %second
  %block = call ptr @PyBytes_AsString(ptr %block.object)
  %bad = icmp eq ptr %block, null
  br i1 %bad, label %raise, label %begin
begin:
  %nbytes = call i64 @PyBytes_Size(ptr %block.object)
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %tasks.at = getelementptr i64, ptr %words, i64 2
  %tasks = load i64, ptr %tasks.at
  %groups = alloca i32, i64 %tasks
  %none = icmp eq i64 %tasks, 0
  br i1 %none, label %nothing, label %read
nothing:
  %zero = call ptr @PyLong_FromLong(i64 0)
  ret ptr %zero

read:
  %t = phi i64 [0, %begin], [%t.next, %sized]
  %item = call ptr @PyTuple_GetItem(ptr %counts, i64 %t)
  %missing = icmp eq ptr %item, null
  br i1 %missing, label %raise, label %convert
convert:
  %word = mul i64 %t, {_TASK}
  %group.at = add i64 %word, {_HEADER + 4}
  %limit.at = add i64 %word, {_HEADER + 2}
  %fill.at = add i64 %word, {_HEADER + 3}
  %group.p = getelementptr i64, ptr %words, i64 %group.at
  %limit.p = getelementptr i64, ptr %words, i64 %limit.at
  %fill.p = getelementptr i64, ptr %words, i64 %fill.at
  %group = load i64, ptr %group.p
  %limit = load i64, ptr %limit.p
  %unknown = icmp eq ptr %item, @sg_none
  br i1 %unknown, label %filled, label %known
filled:
  %fill = load i64, ptr %fill.p
  br label %sized
known:
  %given = call i64 @PyLong_AsLongLong(ptr %item)
  %minus = icmp eq i64 %given, -1
  br i1 %minus, label %doubt, label %divide
doubt:
  %error = call ptr @PyErr_Occurred()
  %wrong = icmp ne ptr %error, null
  br i1 %wrong, label %raise, label %divide
divide:
  %some = icmp sgt i64 %given, 0
  %less = sub i64 %given, 1
  %full = sdiv i64 %less, %group
  %more = add i64 %full, 1
  %most = call i64 @llvm.smin.i64(i64 %more, i64 %limit)
  %divided = select i1 %some, i64 %most, i64 0
  br label %sized
sized:
  %chosen = phi i64 [%fill, %filled], [%divided, %divide]
  %grid = trunc i64 %chosen to i32
  %grid.p = getelementptr i32, ptr %groups, i64 %t
  store i32 %grid, ptr %grid.p
  %t.next = add i64 %t, 1
  %again = icmp ult i64 %t.next, %tasks
  br i1 %again, label %read, label %go

go:
  %thread = call ptr @PyEval_SaveThread()
  %result = call i32 @sg_launch_all(ptr %words, ptr %groups, ptr %block, i64 %nbytes)
  call void @PyEval_RestoreThread(ptr %thread)
  %wide = sext i32 %result to i64
  %object = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %object
raise:
  ret ptr null
}}

define void @{_PREPARED}(ptr %block, ptr %prepared) nounwind {{
  %words = load ptr, ptr %prepared
  %size.at = getelementptr i64, ptr %prepared, i64 1
  %failed.at = getelementptr i64, ptr %prepared, i64 {FAILED}
  %groups = getelementptr i64, ptr %prepared, i64 {_PREPARED_HEADER}
  %size = load i64, ptr %size.at
  %code = call i32 @sg_launch_all(ptr %words, ptr %groups, ptr %block, i64 %size)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %note, label %done
note:
  store i32 %code, ptr %failed.at
  br label %done
done:
  ret void
}}

define internal i32 @sg_launch_all(ptr %words, ptr %groups, ptr %block, i64 %nbytes) nounwind {{
  %size = alloca i64
  %least = call i64 @llvm.smax.i64(i64 %nbytes, i64 1)
  store i64 %least, ptr %size
  %extra = alloca [5 x ptr]
  store ptr inttoptr (i64 {_BUFFER_POINTER} to ptr), ptr %extra
  %extra.1 = getelementptr ptr, ptr %extra, i64 1
  store ptr %block, ptr %extra.1
  %extra.2 = getelementptr ptr, ptr %extra, i64 2
  store ptr inttoptr (i64 {_BUFFER_SIZE} to ptr), ptr %extra.2
  %extra.3 = getelementptr ptr, ptr %extra, i64 3
  store ptr %size, ptr %extra.3
  %extra.4 = getelementptr ptr, ptr %extra, i64 4
  store ptr inttoptr (i64 LAUNCH_END to ptr), ptr %extra.4
  %tasks.at = getelementptr i64, ptr %words, i64 2
  %tasks = load i64, ptr %tasks.at
  %context = load ptr, ptr %words
  %entered = call i32 @sg_enter(ptr %context)
  %refused = icmp slt i32 %entered, 0
  br i1 %refused, label %done, label %start
start:
  %stream.at = getelementptr ptr, ptr %words, i64 1
  %stream.place = load ptr, ptr %stream.at
  %stream = load ptr, ptr %stream.place
  br label %each
each:
  %k = phi i64 [0, %start], [%k.next, %next]
  %g.p = getelementptr i32, ptr %groups, i64 %k
  %g = load i32, ptr %g.p
  %skip = icmp eq i32 %g, 0
  br i1 %skip, label %next, label %launch
launch:
  %at = mul i64 %k, {_TASK}
  %function.at = add i64 %at, {_HEADER}
  %size.at = add i64 %at, {_HEADER + 1}
  %function.p = getelementptr i64, ptr %words, i64 %function.at
  %size.p = getelementptr i64, ptr %words, i64 %size.at
  %function = load ptr, ptr %function.p
  %threads.wide = load i64, ptr %size.p
  %threads = trunc i64 %threads.wide to i32
  %code = call i32 @launch(ptr %function, i32 %g, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 0, ptr %stream, ptr null,
    ptr %extra)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %leave, label %next
next:
  %k.next = add i64 %k, 1
  %left = icmp ult i64 %k.next, %tasks
  br i1 %left, label %each, label %leave
leave:
  %launched = phi i32 [0, %next], [%code, %launch]
  call void @sg_leave(i32 %entered)
  br label %done
done:
  %outcome = phi i32 [%entered, %0], [%launched, %leave]
  %negative = icmp slt i32 %outcome, 0
  %negated = sub i32 0, %outcome
  %result = select i1 %negative, i32 %negated, i32 %outcome
  ret i32 %result
}}

define ptr @{_ENTER}(ptr %self, ptr %none) nounwind {{
  %context = call ptr @PyLong_AsVoidPtr(ptr %self)
  %entered = call i32 @sg_enter(ptr %context)
  %wide = sext i32 %entered to i64
  %object = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %object
}}

define ptr @{_WAIT}(ptr %self, ptr %handle.object) nounwind {{
  %handle = call ptr @PyLong_AsVoidPtr(ptr %handle.object)
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %context.at = getelementptr ptr, ptr %words, i64 1
  %times.at = getelementptr i64, ptr %words, i64 2
  %query = load ptr, ptr %words
  %context = load ptr, ptr %context.at
  %times = load i64, ptr %times.at
  %thread = call ptr @PyEval_SaveThread()
  %code = call i32 @sg_spin(ptr %query, ptr %handle, ptr %context, i64 %times)
  call void @PyEval_RestoreThread(ptr %thread)
  %wide = sext i32 %code to i64
  %object = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %object
}}

define internal i32 @sg_spin(ptr %query, ptr %handle, ptr %context, i64 %times) nounwind {{
  %entered = call i32 @sg_enter(ptr %context)
  %refused = icmp slt i32 %entered, 0
  br i1 %refused, label %error, label %each
each:
  %k = phi i64 [0, %0], [%k.next, %again]
  %code = call i32 %query(ptr %handle)
  %busy = icmp eq i32 %code, {NOT_READY}
  br i1 %busy, label %again, label %leave
again:
  %k.next = add i64 %k, 1
  %left = icmp ult i64 %k.next, %times
  br i1 %left, label %each, label %leave
leave:
  %polled = icmp ne i64 %k, 0
  %failed = icmp ne i32 %code, 0
  %refusal = or i1 %polled, %failed
  br i1 %refusal, label %forget, label %end
forget:
  call void @sg_forget()
  br label %end
end:
  call void @sg_leave(i32 %entered)
  ret i32 %code
error:
  %negated = sub i32 0, %entered
  ret i32 %negated
}}
"""


@dataclass(slots=True, eq=False)
class CallCode:
    """The compiled functions for ``driver``, as Python calls them (see `launcher`, `enterer` and `waiter`), and the address of the one for
    `prepared` launches."""

    driver: Driver
    launch: builtins.Method
    enter: builtins.Method
    wait: builtins.Method
    prepared: int
    library: Library


@functools.cache
def _compiled(driver: Driver) -> CallCode:
    text = _TEXT.replace("LAUNCH_END", str(driver.launch_end)) + driver.switch
    code = compile_module(text, host_caps(), CompileOptions(opt_level=1))
    imports = {**builtins.addresses(_PYTHON_API), **driver.addresses, "sg_none": id(None)}
    library = link(code.binary, (_LAUNCH, _PREPARED, _ENTER, _WAIT), imports)
    launch = builtins.Method(b"launch", library.addresses[_LAUNCH], builtins.METH_FASTCALL)
    enter = builtins.Method(b"enter", library.addresses[_ENTER], builtins.METH_NOARGS)
    wait = builtins.Method(b"wait", library.addresses[_WAIT], builtins.METH_O)
    return CallCode(driver, launch, enter, wait, library.addresses[_PREPARED], library)


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
    words = [context, stream, len(tasks)]
    for task in tasks:
        words += [task.function, task.group_size, task.most, task.unknown, task.each]
    memory = (ctypes.c_uint64 * len(words))(*words)
    return code.launch.function(ctypes.addressof(memory)), memory


def prepared(code: CallCode, words: ctypes.Array[ctypes.c_uint64], nbytes: int, groups: Sequence[int]) -> tuple[Any, int]:
    """What the function at `CallCode.prepared` gets as its context, for launches of blocks of ``nbytes`` with so many ``groups`` for each
    task, and the address where it leaves an error code. ``words``: the memory that came with `launcher`; both must live that long."""

    class Prepared(ctypes.Structure):
        _fields_ = [("words", ctypes.c_uint64 * _PREPARED_HEADER), ("groups", ctypes.c_uint32 * max(len(groups), 1))]

    memory = Prepared((ctypes.addressof(words), nbytes, 0), tuple(groups))
    return memory, ctypes.addressof(memory) + 8 * FAILED


def enterer(code: CallCode, context: int) -> Callable[[], int]:
    """A built-in function that makes ``context`` current in the calling thread. It gives what `Driver.leave` takes to undo that, 0 if there
    is nothing to undo, or an error code, negated."""
    return cast("Callable[[], int]", code.enter.function(context))


def waiter(code: CallCode, query: str, context: int, times: int) -> tuple[Callable[[int], int], Any]:
    """A built-in function `(handle)` that queries a stream or an event with the driver's function ``query`` until it is done, at most
    ``times`` times, and gives the last code; and the memory that must live as long as it."""
    memory = (ctypes.c_uint64 * 3)(code.driver.addresses[query], context, times)
    return code.wait.function(ctypes.addressof(memory)), memory
