"""Launches, waits and timed launches, for code that is compiled for a driver: see `call`, and `word_functions`.

A launch of all tasks of a kernel reads 64-bit words: the context; the address of the handle of the stream; the terminator of ``extra``; the
number of tasks; then for each task its function, its group size, its grid (see `grid_limits`: the most workgroups, and those of an unknown
number of iterations), and the iterations that a workgroup runs at a time. A prepared launch has the address of these words, the size of the
block, and the error code of the last launch that failed; for launches that graphs may repeat (see `RepeatedLaunch`), memory for the block
of the last launch, or 0, how many launches in turn had that block, for how many a graph is recorded, and the graph, or 0; then the numbers
of workgroups, of 32 bits each.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Addresses, Functions, call, copy, i32, i64, stack, u32
from spirograd.runtime.devices.gpu.driver import NOT_READY

CONTEXT, STREAM, END, TASKS, HEADER = range(0, 40, 8)
_FUNCTION, _GROUP_SIZE, _MOST, _UNKNOWN, _EACH, _TASK = range(0, 48, 8)
WORDS, NBYTES, FAILED, BLOCK, EQUAL, PATIENCE, GRAPH, GROUPS = range(0, 64, 8)
# In place of an error code: a graph of the launch is to be recorded.
RECORD = 1 << 30
# The two entries of ``extra`` before its end: the argument block and its size.
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
_LOW_WORD = 0xFFFFFFFF

python = Functions(
    PyBytes_AsString="ptr (ptr)",
    PyBytes_Size="i64 (ptr)",
    PyLong_AsVoidPtr="ptr (ptr)",
    PyLong_AsLongLong="i64 (ptr)",
    PyLong_FromLong="ptr (i64)",
    PyTuple_GetItem="ptr (ptr, i64)",
    PyErr_Occurred="ptr ()",
    PyEval_SaveThread="ptr ()",
    PyEval_RestoreThread="void (ptr)",
)
# Functions of the driver, and those of `Driver.switch`.
driver = Functions(
    launch="i32 (ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)",
    event_record="i32 (ptr, ptr)",
    graph_launch="i32 (ptr, ptr)",
    capture_state="i32 (ptr, ptr)",
    sg_enter="i64 (i64)",
    sg_leave="void (i64)",
    sg_forget="void ()",
)
linked = Addresses("sg_none")


def launch(owner: int, args: int, count: int) -> int:
    """Launch all tasks. Return the error code.

    ``owner``: the address of the words. Arguments: the block (bytes), and the numbers of iterations (a tuple of int and None).
    """
    block = python.PyBytes_AsString(i64[args])
    if block == 0:
        return 0
    words = python.PyLong_AsVoidPtr(owner)
    groups = stack(4 * i64[words + TASKS])
    for k in range(i64[words + TASKS]):
        iterations = python.PyTuple_GetItem(i64[args + 8], k)
        if iterations == 0:
            return 0
        needed = _groups(words + HEADER + _TASK * k, iterations)
        if needed < 0:
            return 0
        i32[groups + 4 * k] = needed
    nbytes = python.PyBytes_Size(i64[args])
    thread = python.PyEval_SaveThread()
    code = _launch_all(words, groups, block, nbytes)
    python.PyEval_RestoreThread(thread)
    return python.PyLong_FromLong(code)


def _groups(task: int, iterations: int) -> int:
    """Return the number of workgroups for these iterations, an int or None; return -1 with an exception."""
    if iterations == linked.sg_none:
        return i64[task + _UNKNOWN]
    count = python.PyLong_AsLongLong(iterations)
    if count == -1 and python.PyErr_Occurred() != 0:
        return -1
    if count <= 0:
        return 0
    groups = (count - 1) // i64[task + _EACH] + 1
    if groups > i64[task + _MOST]:
        return i64[task + _MOST]
    return groups


def prepared(block: int, launch: int) -> None:
    """Run a prepared launch, by its graph if that does the same, and store its error code."""
    if i64[launch + BLOCK] != 0 and _is_equal(block, launch) and i64[launch + GRAPH] != 0:
        repeat(block, launch)
        return
    code = _launch_all(i64[launch + WORDS], launch + GROUPS, block, i64[launch + NBYTES])
    if code != 0:
        i64[launch + FAILED] = code


def _is_equal(block: int, launch: int) -> bool:
    """Return whether the last launch had the same block. Ask for a graph after enough of these, and drop it after another block."""
    last = i64[launch + BLOCK]
    nbytes = i64[launch + NBYTES]
    at = 0
    while at < nbytes and i64[block + at] == i64[last + at]:
        at = at + 8
    if at < nbytes:
        copy(last, block, nbytes)
        i64[launch + EQUAL] = 0
        i64[launch + GRAPH] = 0
        return False
    if i64[launch + GRAPH] == 0:
        i64[launch + EQUAL] = i64[launch + EQUAL] + 1
        if i64[launch + EQUAL] == i64[launch + PATIENCE]:
            i64[launch + FAILED] = RECORD
    return True


def repeat(block: int, launch: int) -> None:
    """Launch the graph of a prepared launch, and store the error code. Where another library records the stream, launch the tasks, because
    drivers record no graph in a graph; a graph that has no tasks of its own is left to the driver, which reports the error."""
    words = i64[launch + WORDS]
    entered = driver.sg_enter(i64[words + CONTEXT])
    if entered < 0:
        i64[launch + FAILED] = -entered
        return
    stream = i64[i64[words + STREAM]]
    state = stack(8)
    i64[state] = 0
    code = driver.capture_state(stream, state)
    if code == 0:
        if i64[state] == 0 or i64[words + TASKS] == 0:
            code = driver.graph_launch(i64[launch + GRAPH], stream)
        else:
            code = _launch_all(words, launch + GROUPS, block, i64[launch + NBYTES])
    driver.sg_leave(entered)
    if code != 0:
        i64[launch + FAILED] = code


def timed(block: int, launch: int, stream: int, begin: int, end: int) -> int:
    """Run a prepared launch between two events, in the current context. Return the error code of the events."""
    first = driver.event_record(begin, stream)
    prepared(block, launch)
    second = driver.event_record(end, stream)
    if first != 0:
        return first
    return second


def _launch_all(words: int, groups: int, block: int, nbytes: int) -> int:
    """Launch the tasks that have workgroups.

    An empty block is passed as its terminating zero, because code generators emit no empty parameter.
    """
    size = stack(8)
    i64[size] = nbytes
    if nbytes < 1:
        i64[size] = 1
    extra = stack(40)
    i64[extra] = _BUFFER_POINTER
    i64[extra + 8] = block
    i64[extra + 16] = _BUFFER_SIZE
    i64[extra + 24] = size
    i64[extra + 32] = i64[words + END]
    entered = driver.sg_enter(i64[words + CONTEXT])
    if entered < 0:
        return -entered
    stream = i64[i64[words + STREAM]]
    code = 0
    for k in range(i64[words + TASKS]):
        task = words + HEADER + _TASK * k
        count = u32[groups + 4 * k]
        if code == 0 and count != 0:
            code = driver.launch(i64[task + _FUNCTION], count, 1, 1, i64[task + _GROUP_SIZE], 1, 1, 0, stream, 0, extra)
    driver.sg_leave(entered)
    return code


def enter(owner: int, none: int) -> int:
    """Make the context at the address ``owner`` current; see `call.enterer`."""
    return python.PyLong_FromLong(driver.sg_enter(python.PyLong_AsVoidPtr(owner)))


def wait(owner: int, handle: int) -> int:
    """Query a handle until it is complete, and return the last code.

    ``owner``: the address of three words: the driver's function, the context, and the most queries.
    """
    queried = python.PyLong_AsVoidPtr(handle)
    words = python.PyLong_AsVoidPtr(owner)
    thread = python.PyEval_SaveThread()
    code = _query(i64[words], queried, i64[words + 8], i64[words + 16])
    python.PyEval_RestoreThread(thread)
    return python.PyLong_FromLong(code)


def _query(function: int, handle: int, context: int, times: int) -> int:
    entered = driver.sg_enter(context)
    if entered < 0:
        return -entered
    code = call(function, handle) & _LOW_WORD
    queries = 1
    while code == NOT_READY and queries < times:
        code = call(function, handle) & _LOW_WORD
        queries = queries + 1
    if queries > 1 or code != 0:
        driver.sg_forget()
    driver.sg_leave(entered)
    return code
