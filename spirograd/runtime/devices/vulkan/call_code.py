"""Launches and waits on a stream of Vulkan, for code that is compiled for this machine: see `call`, and `word_functions`.

A stream has 64-bit words, which Python and this code share. Among them are the addresses of the driver's functions: devices differ in them,
so they are called by address. A prepared launch has words, too, then the tasks, a pipeline and a number of workgroups each, then memory for
the argument block of a launch that Python has to do.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Functions, call, copy, i32, i64
from spirograd.runtime.devices.driver_faults import COUNT, FLIGHT_TEXTS, LAST
from spirograd.runtime.devices.posix_clock import now
from spirograd.runtime.devices.vulkan.call_words import (
    BARRIER,
    BATCH,
    BEGIN,
    BEGIN_INFO,
    BIND,
    BIND_POINT,
    BLOCK,
    BOUND,
    COMMANDS,
    COUNTER,
    DEVICE,
    DISPATCH,
    END,
    ENDING,
    FAILED,
    FIRST_TASK,
    FLIGHT,
    FOLLOWING,
    GROUPS,
    HOST_BARRIER,
    HOST_STAGE,
    LAYOUT,
    NBYTES,
    ORDER,
    PIPELINE,
    POLL,
    PUSH,
    QUEUE,
    READ_COUNTER,
    READING,
    READY,
    RECORDED,
    RESULT,
    SEMAPHORE,
    SHADER_STAGE,
    STAGES,
    STREAM,
    SUBMISSION,
    SUBMIT,
    SUBMITTING,
    TASK_BYTES,
    TASKS,
    TEXT,
    VALUE,
)

_NEGATIVE = 0x80000000

python = Functions(
    PyLong_AsVoidPtr="ptr (ptr)",
    PyLong_FromLong="ptr (i64)",
    PyEval_SaveThread="ptr ()",
    PyEval_RestoreThread="void (ptr)",
)


def record(block: int, launch: int) -> None:
    """Record the tasks of a prepared launch that have workgroups.

    Leave the launch to Python if no command buffer can take it: the next one must be waited for, or the open one is full.
    """
    words = i64[launch + STREAM]
    if i64[words + COMMANDS] == 0 and i64[words + READY] != 0:
        open_ready(words)
    if i64[words + COMMANDS] == 0 or i64[words + RECORDED] >= BATCH:
        copy(i64[launch + BLOCK], block, i64[launch + NBYTES])
        i64[launch + FAILED] = 1
        return
    commands = i64[words + COMMANDS]
    flight = i64[words + FLIGHT]
    if flight != 0 and i64[flight + LAST] != i64[launch + TEXT]:
        i64[flight + 8 * (i64[flight + COUNT] & (FLIGHT_TEXTS - 1))] = i64[launch + TEXT]
        i64[flight + LAST] = i64[launch + TEXT]
        i64[flight + COUNT] = i64[flight + COUNT] + 1
    if i64[launch + NBYTES] != 0:
        call(i64[words + PUSH], commands, i64[words + LAYOUT], i64[words + SHADER_STAGE], 0, i64[launch + NBYTES], block)
    for k in range(i64[launch + TASKS]):
        _dispatch(words, commands, launch + FIRST_TASK + TASK_BYTES * k)


def open_ready(words: int) -> None:
    """Make the command buffer that is ready the open one."""
    i64[words + COMMANDS] = i64[words + READY]
    i64[words + READY] = 0
    i64[words + RECORDED] = 0
    i64[words + BOUND] = 0


def _dispatch(words: int, commands: int, task: int) -> None:
    if i64[task + GROUPS] == 0:
        return
    stages = i64[words + STAGES]
    call(i64[words + ORDER], commands, stages, stages, 0, 1, i64[words + BARRIER], 0, 0, 0, 0)
    if i64[words + BOUND] != i64[task + PIPELINE]:
        call(i64[words + BIND], commands, i64[words + BIND_POINT], i64[task + PIPELINE])
        i64[words + BOUND] = i64[task + PIPELINE]
    call(i64[words + DISPATCH], commands, i64[task + GROUPS], 1, 1)
    i64[words + RECORDED] = i64[words + RECORDED] + 1


def finish(owner: int, none: int) -> int:
    """Submit the open command buffer, if any, begin the next one while the device works, and poll the timeline.

    ``owner``: the address of the words of the stream. Returns the call that failed, or 0.
    """
    words = python.PyLong_AsVoidPtr(owner)
    thread = python.PyEval_SaveThread()
    outcome = _finish(words)
    python.PyEval_RestoreThread(thread)
    return python.PyLong_FromLong(outcome)


def _finish(words: int) -> int:
    commands = i64[words + COMMANDS]
    if commands != 0:
        i64[words + COMMANDS] = 0
        call(i64[words + ORDER], commands, i64[words + STAGES], i64[words + HOST_STAGE], 0, 1, i64[words + HOST_BARRIER], 0, 0, 0, 0)
        if _fails(words, call(i64[words + END], commands)):
            return ENDING
        if _fails(words, call(i64[words + SUBMIT], i64[words + QUEUE], 1, i64[words + SUBMISSION], 0)):
            return SUBMITTING
        following = i64[words + FOLLOWING]
        if following != 0 and not _fails(words, call(i64[words + BEGIN], following, i64[words + BEGIN_INFO])):
            i64[words + READY] = following
    return _poll(words)


def _poll(words: int) -> int:
    end = now() + i64[words + POLL]
    if _reading_fails(words):
        return READING
    while i64[i64[words + COUNTER]] < i64[words + VALUE] and now() < end:
        if _reading_fails(words):
            return READING
    return 0


def _reading_fails(words: int) -> bool:
    return _fails(words, call(i64[words + READ_COUNTER], i64[words + DEVICE], i64[words + SEMAPHORE], i64[words + COUNTER]))


def _fails(words: int, result: int) -> bool:
    """Store a VkResult, and return whether it is an error."""
    i32[words + RESULT] = result
    return result & _NEGATIVE != 0
