"""The state of a call that compiled code launches: the offsets of its fields, and the functions that read and change them, for all
steps."""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Addresses, Functions, i64

# The stack frame is smaller than a page: for more, Windows needs a function of its C library.
MOST_BLOCK_BYTES = 2048
MOST_HELD = 32
MOST_BUFFERS = 8
MOST_SPANS = 32
BUFFER_BYTES = 80  # Bytes of a Py_buffer, whose layout is the same in all versions of Python.

# Byte offsets: the tuple of the call; the current object (a reference, or 0); the words of the current array; the argument block; the
# number that was read last; the result of the call (a reference, 0 for None); how many references are held until the launch is done, and
# how many buffers; these.
ARGUMENTS, CURRENT, WORDS, BLOCK, NUMBER, RESULT, HELD, BUFFERS, HELD_OBJECTS = range(0, 72, 8)
HELD_BUFFERS = HELD_OBJECTS + 8 * MOST_HELD
SPANS = HELD_BUFFERS + BUFFER_BYTES * MOST_BUFFERS  # The address and the end of arrays that are compared.
STATE_BYTES = SPANS + 16 * MOST_SPANS

python = Functions(
    Py_IncRef="void (ptr)",
    Py_DecRef="void (ptr)",
    PyBuffer_Release="void (ptr)",
    PyBytes_AsString="ptr (ptr)",
    PyDict_GetItem="ptr (ptr, ptr)",
    PyDict_SetItem="i32 (ptr, ptr, ptr)",
    PyErr_Clear="void ()",
    PyErr_ExceptionMatches="i32 (ptr)",
    PyErr_Fetch="void (ptr, ptr, ptr)",
    PyErr_Occurred="ptr ()",
    PyErr_Restore="void (ptr, ptr, ptr)",
    PyEval_RestoreThread="void (ptr)",
    PyEval_SaveThread="ptr ()",
    PyFloat_AsDouble="double (ptr)",
    PyList_Append="i32 (ptr, ptr)",
    PyList_GetItem="ptr (ptr, i64)",
    PyLong_AsLongLong="i64 (ptr)",
    PyObject_CallFunctionObjArgs="ptr (ptr, ...)",
    PyObject_CallNoArgs="ptr (ptr)",
    PyObject_GetAttr="ptr (ptr, ptr)",
    PyObject_GetBuffer="i32 (ptr, ptr, i32)",
    PyObject_RichCompareBool="i32 (ptr, ptr, i32)",
    PyObject_Type="ptr (ptr)",
    PySequence_GetItem="ptr (ptr, i64)",
    PyThreadState_Get="ptr ()",
    PyTuple_GetItem="ptr (ptr, i64)",
    PyTuple_Size="i64 (ptr)",
)
# Objects, under their names in the code.
OBJECTS = {
    "py_none": None, "py_refused": NotImplemented, "py_true": True, "py_false": False, "py_int": int, "py_float": float,
    "py_exception": Exception,
}  # fmt: skip
# The next number of a write (`generations.tick`); the words of `validity`.
linked = Addresses(*OBJECTS, "sg_next", "sg_validity")


def begin(s: int, args: int, block: int) -> None:
    i64[s + ARGUMENTS] = args
    i64[s + BLOCK] = block
    i64[s + CURRENT] = 0
    i64[s + RESULT] = 0
    i64[s + HELD] = 0
    i64[s + BUFFERS] = 0


def become(s: int, new: int) -> None:
    """Make ``new``, a reference or 0, the current object."""
    old = i64[s + CURRENT]
    i64[s + CURRENT] = new
    python.Py_DecRef(old)


def hold(s: int, value: int) -> None:
    """Keep an object alive until `drop`."""
    python.Py_IncRef(value)
    i64[s + HELD_OBJECTS + 8 * i64[s + HELD]] = value
    i64[s + HELD] = i64[s + HELD] + 1


def drop(s: int) -> None:
    """Release all held references, and the current object."""
    become(s, 0)
    held = i64[s + HELD]
    i64[s + HELD] = 0
    for k in range(held):
        python.Py_DecRef(i64[s + HELD_OBJECTS + 8 * k])
    buffers = i64[s + BUFFERS]
    i64[s + BUFFERS] = 0
    for k in range(buffers):
        python.PyBuffer_Release(s + HELD_BUFFERS + BUFFER_BYTES * k)


def set_tick(dictionary: int, key: int) -> bool:
    """Return whether the item of a dictionary became the next number of a write."""
    tick = python.PyObject_CallNoArgs(linked.sg_next)
    if tick == 0:
        return False
    status = python.PyDict_SetItem(dictionary, key, tick)
    python.Py_DecRef(tick)
    return status == 0
