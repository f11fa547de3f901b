"""The steps of launches of a tape that follows a sequence (see `base.launch_cursor`), beside those of `step_code`."""

from __future__ import annotations

from spirograd.base.launch_cursor import (
    ALLOWED,
    ASKS,
    CALLS,
    COPIES,
    COUNT,
    DONE,
    END,
    EQUAL,
    GAP_BEGIN,
    GAP_END,
    KEY,
    KIND,
    SAME,
    STEP_BYTES,
    STEPS,
    THREAD,
)
from spirograd.llvmgen.word_functions import copy, i64
from spirograd.runtime.native.state import ARGUMENTS, linked, python

_EQUAL = 2  # Py_EQ


def next_step(s: int, a: int, b: int, c: int) -> bool:
    """Check that the call is the next step of the cursor a, by the thread of its tape, and is of the kind b."""
    done = i64[a + DONE]
    if i64[a + THREAD] != python.PyThreadState_Get() or done >= i64[a + COUNT]:
        return False
    step = i64[a + STEPS] + STEP_BYTES * done
    if i64[step + KIND] != b or (i64[step + ASKS] != 0 and i64[a + ALLOWED] != done):
        return False
    return _is_alike(s, i64[step + KEY])


def _is_alike(s: int, key: int) -> bool:
    """Return whether the arguments of the call are those of a step."""
    for k in range(i64[key]):
        kind = i64[key + 8 + 16 * k]
        word = i64[key + 16 + 16 * k]
        argument = python.PyTuple_GetItem(i64[s + ARGUMENTS], k)
        if kind == EQUAL and argument != word and python.PyObject_RichCompareBool(argument, word, _EQUAL) != 1:
            return False
        if kind == SAME and argument != word:
            return False
    return True


def begin_step(s: int, a: int, b: int, c: int) -> bool:
    """Keep the arguments of the call, and make the copies of the next step of the cursor a, unless another thread has written to memory."""
    tick = _tick()
    if tick < 0:
        return False
    end = i64[a + END]
    if tick != i64[end]:
        _part(a, tick, tick)
        return False
    i64[end] = tick + 1
    if python.PyList_Append(i64[a + CALLS], i64[s + ARGUMENTS]) != 0:
        return False
    copies = i64[i64[a + STEPS] + STEP_BYTES * i64[a + DONE] + COPIES]
    for k in range(i64[copies]):
        copy(i64[copies + 8 + 24 * k], i64[copies + 16 + 24 * k], i64[copies + 24 + 24 * k])
    return True


def end_step(s: int, a: int, b: int, c: int) -> bool:
    """Advance the cursor a, and check that nothing but the launch has taken ticks: b of them, and one for this step."""
    i64[a + DONE] = i64[a + DONE] + 1
    tick = _tick()
    if tick < 0:
        return False
    end = i64[a + END]
    if tick - b != i64[end]:
        _part(a, tick - b, tick)
        return True
    i64[end] = tick + 1
    return True


def _part(cursor: int, first: int, last: int) -> None:
    """Follow the sequence no longer, because another thread has taken ticks before ``first``; the own ones are up to ``last``."""
    end = i64[cursor + END]
    i64[cursor + GAP_BEGIN] = i64[end]
    i64[cursor + GAP_END] = first
    i64[cursor + THREAD] = 0
    i64[end] = last + 1


def _tick() -> int:
    """Return the next tick; -1 with an exception."""
    number = python.PyObject_CallNoArgs(linked.sg_next)
    if number == 0:
        return -1
    tick = python.PyLong_AsLongLong(number)
    python.Py_DecRef(number)
    return tick
