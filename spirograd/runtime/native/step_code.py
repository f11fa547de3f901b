"""The steps of prepared launches, of which `launch_code` runs lists.

Each takes the state of the call and three operands; objects are given by address, places in the argument block by offset. A step works on
the argument block, and on one current object: `argument` and `member` set it, other steps compare it or store its contents. The words of an
array are those of `launch_preparation.packed` for an ndarray, and those of the buffer for a NumPy array. A step that returns False ends the
list.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import f32, f64, i32, i64, u16, u32
from spirograd.runtime.native.state import (
    ARGUMENTS,
    BLOCK,
    BUFFER_BYTES,
    BUFFERS,
    CURRENT,
    HELD_BUFFERS,
    HELD_OBJECTS,
    NUMBER,
    RESULT,
    SPANS,
    WORDS,
    become,
    hold,
    linked,
    python,
    set_tick,
)

# PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS; the offsets in a Py_buffer, after the address of the elements.
_BUFFER_FLAGS = 0x3D
_LENGTH, _DIMENSIONS, _FORMAT, _SHAPE = 16, 36, 40, 48
_ELEMENTS = 8  # The offset of the number of elements in the words of an ndarray, see `array_words.packed`.
_EQUAL = 2  # Py_EQ


def _is_exactly(value: int, kind: int) -> bool:
    own = python.PyObject_Type(value)
    python.Py_DecRef(own)
    return own == kind


def _is_fine() -> bool:
    """Return whether there is no exception."""
    return python.PyErr_Occurred() == 0


def _read_integer(s: int, least: int, most: int) -> bool:
    """Return whether the current object is an int within the limits, which becomes the number."""
    current = i64[s + CURRENT]
    if not _is_exactly(current, linked.py_int):
        return False
    value = python.PyLong_AsLongLong(current)
    i64[s + NUMBER] = value
    return value >= least and value <= most and (value != -1 or _is_fine())


def _read_float(s: int) -> bool:
    """Return whether the current object is a float or an int, which becomes the number."""
    current = i64[s + CURRENT]
    if not _is_exactly(current, linked.py_float) and not _is_exactly(current, linked.py_int):
        return False
    f64[s + NUMBER] = python.PyFloat_AsDouble(current)
    return _is_fine()


# --- the current object ------------------------------------------------------------------------------------------------------


def argument(s: int, a: int, b: int, c: int) -> bool:
    """Make argument number a the current object."""
    item = python.PyTuple_GetItem(i64[s + ARGUMENTS], a)
    python.Py_IncRef(item)
    become(s, item)
    return True


def member(s: int, a: int, b: int, c: int) -> bool:
    """Make the attribute with the name a of the current object the current object."""
    become(s, python.PyObject_GetAttr(i64[s + CURRENT], a))
    return i64[s + CURRENT] != 0


def given(s: int, a: int, b: int, c: int) -> bool:
    """Make the object a the current object."""
    python.Py_IncRef(a)
    become(s, a)
    return True


def entry(s: int, a: int, b: int, c: int) -> bool:
    """Make entry a of the current object, a sequence, the current object."""
    become(s, python.PySequence_GetItem(i64[s + CURRENT], a))
    return i64[s + CURRENT] != 0


def same(s: int, a: int, b: int, c: int) -> bool:
    """Check that the current object is the object a."""
    return i64[s + CURRENT] == a


def equal(s: int, a: int, b: int, c: int) -> bool:
    """Check that the current object has the type b, and is equal to the object a."""
    return _is_exactly(i64[s + CURRENT], b) and python.PyObject_RichCompareBool(i64[s + CURRENT], a, _EQUAL) == 1


def ask(s: int, a: int, b: int, c: int) -> bool:
    """Check that the object a, called with the current object, returns True."""
    answer = python.PyObject_CallFunctionObjArgs(a, i64[s + CURRENT], 0)
    python.Py_DecRef(answer)
    return answer == linked.py_true


# --- numbers -----------------------------------------------------------------------------------------------------------------


def integer32(s: int, a: int, b: int, c: int) -> bool:
    """Check that the current object is an int from a to b, and store it at c."""
    fits = _read_integer(s, a, b)
    i32[i64[s + BLOCK] + c] = i64[s + NUMBER]
    return fits


def integer64(s: int, a: int, b: int, c: int) -> bool:
    """Check and store an int like `integer32`, with 64 bits."""
    fits = _read_integer(s, a, b)
    i64[i64[s + BLOCK] + c] = i64[s + NUMBER]
    return fits


def float32(s: int, a: int, b: int, c: int) -> bool:
    """Check that the current object is a float or an int, and store it at a."""
    fits = _read_float(s)
    f32[i64[s + BLOCK] + a] = f64[s + NUMBER]
    return fits


def float64(s: int, a: int, b: int, c: int) -> bool:
    """Check and store a float like `float32`, with 64 bits."""
    fits = _read_float(s)
    f64[i64[s + BLOCK] + a] = f64[s + NUMBER]
    return fits


def boolean(s: int, a: int, b: int, c: int) -> bool:
    """Check that the current object is a bool, and store it at a."""
    i32[i64[s + BLOCK] + a] = i64[s + CURRENT] == linked.py_true
    return i64[s + CURRENT] == linked.py_true or i64[s + CURRENT] == linked.py_false


# --- arrays ------------------------------------------------------------------------------------------------------------------


def array(s: int, a: int, b: int, c: int) -> bool:
    """Make the attribute with the name a, a tuple from `packed`, the current object, and check that its words begin with b."""
    known = python.PyObject_GetAttr(i64[s + CURRENT], a)
    become(s, known)
    if known == 0:
        return False
    packed = python.PyTuple_GetItem(known, 0)
    if packed == 0:
        return False
    start = python.PyBytes_AsString(packed)
    i64[s + WORDS] = start
    return start != 0 and i64[start] == b


def buffer(s: int, a: int, b: int, c: int) -> bool:
    """Check the type a of the current object, and get its buffer, whose words become the current words.

    The buffer must be contiguous, aligned to its elements, not empty, and have at most c bytes. b: the number of dimensions, the two bytes
    of the format, and the bytes of an element, of 16 bits each.
    """
    if not _is_exactly(i64[s + CURRENT], a):
        return False
    at = s + HELD_BUFFERS + BUFFER_BYTES * i64[s + BUFFERS]
    if python.PyObject_GetBuffer(i64[s + CURRENT], at, _BUFFER_FLAGS) != 0:
        return False
    i64[s + BUFFERS] = i64[s + BUFFERS] + 1
    i64[s + WORDS] = at
    is_aligned = i64[at] & ((b >> 32) - 1) == 0
    if u32[at + _DIMENSIONS] | (u16[i64[at + _FORMAT]] << 16) != b & 0xFFFFFFFF:
        return False
    return is_aligned and i64[at + _LENGTH] > 0 and i64[at + _LENGTH] <= c


def shape(s: int, a: int, b: int, c: int) -> bool:
    """Replace the current words by the extents of the buffer."""
    i64[s + WORDS] = i64[i64[s + WORDS] + _SHAPE]
    return True


def extent(s: int, a: int, b: int, c: int) -> bool:
    """Check that the word at byte a of the current words is b."""
    return i64[i64[s + WORDS] + a] == b


def word32(s: int, a: int, b: int, c: int) -> bool:
    """Store the word at byte a of the current words at b."""
    i32[i64[s + BLOCK] + b] = i32[i64[s + WORDS] + a]
    return True


def address(s: int, a: int, b: int, c: int) -> bool:
    """Store 64 bits like `word32`, and check that they are not 0."""
    word = i64[i64[s + WORDS] + a]
    i64[i64[s + BLOCK] + b] = word
    return word != 0


def held(s: int, a: int, b: int, c: int) -> bool:
    """Hold item a of the current object, a tuple from `packed`, until the launch is complete."""
    item = python.PyTuple_GetItem(i64[s + CURRENT], a)
    if item == 0:
        return False
    hold(s, item)
    return True


def span(s: int, a: int, b: int, c: int) -> bool:
    """Store the span number c, of an ndarray: its address is at byte a of the current words, and its elements have b bytes."""
    return known_span(s, i64[i64[s + WORDS] + a], i64[i64[s + WORDS] + a] + b * i64[i64[s + WORDS] + _ELEMENTS], c)


def buffer_span(s: int, a: int, b: int, c: int) -> bool:
    """Store the span number c, of the buffer whose words are the current ones."""
    return known_span(s, i64[i64[s + WORDS]], i64[i64[s + WORDS]] + i64[i64[s + WORDS] + _LENGTH], c)


def known_span(s: int, a: int, b: int, c: int) -> bool:
    """Store the span number c, from address a to b."""
    i64[s + SPANS + 16 * c] = a
    i64[s + SPANS + 16 * c + 8] = b
    return True


def overlap(s: int, a: int, b: int, c: int) -> bool:
    """Check that two of a spans overlap if c is 1, and that none do if it is 0. Only pairs count of which one is written, as the bits of b
    say."""
    found = 0
    for k in range(a):
        one = s + SPANS + 16 * k
        for n in range(k):
            other = s + SPANS + 16 * n
            if ((b >> k) | (b >> n)) & 1 != 0 and i64[one] < i64[other + 8] and i64[other] < i64[one + 8]:
                found = 1
    return found == c


# --- unchanged values ----------------------------------------------------------------------------------------------------------


def item(s: int, a: int, b: int, c: int) -> bool:
    """Check that item a of the dictionary b is the object c, or is missing if c is 0."""
    return python.PyDict_GetItem(b, a) == c


def names(s: int, a: int, b: int, c: int) -> bool:
    """Check that the dictionary b has the objects of the table a under its keys, and none where the object is 0.

    In the table, keys and objects alternate after a version and a count. c: the address of the version of the dictionary (0: it has none),
    which saves look-ups while it is equal.
    """
    version = 0
    if c != 0:
        version = i64[c]
        if version == i64[a]:
            return True
    for k in range(i64[a + 8]):
        if python.PyDict_GetItem(b, i64[a + 16 + 16 * k]) != i64[a + 24 + 16 * k]:
            return False
    i64[a] = version
    return True


def words(s: int, a: int, b: int, c: int) -> bool:
    """Check that each word in the table a of b pairs equals the word at the address before it."""
    for k in range(b):  # noqa: SIM110
        if i64[i64[a + 16 * k]] != i64[a + 8 + 16 * k]:
            return False
    return True


# --- the launch, and after it ----------------------------------------------------------------------------------------------------


def number(s: int, a: int, b: int, c: int) -> bool:
    """Call the object a without arguments, make the returned int the current object, and store its low 32 bits at b."""
    become(s, python.PyObject_CallNoArgs(a))
    if i64[s + CURRENT] == 0:
        return False
    i32[i64[s + BLOCK] + b] = python.PyLong_AsLongLong(i64[s + CURRENT])
    return _is_fine()


def result(s: int, a: int, b: int, c: int) -> bool:
    """Call the object a without arguments, and make its result the result of the call."""
    i64[s + RESULT] = python.PyObject_CallNoArgs(a)
    return i64[s + RESULT] != 0


def report(s: int, a: int, b: int, c: int) -> bool:
    """Call the object b with the current object, unless the 32-bit word at address a is 0."""
    if i32[a] == 0:
        return True
    answer = python.PyObject_CallFunctionObjArgs(b, i64[s + CURRENT], 0)
    python.Py_DecRef(answer)
    return answer != 0


def called(s: int, a: int, b: int, c: int) -> bool:
    """Call the object a without arguments."""
    answer = python.PyObject_CallNoArgs(a)
    python.Py_DecRef(answer)
    return answer != 0


def tick(s: int, a: int, b: int, c: int) -> bool:
    """Set item a of the dictionary b to the next number of a write."""
    return set_tick(b, a)


def tick_held(s: int, a: int, b: int, c: int) -> bool:
    """Set an item like `tick`, in the dictionary that is held as number b."""
    return set_tick(i64[s + HELD_OBJECTS + 8 * b], a)
