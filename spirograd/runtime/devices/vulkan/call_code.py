"""Launches and waits on a stream of Vulkan, for code that is compiled for this machine: see `call`, and `word_functions`.

A stream has 64-bit words, which Python and this code share. Among them are the addresses of the driver's functions: devices differ in them,
so they are called by address. A prepared launch has words, too, then the tasks, a pipeline and a number of workgroups each, then memory for
the argument block of a launch that Python has to do.

Launches are written to a log first. When the host waits, a complete command buffer that was recorded from an equal log is submitted again,
if there is one. This saves the recording, which takes drivers microseconds.
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
    COMPLETED,
    COUNTER,
    CURRENT,
    DEVICE,
    DISPATCH,
    END,
    ENDING,
    FAILED,
    FIRST_SLOT,
    FIRST_TASK,
    FLIGHT,
    FOLLOWING,
    GROUPS,
    HANDLE,
    HOST_BARRIER,
    HOST_STAGE,
    LAYOUT,
    LOG,
    LOG_BYTES,
    LOGGED,
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
    SLOT_BYTES,
    SLOT_LOG,
    SLOT_LOGGED,
    SLOTS,
    STAGES,
    STREAM,
    SUBMISSION,
    SUBMIT,
    SUBMITTING,
    TASK_BYTES,
    TASKS,
    TEXT,
    VALUE,
    VALUE_OF_SLOT,
)

_NEGATIVE = 0x80000000

python = Functions(
    PyLong_AsVoidPtr="ptr (ptr)",
    PyLong_FromLong="ptr (i64)",
    PyEval_SaveThread="ptr ()",
    PyEval_RestoreThread="void (ptr)",
)


def record(block: int, launch: int) -> None:
    """Append a prepared launch to the log, or record its tasks after other work.

    Leave the launch to Python if no command buffer can take it: the next one must be waited for, or the open one is full.
    """
    words = i64[launch + STREAM]
    if i64[words + COMMANDS] == 0 and i64[words + READY] != 0:
        open_ready(words)
    if i64[words + COMMANDS] == 0 or i64[words + RECORDED] >= BATCH:
        copy(i64[launch + BLOCK], block, i64[launch + NBYTES])
        i64[launch + FAILED] = 1
        return
    flight = i64[words + FLIGHT]
    if flight != 0 and i64[flight + LAST] != i64[launch + TEXT]:
        i64[flight + 8 * (i64[flight + COUNT] & (FLIGHT_TEXTS - 1))] = i64[launch + TEXT]
        i64[flight + LAST] = i64[launch + TEXT]
        i64[flight + COUNT] = i64[flight + COUNT] + 1
    logged = i64[words + LOGGED]
    alone = i64[words + RECORDED] == 0 or logged != 0
    i64[words + RECORDED] = i64[words + RECORDED] + i64[launch + TASKS]
    if alone and logged + 8 + i64[launch + NBYTES] <= LOG_BYTES:
        i64[words + LOG + logged] = launch
        copy(words + LOG + logged + 8, block, i64[launch + NBYTES])
        i64[words + LOGGED] = logged + 8 + i64[launch + NBYTES]
        return
    record_log(words)
    _record_tasks(words, launch, block)


def record_logged(owner: int, none: int) -> int:
    """Record the launches of the log. ``owner``: the address of the words of the stream."""
    record_log(python.PyLong_AsVoidPtr(owner))
    return python.PyLong_FromLong(0)


def record_log(words: int) -> None:
    """Record the launches of the log, which is then empty."""
    at = words + LOG
    end = at + i64[words + LOGGED]
    while at < end:
        _record_tasks(words, i64[at], at + 8)
        at = at + 8 + i64[i64[at] + NBYTES]
    i64[words + LOGGED] = 0


def _record_tasks(words: int, launch: int, block: int) -> None:
    if i64[launch + NBYTES] != 0:
        size = i64[launch + NBYTES]
        call(i64[words + PUSH], i64[words + COMMANDS], i64[words + LAYOUT], i64[words + SHADER_STAGE], 0, size, block)
    for k in range(i64[launch + TASKS]):
        _dispatch(words, i64[words + COMMANDS], launch + FIRST_TASK + TASK_BYTES * k)


def open_ready(words: int) -> None:
    """Make the command buffer that is ready the open one."""
    i64[words + COMMANDS] = i64[words + READY]
    i64[words + READY] = 0
    i64[words + RECORDED] = 0
    i64[words + BOUND] = 0


def _dispatch(words: int, commands: int, task: int) -> None:
    stages = i64[words + STAGES]
    call(i64[words + ORDER], commands, stages, stages, 0, 1, i64[words + BARRIER], 0, 0, 0, 0)
    if i64[words + BOUND] != i64[task + PIPELINE]:
        call(i64[words + BIND], commands, i64[words + BIND_POINT], i64[task + PIPELINE])
        i64[words + BOUND] = i64[task + PIPELINE]
    call(i64[words + DISPATCH], commands, i64[task + GROUPS], 1, 1)


def finish(owner: int, none: int) -> int:
    """Submit the open command buffer, if any, or an equal one; begin the next one while the device works, and poll the timeline.

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
        equal = _equal_slot(words)
        if equal != 0:
            i64[words + READY] = commands
            i64[words + COMMANDS] = 0
            i64[words + LOGGED] = 0
            if _submission_fails(words, equal):
                return SUBMITTING
            return _poll(words)
        slot = i64[words + CURRENT]
        i64[slot + SLOT_LOGGED] = i64[words + LOGGED]
        copy(slot + SLOT_LOG, words + LOG, i64[words + LOGGED])
        record_log(words)
        i64[words + COMMANDS] = 0
        call(i64[words + ORDER], commands, i64[words + STAGES], i64[words + HOST_STAGE], 0, 1, i64[words + HOST_BARRIER], 0, 0, 0, 0)
        if _fails(words, call(i64[words + END], commands)):
            return ENDING
        if _submission_fails(words, slot):
            return SUBMITTING
        following = i64[words + FOLLOWING]
        if following != 0:
            i64[following + SLOT_LOGGED] = 0
            if not _fails(words, call(i64[words + BEGIN], i64[following + HANDLE], i64[words + BEGIN_INFO])):
                i64[words + READY] = i64[following + HANDLE]
    return _poll(words)


def _equal_slot(words: int) -> int:
    """Return the address of a slot whose command buffer is complete and was recorded from an equal log, or 0."""
    equal = 0
    if i64[words + LOGGED] != 0:
        for k in range(SLOTS):
            slot = words + FIRST_SLOT + SLOT_BYTES * k
            complete = i64[slot + VALUE_OF_SLOT] <= i64[words + COMPLETED]
            if complete and i64[slot + SLOT_LOGGED] == i64[words + LOGGED] and _same(slot + SLOT_LOG, words + LOG, i64[words + LOGGED]):
                equal = slot
    return equal


def _same(a: int, b: int, nbytes: int) -> bool:
    """Return whether bytes are equal; their number is a multiple of 4."""
    at = 0
    while at < nbytes and i32[a + at] == i32[b + at]:
        at = at + 4
    return at >= nbytes


def _submission_fails(words: int, slot: int) -> bool:
    i64[slot + VALUE_OF_SLOT] = i64[words + VALUE]
    return _fails(words, call(i64[words + SUBMIT], i64[words + QUEUE], 1, i64[slot + SUBMISSION], 0))


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
