"""The reverse pass of a tape that has followed a sequence of launches (see `base.reverse_walk`): one call runs its launches.

It is a built-in function (METH_O) of the address of a walk. Steps whose argument block is the same for every tape keep it, and their
launches are a call of the kernel each. Other steps launch by their record, as `launch_code` does.
"""

from __future__ import annotations

from spirograd.base.reverse_walk import (
    ARGUMENTS,
    BY_PYTHON,
    COPIED,
    FIXED,
    HAS_LAUNCHED,
    LEAST,
    LEFT,
    MODE,
    NO_LAUNCH,
    NUMBER,
    PACKED,
    PENDING,
    RECORD,
    RESTORED,
    STEP_BLOCK,
    STEP_BYTES,
    STEPS,
    TICKS,
)
from spirograd.llvmgen.word_functions import call, copy, i64, stack
from spirograd.runtime.native import launch_code
from spirograd.runtime.native.launch_code import (
    BEFORE,
    BLOCK_BYTES,
    CONTEXT,
    COUNT,
    FUNCTION,
    TEMPLATE,
    differs,
    holds,
    launched,
    walk_steps,
)
from spirograd.runtime.native.state import MOST_BLOCK_BYTES, STATE_BYTES, begin, drop, linked, python, set_tick

_FAILED, _DONE, _REFUSED = 0, 1, 2
_NEXT = launch_code.NEXT


def reverse(owner: int, address: int) -> int:
    """Run the launches of a walk, the last one first, down to its ``LEAST``. Return None, or NotImplemented before a launch that Python
    does; then ``HAS_LAUNCHED`` makes the next call go on behind it."""
    walk = python.PyLong_AsLongLong(address)
    s = stack(STATE_BYTES)
    block = stack(MOST_BLOCK_BYTES)
    result = linked.py_none
    while result == linked.py_none and i64[walk + LEFT] > i64[walk + LEAST]:
        k = i64[walk + LEFT] - 1
        step = i64[walk + STEPS] + STEP_BYTES * k
        outcome = _DONE
        if i64[walk + HAS_LAUNCHED] == 0:
            _copy(walk, i64[step + COPIED])
            outcome = _launch(s, walk, step, python.PyList_GetItem(i64[walk + ARGUMENTS], k), block)
        if outcome == _FAILED:
            return 0
        if outcome == _REFUSED:
            result = linked.py_refused
        else:
            _copy(walk, i64[step + RESTORED])
            i64[walk + HAS_LAUNCHED] = 0
            i64[walk + LEFT] = k
    if not _note_writes(walk):
        return 0
    python.Py_IncRef(result)
    return result


def _copy(walk: int, copies: int) -> None:
    for k in range(i64[copies]):
        copy(i64[copies + 8 + 24 * k], i64[copies + 16 + 24 * k], i64[copies + 24 + 24 * k])
        i64[walk + PENDING] = 1


def _note_writes(walk: int) -> bool:
    """Give all memory that the walk writes new generations, unless there was none since the last time."""
    if i64[walk + PENDING] == 0:
        return True
    i64[walk + PENDING] = 0
    ticks = i64[walk + TICKS]
    for k in range(i64[ticks]):  # noqa: SIM110
        if not set_tick(i64[ticks + 8 + 16 * k], i64[ticks + 16 + 16 * k]):
            return False
    return True


def _launch(s: int, walk: int, step: int, args: int, block: int) -> int:
    """Do the launch of a step. Returns `_DONE`, `_REFUSED` if Python must do it, or `_FAILED` with an exception."""
    mode = i64[step + MODE]
    if mode == NO_LAUNCH:
        return _DONE
    if mode == BY_PYTHON:
        return _REFUSED
    record = python.PyBytes_AsString(i64[step + RECORD])
    if not holds(record) or i64[record + COUNT] != python.PyTuple_Size(args):
        return _REFUSED
    if mode == FIXED:
        if not _pack(s, record, args, block):
            return _refused(s)
        drop(s)
        copy(i64[step + STEP_BLOCK], block, i64[record + BLOCK_BYTES])
        i64[step + MODE] = PACKED
    if mode >= FIXED:
        return _call(walk, record, i64[step + NUMBER], i64[step + STEP_BLOCK])
    if not _note_writes(walk):
        return _FAILED
    begin(s, args, block)
    copy(block, record + i64[record + TEMPLATE], i64[record + BLOCK_BYTES])
    outcome = launched(s, block, record)
    if outcome == _NEXT:
        return _REFUSED
    python.Py_DecRef(outcome)
    return outcome != 0


def _pack(s: int, record: int, args: int, block: int) -> bool:
    """Complete an argument block by the steps of a record. Return whether all succeeded."""
    begin(s, args, block)
    copy(block, record + i64[record + TEMPLATE], i64[record + BLOCK_BYTES])
    return walk_steps(s, record + BEFORE)


def _refused(s: int) -> int:
    """Return that Python must do a launch, or that there was an interrupt."""
    if differs(s) == _NEXT:
        return _REFUSED
    return _FAILED


def _call(walk: int, record: int, number: int, block: int) -> int:
    """Call a kernel with a complete block, under the next number of a launch."""
    taken = python.PyObject_CallNoArgs(number)
    python.Py_DecRef(taken)
    if taken == 0:
        return _FAILED
    i64[walk + PENDING] = 1
    thread = python.PyEval_SaveThread()
    call(i64[record + FUNCTION], block, i64[record + CONTEXT])
    python.PyEval_RestoreThread(thread)
    return _DONE
