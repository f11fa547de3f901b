"""The function that launches kernels by records, for all kernels: it runs lists of steps that Python writes.

It is a built-in function (METH_O): ``args`` is the tuple of the arguments of a call. ``owner`` is a tuple whose first item, bytes, contains
records one after the other, each for launches of one kind, and then a word 0. The first record whose steps all succeed launches its kernel,
and the call returns the result. If no record fits, the call returns NotImplemented without any effect, and Python runs the launch or raises
the error. So a step may fail for any reason, with an exception or without.

A step is four words: the address of a function of `step_code`, and its operands; address 0 ends a list. Only functions of Python's C API
are called, none of which assumes the layout of an object. References that are needed after the launch are held meanwhile: without the GIL,
other threads may change anything.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import call, copy, i64, stack
from spirograd.runtime.native.state import MOST_BLOCK_BYTES, RESULT, STATE_BYTES, begin, drop, linked, python

# The words of a record, by byte offset; ``LOCKED``, ``AFTER`` and ``TEMPLATE`` are offsets in it. Then follow the steps before the launch,
# the steps under the outer lock, the steps after the launch, and an argument block, which the steps complete.
(
    NBYTES, EPOCH, SUSPENSIONS, COUNT, BLOCK_BYTES, FUNCTION, CONTEXT, OUTER_ACQUIRE, OUTER_RELEASE, ACQUIRE, RELEASE, LOCKED, AFTER,
    TEMPLATE, BEFORE,
) = range(0, 120, 8)  # fmt: skip
STEP_BYTES = 32
NEXT = 1  # In place of a result: the record does not fit.


def launch(owner: int, args: int) -> int:
    s = stack(STATE_BYTES)
    block = stack(MOST_BLOCK_BYTES)
    begin(s, args, block)
    count = python.PyTuple_Size(args)
    record = python.PyBytes_AsString(python.PyTuple_GetItem(owner, 0))
    while i64[record + NBYTES] != 0:
        if holds(record) and i64[record + COUNT] == count:
            copy(block, record + i64[record + TEMPLATE], i64[record + BLOCK_BYTES])
            outcome = launched(s, block, record)
            if outcome != NEXT:
                return outcome
        record = record + i64[record + NBYTES]
    python.Py_IncRef(linked.py_refused)
    return linked.py_refused


def launched(s: int, block: int, record: int) -> int:
    """Launch by a record. Returns the result, `NEXT`, or 0 with an exception."""
    if not walk_steps(s, record + BEFORE):
        return differs(s)
    if not _take(i64[record + OUTER_ACQUIRE]):
        return _failed(s)
    if not walk_steps(s, record + i64[record + LOCKED]):
        _give(i64[record + OUTER_RELEASE])
        return differs(s)
    if not _take(i64[record + ACQUIRE]):
        _give(i64[record + OUTER_RELEASE])
        return _failed(s)
    if not holds(record):  # Other threads may have changed the state while this thread waited for the locks.
        _give(i64[record + RELEASE])
        _give(i64[record + OUTER_RELEASE])
        return differs(s)
    thread = python.PyEval_SaveThread()
    call(i64[record + FUNCTION], block, i64[record + CONTEXT])
    python.PyEval_RestoreThread(thread)
    good = walk_steps(s, record + i64[record + AFTER])
    _give(i64[record + RELEASE])
    _give(i64[record + OUTER_RELEASE])
    drop(s)
    if not good:
        return _failed(s)
    if i64[s + RESULT] == 0:
        python.Py_IncRef(linked.py_none)
        return linked.py_none
    return i64[s + RESULT]


def differs(s: int) -> int:
    """Go on to the next record: clear errors, and return 0 for interrupts."""
    drop(s)
    if python.PyErr_Occurred() != 0 and python.PyErr_ExceptionMatches(linked.py_exception) == 0:
        return 0
    python.PyErr_Clear()
    return NEXT


def _failed(s: int) -> int:
    drop(s)
    python.Py_DecRef(i64[s + RESULT])
    return 0


def walk_steps(s: int, first: int) -> bool:
    """Run the steps of a list. Return whether all succeeded."""
    step = first
    while i64[step] != 0:
        if call(i64[step], s, i64[step + 8], i64[step + 16], i64[step + 24]) & 1 == 0:
            return False
        step = step + STEP_BYTES
    return True


def holds(record: int) -> bool:
    """Return whether the epoch of a record is the current one, and as many `validity.suspend` calls are open as for the record."""
    return i64[linked.sg_validity] == i64[record + EPOCH] and i64[linked.sg_validity + 8] == i64[record + SUSPENSIONS]


def _take(acquire: int) -> bool:
    """Acquire a lock by its method; 0 is no lock. Return whether that succeeded."""
    if acquire == 0:
        return True
    taken = python.PyObject_CallNoArgs(acquire)
    python.Py_DecRef(taken)
    return taken != 0


def _give(release: int) -> None:
    """Release a lock by its method; 0 is no lock. A pending exception stays set."""
    error = stack(24)
    if release != 0:
        python.PyErr_Fetch(error, error + 8, error + 16)
        python.Py_DecRef(python.PyObject_CallNoArgs(release))
        python.PyErr_Restore(i64[error], i64[error + 8], i64[error + 16])
